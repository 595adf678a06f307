"""What the parent says of its workers."""

import pytest

from llmkube.router.workers.worker_set import most_used, workers_ready


def report(*, ready, why=""):
    return {"ready": ready, "why": why}


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ({}, (False, "worker 1 does not answer; worker 2 does not answer")),
        ({"1": report(ready=True), "2": report(ready=True)}, (True, "")),
        ({"2": report(ready=True)}, (True, "worker 1 does not answer")),
        ({"2": report(ready=False, why="mac: gone")}, (False, "worker 1 does not answer; mac: gone")),
        ({"1": report(ready=True, why="x: no key"), "2": report(ready=True, why="x: no key")}, (True, "x: no key")),
        ({"1": report(ready=False, why="a"), "2": report(ready=True, why="b")}, (True, "a; b")),
        ({"1": report(ready=False), "2": report(ready=False)}, (False, "")),
    ],
)
def test_the_router_is_ready_while_some_worker_is(reports, expected):
    """And says what is amiss with any, once."""
    assert workers_ready(["1", "2"], reports) == expected


def test_what_is_amiss_in_the_parent_is_said_as_well():
    """Between those that are missing and what workers say."""
    found = workers_ready(["1", "2"], {"1": report(ready=True, why="b")}, "the disk is full")
    assert found == (True, "worker 2 does not answer; the disk is full; b")


def test_of_budgets_that_a_server_keeps_the_worker_that_has_seen_most_counts():
    """Each by itself."""
    low, high = ({"name": "a", "utilization": "0.10"}, {"name": "a", "utilization": "0.90"})
    other = {"name": "b", "utilization": "0.00"}
    assert most_used([[low, other], [high], []]) == [high, other]
    assert most_used([]) == []
