"""The three sides of a ring, under a virtual clock and in real threads."""

import random

import pytest
import trio
import trio.testing

from llmkube.weights.download.ring_buffer import RingBuffer


async def fill(ring, data, step=lambda room: room):
    """Play the network."""
    at = 0
    while at < len(data):
        room = await ring.room()
        assert room
        count = min(step(len(room)), len(room), len(data) - at)
        await trio.lowlevel.checkpoint()
        room[:count] = data[at : at + count]
        ring.filling.move(count)
        at += count
    ring.filling.end()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000])
async def test_both_sides_see_everything_in_order(size, autojump_clock):
    """Whatever the pace of each, what is hashed is what was written is what came."""
    rng, ring = random.Random(size), RingBuffer(size)
    data, written, hashed = rng.randbytes(3000), bytearray(), bytearray()

    async def work(side, seen):
        while await ring.wait_for_work(side):
            while piece := ring.next_piece(side, rng.randint(1, size)):
                assert ring.hashing.position <= ring.writing.position <= ring.filling.position
                await trio.sleep(rng.choice([0, 0, 0.1]))
                seen += piece
                side.move(len(piece))
        side.end()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fill, ring, data, lambda room: rng.randint(1, room))
        nursery.start_soon(work, ring.writing, written)
        nursery.start_soon(work, ring.hashing, hashed)
    assert written == hashed == data


@pytest.mark.parametrize("size", [3, 64, 4096])
async def test_in_threads_no_wake_up_is_lost(size):
    """Threads move their sides while tasks fall asleep; all the same everything comes through."""
    rng, ring = random.Random(size), RingBuffer(size)
    data, seen = rng.randbytes(100 * size), {"writing": bytearray(), "hashing": bytearray()}

    async def work(name):
        side = getattr(ring, name)

        def drain():
            while piece := ring.next_piece(side, size // 3):
                seen[name] += piece
                side.move(len(piece))

        while await ring.wait_for_work(side):
            await trio.to_thread.run_sync(drain)
        side.end()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fill, ring, data)
            nursery.start_soon(work, "writing")
            nursery.start_soon(work, "hashing")
    assert seen == {"writing": data, "hashing": data}


async def test_only_what_is_hashed_is_overwritten(autojump_clock):
    """What is written but not hashed keeps its place, and who receives waits."""
    ring = RingBuffer(8)
    (await ring.room())[:] = b"aaaabbbb"
    ring.filling.move(8)
    ring.writing.move(8)
    with trio.move_on_after(1) as waiting:
        await ring.room()
    assert waiting.cancelled_caught
    assert ring.next_piece(ring.hashing, 4) == b"aaaa"
    ring.hashing.move(4)
    room = await ring.room()
    room[:] = b"cccc"
    ring.filling.move(4)
    assert ring.next_piece(ring.hashing, 8) == b"bbbb"
    assert ring.next_piece(ring.writing, 8) == b"cccc"


async def test_a_little_waits_for_more_but_not_for_long(autojump_clock):
    """A thread is not woken for every packet: a quarter of the ring wakes it at once, less after a moment."""
    ring = RingBuffer(8)
    started = trio.current_time()
    ring.filling.move(1)
    assert await ring.wait_for_work(ring.writing)
    assert 0 < trio.current_time() - started < 0.1
    started = trio.current_time()
    ring.filling.move(1)
    assert await ring.wait_for_work(ring.writing)
    assert trio.current_time() == started
    ring.writing.move(2)
    ring.filling.end()
    assert not await ring.wait_for_work(ring.writing)


@pytest.mark.parametrize("from_thread", [False, True])
async def test_a_side_that_is_stopped_is_told(from_thread):
    """Whoever waits for room is told at once, so is whoever asks later, and no thread gets another piece."""
    ring = RingBuffer(2)
    (await ring.room())[:] = b"ab"
    ring.filling.move(2)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:

            async def wait():
                with pytest.raises(trio.BrokenResourceError):
                    await ring.room()

            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            assert ring.next_piece(ring.writing, 2) == b"ab"
            if from_thread:
                await trio.to_thread.run_sync(ring.stop)
            else:
                ring.stop()
        with pytest.raises(trio.BrokenResourceError):
            await ring.room()
        assert not ring.next_piece(ring.writing, 2)
        assert not await ring.wait_for_work(ring.hashing)
