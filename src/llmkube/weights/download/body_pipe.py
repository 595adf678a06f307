"""From the network through a ring of memory to the disk: received by a task, written by a thread, hashed by another."""

from collections.abc import Awaitable, Callable
from functools import partial as bind
from typing import Final

import attrs
import trio

from llmkube.base.http.streamed_response import StreamedResponse
from llmkube.weights.download.redirects import as_fetch_errors
from llmkube.weights.download.retry import Dependencies, DownloadLimits
from llmkube.weights.errors import FetchError, NotGGUFError, WrongSizeError
from llmkube.weights.store.partial import Partial
from llmkube.weights.urls import WebUrl

_RING_BYTES: Final = 16 << 20
_BATCHES: Final = 4
"""A side sleeps until a quarter of the ring is there for it: to hand over to a thread costs as much as 100 KiB."""

_LINGER_SECONDS: Final = 0.02


class Side:
    """One of the three sides of a ring: it may go on as far as the side before it has come.

    Attributes:
        position: How far it has come, in bytes.
        ended: Whether it comes no further.
        stopped: Whether it is told to go no further.
    """

    def __init__(self) -> None:
        self.position = 0
        self.ended = self.stopped = False
        self.before: Side = self
        self.after: Side = self
        self.lead_bytes = 0  # how far it may run ahead of the side before it
        self._token = trio.lowlevel.current_trio_token()
        self._waiting_for = 0  # the task of this side sleeps until there are so many bytes for it; 0 for no task
        self._asleep = trio.lowlevel.ParkingLot()

    @property
    def ahead(self) -> int:
        """How many bytes there are for it."""
        return self.before.position + self.lead_bytes - self.position

    def move(self, count: int) -> None:
        """Go on, from any thread; the side after it is woken if that is what it waits for."""
        self.position += count
        self.after.notice()

    def end(self) -> None:
        """Go no further."""
        self.ended = True
        self.after.notice()

    def stop(self) -> None:
        """Tell it to go no further: what is under way ends with its piece."""
        self.stopped = True
        self.notice()

    def notice(self) -> None:
        """Wake the task of this side, from any thread, if there is what it waits for."""
        # The task says what it waits for, and then looks again: one of the two sees the other.
        if self._waiting_for and not self._must_wait(self._waiting_for):
            self._token.run_sync_soon(self._asleep.unpark_all, idempotent=True)

    async def wait_for(self, count: int) -> None:
        """Return when there are so many bytes for it, or no more come."""
        self._waiting_for = count
        try:
            while self._must_wait(count):
                await self._asleep.park()
        finally:
            self._waiting_for = 0

    def _must_wait(self, count: int) -> bool:
        return self.ahead < count and not (self.before.ended or self.stopped)


class RingBuffer:
    """The memory, and who has come how far.

    ```
     0 ──── hashed ──── written ──── filled ──── hashed + size     bytes since the beginning
              │            │            └ moved by the task that receives
              │            └ moved by the thread that writes, up to `filled`
              └ moved by the thread that hashes, up to `written`: what is behind it is room again
    ```

    No byte is copied on its way through. Each position is moved by one side alone, from whatever thread, so that a
    thread goes on while there is something for it, and the event loop hears of it only where a task waits.

    Its memory is used again and again: pages fresh from the kernel for each piece would cost more than a copy does.

    Attributes:
        filling: The side that receives.
        writing: The side that writes.
        hashing: The side that hashes.
    """

    def __init__(self, size_bytes: int = _RING_BYTES) -> None:
        self._memory = memoryview(bytearray(size_bytes))
        self._batch_bytes = max(size_bytes // _BATCHES, 1)
        self.filling, self.writing, self.hashing = sides = Side(), Side(), Side()
        for before, side in zip((self.hashing, self.filling, self.writing), sides, strict=True):
            side.before, before.after = before, side
        self.filling.lead_bytes = size_bytes

    async def room(self) -> memoryview:
        """Return where the next bytes go; wait while all is full; BrokenResourceError when nothing more is wanted."""
        side = self.filling
        if side.ahead <= 0:
            await side.wait_for(self._batch_bytes)
        if side.stopped:
            raise trio.BrokenResourceError
        return self._view(side, len(self._memory))

    async def wait_for_work(self, side: Side) -> bool:
        """Wait until there is enough for a side to be worth a thread, or a little for a while; False at the end."""
        await trio.lowlevel.checkpoint()
        await side.wait_for(1)
        if side.ahead < self._batch_bytes and not side.before.ended:
            with trio.move_on_after(_LINGER_SECONDS):
                await side.wait_for(self._batch_bytes)
        return side.ahead > 0 and not side.stopped

    def next_piece(self, side: Side, max_bytes: int) -> memoryview:
        """Return the next bytes for the writing or the hashing side, at most so many; empty while there are none."""
        return self._view(side, 0 if side.stopped else max_bytes)

    def stop(self) -> None:
        """Tell all sides that nothing more is wanted."""
        for side in (self.filling, self.writing, self.hashing):
            side.stop()

    def _view(self, side: Side, max_bytes: int) -> memoryview:
        start = side.position % len(self._memory)
        return self._memory[start : start + min(side.ahead, max_bytes)]


_MAGIC: Final = b"GGUF"
_HEAD_BYTES: Final = 512  # enough to tell a web page from what else it may be

Failure = NotGGUFError | FetchError


@attrs.define(eq=False)
class BodyReceiver:
    """Take in the body of one answer.

    The scope's deadline stands for the window of `DownloadLimits`: it moves on only when enough bytes have come, and it
    stands still while we wait for the disk.

    Attributes:
        url: Where the body comes from.
        shown: The source, for messages.
        have_bytes: How much of the file was there before.
        limit_bytes: How much of it there may be.
        limits: What counts as a stall.
        ring: Where the bytes go.
        is_gguf: Whether the file has to begin as a GGUF file does; the files of a folder begin in many ways.
    """

    url: WebUrl
    shown: str
    have_bytes: int
    limit_bytes: int
    limits: DownloadLimits
    ring: RingBuffer
    is_gguf: bool = attrs.field(default=True, kw_only=True)
    _window_bytes: int = 0  # still to come in this window

    async def run(self, body: StreamedResponse, scope: trio.CancelScope) -> Failure | None:
        """Pass the body on; return what went wrong as a value, because a nursery would wrap what is raised.

        What came before a broken connection is passed on; what was refused is not. If the writing side gives up, that
        is the end here too, and the reason is to be had from it.
        """
        self._restart_window(scope)
        try:
            with as_fetch_errors(self.url):
                if self.have_bytes == 0 and self.is_gguf:
                    await self._take_head(body, scope)
                while count := await body.receive_into(await self._room(scope)):
                    self._note(count, scope)
                    self.ring.filling.move(count)
        except (FetchError, NotGGUFError) as error:
            return error
        except trio.BrokenResourceError:
            return None
        finally:
            scope.deadline = float("inf")  # from here on only the disk can be slow
            self.ring.filling.end()
        return None

    async def _take_head(self, body: StreamedResponse, scope: trio.CancelScope) -> None:
        """Pass on as many bytes as it takes to judge the file: nothing is written before that."""
        room, held = await self._room(scope), 0
        while held < len(_MAGIC) and (count := await body.receive_into(room[held:])):
            self._note(count, scope)
            held += count
        self._judge(bytes(room[: min(held, _HEAD_BYTES)]))
        self.ring.filling.move(held)

    async def _room(self, scope: trio.CancelScope) -> memoryview:
        left = scope.deadline - trio.current_time()
        scope.deadline = float("inf")
        room = await self.ring.room()
        scope.deadline = trio.current_time() + left
        return room

    def _note(self, count: int, scope: trio.CancelScope) -> None:
        self.have_bytes += count
        if self.have_bytes > self.limit_bytes:
            raise WrongSizeError(f"{self.shown}: the server sends more than {self.limit_bytes} bytes")
        self._window_bytes -= count
        if self._window_bytes <= 0:
            self._restart_window(scope)

    def _restart_window(self, scope: trio.CancelScope) -> None:
        scope.deadline = trio.current_time() + self.limits.window_seconds
        self._window_bytes = self.limits.window_bytes

    def _judge(self, head: bytes) -> None:
        if head[: len(_MAGIC)] == _MAGIC:
            return
        if head.lstrip()[:1] == b"<":
            advice = "use the link that downloads the file"
            if "/blob/" in self.url.path:
                advice = "on Hugging Face, the link to a file says /resolve/ where the link to its page says /blob/"
            raise NotGGUFError(f"{self.shown} is a web page, not a GGUF file; {advice}")
        if head.startswith(b"vers"):
            raise NotGGUFError(f"{self.shown} is a Git LFS pointer, not the file; use the link that downloads it")
        # Not what it begins with instead: that may be the answer of a service that only this host reaches.
        raise NotGGUFError(f"{self.shown} is not a GGUF file: it does not begin with {_MAGIC!r}")


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
                    work = bind(self._take, self.ring.writing, _WRITE_BYTES, self.partial.write)
                    await self._attempt(bind(self.dependencies.run_sync, work))
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
                    await self.dependencies.run_sync(bind(self._take, self.ring.hashing, _HASH_BYTES, partial.hash))
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

    def _take(self, side: Side, piece_bytes: int, do: Callable[[memoryview], object]) -> None:
        """Do it to what there is for a side, and to what comes meanwhile (in a thread)."""
        taken_bytes = 0
        while taken_bytes < _TURN_BYTES and (piece := self.ring.next_piece(side, piece_bytes)):
            do(piece)
            side.move(len(piece))
            taken_bytes += len(piece)
