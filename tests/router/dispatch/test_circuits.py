"""Circuits of backends: each transition, and invariants under any order of events."""

import random

from hypothesis import given
from hypothesis import strategies as st

from llmkube.base.backoff import Backoff
from llmkube.router.dispatch.circuits import Circuit, State

TERMS = Backoff(base_seconds=15, cap_seconds=100, jitter=0)
RNG = random.Random(1)


def failed(circuit, *times):
    for now in times:
        circuit = circuit.failed(now, TERMS, RNG)
    return circuit


def test_failures_in_a_row_open_it_and_a_success_between_them_does_not():
    assert failed(Circuit(), 1, 2).state(2) is State.CLOSED
    assert failed(failed(Circuit(), 1, 2).succeeded(), 3, 4).state(4) is State.CLOSED
    assert failed(Circuit(), 1, 2, 3).state(3) is State.OPEN


def test_one_goes_through_after_the_pause():
    """A second one must wait until the result of the first is known."""
    circuit = failed(Circuit(), 0, 0, 0)
    assert circuit.admit(14.9) == (circuit, False)
    probing, may = circuit.admit(15)
    assert (may, probing.admit(15)[1], probing.admit(1000)[1]) == (True, False, False)
    assert probing.succeeded() == Circuit()
    assert probing.abandoned().admit(16)[1]


def test_a_stream_that_begins_and_breaks_off_is_a_failure_like_others():
    """Three in a row open it; half-open, a started stream lets others through, and its break opens it for longer."""
    circuit = Circuit()
    for now in (1, 2, 3):
        circuit = failed(circuit.began(), now)
    assert circuit.state(3) is State.OPEN
    begun = circuit.admit(18)[0].began()
    assert begun.admit(18) == (begun, True)
    assert failed(begun, 19).open_until == 19 + 30


def test_pauses_grow_to_a_bound():
    """The pauses are 15, 30, 60 and then 100 seconds."""
    circuit, now, backoff = failed(Circuit(), 0, 0), 0.0, []
    for _ in range(5):
        circuit, _ = circuit.admit(now)
        circuit = circuit.failed(now, TERMS, RNG)
        backoff.append(circuit.open_until - now)
        now = circuit.open_until
    assert backoff == [15, 30, 60, 100, 100]


def test_what_was_under_way_when_it_opened_does_not_prolong_it():
    """Forty requests that fail together open it once."""
    circuit = failed(Circuit(), *[0] * 40)
    assert (circuit.open_until, circuit.opened) == (15, 1)


def test_retry_after_of_a_backend_is_respected():
    """It has not failed; the longer of both times applies."""
    circuit = Circuit().rate_limited(10, 40)
    assert (circuit.state(49.9), circuit.state(50)) == (State.OPEN, State.HALF_OPEN)
    assert circuit.rate_limited(20, 1).open_until == 50


@given(st.lists(st.tuples(st.sampled_from(["ask", "answer", "fail", "leave"]), st.floats(0, 40)), max_size=60))
def test_no_order_of_events_lets_two_probes_through_or_shuts_it_for_good(events):
    """While open it admits none, half-open one at a time, and after its longest pause it admits a request."""
    circuit, now, under_way = Circuit(), 0.0, 0
    for event, seconds in events:
        now += seconds
        if event == "ask":
            state = circuit.state(now)
            circuit, may = circuit.admit(now)
            assert may or state is not State.CLOSED
            if state is State.OPEN:
                assert not may
            under_way += may
        elif under_way:
            under_way -= 1
            if event == "answer":
                circuit = circuit.succeeded()
            elif event == "fail":
                circuit = circuit.failed(now, TERMS, RNG)
            else:
                circuit = circuit.abandoned()
    assert circuit.abandoned().admit(now + 101)[1]
