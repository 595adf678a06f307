import random

import pytest
import trio
import trio.testing

from llmkube.weights.download.receiver import RingBuffer


@pytest.mark.parametrize("size", [2, 3, 7, 64, 1000])
async def test_everything_comes_out_in_order(size, autojump_clock):
    """Whatever the pace of both sides, what is taken is what was filled in, and never more than half a ring at once."""
    rng, ring = random.Random(size), RingBuffer(size)
    data, taken = rng.randbytes(5000), bytearray()

    async def fill():
        at = 0
        while at < len(data):
            room = await ring.room()
            assert room
            await trio.sleep(rng.choice([0, 0, 0.1]))
            count = min(rng.randint(1, len(room)), len(data) - at)
            room[:count] = data[at : at + count]
            ring.filled(count)
            at += count
        ring.end()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fill)
        while piece := await ring.take():
            assert len(piece) <= max(size // 2, 1)
            await trio.sleep(rng.choice([0, 0, 0.1]))
            taken += piece
    assert taken == data


async def test_what_was_taken_is_not_overwritten_before_the_next_take(autojump_clock):
    """While one half is written to the disk the network may fill the rest, and then it waits."""
    ring = RingBuffer(8)
    (await ring.room())[:4] = b"aaaa"
    ring.filled(4)
    held = await ring.take()
    room = await ring.room()
    assert len(room) == 4
    room[:] = b"bbbb"
    ring.filled(4)
    with trio.move_on_after(1) as waiting:
        await ring.room()
    assert waiting.cancelled_caught
    assert held == b"aaaa"
    assert await ring.take() == b"bbbb"
    assert len(await ring.room()) == 4


async def test_a_writer_that_gives_up_is_noticed(autojump_clock):
    """Whoever waits for room is told at once, and so is whoever asks later."""
    ring = RingBuffer(2)
    await ring.room()
    ring.filled(2)
    async with trio.open_nursery() as nursery:

        async def wait():
            with pytest.raises(trio.BrokenResourceError):
                await ring.room()

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        ring.give_up()
    with pytest.raises(trio.BrokenResourceError):
        await ring.room()
