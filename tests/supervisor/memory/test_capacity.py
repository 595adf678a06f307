"""What a host has for engines, and how that looks once some of them have ended, as tables.

What a host has for a service that comes now.
"""

import attrs

from llmkube.supervisor.memory.capacity import summarize_capacity
from supervisor.memory.requests import EMPTY, GIB, busy, holds, waits


def test_what_is_promised_and_not_resident_is_not_free_twice():
    """An engine that loads takes its whole promise from the budget, and from the host what it does not hold yet."""
    host = busy(holds("a", 20, resident=5, loaded_at=None))
    assert host.free_bytes == EMPTY.free_bytes - 20 * GIB
    assert host.unused_bytes == 15 * GIB
    assert host.headroom_bytes == EMPTY.headroom_bytes - 20 * GIB


def test_the_device_has_a_sum_of_its_own():
    """What lies on the device counts against its limit; without a limit there is no such sum."""
    assert busy(holds("a", 20, device=15)).device_free_bytes == 25 * GIB
    unlimited = attrs.evolve(EMPTY, budget=attrs.evolve(EMPTY.budget, device_limit_bytes=None))
    assert unlimited.device_free_bytes is None


def test_without_a_service_its_memory_is_back():
    """The engines of a service give back what they hold, and their promise."""
    chat, embed = holds("chat", 20), holds("embed", 5)
    after = busy(chat, embed).without([chat.key])
    assert after.reservations == (embed,)
    assert after.available_bytes == busy(embed).available_bytes


def test_in_a_moment_those_that_leave_are_gone_and_all_memory_is_back():
    """Engines that may still end in time are counted as ended; one whose time is over is not."""
    exiting, late = holds("leaving", 20, exit_deadline=1.0), holds("late", 5, exit_deadline=-1.0)
    host = attrs.evolve(busy(exiting, late), releasing_bytes=GIB)
    soon = host.after_exits()
    assert host.exiting == (exiting,)
    assert soon.reservations == (late,)
    assert soon.releasing_bytes == 0
    assert soon.available_bytes == host.available_bytes + 21 * GIB


def test_a_service_that_is_admitted_counts_at_once():
    """The promise to one service is not free for the next one in the same decision."""
    after = EMPTY.with_reservation(waits(gib=30))
    assert after.free_bytes == EMPTY.free_bytes - 30 * GIB
    assert after.headroom_bytes == EMPTY.headroom_bytes - 30 * GIB


def test_room_is_the_smaller_of_budget_and_host_and_never_negative():
    """48 GiB are free of the budget of an empty host; other programs, or engines that have grown, leave less."""
    assert summarize_capacity(EMPTY, 64 * GIB).free_bytes == 48 * GIB
    assert summarize_capacity(attrs.evolve(EMPTY, available_bytes=17 * GIB), 64 * GIB).free_bytes == 10 * GIB
    assert summarize_capacity(busy(holds("a", 60)), 64 * GIB).free_bytes == 0
    assert summarize_capacity(EMPTY, 64 * GIB).limit_bytes == 48 * GIB
