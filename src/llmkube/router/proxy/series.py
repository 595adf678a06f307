"""Counters and histograms that one thread updates, without a lock for each value: a third of the cost of the library's.

They are exported as `prometheus_client.Counter` and `Histogram` are.
"""

import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final, Generic, TypeVar

import attrs
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

Sample = tuple[str, dict[str, str], float]
"""Suffix of its name, labels besides those of the series, and value."""

_NONE: Final[dict[str, str]] = {}


@attrs.define(eq=False)
class Counter:
    """One counter."""

    value: float = 0.0
    _created_at: float = attrs.field(factory=time.time, init=False)

    def samples(self) -> Iterator[Sample]:
        """Yield its samples."""
        yield "_total", _NONE, self.value
        yield "_created", _NONE, self._created_at


@attrs.define(eq=False)
class Histogram:
    """One histogram; `bounds` are the upper bounds of its buckets, ascending, and the last one is infinite."""

    bounds: Sequence[float]
    _counts: list[int] = attrs.field(init=False)
    _sum: float = attrs.field(default=0.0, init=False)
    _created_at: float = attrs.field(factory=time.time, init=False)

    def __attrs_post_init__(self) -> None:
        self._counts = [0] * len(self.bounds)

    def observe(self, value: float) -> None:
        """Add a value."""
        self._sum += value
        self._counts[bisect_left(self.bounds, value)] += 1

    def samples(self) -> Iterator[Sample]:
        """Yield its samples."""
        below = 0
        for bound, count in zip(self.bounds, self._counts, strict=True):
            below += count
            yield "_bucket", {"le": floatToGoString(bound)}, below  # type: ignore[no-untyped-call]
        yield "_count", _NONE, below
        yield "_sum", _NONE, self._sum
        yield "_created", _NONE, self._created_at


S = TypeVar("S", Counter, Histogram)


class Family(Collector, Generic[S]):
    """Series of one name; `of` has each by its label values, and creates it on first use."""

    def __init__(
        self, registry: CollectorRegistry, metric: tuple[str, str, str], labels: Sequence[str], of: Any
    ) -> None:
        self.of: defaultdict[tuple[str, ...], S] = defaultdict(of)
        self._metric, self._labels = metric, tuple(labels)
        registry.register(self)

    def describe(self) -> Iterator[Metric]:
        """Yield the family without its series."""
        yield Metric(*self._metric)

    def collect(self) -> Iterator[Metric]:
        """Yield the family with its series."""
        metric = Metric(*self._metric)
        for values, one in self.of.items():
            labels = dict(zip(self._labels, values, strict=True))
            for suffix, more, value in one.samples():
                metric.add_sample(metric.name + suffix, labels | more, value)
        yield metric


def counters(registry: CollectorRegistry, name: str, text: str, labels: Sequence[str]) -> Family[Counter]:
    """Register counters.

    Raises:
        ValueError: The registry already has the name.
    """
    return Family(registry, (name.removesuffix("_total"), text, "counter"), labels, Counter)


def histograms(
    registry: CollectorRegistry, name: str, text: str, labels: Sequence[str], buckets: Sequence[float]
) -> Family[Histogram]:
    """Register histograms.

    Raises:
        ValueError: The registry already has the name.
    """
    bounds = (*map(float, buckets), float("inf"))
    return Family(registry, (name, text, "histogram"), labels, partial(Histogram, bounds))
