"""Two answers are compared field by field; what differs is said in lines that a reader can act on."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

LONGEST = 300
_TYPED = "failed to create typed patch object"


def differences(expected: Sequence[Mapping[str, Any]], given: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return how two lists of answers differ, in lines; empty when they do not."""
    lines = []
    for number, (right, ours) in enumerate(zip(expected, given, strict=False)):
        found = list(_differ(right, ours, ""))
        if found:
            lines += [f"{number}: {_cut(right['asked'])}", *(f"    {line}" for line in found)]
    if len(expected) != len(given):
        lines.append(f"{len(expected)} answers expected, {len(given)} given")
    return lines


def without_chance(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer without what kube-apiserver lets chance decide: which misfits of an applied object it names."""
    body = answer["body"]
    if isinstance(body, Mapping) and str(body.get("message", "")).startswith(_TYPED):
        body = {**body, "message": body["message"].partition("): ")[0]}
    return {**answer, "body": body}


def _differ(expected: Any, given: Any, path: str) -> Iterator[str]:
    if isinstance(expected, Mapping) and isinstance(given, Mapping):
        for name in sorted({**expected, **given}):
            if name not in given:
                yield f"{path}.{name}: {_cut(expected[name])} expected, nothing given"
            elif name not in expected:
                yield f"{path}.{name}: nothing expected, {_cut(given[name])} given"
            else:
                yield from _differ(expected[name], given[name], f"{path}.{name}")
    elif isinstance(expected, list) and isinstance(given, list) and len(expected) == len(given):
        for index, (right, ours) in enumerate(zip(expected, given, strict=True)):
            yield from _differ(right, ours, f"{path}[{index}]")
    elif expected != given or isinstance(expected, bool) is not isinstance(given, bool):
        yield f"{path}: {_cut(expected)} expected, {_cut(given)} given"


def _cut(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
