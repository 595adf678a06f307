"""In-memory HTTP peers, for tests that check every byte."""

import threading
from collections.abc import Awaitable, Callable, Iterable
from contextlib import contextmanager
from itertools import pairwise

import trio
import trio.testing
from websockets.sync.server import serve

from llmkube.base.http.client import HttpClient
from llmkube.base.http.connection import Connection, ServerContext
from llmkube.base.http.exchange import Exchange, Handler
from llmkube.base.http.heads import RequestHead, read_request
from llmkube.base.http.limits import Limits
from llmkube.base.http.message import Response

Pair = tuple[trio.abc.Stream, trio.abc.Stream]
_LIMITS = Limits()
Script = Callable[[trio.abc.Stream], Awaitable[None]]
GONE = (trio.BrokenResourceError, trio.ClosedResourceError)


async def serve_connection(handler, stream, limits=Limits()):  # noqa: B008 (a frozen value)
    """Serve one connection until either side ends it; no client can make this raise, and the stream ends closed."""
    service = ServerContext(handler, limits)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service.idle.run)
        await Connection(service, stream).run()
        nursery.cancel_scope.cancel(reason="the connection has ended")


@contextmanager
def serving_websockets(handler, **options):
    """Run a server of the `websockets` package in a thread; yield its port."""
    with serve(handler, "127.0.0.1", 0, **options) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.socket.getsockname()[1]
        finally:
            server.shutdown()
            thread.join()


class MemoryListener(trio.abc.Listener[trio.abc.Stream]):
    """Accepts the streams that `connect` opens; after `aclose` connections are refused."""

    def __init__(self, make_pair: Callable[[], Pair] = trio.testing.memory_stream_pair) -> None:
        self._send, self._receive = trio.open_memory_channel[trio.abc.Stream](100)
        self._make_pair = make_pair
        self.dialled: list[tuple[str, int]] = []

    async def accept(self) -> trio.abc.Stream:
        return await self._receive.receive()

    async def aclose(self) -> None:
        self._receive.close()
        await trio.lowlevel.checkpoint()

    async def connect(self, host: str, port: int) -> trio.abc.Stream:
        self.dialled.append((host, port))
        ours, theirs = self._make_pair()
        try:
            await self._send.send(theirs)
        except trio.BrokenResourceError as exc:
            raise ConnectionRefusedError(111, "Connection refused") from exc
        return ours


def answers(*wires: bytes, then_hang: bool = False) -> Script:
    """Return a script for one connection: the nth request gets the nth bytes, then the connection ends (or hangs)."""

    async def script(stream):
        try:
            for wire in wires:
                request = b""
                while not request.endswith(b"\r\n\r\n"):
                    piece = await stream.receive_some()
                    if not piece:
                        return
                    request += piece
                for piece in wire.split(b"|"):
                    await stream.send_all(piece)
                    await trio.testing.wait_all_tasks_blocked()
            if then_hang:
                await stream.receive_some()
        except GONE:
            pass
        finally:
            await trio.aclose_forcefully(stream)

    return script


class Peer:
    """Answers each new connection with the next script; a script of None refuses the connection."""

    def __init__(self, *scripts: Script | None) -> None:
        self.listener = MemoryListener()
        self.left = list(scripts)
        self.client = HttpClient(self.connect)

    async def connect(self, host, port):
        if not self.left or self.left[0] is None:
            raise ConnectionRefusedError(111, "Connection refused")
        return await self.listener.connect(host, port)

    @property
    def connections(self):
        return len(self.listener.dialled)

    async def run(self, *, task_status=trio.TASK_STATUS_IGNORED):
        async with trio.open_nursery() as nursery:
            task_status.started()
            while True:
                stream = await self.listener.accept()
                nursery.start_soon(self.left.pop(0), stream)


def head_of(path: str, lines: str = "", method: str = "GET") -> RequestHead:
    """Return the head of a request as a server's judge gets it."""
    return read_request(f"{method} {path} HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode(), _LIMITS)


def always(stream: trio.abc.Stream) -> Callable[[str, int], Awaitable[trio.abc.Stream]]:
    """Return a connect function that always gives this stream."""

    async def connect(host: str, port: int) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        return stream

    return connect


def cut(data: bytes, positions: Iterable[int]) -> list[bytes]:
    """Return the same bytes in several pieces, none of which is empty."""
    edges = sorted({0, *(position % len(data) for position in positions), len(data)})
    return [data[start:end] for start, end in pairwise(edges)]


async def receive_all(stream: trio.abc.ReceiveStream) -> bytes:
    """Return all bytes up to the end of the stream."""
    received = b""
    while piece := await stream.receive_some():
        received += piece
    return received


async def receive_until(stream: trio.abc.ReceiveStream, end: bytes) -> bytes:
    """Return the bytes up to and including `end`."""
    received = b""
    while not received.endswith(end):
        piece = await stream.receive_some()
        assert piece, f"the stream ended after {received!r}"
        received += piece
    return received


async def converse(handler: Handler, *pieces: bytes, limits: Limits = _LIMITS, half_close: bool = False) -> bytes:
    """Return all that a server sends to a client that sends these pieces, and then perhaps closes its side."""
    client, server = trio.testing.memory_stream_pair()

    async def send() -> None:
        try:
            for piece in pieces:
                await client.send_all(piece)
                await trio.testing.wait_all_tasks_blocked()
            if half_close:
                await client.send_eof()
        except GONE:
            pass

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_connection, handler, server, limits)
        nursery.start_soon(send)
        received = await receive_all(client)
        await client.aclose()
    return received


async def echo(exchange: Exchange) -> None:
    """Respond with the request's body."""
    request = exchange.request
    await exchange.respond(Response.text(200, f"{request.method} {request.target} {request.body.decode('latin-1')}"))
