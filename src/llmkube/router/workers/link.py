"""A pair of sockets between the parent of a router and a worker: messages in order, and calls with a deadline.

A side whose other one has gone reads the end: what that held is given back, and what waits for an answer gets none. No
other process can speak here: the pair has no name, and only the worker inherits its end.
"""

import contextlib
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs
import orjson
import trio

Message = Mapping[str, Any]
"""One JSON object; `k` says what it is."""

KIND: Final = "k"
NUMBER: Final = "n"
REPLY: Final = "reply"

MOST_WAITING_BYTES: Final = 128 << 20
"""That the other side has not read: then it is taken to be gone."""

_MOST_FRAME_BYTES: Final = 64 << 20
_READ_BYTES: Final = 256 << 10
_LENGTH_BYTES: Final = 4


class LinkError(Exception):
    """The other side is gone, or does not answer in time."""


@attrs.define(eq=False)
class _Call:
    done: trio.Event = attrs.field(factory=trio.Event)
    answer: Message | None = None


class Link:
    """One end; it owns its socket.

    Attributes:
        lost: Whether the other side is gone.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.lost = False
        self._sock = sock
        self._waiting = bytearray()
        self._some = trio.Event()
        self._calls: dict[int, _Call] = {}
        self._last = 0

    def number(self) -> int:
        """Return a number that no other message of this side has."""
        self._last += 1
        return self._last

    def send_nowait(self, kind: str, /, **fields: Any) -> None:
        """Send a message after those before it; what the kernel takes at once is there even if this process is killed.

        To a side that is gone, nothing is sent.
        """
        if self.lost:
            return
        body = orjson.dumps({KIND: kind, **fields})
        frame = len(body).to_bytes(_LENGTH_BYTES) + body
        sent = 0 if self._waiting else self._send(frame)
        if sent < len(frame):
            self._waiting += frame[sent:]
            self._some.set()
        if len(self._waiting) > MOST_WAITING_BYTES:
            self._lose()

    async def call(self, kind: str, seconds: float, /, *, number: int = 0, **fields: Any) -> Message:
        """Send a message and return the answer to it.

        Args:
            kind: Of the message.
            seconds: How long to wait.
            number: Of the message; 0 takes a new one.
            fields: What else it says.

        Raises:
            LinkError: None comes in time.
        """
        number, call = number or self.number(), _Call()
        self._calls[number] = call
        try:
            self.send_nowait(kind, **{NUMBER: number}, **fields)
            if not self.lost:
                with trio.move_on_after(seconds):
                    await call.done.wait()
        finally:
            del self._calls[number]
        if call.answer is None:
            why = "the other process has ended" if self.lost else f"no answer within {seconds:g} s"
            raise LinkError(why)
        return call.answer

    def answer_nowait(self, message: Message, /, **fields: Any) -> None:
        """Answer a call."""
        self.send_nowait(REPLY, **{NUMBER: message[NUMBER]}, **fields)

    async def run(self, take: Callable[[Message], None]) -> None:
        """Hand each message that comes to `take`, in order, and return when the other side is gone."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write)
                await self._read(take)
                nursery.cancel_scope.cancel(reason="the other side is gone")
        finally:
            self._lose()
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()

    async def _read(self, take: Callable[[Message], None]) -> None:
        buffer = bytearray()
        while not self.lost:
            await trio.lowlevel.wait_readable(self._sock)
            try:
                data = self._sock.recv(_READ_BYTES)
            except BlockingIOError:
                continue
            except OSError:
                return
            if not data:
                return
            buffer += data
            if not self._take_frames(buffer, take):
                return

    def _take_frames(self, buffer: bytearray, take: Callable[[Message], None]) -> bool:
        """Take whole messages out of a buffer; return False where what follows is none."""
        at = 0
        while len(buffer) - at >= _LENGTH_BYTES:
            length = int.from_bytes(buffer[at : at + _LENGTH_BYTES])
            if length > _MOST_FRAME_BYTES:
                return False
            end = at + _LENGTH_BYTES + length
            if len(buffer) < end:
                break
            message = orjson.loads(memoryview(buffer)[at + _LENGTH_BYTES : end])
            at = end
            if message[KIND] != REPLY:
                take(message)
            elif (call := self._calls.get(message[NUMBER])) is not None:
                call.answer = message
                call.done.set()
        del buffer[:at]
        return True

    async def _write(self) -> None:
        while True:
            await self._some.wait()
            self._some = trio.Event()
            while self._waiting and not self.lost:
                await trio.lowlevel.wait_writable(self._sock)
                del self._waiting[: self._send(self._waiting)]

    def _send(self, data: bytes | bytearray) -> int:
        try:
            return self._sock.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            self._lose()
            return 0

    def _lose(self) -> None:
        """Give the other side up: both read the end."""
        if self.lost:
            return
        self.lost = True
        self._waiting.clear()
        with contextlib.suppress(OSError):  # it is gone already
            self._sock.shutdown(socket.SHUT_RDWR)
        for call in self._calls.values():
            call.done.set()
