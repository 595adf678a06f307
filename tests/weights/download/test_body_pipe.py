"""The ring between the network and the disk, under a virtual clock and in real threads."""

import errno
import hashlib
import os
import random
import threading

import pytest
import trio
import trio.testing

from llmkube.weights.download.body_pipe import DiskWriter, RingBuffer
from llmkube.weights.download.guarded_transport import open_transport_with
from llmkube.weights.download.retry import Dependencies, DownloadLimits
from llmkube.weights.errors import FetchError, NoSpaceError
from llmkube.weights.http_responses import Validator
from llmkube.weights.store import partial as partial_module
from llmkube.weights.store.blobs import open_store
from llmkube.weights.store.disk import FreeSpace, in_threads
from llmkube.weights.store.partial import PartialInfo, open_partial
from weights.hostile import NOW, inline


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000])
async def test_everything_comes_through_in_order(size, autojump_clock):
    """Whatever the pace of each side, what is written is what came, and no place is filled before it is free."""
    rng, ring = random.Random(size), RingBuffer(size)
    data, seen = rng.randbytes(3000), bytearray()

    async def write():
        while piece := await ring.piece():
            before = bytes(piece)
            await trio.sleep(rng.choice([0, 0, 0.1]))
            assert piece == before
            seen.extend(piece)
            ring.free(len(piece))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        assert await fill_wanted(ring, data, lambda write_view: rng.randint(1, write_view))
    assert seen == data


async def test_a_little_waits_for_more_but_not_for_long(autojump_clock):
    """A thread is not woken for every packet: a quarter of the ring wakes it at once, less after a moment."""
    ring = RingBuffer(8)
    started = trio.current_time()
    ring.fill(1)
    assert len(await ring.piece()) == 1
    assert 0 < trio.current_time() - started < 0.1
    started = trio.current_time()
    ring.fill(1)
    assert len(await ring.piece()) == 2
    assert trio.current_time() == started
    ring.free(2)
    ring.end()
    assert not await ring.piece()


async def test_both_sides_are_notified_of_the_end():
    """The waiting writer is notified at once, a later writer gets an error, and no further piece arrives."""
    ring = RingBuffer(2)
    ring.fill(2)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:

            async def wait():
                with pytest.raises(trio.BrokenResourceError):
                    await ring.write_view()

            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            ring.stop()
        with pytest.raises(trio.BrokenResourceError):
            await ring.write_view()
        assert not await ring.piece()


KEY = "ab" * 32
DATA = random.Random(1).randbytes(1_000_000)
RING_BYTES = 64 * 1024


@pytest.fixture
def partial(tmp_path):
    found = open_partial(open_store(tmp_path / "store"), KEY)
    found.begin(PartialInfo(Validator('"v1"'), len(DATA)))
    yield found
    found.close()


@pytest.fixture
def synced(partial, monkeypatch):
    """Return the number of bytes that each checkpoint covers."""
    sizes, real = [], type(partial).checkpoint

    def checkpoint(self):
        sizes.append(self.size_bytes)
        real(self)

    monkeypatch.setattr(type(partial), "checkpoint", checkpoint)
    return sizes


def writer_of(partial, ring, *, on_written=lambda _: None, run_sync=None):
    run_sync = run_sync or in_threads(trio.CapacityLimiter(4))
    limits, space = DownloadLimits(checkpoint_bytes=300_000), FreeSpace(partial.path.parent)
    dependencies = Dependencies(
        open_transport_with(), lambda: NOW, random.Random(1), limits, run_sync=run_sync, space=space
    )
    return DiskWriter(dependencies, partial, ring, on_written)


async def fill_wanted(ring, data=DATA, step=lambda write_view: 10_000):
    """Play the network; return whether the writing side wanted everything."""
    left = memoryview(data)
    try:
        while left:
            write_view = await ring.write_view()
            await trio.lowlevel.checkpoint()
            count = min(step(len(write_view)), len(write_view), len(left))
            write_view[:count] = left[:count]
            ring.fill(count)
            left = left[count:]
    except trio.BrokenResourceError:
        return False
    finally:
        ring.end()
    return True


async def written(partial, **options):
    """Write all that comes; return what went wrong."""
    ring = RingBuffer(RING_BYTES)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fill_wanted, ring)
            failure = await writer_of(partial, ring, **options).run()
    return failure


def digest_of_file(partial):
    data = partial.path.read_bytes()
    return hashlib.sha256(data[: partial.size_bytes]).hexdigest()


@pytest.mark.parametrize("run_sync", [in_threads(trio.CapacityLimiter(4)), in_threads(trio.CapacityLimiter(1)), inline])
async def test_what_comes_is_written_and_hashed(partial, run_sync):
    """In threads, in one for all, or in none: file, digest and the sum of what was counted are those of what came."""
    counts = []
    assert await written(partial, on_written=counts.append, run_sync=run_sync) is None
    assert partial.path.read_bytes() == DATA
    assert (partial.sha256, partial.size_bytes) == (hashlib.sha256(DATA).hexdigest(), sum(counts))


async def test_a_full_disk_leaves_a_digest_that_fits(partial, monkeypatch):
    """Only bytes written before the disk was full are hashed, and the receiver is notified."""
    real, took_all = os.pwrite, []

    def fill_up(fd, data, offset):
        if fd == partial._fd and offset + len(data) > 500_000:
            real(fd, data[: len(data) // 2], offset)
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data, offset)

    monkeypatch.setattr(partial_module.os, "pwrite", fill_up)
    ring = RingBuffer(RING_BYTES)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:

            async def receive():
                took_all.append(await fill_wanted(ring))

            nursery.start_soon(receive)
            failure = await writer_of(partial, ring).run()
    assert isinstance(failure, NoSpaceError)
    assert took_all == [False]
    assert 500_000 - 2 * RING_BYTES < partial.size_bytes <= 500_000
    assert partial.path.stat().st_size == partial.size_bytes
    assert partial.sha256 == digest_of_file(partial) == hashlib.sha256(DATA[: partial.size_bytes]).hexdigest()


async def test_a_failing_checkpoint_ends_the_transfer(partial):
    """Space that cannot be promised any more ends the writing with that error."""

    def on_written(count):
        raise FetchError("enough")

    assert str(await written(partial, on_written=on_written)) == "enough"
    assert partial.sha256 == digest_of_file(partial)


async def test_a_thread_is_waited_for_and_its_result_is_right(partial, monkeypatch):
    """Cancelled while a thread is at its piece: that piece ends first, no other begins, and digest and size agree."""
    real, entered, leave = type(partial).append, threading.Event(), threading.Event()
    calls = []

    def slow(self, data):
        calls.append(len(data))
        if len(calls) == 3:
            entered.set()
            assert leave.wait(60)
        real(self, data)

    monkeypatch.setattr(type(partial), "append", slow)
    ring, done = RingBuffer(RING_BYTES), trio.Event()

    async def run(scope):
        with scope:
            await writer_of(partial, ring).run()
        done.set()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()
            nursery.start_soon(fill_wanted, ring)
            nursery.start_soon(run, scope)
            await trio.to_thread.run_sync(entered.wait, 30)
            ring.stop()
            scope.cancel()
            await trio.sleep(0.05)
            assert not done.is_set()
            leave.set()
            await done.wait()
    assert len(calls) == 3
    assert partial.sha256 == digest_of_file(partial)
    assert partial.path.stat().st_size == partial.size_bytes


async def test_what_is_hashed_survives_a_power_cut_beside_the_next_bytes(partial, synced):
    """Every so many bytes the file is synced while the next ones are written, and the note says no more than that."""
    await written(partial)
    assert synced
    assert all(size <= len(DATA) for size in synced)
    assert synced[0] >= 300_000


async def test_what_has_come_before_a_stall_survives_a_power_cut(partial, synced, autojump_clock):
    """A server that sends a little at once and then nothing: the note is written without one more byte, and once."""

    async def at_once(step):
        await trio.lowlevel.checkpoint()
        return step()

    ring = RingBuffer(RING_BYTES)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer_of(partial, ring, run_sync=at_once).run)
        write_view = await ring.write_view()
        write_view[:9000] = DATA[:9000]
        ring.fill(9000)
        await trio.sleep(60)
        assert synced == [9000]
        nursery.cancel_scope.cancel()
