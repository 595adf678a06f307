"""The size of a reservation, as tables."""

import attrs
import pytest

from llmkube.k8s.resource import Key
from llmkube.supervisor.memory.reservation import MemorySpec, Need, Reservation, rank_of

LOADS = Reservation(1, Key("ns", "chat"), Need(10), resident_bytes=4, peak_bytes=4)
SERVES = attrs.evolve(LOADS, loaded_at=5.0, busy_at=7.0, measured=True)


@pytest.mark.parametrize(
    ("reservation", "total", "held", "frees", "unused"),  # 20 s after its load
    [
        (LOADS, 10, 4, 10, 6),
        (SERVES, 10, 4, 4, 6),
        (attrs.evolve(SERVES, measured=False), 10, 10, 10, 0),  # its size since the load is not known
        (attrs.evolve(SERVES, resident_bytes=12, peak_bytes=15), 15, 12, 12, 3),  # it has grown
    ],
)
def test_the_size_of_a_reservation(reservation, total, held, frees, unused):
    """The larger of reserved and peak bytes; a loaded engine that was not measured has its full reservation."""
    assert (reservation.total_bytes, reservation.held_bytes) == (total, held)
    assert (reservation.reclaimable_bytes, reservation.unused_bytes(25.0)) == (frees, unused)


def test_an_engine_that_has_just_loaded_may_hold_less_than_is_reserved():
    """Until its first measurement it counts as one that loads; without one in time, it has its full reservation."""
    unmeasured = attrs.evolve(SERVES, measured=False)
    assert [unmeasured.unused_bytes(now) for now in (5.0, 14.9, 15.0)] == [6, 6, 0]
    assert SERVES.unused_bytes(5.0) == 6


@pytest.mark.parametrize(("estimated", "most", "total"), [(0, 50, 80), (40, 50, 50), (60, 50, 60), (60, 100, 80)])
def test_a_need_that_has_grown_does_not_keep_its_model_out(estimated, most, total):
    """A measured need is cut to the bound of all engines, but never below its estimate."""
    assert Need(80, estimated_bytes=estimated).capped_at(most).total_bytes == total


def test_an_engine_that_loads_has_work():
    """Idle time starts at the last work of an engine that has loaded."""
    assert LOADS.idle_seconds(100.0) == 0.0
    assert SERVES.idle_seconds(100.0) == 93.0


def test_an_evicted_engine_is_in_time_until_its_deadline():
    """An evicted engine is leaving in time until its deadline, and not after it."""
    leaving = attrs.evolve(SERVES, exit_deadline=10.0)
    assert (leaving.is_exiting, leaving.exits_in_time(9.0), leaving.exits_in_time(10.0)) == (True, True, False)
    assert not SERVES.exits_in_time(0.0)


def test_an_unknown_priority_is_normal():
    """Ranks rise with importance; an invalid priority ranks as normal."""
    ranks = [rank_of(name) for name in ("batch", "low", "normal", "high", "critical")]
    assert ranks == sorted(set(ranks))
    assert MemorySpec("urgent").rank == MemorySpec("normal").rank
