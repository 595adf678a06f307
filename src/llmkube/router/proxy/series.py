"""Counters and histograms that one thread updates, without locks: at about a quarter of the cost of the library's.

They are exported as `prometheus_client.Counter` and `Histogram` are.
"""

import math
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Generic, TypeVar

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
    """One histogram; `bounds` are the finite upper bounds of its buckets, ascending."""

    bounds: Sequence[float]
    _counts: defaultdict[int, int] = attrs.field(factory=lambda: defaultdict(int), init=False)
    _sum: float = attrs.field(default=0.0, init=False)
    _created_at: float = attrs.field(factory=time.time, init=False)

    def observe(self, value: float) -> None:
        """Add a value."""
        self._sum += value
        self._counts[bisect_left(self.bounds, value)] += 1

    def samples(self) -> Iterator[Sample]:
        """Yield its samples."""
        below = 0
        for at, bound in enumerate((*self.bounds, math.inf)):
            below += self._counts[at]
            yield "_bucket", {"le": floatToGoString(bound)}, below  # type: ignore[no-untyped-call]
        yield "_count", _NONE, below
        yield "_sum", _NONE, self._sum
        yield "_created", _NONE, self._created_at


S = TypeVar("S", Counter, Histogram)


class Family(Collector, Generic[S]):
    """Series of one name; `of` has each by its label values, and creates it on first use.

    Args:
        registry: Exports it; raises ValueError if it already has the name.
        metric: Name, text and type.
        labels: Names of the labels.
        make: Creates a series.
    """

    def __init__(
        self, registry: CollectorRegistry, metric: tuple[str, str, str], labels: Sequence[str], make: Callable[[], S]
    ) -> None:
        self.of: defaultdict[tuple[str, ...], S] = defaultdict(make)
        self._metric, self._labelnames = metric, labels
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield the family with its series."""
        metric = Metric(*self._metric)
        for values, one in self.of.items():
            labels = dict(zip(self._labelnames, values, strict=True))
            for suffix, more, value in one.samples():
                metric.add_sample(metric.name + suffix, labels | more, value)
        yield metric

    describe = collect
