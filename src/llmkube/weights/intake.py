"""The receiving side of a transfer: it passes chunks on to whoever writes, and notices junk, surplus and stalls."""

from collections.abc import AsyncIterator
from typing import Final

import attrs
import trio

from llmkube.weights.errors import FetchError, NotGGUFError, WrongSizeError
from llmkube.weights.hops import translated
from llmkube.weights.retry import Patience
from llmkube.weights.urls import WebUrl

_MAGIC: Final = b"GGUF"
_BATCH_BYTES: Final = 8 << 20  # what piles up while the disk is busy with the batch before

Failure = NotGGUFError | FetchError


@attrs.define(eq=False)
class Batches:
    """Chunks on their way to the disk: the writer takes all there are at once, so that none waits for the next one."""

    _chunks: list[bytes] = attrs.field(factory=list)
    _size_bytes: int = 0
    _ended: bool = False
    _broken: bool = False
    _filled: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)
    _emptied: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)

    async def put(self, chunk: bytes) -> None:
        """Hand over a chunk, and wait while too much piles up; BrokenResourceError when nobody writes any more."""
        if not self._broken:
            self._chunks.append(chunk)
            self._size_bytes += len(chunk)
            self._filled.unpark_all()
        while self._size_bytes >= _BATCH_BYTES and not self._broken:
            await self._emptied.park()
        if self._broken:
            raise trio.BrokenResourceError

    async def take(self) -> list[bytes]:
        """Return all that is there, and wait while that is nothing; empty at the end."""
        while not self._chunks and not self._ended:
            await self._filled.park()
        taken, self._chunks, self._size_bytes = self._chunks, [], 0
        self._emptied.unpark_all()
        return taken

    def end(self) -> None:
        """Say that nothing more comes."""
        self._ended = True
        self._filled.unpark_all()

    def give_up(self) -> None:
        """Say that nothing more is taken."""
        self._broken = True
        self._emptied.unpark_all()


@attrs.define(eq=False)
class Intake:
    """Take in the body of one answer.

    The scope's deadline stands for the window of `Patience`: it moves on only when enough bytes have come, and it
    stands still while we wait for the disk.

    Attributes:
        url: Where the body comes from.
        shown: The source, for messages.
        have_bytes: How much of the file was there before.
        limit_bytes: How much of it there may be.
        patience: What counts as a stall.
        batches: Where the chunks go.
    """

    url: WebUrl
    shown: str
    have_bytes: int
    limit_bytes: int
    patience: Patience
    batches: Batches
    _window_bytes: int = 0  # still to come in this window
    _head: bytes | None = None  # the first bytes, until there are enough of them to be judged

    async def run(self, chunks: AsyncIterator[bytes], scope: trio.CancelScope) -> Failure | None:
        """Pass the body on; return what went wrong as a value, because a nursery would wrap what is raised.

        What came before a broken connection is passed on; what was refused is not. If the writing side gives up, that
        is the end here too, and the reason is to be had from it.
        """
        self._head = b"" if self.have_bytes == 0 else None
        self._restart_window(scope)
        try:
            with translated(self.url):
                async for chunk in chunks:
                    await self._take(chunk, scope)
            if self._head is not None:
                self._judge(self._head)
        except (FetchError, NotGGUFError) as error:
            return error
        except trio.BrokenResourceError:
            return None
        finally:
            scope.deadline = float("inf")  # from here on only the disk can be slow
            self.batches.end()
        return None

    async def _take(self, chunk: bytes, scope: trio.CancelScope) -> None:
        self.have_bytes += len(chunk)
        if self.have_bytes > self.limit_bytes:
            raise WrongSizeError(f"{self.shown}: the server sends more than {self.limit_bytes} bytes")
        self._window_bytes -= len(chunk)
        if self._window_bytes <= 0:
            self._restart_window(scope)
        if self._head is not None:
            chunk = self._head + chunk  # nothing is written before it can be judged
            if len(chunk) < len(_MAGIC):
                self._head = chunk
                return
            self._judge(chunk)
            self._head = None
        left = scope.deadline - trio.current_time()
        scope.deadline = float("inf")
        await self.batches.put(chunk)
        scope.deadline = trio.current_time() + left

    def _restart_window(self, scope: trio.CancelScope) -> None:
        scope.deadline = trio.current_time() + self.patience.window_seconds
        self._window_bytes = self.patience.window_bytes

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
