"""Stream a body from the network through a ring buffer to the disk: a task receives, a thread writes and hashes."""

from collections.abc import Callable
from functools import partial as bind
from typing import Final

import attrs
import trio

from llmkube.base.http.streamed_response import StreamedResponse
from llmkube.weights.download.redirects import as_fetch_errors
from llmkube.weights.download.retry import Dependencies, DownloadLimits
from llmkube.weights.errors import FetchError, NotGGUFError, WrongSizeError
from llmkube.weights.formats.gguf_reader import MAX_HEADER_BYTES, HeaderReader
from llmkube.weights.store.partial import Partial
from llmkube.weights.urls import WebUrl

_RING_BYTES: Final = 16 << 20
_PIECE_BYTES: Final = 256 << 10
_BATCHES: Final = 4
"""At most a quarter of the ring is written at once, so that the network has free memory meanwhile."""

_LINGER_SECONDS: Final = 0.02
"""The time to wait for a full quarter: a call in a thread costs as much as writing 100 KiB."""


class RingBuffer:
    """The memory between the receiving and the writing task; no byte is copied."""

    # The memory is reused: new pages from the kernel for each piece would cost more than a copy.

    def __init__(self, size_bytes: int = _RING_BYTES) -> None:
        self._memory = memoryview(bytearray(size_bytes))
        self._batch_bytes = max(size_bytes // _BATCHES, 1)
        self._filled = self._freed = 0  # bytes since the start
        self._finished = self._stopped = False
        self._waiters = trio.lowlevel.ParkingLot()

    async def write_view(self) -> memoryview:
        """Return the memory for the next bytes; wait while the ring is full; BrokenResourceError after `stop`."""
        while self._buffered == len(self._memory) and not self._stopped:
            await self._waiters.park()
        if self._stopped:
            raise trio.BrokenResourceError
        return self._view(self._filled, len(self._memory) - self._buffered)

    def fill(self, count: int) -> None:
        """Record bytes that were put into the memory of `write_view`."""
        self._filled += count
        self._waiters.unpark_all()

    def end(self) -> None:
        """Record the end of the bytes."""
        self._finished = True
        self._waiters.unpark_all()

    def stop(self) -> None:
        """Stop both sides."""
        self._stopped = True
        self._waiters.unpark_all()

    async def piece(self) -> memoryview:
        """Return the next bytes to write, when a batch is complete or after a while; empty at the end."""
        await trio.lowlevel.checkpoint()
        await self._wait_for(1)
        with trio.move_on_after(_LINGER_SECONDS):
            await self._wait_for(self._batch_bytes)
        return self._view(self._freed, 0 if self._stopped else min(self._buffered, self._batch_bytes))

    def free(self, count: int) -> None:
        """Record that the oldest bytes are on the disk, and free their memory."""
        self._freed += count
        self._waiters.unpark_all()

    @property
    def _buffered(self) -> int:
        return self._filled - self._freed

    async def _wait_for(self, count: int) -> None:
        while self._buffered < count and not (self._finished or self._stopped):
            await self._waiters.park()

    def _view(self, position: int, max_bytes: int) -> memoryview:
        start = position % len(self._memory)
        return self._memory[start : start + max_bytes]


_MAGIC: Final = b"GGUF"
_HEAD_BYTES: Final = 512  # enough to recognize a web page

Failure = NotGGUFError | FetchError


@attrs.define(eq=False)
class HeaderBound:
    """The largest size of a GGUF file whose size the server does not state, from its header as it arrives.

    A file without a valid header within `MAX_HEADER_BYTES` is of no use, so it is at most that long.

    Attributes:
        partial: The bytes so far.
        limit_bytes: The largest size.
    """

    partial: Partial
    limit_bytes: int = MAX_HEADER_BYTES + 2 * _RING_BYTES  # the header is read after the ring
    _reader: HeaderReader | None = attrs.field(factory=lambda: HeaderReader("", None))

    def update(self) -> None:
        """Read the header as far as it has arrived. Blocks on the disk."""
        while self._reader is not None and (needed := self._reader.next_range) is not None:
            if needed.offset + needed.length > self.partial.size_bytes:
                return
            try:
                self._reader.feed(self.partial.read(needed.offset, max(needed.length, _PIECE_BYTES)))
            except (NotGGUFError, OSError):
                self._reader = None
        if self._reader is not None and self._reader.header is not None:
            self.limit_bytes, self._reader = self._reader.header.max_bytes, None


@attrs.define(eq=False)
class BodyReceiver:
    """Receives the body of one response.

    The scope's deadline implements the window of `DownloadLimits`: it is extended only when enough bytes have arrived,
    and does not elapse while we wait for the disk.

    Attributes:
        url: The URL of the body.
        shown: The source, for messages.
        received_bytes: The bytes of the file so far, including earlier ones.
        limit_bytes: The maximum size of the file.
        limits: The limits of a stall.
        ring: The destination of the bytes.
        is_gguf: Whether the file must begin with GGUF's magic bytes, unlike the files of a folder.
        bound: A further limit on its size; None if the server states the size.
    """

    url: WebUrl
    shown: str
    received_bytes: int
    limit_bytes: int
    limits: DownloadLimits
    ring: RingBuffer
    is_gguf: bool = attrs.field(default=True, kw_only=True)
    bound: HeaderBound | None = attrs.field(default=None, kw_only=True)
    _window_bytes: int = 0  # still to come in this window

    async def run(self, body: StreamedResponse, scope: trio.CancelScope) -> Failure | None:
        """Pass the body to the ring; return an error as a value, because a nursery would wrap an exception.

        Bytes before a broken connection are passed on; refused ones are not. If the writing side stops, so does this,
        and the writing side has the error.
        """
        self._restart_window(scope)
        try:
            with as_fetch_errors(self.url):
                if self.received_bytes == 0 and self.is_gguf:
                    await self._receive_head(body, scope)
                while count := await body.receive_into(await self._write_view(scope)):
                    self._record(count, scope)
                    self.ring.fill(count)
        except (FetchError, NotGGUFError) as error:
            return error
        except trio.BrokenResourceError:
            return None
        finally:
            scope.deadline = float("inf")  # from now on, only the disk can be slow
            self.ring.end()
        return None

    async def _receive_head(self, body: StreamedResponse, scope: trio.CancelScope) -> None:
        """Receive the first bytes and check them before anything is written."""
        write_view, received = await self._write_view(scope), 0
        while received < len(_MAGIC) and (count := await body.receive_into(write_view[received:])):
            self._record(count, scope)
            received += count
        self._check_magic(bytes(write_view[: min(received, _HEAD_BYTES)]))
        self.ring.fill(received)

    async def _write_view(self, scope: trio.CancelScope) -> memoryview:
        left = scope.deadline - trio.current_time()
        scope.deadline = float("inf")
        write_view = await self.ring.write_view()
        scope.deadline = trio.current_time() + left
        return write_view

    def _record(self, count: int, scope: trio.CancelScope) -> None:
        self.received_bytes += count
        if self.received_bytes > self.limit_bytes:
            raise WrongSizeError(f"{self.shown}: the server sends more than {self.limit_bytes} bytes")
        if self.bound is not None and self.received_bytes > self.bound.limit_bytes:
            raise WrongSizeError(
                f"{self.shown}: the server sends more than {self.bound.limit_bytes} bytes, and more than the header of "
                "the file describes; check the source"
            )
        self._window_bytes -= count
        if self._window_bytes <= 0:
            self._restart_window(scope)

    def _restart_window(self, scope: trio.CancelScope) -> None:
        scope.deadline = trio.current_time() + self.limits.window_seconds
        self._window_bytes = self.limits.window_bytes

    def _check_magic(self, head: bytes) -> None:
        if head[: len(_MAGIC)] == _MAGIC:
            return
        if head.lstrip()[:1] == b"<":
            advice = "use the link that downloads the file"
            if "/blob/" in self.url.path:
                advice = "on Hugging Face, the link to a file has /resolve/ where the link to its page has /blob/"
            raise NotGGUFError(f"{self.shown} is a web page, not a GGUF file; {advice}")
        if head.startswith(b"vers"):
            raise NotGGUFError(f"{self.shown} is a Git LFS pointer, not the file; use the link that downloads it")
        # The actual first bytes are not shown: they may be from a service that only this host can reach.
        raise NotGGUFError(f"{self.shown} is not a GGUF file: it does not begin with {_MAGIC.decode()}")


@attrs.define(eq=False)
class DiskWriter:
    """Writes the bytes of a ring into a partial file.

    Threads are never abandoned, so that none uses the memory of a ring that is gone.

    Attributes:
        on_written: Called with the number of bytes after each write; FetchError ends the writing.
        bound: Updated after each write.
    """

    dependencies: Dependencies
    partial: Partial
    ring: RingBuffer
    on_written: Callable[[int], None]
    bound: HeaderBound | None = None
    _failure: FetchError | None = None

    async def run(self) -> FetchError | None:
        """Write bytes until the end; return an error as a value, because a nursery would wrap an exception.

        From time to time the written bytes are synced, concurrently with further writes.
        """
        partial, limits = self.partial, self.dependencies.limits
        syncing = trio.CapacityLimiter(1)
        synced_at, synced_bytes = trio.current_time(), partial.size_bytes

        async def checkpoint() -> None:
            async with syncing:
                try:
                    await self.dependencies.run_sync(partial.checkpoint)
                except FetchError as error:
                    self._fail(error)

        async with trio.open_nursery() as nursery:
            while self._failure is None:
                piece = await self._next_piece()
                if piece is not None:
                    if not piece:
                        break
                    await self._append(piece)
                elapsed, written = trio.current_time() - synced_at, partial.size_bytes - synced_bytes
                due = elapsed >= limits.checkpoint_seconds or written >= limits.checkpoint_bytes
                if written and due and not syncing.borrowed_tokens:
                    synced_at, synced_bytes = trio.current_time(), partial.size_bytes
                    nursery.start_soon(checkpoint)
        return self._failure

    async def _next_piece(self) -> memoryview | None:
        """Wait for bytes; return empty at the end, None after a while, so that written bytes are synced in time."""
        with trio.move_on_after(self.dependencies.limits.checkpoint_seconds):
            return await self.ring.piece()
        return None

    async def _append(self, piece: memoryview) -> None:
        try:
            await self.dependencies.run_sync(bind(self._write, piece))
            self.ring.free(len(piece))
            self.on_written(len(piece))
        except FetchError as error:
            self._fail(error)

    def _write(self, piece: memoryview) -> None:
        self.partial.append(piece)
        if self.bound is not None:
            self.bound.update()

    def _fail(self, error: FetchError) -> None:
        self._failure = self._failure or error
        self.ring.stop()
