"""The records of a host: what is entered is found again, as it is now, and added up."""

import pytest

from llmkube.k8s.resource import Key
from llmkube.supervisor.memory.budget import Budget
from llmkube.supervisor.memory.records import Records
from llmkube.supervisor.memory.reservation import Need, Request, Role

A, B = Key("ns", "a"), Key("ns", "b")


def test_a_reservation_is_found_as_it_is_now():
    """Every change is made to the newest state, also through an older one; a released one is no longer changed."""
    records = Records()
    first = records.promise(A, Need(10), 0.0)
    records.update(first, pid=7)
    records.update(first, measured=True)
    assert (records.newest(first).pid, records.newest(first).measured) == (7, True)
    assert records.serving(A) == records.newest(first)
    records.pop(A)
    assert records.newest(first) is first
    assert records.reservations() == ()


def test_each_reservation_has_a_number_of_its_own():
    """Numbers are not used again, whatever service they are for."""
    records = Records()
    numbers = {records.promise(key, Need(1), 0.0, role=role).number for key in (A, B) for role in Role}
    assert len(numbers) == 6


def test_a_service_waits_until_it_is_promised_memory():
    """Its request is found while it waits, and gone with its reservation."""
    records = Records()
    records.of(A).request = Request(A, Need(10))
    assert [request.key for request in records.requests()] == [A] == list(records.waiting())
    assert records.is_awaited
    records.promise(A, Need(10), 0.0)
    assert not records.is_awaited


def test_what_moves_is_seen():
    """An engine moves while it loads or leaves, and is unmeasured from its load to the next measurement."""
    records = Records()
    engine = records.promise(A, Need(10), 0.0, held=False)
    assert (records.is_moving, records.is_adopting) == (True, True)
    records.update(engine, held=True, pid=7, loaded_at=1.0)
    assert (records.is_moving, records.is_adopting, records.is_unmeasured) == (False, False, True)
    records.update(engine, measured=True, resident_bytes=8)
    assert (records.is_unmeasured, records.held_bytes(), records.pids()) == (False, 8, (7,))
    records.update(engine, leaves_by=5.0)
    assert records.is_moving


@pytest.mark.parametrize(
    ("limit", "device_limit", "over"),
    [(1000, None, 0), (950, None, 50), (990, None, 0), (1000, 500, 100), (700, 500, 300)],
)
def test_how_much_more_than_the_budget_engines_hold(limit, device_limit, over):
    """The larger of both sums counts, and a fiftieth of the budget is not worth a restart."""
    records = Records()
    records.promise(A, Need(600, 400), 0.0)
    records.promise(B, Need(400, 200), 0.0)
    assert records.over_bytes(Budget(2000, limit, "", device_limit)) == over
