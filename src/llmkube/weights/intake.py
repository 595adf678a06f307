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
_BATCH_BYTES: Final = 4 << 20  # what piles up while the disk is busy with the batch before

Failure = NotGGUFError | FetchError


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
    """

    url: WebUrl
    shown: str
    have_bytes: int
    limit_bytes: int
    patience: Patience
    _batch: list[bytes] = attrs.field(factory=list)
    _batch_bytes: int = 0
    _window_bytes: int = 0  # still to come in this window
    _head: bytes | None = None  # the first bytes, until there are enough of them to be judged

    async def run(
        self, chunks: AsyncIterator[bytes], send: trio.MemorySendChannel[list[bytes]], scope: trio.CancelScope
    ) -> Failure | None:
        """Pass the body on; return what went wrong as a value, because a nursery would wrap what is raised.

        What came before a broken connection is passed on as well; what was refused is not. If the writing side closes
        its end, that is the end here too, and the reason is to be had from it.
        """
        self._head = b"" if self.have_bytes == 0 else None
        self._restart_window(scope)
        failure: Failure | None = None
        try:
            try:
                with translated(self.url):
                    async for chunk in chunks:
                        await self._take(chunk, send, scope)
                if self._head is not None:
                    self._judge(self._head)
            except (WrongSizeError, NotGGUFError) as error:
                return error
            except FetchError as error:
                if self._head is not None:
                    return error  # too little has come to be judged, so it is not kept
                failure = error
            scope.deadline = float("inf")  # from here on only the disk can be slow
            await self._flush(send, scope)
        except trio.BrokenResourceError:
            return None
        return failure

    async def _take(
        self, chunk: bytes, send: trio.MemorySendChannel[list[bytes]], scope: trio.CancelScope
    ) -> None:
        self.have_bytes += len(chunk)
        if self.have_bytes > self.limit_bytes:
            raise WrongSizeError(f"{self.shown}: the server sends more than {self.limit_bytes} bytes")
        self._window_bytes -= len(chunk)
        if self._window_bytes <= 0:
            self._restart_window(scope)
        self._batch.append(chunk)
        self._batch_bytes += len(chunk)
        if self._head is not None:
            self._head += chunk[: len(_MAGIC)]
            if len(self._head) < len(_MAGIC):
                return
            self._judge(self._head)
            self._head = None
        try:
            send.send_nowait(self._batch)
        except trio.WouldBlock:
            if self._batch_bytes >= _BATCH_BYTES:
                await self._flush(send, scope)
        else:
            self._batch, self._batch_bytes = [], 0

    async def _flush(self, send: trio.MemorySendChannel[list[bytes]], scope: trio.CancelScope) -> None:
        if self._batch:
            left = scope.deadline - trio.current_time()
            scope.deadline = float("inf")
            await send.send(self._batch)
            scope.deadline = trio.current_time() + left
            self._batch, self._batch_bytes = [], 0

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
