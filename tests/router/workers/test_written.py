"""What parent and workers tell each other comes out as it went in, through JSON."""

import json
import math
from decimal import Decimal

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram

from llmkube.router.budgets.ledger import Amount
from llmkube.router.budgets.meter import Claim, Exhausted, Took
from llmkube.router.config.routing_config import Budget, Prices
from llmkube.router.dispatch.circuits import Circuit, State
from llmkube.router.policy.data_limits import NO_LIMITS, DataLimits
from llmkube.router.responses.shelf import Conversation
from llmkube.router.workers import written
from router.workers.workers_lab import response

BUDGETS = (
    Budget(name="a", scope="router", window_seconds=60, max_tokens=10**30),
    Budget(name="b", scope="team", window_seconds=60, team_header="x-t", max_usd=Decimal("0.10")),
    Budget(name="c", scope="rule", rule="r", window_seconds=60, max_tokens=0, max_usd=Decimal(0)),
)
PRICES = Prices(prompt_usd=Decimal("0.000001"), completion_usd=Decimal(15))


def through(value):
    return json.loads(json.dumps(value))


@pytest.mark.parametrize("cap", [None, 4096])
def test_a_claim(cap):
    """Also amounts beyond 64 bits."""
    claim = Claim(under=BUDGETS, most=Amount(2**80, 3**90), copies=3, cap=cap)
    assert written.claim_from(through(written.claim_to(claim))) == claim


@pytest.mark.parametrize("took", [None, Took(), Took(prompt=2**70, answer=5, prices=PRICES)])
def test_what_a_request_took(took):
    """Dollars to the last digit."""
    assert written.took_from(through(written.took_to(took))) == took


@pytest.mark.parametrize("wait", [None, 30])
def test_no_room(wait):
    """With its words."""
    full = Exhausted(budget="b", wait_seconds=wait, message="no room")
    assert written.exhausted_from(through(written.exhausted_to(full))) == full


@pytest.mark.parametrize(
    ("circuit", "state"),
    [
        (Circuit(), State.CLOSED),
        (Circuit(failures=2), State.CLOSED),
        (Circuit(failures=3, opened=1, open_until=130.0), State.OPEN),
        (Circuit(failures=3, opened=1, open_until=90.0), State.HALF_OPEN),
        (Circuit(failures=3, opened=1, open_until=90.0, probing=True), State.HALF_OPEN),
        (Circuit(open_until=5e-324), State.HALF_OPEN),
        (Circuit(unwell={"probe": "it answers 500"}), State.OPEN),
    ],
)
@pytest.mark.parametrize("other_clock", [0.5, 100.0, 1e6])
def test_a_circuit_by_another_clock(circuit, state, other_clock):
    """It is as open, and for as long."""
    found = written.circuit_from(through(written.circuit_to(circuit, 100.0)), other_clock)
    assert found.state(other_clock) is state is circuit.state(100.0)
    assert (found.failures, found.opened, found.probing, found.unwell) == (
        circuit.failures,
        circuit.opened,
        circuit.probing,
        circuit.unwell,
    )
    if state is State.OPEN and not circuit.unwell:
        assert math.isclose(found.open_until - other_clock, circuit.open_until - 100.0, rel_tol=1e-6)


@pytest.mark.parametrize(
    "limits",
    [
        NO_LIMITS,
        DataLimits(classes=frozenset({"pii", "phi"}), regions=frozenset({"eu"})),
        DataLimits(regions=frozenset()),
    ],
)
def test_limits(limits):
    """No region at all is another thing than every region."""
    assert written.limits_from(through(written.limits_to(limits))) == limits


def test_a_conversation_and_a_response():
    """With their limits; a conversation under a number of the reader's."""
    conversation = Conversation(number=3, history=['["é"]'.encode(), b"[]"], limits=NO_LIMITS, bytes=9)
    found = written.conversation_from(through(written.conversation_to(conversation)), 7)
    assert found == Conversation(number=7, history=conversation.history, limits=NO_LIMITS, bytes=9)
    new = response("resp_1", answered='["é"]'.encode())
    assert written.response_from(through(written.response_to(new))) == new


def test_metrics_of_several_workers():
    """Each sample once, with its worker; one family for all; counts and buckets as they were."""
    by_worker = {}
    for worker, count in {"1": 3, "2": 4}.items():
        registry = CollectorRegistry()
        Counter("asked_total", "Requests.", ["team"], registry=registry).labels("a").inc(count)
        Histogram("seconds", "Time.", registry=registry, buckets=(1.0,)).observe(count)
        Counter("never_total", "Nothing.", ["team"], registry=registry)
        by_worker[worker] = through(written.families_to(registry.collect()))
    families = {each.name: each for each in written.labelled_families(by_worker)}
    assert set(families) == {"asked", "seconds"}
    asked = {each.labels["worker"]: each.value for each in families["asked"].samples if each.name == "asked_total"}
    assert asked == {"1": 3.0, "2": 4.0}
    buckets = [each.labels for each in families["seconds"].samples if each.name == "seconds_bucket"]
    assert buckets == [{"worker": worker, "le": le} for worker in ("1", "2") for le in ("1.0", "+Inf")]
    assert (families["asked"].type, families["asked"].documentation) == ("counter", "Requests.")
