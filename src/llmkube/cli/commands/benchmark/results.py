"""Figures of a benchmark: percentiles, rates, errors by kind, and the comparison of two runs. Pure.

Definitions: the time to the first token, and the latency, start at the intended arrival of a request, so that a request
that starts late because others are slow counts its wait (no coordinated omission). The first token is the first chunk
with text, of the answer or of its reasoning. The time between tokens is that between chunks with text; the tokens per
second of a request are those after the first chunk.
"""

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import attrs

PERCENTILES: Final = (50, 90, 95, 99)
TIMES: Final = {"timeToFirstToken": "first token", "timeBetweenTokens": "between tokens", "latency": "whole answer"}
METRICS: Final = {**TIMES, "tokensPerSecond": "tokens/s each"}
RESAMPLES: Final = 1000
LEAST_SECONDS: Final = 1e-4
"""Lower bound of compared times: the resolution of this program."""
FORMAT: Final = 1
"""Version of the JSON data."""


@attrs.frozen
class Answer:
    """One request; times are in seconds.

    Attributes:
        late: Time between its intended and its real start.
        first: Time from the intended start to the first token.
        gaps: Times between chunks with text.
        latency: Time from the intended start to the end.
        prompt_tokens: Its prompt's tokens, as the server reports them; 0 if it does not.
        answer_tokens: Its answer's tokens; chunks with text if the server reports none.
        is_reported: Whether the server has reported the number of tokens.
        error: Kind of its failure; "" if it succeeded.
        detail: Message of the failure.
    """

    late: float
    latency: float
    first: float = 0.0
    gaps: tuple[float, ...] = ()
    prompt_tokens: int = 0
    answer_tokens: int = 0
    is_reported: bool = False
    error: str = ""
    detail: str = ""


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile, interpolated between the two nearest values; the values must not be empty."""
    ordered, place = sorted(values), (len(values) - 1) * percent / 100
    low = int(place)
    return ordered[low] + (ordered[min(low + 1, len(ordered) - 1)] - ordered[low]) * (place - low)


def spread(values: Sequence[float], *, is_rate: bool = False) -> dict[str, float] | None:
    """Return mean and percentiles, for a rate those of the slower side: 95 % reach its p95; None without values."""
    if not values:
        return None
    found = {f"p{each}": percentile(values, 100 - each if is_rate else each) for each in PERCENTILES}
    return {"mean": sum(values) / len(values), **found}


def summarize(load: Mapping[str, Any], answers: Sequence[Answer], seconds: float, client: Mapping[str, Any]) -> Any:
    """Return the figures of one load as JSON data.

    Args:
        load: Its `concurrency` or `rate`, and `promptTokens`.
        answers: All requests.
        seconds: Time from the first start to the last end.
        client: Facts about this program during the load.
    """
    good, late = [each for each in answers if not each.error], [each.late for each in answers]
    counts = Counter(each.error for each in answers if each.error)
    examples = {each.error: each.detail for each in answers}
    reported = sum(each.is_reported for each in good)
    samples = {
        "timeToFirstToken": [each.first for each in good],
        "timeBetweenTokens": [sum(each.gaps) / len(each.gaps) for each in good if each.gaps],
        "latency": [each.latency for each in good],
        "tokensPerSecond": [(each.answer_tokens - 1) / total for each in good if (total := sum(each.gaps)) > 0],
    }
    every = {**samples, "timeBetweenTokens": [gap for each in good for gap in each.gaps]}
    prompt, answer = sum(each.prompt_tokens for each in good), sum(each.answer_tokens for each in good)
    return {
        **load,
        "seconds": seconds,
        "requests": len(answers),
        "succeeded": len(good),
        "errors": {kind: {"count": count, "example": examples[kind]} for kind, count in counts.most_common()},
        "tokensCountedBy": "usage" if reported == len(good) else "usage and chunks" if reported else "chunks",
        "meanPromptTokens": prompt / max(1, len(good)),
        "meanAnswerTokens": answer / max(1, len(good)),
        "requestsPerSecond": len(good) / seconds,
        "promptTokensPerSecond": prompt / seconds,
        "answerTokensPerSecond": answer / seconds,
        **{name: spread(every[name], is_rate=name not in TIMES) for name in METRICS},
        "client": {**client, "lateP99": percentile(late, 99) if late else 0.0},
        "samples": samples,
    }


def label_of(point: Mapping[str, Any]) -> str:
    """Return a load as text."""
    kind = f"{point['rate']:g} requests/s" if "rate" in point else f"{point['concurrency']} at a time"
    return f"{kind}, prompt {point['promptTokens']}"


class Change(NamedTuple):
    """A percentile of a metric of one load in two runs: their ratio with its 95 % interval, and whether it is worse."""

    load: str
    metric: str
    percent: int
    before: float
    after: float
    ratio: float
    low: float
    high: float
    is_worse: bool


def compare(before: Mapping[str, Any], after: Mapping[str, Any], limit: float, seed: int = 0) -> Iterator[Change]:
    """Yield the changes of the loads that both runs have, with intervals from resampled requests.

    One is worse if its ratio is beyond the limit, and its interval does not contain 1.
    """
    rng = random.Random(seed)  # noqa: S311 - statistics
    known = {label_of(point): point["samples"] for point in before["loads"]}
    for point, metric, percent in itertools.product(after["loads"], METRICS, (50, 95)):
        old, new, is_time = known.get(label_of(point), {}).get(metric), point["samples"][metric], metric in TIMES
        if not (old and new and (is_time or percent == 50)):
            continue
        draws = [[percentile(rng.choices(each, k=len(each)), percent) for each in (old, new)] for _ in range(RESAMPLES)]
        ratios = [_ratio(*each) for each in draws]
        low, high = percentile(ratios, 2.5), percentile(ratios, 97.5)
        one, other = percentile(old, percent), percentile(new, percent)
        ratio = _ratio(one, other)
        is_worse = (ratio > limit and low > 1) if is_time else (ratio < 1 / limit and high < 1)
        yield Change(label_of(point), metric, percent, one, other, ratio, low, high, is_worse)


def _ratio(before: float, after: float) -> float:
    return max(LEAST_SECONDS, after) / max(LEAST_SECONDS, before)
