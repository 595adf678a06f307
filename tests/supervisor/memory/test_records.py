"""The records of a host: an entry is found again in its current state, and added up.

The record of one service between two engines, as tables.
"""

import attrs
import pytest

from llmkube.k8s.resource import Key
from llmkube.supervisor.memory.budget import Budget
from llmkube.supervisor.memory.eviction import Cause, Eviction
from llmkube.supervisor.memory.policy import Mode, Policy
from llmkube.supervisor.memory.records import REPORT_DELTA_BYTES, Records, ServiceRecord
from llmkube.supervisor.memory.refusal import Block, Refusal
from llmkube.supervisor.memory.reservation import MemorySpec, Need, Request, Reservation, Role

A, B = Key("ns", "a"), Key("ns", "b")


def test_a_reservation_is_found_as_it_is_now():
    """Every change is made to the newest state, even through an older one; a released one is no longer changed."""
    records = Records()
    first = records.reserve(A, Need(10), 0.0)
    records.change(first, pid=7)
    records.change(first, measured=True)
    assert (records.newest(first).pid, records.newest(first).measured) == (7, True)
    assert records.serving(A) == records.newest(first)
    records.pop(A, None)
    assert records.newest(first) is first
    assert records.reservations() == ()


def test_each_reservation_has_a_number_of_its_own():
    """Numbers are not used again, whatever service they are for."""
    records = Records()
    numbers = {records.reserve(key, Need(1), 0.0, role=role).number for key in (A, B) for role in Role}
    assert len(numbers) == 6


def test_a_service_waits_until_memory_is_reserved():
    """Its request is found while it waits, and deleted with its reservation."""
    records = Records()
    records[A].request = Request(A, Need(10))
    assert [request.key for request in records.requests()] == [A]
    assert records.is_awaited
    records.reserve(A, Need(10), 0.0)
    assert not records.is_awaited


def test_moving_engines_are_found():
    """An engine is moving while it loads or exits, and is unmeasured from its load to the next measurement."""
    records = Records()
    engine = records.reserve(A, Need(10), 0.0, held=False)
    assert (records.is_moving, records.is_adopting) == (True, True)
    records.change(engine, held=True, pid=7, loaded_at=1.0)
    assert (records.is_moving, records.is_adopting, records.is_unmeasured) == (False, False, True)
    records.change(engine, measured=True, resident_bytes=8)
    assert (records.is_unmeasured, records.held_bytes(), records.pids()) == (False, 8, (7,))
    records.change(engine, exit_deadline=5.0)
    assert records.is_moving


@pytest.mark.parametrize(
    ("limit", "device_limit", "over"),
    [(1000, None, 0), (950, None, 50), (990, None, 0), (1000, 500, 100), (700, 500, 300)],
)
def test_excess_over_the_budget(limit, device_limit, over):
    """The larger of both sums is used, and a fiftieth of the budget is not worth a restart."""
    records = Records()
    records.reserve(A, Need(600, 400), 0.0)
    records.reserve(B, Need(400, 200), 0.0)
    assert records.over_bytes(Budget(2000, limit, "", device_limit)) == over


CHAT = Key("ns", "chat")
ENGINE = Reservation(1, CHAT, Need(100, estimated_bytes=80), peak_bytes=150)
POLICY = Policy()


def evicted(cause):
    record = ServiceRecord()
    record.record_eviction(Eviction(CHAT, cause, "short"), ENGINE)
    return record


@pytest.mark.parametrize(
    ("record", "total", "margin", "returns"),
    [
        (ServiceRecord(), 100, 0, False),
        (evicted(Cause.DISPLACED), 100, 0, False),
        (evicted(Cause.CRITICAL), 150, 7, True),  # its peak, and 5 % more
    ],
)
def test_a_service_that_was_evicted_for_pressure_needs_its_peak(record, total, margin, returns):
    """After pressure it needs its peak and a margin; after a displacement its need is that of a new one."""
    asked = record.make_request(POLICY, Request(CHAT, Need(100, estimated_bytes=80)))
    assert (asked.need.total_bytes, asked.margin_bytes, asked.returns) == (total, margin, returns)


def test_another_model_does_not_need_the_peak_of_the_last_one():
    """An edit that changes the estimate drops the peak of the engine before."""
    assert (
        evicted(Cause.CRITICAL).make_request(POLICY, Request(CHAT, Need(20, estimated_bytes=10))).need.total_bytes == 20
    )


@pytest.mark.parametrize(
    ("facts", "policy", "may"),
    [
        ({}, POLICY, True),
        ({"displaced_at": 950.0}, POLICY, False),
        ({"displaced_at": 400.0}, POLICY, True),
        ({"evicted": Eviction(CHAT, Cause.IDLE, "idle")}, POLICY, False),
        ({"evicted": Eviction(CHAT, Cause.CRITICAL, "short")}, POLICY, True),
        ({}, Policy(mode=Mode.DRY_RUN), False),
        ({}, Policy(mode=Mode.OFF), False),
    ],
)
def test_conditions_of_preemption(facts, policy, may):
    """Once in ten minutes, not for a service without work, and only if eviction is enabled."""
    request = ServiceRecord(**facts).with_newest_spec(policy, Request(CHAT, Need(100)), 1000, 1000.0)
    assert request.may_displace is may


@pytest.mark.parametrize(
    ("facts", "spare", "relapses"),
    [
        ({"returns": True, "loaded_at": 900.0}, 500, 3),
        ({"returns": True, "loaded_at": None}, 500, 3),
        ({"returns": True, "loaded_at": 300.0}, 500, 0),  # it had run for longer than ten minutes
        ({"returns": False, "loaded_at": 900.0}, 500, 0),
        ({"returns": True, "loaded_at": 900.0}, 400, 0),  # other programs have taken memory since
    ],
)
def test_a_relapse_is_an_eviction_soon_after_the_return(facts, spare, relapses):
    """A recent return has caused the pressure if no other program has grown since."""
    record = ServiceRecord(relapses=2)
    record.record_pressure(attrs.evolve(ENGINE, capacity_bytes=500, **facts), POLICY, spare, 100, 1000.0)
    assert (record.relapses, record.capacity_bytes) == (relapses, spare)


def test_memory_that_came_free_makes_up_for_relapses():
    """A service that has relapsed waits for long, unless more memory is free now than when it was evicted."""
    record = ServiceRecord(relapses=2, capacity_bytes=500)
    assert record.dwell_seconds(POLICY, 599, 100) == POLICY.dwell_seconds(2)
    assert record.dwell_seconds(POLICY, 600, 100) == POLICY.dwell_seconds(0)


@pytest.mark.parametrize(
    ("block", "moved", "after", "reported"),
    [
        (Block.FULL, 0, 599.0, False),
        (Block.FULL, 0, 600.0, True),
        (Block.FULL, REPORT_DELTA_BYTES, 9.0, False),
        (Block.FULL, REPORT_DELTA_BYTES, 10.0, True),
        (Block.PRESSURE, 0, 10.0, True),
    ],
)
def test_the_same_refusal_is_not_reported_again(block, moved, after, reported):
    """A new reason or figure is reported after ten seconds, the same one after ten minutes."""
    record = ServiceRecord()
    assert record.should_report(Refusal(Block.FULL, "full"), 0.0)
    assert record.should_report(Refusal(block, "now", free_bytes=moved), after) is reported


def test_a_successor_without_its_predecessor_serves():
    """When the serving engine's reservation is removed, its successor's takes its place."""
    record = ServiceRecord()
    for number, role in ((1, Role.SERVING), (2, Role.SUCCESSOR)):
        record.reserve(Reservation(number, CHAT, Need(1), role=role))
    assert record.remove(1).number == 1
    assert record.engine(Role.SERVING).number == 2
    assert record.remove(1) is None


def test_an_edit_is_a_new_chance():
    """A new spec reaches every reservation, and other engines may be evicted for the service again."""
    record = ServiceRecord(displaced_at=5.0)
    record.reserve(ENGINE)
    assert record.set_spec(MemorySpec("high"))
    assert not record.set_spec(MemorySpec("high"))
    assert record.engine(Role.SERVING).spec == MemorySpec("high")
    assert record.displaced_at == float("-inf")
