"""What must hold over two workers: each of these fails an assertion where it does not. Mutants have to fail them."""

import trio
import trio.testing

from llmkube.router.budget_store.errors import BudgetsNotKeptError
from llmkube.router.budgets.meter import Exhausted, Took
from llmkube.router.dispatch.circuits import State
from router.workers.workers_lab import DEMAND, HOUR, open_lab, response

MOST = 200
"""What each request reserves."""


async def one_queue():
    """Slots are those of the engine, and a quiet tenant's turn is next, whichever worker it asks."""
    async with open_lab() as lab, trio.open_nursery() as nursery:
        log, (first, second) = [], lab.workers
        nursery.start_soon(first.hold, "loud", log)
        await lab.settled()
        for _ in range(2):
            nursery.start_soon(first.hold, "loud", log)
            nursery.start_soon(second.hold, "loud", log)
            await lab.settled()
        nursery.start_soon(second.hold, "quiet", log)
        await lab.settled()
        assert (log, lab.queue.waiting, lab.queue.running) == ([("1", "loud")], 5, 1)
        await trio.sleep(20)
        assert log[1] == ("2", "quiet")
        assert len(log) == 6
        await lab.settled()
        assert (lab.queue.waiting, lab.queue.running) == (0, 0)


async def a_dead_workers_slots():
    """They are given on, and those that it waited for are forgotten."""
    async with open_lab() as lab, trio.open_nursery() as nursery:
        log, (first, second) = [], lab.workers
        for _ in range(3):
            nursery.start_soon(first.hold, "a", log, 1000)
            await lab.settled()
        nursery.start_soon(second.hold, "b", log, 1)
        await lab.settled()
        first.die()
        await lab.settled()
        assert log == [("1", "a"), ("2", "b")]
        assert (lab.queue.waiting, lab.queue.running) == (0, 1)
        nursery.cancel_scope.cancel()


async def a_cancelled_turn():
    """A client that leaves, before or while its turn comes, holds nothing."""
    async with open_lab() as lab, trio.open_nursery() as nursery:
        log, (first, second) = [], lab.workers
        nursery.start_soon(first.hold, "a", log, 5)
        await lab.settled()
        with trio.move_on_after(1):
            await second.hold("b", log)
        await lab.settled()
        assert lab.queue.waiting == 0
        await second.hold("c", log, 1)
        await lab.settled()
        assert (log, lab.queue.running) == ([("1", "a"), ("2", "c")], 0)


async def one_probe():
    """What fails at one worker is left alone by both; later one request of all tries it, and both know its end."""
    async with open_lab() as lab:
        first, second = lab.workers
        for _ in range(2):
            first.circuits.failed("mac", trio.current_time())
        await lab.settled()
        second.circuits.failed("mac", trio.current_time())  # the third in a row, of both
        await lab.settled()
        for worker in lab.workers:
            assert worker.circuits.of("mac").state(trio.current_time()) is State.OPEN
            assert not await worker.circuits.enter("mac", trio.current_time())
        await trio.sleep(16)
        entered = []

        async def enter(worker):
            entered.append((worker, await worker.circuits.enter("mac", trio.current_time())))

        async with trio.open_nursery() as nursery:
            for worker in lab.workers * 3:
                nursery.start_soon(enter, worker)
        assert [may for _, may in entered].count(True) == 1
        await lab.settled()
        other, prober = sorted(lab.workers, key=lambda worker: (worker, True) in entered)
        other.circuits.abandoned("mac")  # of a request that went out before: the probe goes on
        await lab.settled()
        assert lab.state.circuits.of("mac").probing
        prober.die()
        await lab.settled()
        assert await other.circuits.enter("mac", trio.current_time())
        other.circuits.succeeded("mac")
        await lab.settled()
        assert lab.state.circuits.of("mac").state(trio.current_time()) is State.CLOSED


async def a_watch_that_dies():
    """What a worker has found of an engine holds for all for as long as the worker is there."""
    async with open_lab() as lab:
        first, second = lab.workers
        first.circuits.found("mac", "watch", "frozen", trio.current_time())
        await lab.settled()
        assert list(second.circuits.of("mac").unwell.values()) == ["frozen"]
        second.circuits.found("mac", "watch", "", trio.current_time())  # it has not found it frozen at all
        await lab.settled()
        assert second.circuits.of("mac").unwell
        second.circuits.found("mac", "watch", "frozen here", trio.current_time())
        second.circuits.keep_only(frozenset())  # another backend has this name: nothing is known of it
        await lab.settled()
        assert list(second.circuits.of("mac").unwell.values()) == ["frozen"]
        first.die()
        await lab.settled()
        assert not second.circuits.of("mac").unwell


async def one_budget():
    """Both together reserve no more than there is; what is settled counts, what is given back is free."""
    async with open_lab() as lab:
        found = []

        async def reserve(worker):
            found.append((worker, await worker.reserve()))

        async with trio.open_nursery() as nursery:
            for worker in lab.workers * 10:
                nursery.start_soon(reserve, worker)
        held = [(worker, each) for worker, each in found if not isinstance(each, Exhausted)]
        assert len(held) == HOUR.max_tokens // MOST
        assert lab.used() == HOUR.max_tokens
        for worker, each in held:
            worker.budgets.settle(each, Took(prompt=3, answer=5))
        await lab.settled()
        assert lab.used() == len(held) * 8


async def a_dead_workers_reservations():
    """They are charged: nobody knows what was taken."""
    async with open_lab() as lab:
        first, second = lab.workers
        await first.reserve()
        settled = await first.reserve()
        first.budgets.settle(settled, Took(prompt=1, answer=1))
        await second.reserve()
        await lab.settled()
        first.die()
        await lab.settled()
        await trio.sleep(10)
        assert lab.used() == MOST + 2 + MOST


async def a_client_that_leaves_while_it_reserves():
    """Nothing was sent for it: nothing stays."""
    async with open_lab() as lab:
        with trio.CancelScope() as scope:
            scope.cancel()
            await lab.workers[0].reserve()
        await lab.settled()
        assert (DEMAND.body_bytes + 100, lab.used()) == (MOST, 0)


async def one_shelf():
    """A response is there for the other worker as soon as its client may know of it, whoever is read first."""
    async with open_lab() as lab:
        first, second = lab.workers
        for turn in range(8):
            previous = None if not turn else await second.shelf.take("team a", f"resp_{turn - 1}")
            assert turn == 0 or previous is not None, turn
            writer = lab.workers[turn % 2] if previous is None else second
            said = b'["%b"]' % (b"x" * 1_000_000)  # more than the kernel takes at once
            assert writer.shelf.put(response(f"resp_{turn}", answered=said), previous)
            if previous is not None:
                second.shelf.release(previous.number)
            found = await first.shelf.take("team a", f"resp_{turn}")
            assert found is not None, turn
            assert (len(found.history), found.turns) == (2 * (turn + 1), turn + 1)
            first.shelf.release(found.number)
        assert await first.shelf.take("team b", "resp_1") is None
        assert not lab.state.shelf._held


async def what_is_continued_stays():
    """A conversation that is being continued is held, also where the last response gives way meanwhile."""
    async with open_lab() as lab:
        first, second = lab.workers
        first.shelf.put(response("resp_1"), None)
        held = await second.shelf.take("team a", "resp_1")
        lab.state.shelf.store.delete("team a", "resp_1")
        second.shelf.put(response("resp_2"), held)
        second.shelf.release(held.number)
        found = await first.shelf.take("team a", "resp_2")
        assert found.turns == 2
        first.die()
        await lab.settled()
        assert not lab.state.shelf._held


async def a_parent_that_takes_too_long():
    """A request is refused in time, and what is reserved for it later is given back."""
    async with open_lab() as lab:
        lab.state.budgets.seconds, began_at = 10.0, trio.current_time()
        try:
            await lab.workers[0].reserve()
        except BudgetsNotKeptError:
            assert trio.current_time() - began_at < 7
            await trio.sleep(10)
            assert lab.used() == 0
            return
        raise AssertionError("it was sent uncounted, or waits")


async def a_lost_parent():
    """Nothing is sent that is not counted, and no leave is taken for granted."""
    async with open_lab() as lab:
        first, _ = lab.workers
        first.circuits.failed("mac", trio.current_time())
        first.circuits.failed("mac", trio.current_time())
        first.circuits.failed("mac", trio.current_time())
        await lab.settled()
        await trio.sleep(20)
        first.die()
        await lab.settled()
        assert not await first.circuits.enter("mac", trio.current_time())
        try:
            await first.reserve()
        except BudgetsNotKeptError:
            return
        raise AssertionError("reserved without a parent")


ALL = (
    one_queue,
    a_dead_workers_slots,
    a_cancelled_turn,
    one_probe,
    a_watch_that_dies,
    one_budget,
    a_dead_workers_reservations,
    a_client_that_leaves_while_it_reserves,
    one_shelf,
    what_is_continued_stays,
    a_parent_that_takes_too_long,
    a_lost_parent,
)
