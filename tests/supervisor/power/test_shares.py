"""Whose energy it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmkube.k8s.resource import Key
from llmkube.supervisor.power.shares import share

A, B = Key("ns", "a"), Key("ns", "b")
DRAWN = {"cpu": 10.0, "gpu": 100.0}


@pytest.mark.parametrize(
    ("took", "host", "expected"),
    [
        ({}, 5.0, {}),
        ({A: 0.0}, 5.0, {}),
        ({A: 0.015}, 5.0, {}),
        ({A: 1.0}, 1.0, {A: 110.0}),
        ({A: 1.0}, 0.0, {A: 110.0}),
        ({A: 1.0}, 4.0, {A: 102.5}),
        ({A: 3.0, B: 1.0}, 4.0, {A: 82.5, B: 27.5}),
        ({A: 1.0, B: 0.001}, 1.0, {A: 110.0}),
    ],
    ids=["no engine", "at rest", "health checks", "alone", "host unknown", "a compiler beside it", "two", "one rests"],
)
def test_a_share(took, host, expected):
    """The GPU is the engines'; of the cores each gets its part of all that was computed."""
    assert share(DRAWN, took, host_cpu_seconds=host, seconds=2.0) == pytest.approx(expected)


@given(
    st.dictionaries(st.sampled_from(["cpu", "gpu", "ane", "package", "dram"]), st.floats(0, 1e6)),
    st.dictionaries(st.sampled_from([A, B]), st.floats(0, 1e4)),
    st.floats(0, 1e4),
)
def test_no_more_is_given_than_was_drawn(joules, took, host):
    """Whatever the kernel counts, the sum of the shares is at most the whole, and none is negative."""
    shares = share(joules, took, host_cpu_seconds=host, seconds=2.0)
    assert sum(shares.values()) <= sum(joules.values()) * (1 + 1e-9)
    assert all(each >= 0 for each in shares.values())
