"""The writing side of a transfer: one thread writes what has come, one hashes what is written, a third syncs."""

from collections.abc import Awaitable, Callable
from functools import partial as bind
from typing import Final

import attrs
import trio

from llmkube.weights.download.retry import Dependencies
from llmkube.weights.download.ring_buffer import RingBuffer, Side
from llmkube.weights.errors import FetchError
from llmkube.weights.store.partial import Partial

_WRITE_BYTES: Final = 1 << 20
_HASH_BYTES: Final = 4 << 20
"""At a time: between two pieces a thread waits for the interpreter, which other threads hold as well."""

_TURN_BYTES: Final = 32 << 20
"""For how many bytes a thread stays while more and more comes. Then the task hears of it, and others get the thread."""


@attrs.define(eq=False)
class DiskWriter:
    """Bring what comes through a ring into a partial file.

    The digest never runs ahead of the file: whatever fails or is cancelled, what is counted is on its way to the disk
    and hashed. Threads are waited for, so that none works on the memory of a ring that is gone.

    Attributes:
        counted: Called with each number of bytes that has been written and hashed; FetchError ends the writing.
    """

    dependencies: Dependencies
    partial: Partial
    ring: RingBuffer
    counted: Callable[[int], None]
    _failure: FetchError | None = None

    async def run(self) -> FetchError | None:
        """Take bytes until the end; return what went wrong as a value, because a nursery would wrap what is raised."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hash)
            try:
                while self._failure is None and await self.ring.wait_for_work(self.ring.writing):
                    await self._attempt(bind(self.dependencies.run_sync, self._write_some))
            finally:
                self.ring.writing.end()
        return self._failure

    async def _hash(self) -> None:
        """Hash until the end; now and then make what is there survive a power cut, beside the next bytes."""
        partial, limits = self.partial, self.dependencies.limits
        syncing = trio.CapacityLimiter(1)
        since_seconds, since_bytes = trio.current_time(), partial.size_bytes

        async def checkpoint() -> None:
            async with syncing:
                await self.dependencies.run_sync(partial.checkpoint)

        async with trio.open_nursery() as nursery:
            while (work := await self._wait_for_bytes()) is not False:
                before = partial.size_bytes
                if work:
                    await self.dependencies.run_sync(self._hash_some)
                    self._count(partial.size_bytes - before)
                lately_seconds, lately_bytes = trio.current_time() - since_seconds, partial.size_bytes - since_bytes
                due = lately_seconds >= limits.checkpoint_seconds or lately_bytes >= limits.checkpoint_bytes
                if lately_bytes and due and not syncing.borrowed_tokens:
                    since_seconds, since_bytes = trio.current_time(), partial.size_bytes
                    nursery.start_soon(self._attempt, checkpoint)

    async def _wait_for_bytes(self) -> bool | None:
        """Wait for bytes to hash; False at the end, None after a while: what has come must not wait for more."""
        with trio.move_on_after(self.dependencies.limits.checkpoint_seconds):
            return await self.ring.wait_for_work(self.ring.hashing)
        return None

    async def _attempt(self, step: Callable[[], Awaitable[None]]) -> None:
        try:
            await step()
        except FetchError as error:
            self._fail(error)

    def _count(self, count: int) -> None:
        try:
            self.counted(count)
        except FetchError as error:
            self._fail(error)

    def _fail(self, error: FetchError) -> None:
        self._failure = self._failure or error
        self.ring.filling.stop()

    def _write_some(self) -> None:
        """Write what there is, and what comes meanwhile (in a thread)."""
        self._take(self.ring.writing, _WRITE_BYTES, self.partial.write)

    def _hash_some(self) -> None:
        """Hash what is written, and what comes meanwhile (in a thread)."""
        self._take(self.ring.hashing, _HASH_BYTES, self.partial.hash)

    def _take(self, side: Side, piece_bytes: int, do: Callable[[memoryview], object]) -> None:
        taken_bytes = 0
        while taken_bytes < _TURN_BYTES and (piece := self.ring.next_piece(side, piece_bytes)):
            do(piece)
            side.move(len(piece))
            taken_bytes += len(piece)
