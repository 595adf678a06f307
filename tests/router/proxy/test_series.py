"""Counters and histograms of the router."""

import re
from functools import partial

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

from llmkube.router.proxy import metrics

_CREATED = re.compile(rb"(_created(?:\{[^}]*\})?) \S+")


@pytest.mark.parametrize("write", [generate_latest, openmetrics.generate_latest])
def test_they_are_exported_as_those_of_the_library(write):
    """Names, types, labels, bucket bounds and values are equal; a value on a bound is in its bucket."""
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    labels, bounds = ["router", "result"], (0.1, 1, 2.5)
    count = metrics.Family(ours, ("a", "A", "counter"), labels, metrics.Counter)
    counted = Counter("a_total", "A", labels, registry=theirs)
    spread = metrics.Family(ours, ("b", "B", "histogram"), labels, partial(metrics.Histogram, bounds))
    spreads = Histogram("b", "B", labels, registry=theirs, buckets=bounds)
    for number, value in enumerate((0.05, 0.1, 0.7, 2.5, 9.0)):
        named = ("r", f'n"{number % 2}')
        count.of[named].value += value
        counted.labels(*named).inc(value)
        spread.of[named].observe(value)
        spreads.labels(*named).observe(value)
    assert _CREATED.sub(rb"\1", write(ours)) == _CREATED.sub(rb"\1", write(theirs))
    assert write(ours).count(b"_created") == write(theirs).count(b"_created") > 0


def test_a_name_is_registered_once():
    """As in the library, a second family of a name is an error."""
    registry = CollectorRegistry()
    metrics.Family(registry, ("a", "A", "counter"), ["router"], metrics.Counter)
    with pytest.raises(ValueError, match="a"):
        metrics.Family(registry, ("a", "A", "counter"), ["router"], metrics.Counter)
