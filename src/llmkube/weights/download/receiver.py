"""The receiving side of a transfer: it passes chunks on to the writer, and notices junk, surplus and stalls."""

from typing import Final

import attrs
import trio

from llmkube.weights.download.http_get import Body
from llmkube.weights.download.redirects import as_fetch_errors
from llmkube.weights.download.retry import DownloadLimits
from llmkube.weights.errors import FetchError, NotGGUFError, WrongSizeError
from llmkube.weights.urls import WebUrl

_MAGIC: Final = b"GGUF"
_HEAD_BYTES: Final = 512  # enough to tell a web page from what else it may be
_RING_BYTES: Final = 8 << 20

Failure = NotGGUFError | FetchError


class RingBuffer:
    """A buffer that is filled from the network at one end while the disk takes what is at the other.

    Its memory is used again and again: pages fresh from the kernel for each piece would cost more than the copy does.
    """

    def __init__(self, size_bytes: int = _RING_BYTES) -> None:
        self._memory = memoryview(bytearray(size_bytes))
        self._filled_bytes = self._taken_bytes = self._released_bytes = 0  # since the beginning
        self._ended = self._broken = False
        self._filled, self._emptied = trio.lowlevel.ParkingLot(), trio.lowlevel.ParkingLot()

    async def room(self) -> memoryview:
        """Return where the next bytes go; wait while all is full; BrokenResourceError when the writer is gone."""
        await trio.lowlevel.checkpoint()
        size = len(self._memory)
        while self._filled_bytes - self._released_bytes == size and not self._broken:
            await self._emptied.park()
        if self._broken:
            raise trio.BrokenResourceError
        start = self._filled_bytes % size
        return self._memory[start : start + size - (self._filled_bytes - self._released_bytes)]

    def filled(self, count: int) -> None:
        """Hand over the first bytes of the room."""
        self._filled_bytes += count
        self._filled.unpark_all()

    async def take(self) -> memoryview:
        """Return what is there, up to half of the ring, and wait while that is nothing; empty at the end.

        What was taken before is released, and will be overwritten.
        """
        self._released_bytes = self._taken_bytes
        self._emptied.unpark_all()
        await trio.lowlevel.checkpoint()
        while self._taken_bytes == self._filled_bytes and not self._ended:
            await self._filled.park()
        size = len(self._memory)
        start = self._taken_bytes % size
        found = self._memory[start : start + min(self._filled_bytes - self._taken_bytes, size // 2)]
        self._taken_bytes += len(found)
        return found

    def end(self) -> None:
        """Say that nothing more comes."""
        self._ended = True
        self._filled.unpark_all()

    def give_up(self) -> None:
        """Say that nothing more is taken."""
        self._broken = True
        self._emptied.unpark_all()


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
    """

    url: WebUrl
    shown: str
    have_bytes: int
    limit_bytes: int
    limits: DownloadLimits
    ring: RingBuffer
    _window_bytes: int = 0  # still to come in this window

    async def run(self, body: Body, scope: trio.CancelScope) -> Failure | None:
        """Pass the body on; return what went wrong as a value, because a nursery would wrap what is raised.

        What came before a broken connection is passed on; what was refused is not. If the writing side gives up, that
        is the end here too, and the reason is to be had from it.
        """
        self._restart_window(scope)
        try:
            with as_fetch_errors(self.url):
                if self.have_bytes == 0:
                    await self._take_head(body, scope)
                while count := await body.receive_into(await self._room(scope)):
                    self._note(count, scope)
                    self.ring.filled(count)
        except (FetchError, NotGGUFError) as error:
            return error
        except trio.BrokenResourceError:
            return None
        finally:
            scope.deadline = float("inf")  # from here on only the disk can be slow
            self.ring.end()
        return None

    async def _take_head(self, body: Body, scope: trio.CancelScope) -> None:
        """Pass on as many bytes as it takes to judge the file: nothing is written before that."""
        room, held = await self._room(scope), 0
        while held < len(_MAGIC) and (count := await body.receive_into(room[held:])):
            self._note(count, scope)
            held += count
        self._judge(bytes(room[: min(held, _HEAD_BYTES)]))
        self.ring.filled(held)

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
        raise NotGGUFError(f"{self.shown} is not a GGUF file: it begins with {head[:4]!r}, not with {_MAGIC!r}")
