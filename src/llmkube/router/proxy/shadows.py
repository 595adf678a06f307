"""Sends copies of requests to shadow backends; their answers are discarded, and no client waits for them.

A copy can neither delay nor fail a request: it is skipped when the queue is full or holds too many bytes.
"""

from collections.abc import Callable
from typing import Final, NoReturn

import attrs
import structlog
import trio

from llmkube.base.http.errors import HttpError
from llmkube.router.dispatch.attempt import Attempts, ClientRequest, Stream
from llmkube.router.dispatch.verdicts import Failure
from llmkube.router.policy.permits import Permit

WORKERS: Final = 8
MAX_WAITING: Final = 16
MAX_BYTES: Final = 32 << 20
"""Total size of copies that are queued or in flight."""

MAX_SECONDS: Final = 600.0
"""Time limit for a whole answer."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger()


@attrs.frozen
class _Copy:
    permit: Permit
    inbound: ClientRequest
    silence_seconds: float


@attrs.define(eq=False)
class Shadows:
    """Shadow requests of one router.

    Attributes:
        attempts: Sends them.
        on_end: Called with the name of the backend and the result of each.
    """

    attempts: Attempts
    on_end: Callable[[str, str], None]
    _sender: trio.MemorySendChannel[_Copy] = attrs.field(init=False)
    _copies: trio.MemoryReceiveChannel[_Copy] = attrs.field(init=False)
    _bytes: int = 0

    def __attrs_post_init__(self) -> None:
        self._sender, self._copies = trio.open_memory_channel[_Copy](MAX_WAITING)

    def offer_nowait(self, permit: Permit, inbound: ClientRequest, silence_seconds: float) -> None:
        """Send a copy unless the queue is full."""
        try:
            if self._bytes + inbound.size > MAX_BYTES:
                raise trio.WouldBlock
            self._sender.send_nowait(_Copy(permit, inbound, silence_seconds))
        except trio.WouldBlock:
            self.on_end(permit.backend.name, "left_out")
        else:
            self._bytes += inbound.size

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> NoReturn:
        """Send copies until cancelled."""
        async with trio.open_nursery() as nursery:
            for _ in range(WORKERS):
                nursery.start_soon(self._work)
            task_status.started()
        raise AssertionError("workers never end")

    async def _work(self) -> NoReturn:
        while True:
            copy = await self._copies.receive()
            try:
                result = "timeout"
                with trio.move_on_after(MAX_SECONDS):
                    result = await self._send(copy)
            finally:
                self._bytes -= copy.inbound.size
            self.on_end(copy.permit.backend.name, result)

    async def _send(self, copy: _Copy) -> str:
        found = await self.attempts.make(copy.permit, copy.inbound, copy.silence_seconds)
        if isinstance(found, Failure):
            return found.cause.value
        if not isinstance(found, Stream):
            return "answered"
        try:
            with trio.CancelScope() as silence:
                piece = b"begun"
                while piece:
                    silence.deadline = trio.current_time() + copy.silence_seconds
                    piece = await found.answer.receive_some()
        except HttpError as exc:
            _log.debug("shadow request interrupted", backend=copy.permit.backend.name, error=str(exc))
            return "broken_off"
        else:
            return "timeout" if silence.cancelled_caught else "answered"
        finally:
            await self.attempts.transport.release(copy.permit, found.answer)  # noqa: ASYNC102 (closes at once)
