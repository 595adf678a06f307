"""A turn is given on however its scope ends; a quiet tenant beside a flood, under a clock."""

import math
import random

import attrs
import pytest
import trio
import trio.testing

from llmkube.router.queue.fair_queue import MOST_WAITING
from llmkube.router.queue.turns import Turns, engines_of
from router.proxy.router_lab import local

TOKENS_PER_SECOND = 50


async def hold(turns, backend, tenant, seconds, log=None):
    with turns.turn(backend, tenant, 100) as turn:
        await turn.called.wait()
        if log is not None:
            log.append((tenant, trio.current_time()))
        await trio.sleep(seconds)


async def test_a_turn_is_given_on_by_one_that_ends_crashes_or_is_cancelled(autojump_clock):
    """The next one is called at once, each time."""
    turns, backend, log = Turns(), local("mac", slots=1), []

    async def crash():
        with turns.turn(backend, "b", 1) as turn:
            await turn.called.wait()
            await trio.sleep(1)
            raise RuntimeError("boom")

    async def crash_alone():
        with pytest.raises(RuntimeError, match="boom"):
            await crash()

    async def cancelled():
        with trio.move_on_after(3):
            await hold(turns, backend, "c", math.inf)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold, turns, backend, "a", 1)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(crash_alone)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(cancelled)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(hold, turns, backend, "d", 1, log)
        await trio.testing.wait_all_tasks_blocked()
        assert turns.waiting(backend) == 3
    assert log == [("d", 3.0)]
    assert (turns.waiting(backend), turns.line(backend).queue.running) == (0, 0)


async def test_two_backends_that_name_one_engine_share_its_queue():
    """By its address and its model; what no config names is forgotten once it rests."""
    await trio.lowlevel.checkpoint()
    turns, one = Turns(), local("one", slots=1)
    other = attrs.evolve(one, name="other")
    with turns.turn(one, "a", 1), turns.turn(other, "a", 1) as second:
        assert not second.called.is_set()
        assert turns.waiting(one) == turns.waiting(other) == 1
        turns.keep_only(frozenset())
        assert turns.waiting(one) == 1
    turns.line(one).seconds = 99.0
    turns.keep_only(engines_of([one]))
    assert turns.line(one).seconds == 99.0
    turns.keep_only(engines_of([local("x")]))
    assert turns.line(one).seconds != 99.0


async def test_a_full_queue_calls_the_one_that_has_to_leave():
    """It is not its turn, and it knows whether it was its own tenant's doing."""
    await trio.lowlevel.checkpoint()
    turns, backend = Turns(), local("mac", slots=1)
    with turns.turn(backend, "flood", 1):
        scopes = [turns.turn(backend, "flood", 1) for _ in range(MOST_WAITING)]
        held = [scope.__enter__() for scope in scopes]
        with turns.turn(backend, "quiet", 1) as quiet:
            assert (held[-1].is_dropped, held[-1].is_own, held[-1].called.is_set()) == (True, True, True)
            assert not quiet.is_dropped
        for scope in scopes:
            scope.__exit__(None, None, None)
    assert (turns.waiting(backend), turns.line(backend).queue.running) == (0, 0)


async def test_what_is_learned_of_answers(autojump_clock):
    """The estimate follows the answers, the asked maximum bounds it; the wait is by tenants and slots."""
    turns, backend = Turns(), local("mac", slots=2)
    line = turns.line(backend)
    assert line.tokens_of(400, None) == 100 + 256
    assert line.tokens_of(400, 10) == 100 + 10
    for _ in range(60):
        with turns.turn(backend, "a", 100) as turn:
            await trio.sleep(8)
            line.answered(turn, 120, 64)
    assert line.tokens_of(400, None) == 100 + 64
    with turns.turn(backend, "a", 1), turns.turn(backend, "b", 1), turns.turn(backend, "c", 1):
        assert line.retry_seconds() == 12  # 8 seconds, 3 tenants, 2 slots


async def simulate(seed, *, fair):
    """Two slots, twelve flooders with five requests each, one quiet tenant; its waits, and what was served when."""
    rng = random.Random(seed)
    turns, backend = Turns(), local("mac", slots=2)
    ends, waits, served = [], [], [0]
    order = trio.StrictFIFOLock()
    free = trio.Semaphore(2)

    async def serve(tokens):
        end = trio.current_time() + tokens / TOKENS_PER_SECOND
        ends.append(end)
        await trio.sleep_until(end)
        ends.remove(end)
        served[0] += tokens

    async def ask(tenant, tokens):
        if fair:
            with turns.turn(backend, tenant, 256) as turn:
                await turn.called.wait()
                begun = trio.current_time()
                await serve(tokens)
                turn.took = tokens
        else:
            async with order:
                await free.acquire()
            begun = trio.current_time()
            await serve(tokens)
            free.release()
        return begun

    async def flood(name):
        while True:
            await ask(name, rng.randint(20, 400))

    async with trio.open_nursery() as nursery:
        for number in range(12):
            for _ in range(5):
                nursery.start_soon(flood, f"f{number}")
        for _ in range(100):
            await trio.sleep(rng.uniform(20, 120))
            at, first_end = trio.current_time(), min(ends)
            begun = await ask("quiet", rng.randint(20, 60))
            waits.append((begun - at, first_end - at))
        nursery.cancel_scope.cancel()
    return waits, served[0] / trio.current_time() / TOKENS_PER_SECOND / 2


@pytest.mark.parametrize("seed", range(3))
async def test_a_quiet_tenant_waits_for_the_first_slot_that_ends_and_no_longer(autojump_clock, seed):
    """Never longer than without preemption can be, whatever waits; the slots stay full."""
    waits, used = await simulate(seed, fair=True)
    assert all(wait <= first + 1e-6 for wait, first in waits)
    assert used >= 0.95


async def test_without_the_queue_it_waits_for_all_who_came_before(autojump_clock):
    """What the queue is for: first come, first served keeps the quiet tenant behind 58 requests of others."""
    waits, used = await simulate(0, fair=False)
    late = [wait / first for wait, first in waits if first > 0.1]
    assert min(late) > 5
    assert used >= 0.95


async def test_a_slot_without_a_turn_is_taken_only_while_one_is_free():  # noqa: ASYNC124 - a turn reads Trio's clock
    """Who waits is called when it is given back; with none free there is nothing to give back."""
    turns, backend = Turns(), local("mac", slots=1)
    line = turns.slot_if_free(backend)
    assert line is turns.line(backend)
    assert turns.slot_if_free(backend) is None
    with turns.turn(backend, "team", 1) as turn:
        assert not turn.called.is_set()
        line.return_slot()
        assert turn.called.is_set()
        assert turns.slot_if_free(backend) is None
    assert (line.queue.running, line.queue.waiting) == (0, 0)
