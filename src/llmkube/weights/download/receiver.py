"""The receiving side of a transfer: it passes chunks on to the writer, and notices junk, surplus and stalls."""

from typing import Final

import attrs
import trio

from llmkube.base.http.streamed_response import StreamedResponse
from llmkube.weights.download.redirects import as_fetch_errors
from llmkube.weights.download.retry import DownloadLimits
from llmkube.weights.download.ring_buffer import RingBuffer
from llmkube.weights.errors import FetchError, NotGGUFError, WrongSizeError
from llmkube.weights.urls import WebUrl

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
