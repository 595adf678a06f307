"""Free memory of a host, now and after some engines have exited, as tables."""

import attrs

from llmkube.supervisor.memory.capacity import summarize_capacity
from llmkube.supervisor.memory.reservation import Need
from supervisor.memory.requests import EMPTY, GIB, busy, holds, waits


def test_reserved_memory_that_is_not_resident_is_not_free_twice():
    """An engine that loads takes its whole reservation from the budget, and from the host the part not yet resident."""
    host = busy(holds("a", 20, resident=5, loaded_at=None))
    assert host.free_bytes == EMPTY.free_bytes - 20 * GIB
    assert host.unused_bytes == 15 * GIB
    assert host.headroom_bytes == EMPTY.headroom_bytes - 20 * GIB


def test_the_device_has_a_sum_of_its_own():
    """Memory on the device is bounded by its limit; without a limit there is no such sum."""
    assert busy(holds("a", 20, device=15)).device_pools == {"device": 25 * GIB}
    unlimited = attrs.evolve(EMPTY, budget=attrs.evolve(EMPTY.budget, device_limit_bytes=None))
    assert unlimited.device_pools == {}


def test_without_a_service_its_memory_is_free():
    """The engines of a service release their memory and their reservation."""
    chat, embed = holds("chat", 20), holds("embed", 5)
    after = busy(chat, embed).without([chat.key])
    assert after.reservations == (embed,)
    assert after.available_bytes == busy(embed).available_bytes


def test_soon_evicted_engines_have_released_their_memory():
    """Engines that may still exit in time are treated as exited; one beyond its deadline is not."""
    exiting, late = holds("leaving", 20, exit_deadline=1.0), holds("late", 5, exit_deadline=-1.0)
    host = attrs.evolve(busy(exiting, late), releasing_bytes=GIB)
    soon = host.after_exits()
    assert host.exiting == (exiting,)
    assert soon.reservations == (late,)
    assert soon.releasing_bytes == 0
    assert soon.available_bytes == host.available_bytes + 21 * GIB


def test_an_admitted_service_is_included_at_once():
    """Memory reserved for one service is not free for the next one in the same decision."""
    after = EMPTY.with_reservation(waits(gib=30))
    assert after.free_bytes == EMPTY.free_bytes - 30 * GIB
    assert after.headroom_bytes == EMPTY.headroom_bytes - 30 * GIB


def test_free_memory_is_the_smaller_of_budget_and_host_and_never_negative():
    """48 GiB are free of the budget of an empty host; other programs, or engines that have grown, leave less."""
    assert summarize_capacity(EMPTY, 64 * GIB).free_bytes == 48 * GIB
    assert summarize_capacity(attrs.evolve(EMPTY, available_bytes=17 * GIB), 64 * GIB).free_bytes == 10 * GIB
    assert summarize_capacity(busy(holds("a", 60)), 64 * GIB).free_bytes == 0
    assert summarize_capacity(EMPTY, 64 * GIB).limit_bytes == 48 * GIB


def test_each_device_with_memory_of_its_own_is_a_pool():
    """What its engines have reserved is not free; with a figure of its driver, neither is what other programs use."""
    budget = attrs.evolve(EMPTY.budget, device_limit_bytes=None, devices={"CUDA0": 24 * GIB, "CUDA1": 12 * GIB})
    engine = attrs.evolve(holds("a", 1), need=Need(GIB, devices={"CUDA0": 10 * GIB}))
    loading = attrs.evolve(engine, loaded_at=None)
    host = attrs.evolve(busy(engine), budget=budget)
    assert host.device_pools == {"CUDA0": 14 * GIB, "CUDA1": 12 * GIB}
    shared = attrs.evolve(host, devices={"CUDA0": 9 * GIB})
    assert shared.device_pools["CUDA0"] == 9 * GIB
    assert shared.without([engine.key]).device_pools["CUDA0"] == 19 * GIB
    assert attrs.evolve(shared, reservations=(engine, loading)).device_pools["CUDA0"] == -1 * GIB
