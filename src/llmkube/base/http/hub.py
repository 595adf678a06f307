"""Sockets that one task waits for: faster on Linux, where each is registered with the kernel only once.

```
 open_sockets ─ nursery ─ Hub.run          waits for the epoll set; wakes the tasks whose sockets are ready
                           ├ HubListener   accepts HubStreams
                           └ HubStream     a Trio stream; `on_end` is called when its peer disconnects
```

Trio registers a socket for every wait, and does not report that a peer has disconnected: a server would need a second
task that reads ahead. Here a wait costs two thirds, and the disconnect is an event. No client delays others by the
number of its connections or streams: in each round of the event loop, few tasks are woken on its behalf, and data of
the others gathers in their sockets (`WAKES_PER_CLIENT`). Elsewhere (macOS has no epoll) programs use Trio's own
streams; callers accept both.
"""

import os
import select
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar

import trio
from trio.lowlevel import Abort, Task, current_task, reschedule, wait_readable, wait_task_rescheduled, wait_writable

from llmkube.base.http.dial import dial
from llmkube.base.http.tls import RECEIVE_BYTES, BulkReceiveStream, TlsStream
from llmkube.base.loop_shares import ClientQueues, current_client

T = TypeVar("T")

BROKEN: Final = (trio.BrokenResourceError, trio.ClosedResourceError)
"""Errors of a stream whose connection is gone."""

READS_PER_CHECKPOINT: Final = 16
"""Reads of available data after which a task yields, so that a peer that sends all the time does not starve others."""

WAKES_PER_CLIENT: Final = 4
"""Connections, to and on behalf of one client, that are woken in one round of the event loop."""

WAKES: Final = 16
"""The same for all clients together; those that wait for the program itself are woken at once."""

FREE_ROUNDS: Final = 4
"""Rounds without wakes between two with them, while more are ready: the program's own work takes many short rounds."""

ACCEPTS_PER_CHECKPOINT: Final = 16
"""Connections that are accepted in one round; the kernel's queue of connections knows no turns of clients."""

MAX_READ_BYTES: Final = 1 << 20
"""Maximum size of one read: the kernel takes a tenth of a millisecond to copy it."""


class HubStream(BulkReceiveStream, trio.abc.HalfCloseableStream):
    """A TCP connection in a hub; one task may read, and one may write.

    Unlike Trio's streams it does not yield on every read of available data (`READS_PER_CHECKPOINT`).

    Attributes:
        on_end: Called once, from the hub's task, when the peer has closed its side or the connection is lost.
        ended: Whether that has happened.
        client: Client on whose behalf a task waits for data; "" for the program itself.
        reader: Task that waits for data.
        is_watched: Whether the hub reports data and the end.
    """

    def __init__(self, hub: "Hub", sock: socket.socket) -> None:
        self.on_end: Callable[[], object] | None = None
        self.ended = False
        self._hub = hub
        self._sock = sock
        self._ready = False
        self._reads = 0
        self.reader: Task | None = None
        self._closed = False
        self.client = ""
        self.is_watched = False

    @property
    def sock(self) -> socket.socket:
        """The socket, for its addresses."""
        return self._sock

    @property
    def is_idle(self) -> bool:
        """Whether nothing has arrived that was not read, not even an end."""
        return not (self._ready or self.ended)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return received data, or b"" at the end of the stream."""
        limit = RECEIVE_BYTES if max_bytes is None else max_bytes
        data = await self._read(self._sock.recv, limit)
        # A short read has emptied the socket, and the kernel reports the next byte, but not an end that came along.
        self._ready = self.ended or len(data) == limit
        return data

    async def receive_into(self, buffer: memoryview) -> int:
        """Receive data into the beginning of a buffer, and return the number of bytes; 0 at the end of the stream."""
        buffer = buffer[:MAX_READ_BYTES]
        count = await self._read(self._sock.recv_into, buffer)
        self._ready = self.ended or count == len(buffer)  # as in `receive_some`
        return count

    async def _read(self, read: Callable[[Any], T], argument: Any) -> T:
        """Call a function of the socket as soon as it returns something."""
        self._reads += 1
        if self._reads >= READS_PER_CHECKPOINT:
            self._reads = 0
            await trio.lowlevel.checkpoint()
        while True:
            if not self._ready:
                await self._wait_ready()
            try:
                return read(argument)
            except BlockingIOError:
                self._ready = False
            except OSError as error:
                raise self._broken(error) from error

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send everything; returns when the kernel has accepted it."""
        sent = self.send_nowait(data)
        if sent < len(data):
            await self.send_rest(memoryview(data)[sent:])

    def send_nowait(self, data: bytes | bytearray | memoryview) -> int:
        """Send what the kernel accepts now, and return the number of bytes."""
        try:
            return self._sock.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._broken(error) from error

    async def send_rest(self, view: memoryview) -> None:
        """Send the rest, which the kernel did not accept at once."""
        while view:
            await self.wait_send_all_might_not_block()
            view = view[self.send_nowait(view) :]

    async def wait_send_all_might_not_block(self) -> None:
        """Return when sending might no longer block."""
        if self._closed:
            raise trio.ClosedResourceError("this stream is closed")
        await wait_writable(self._sock)

    async def send_eof(self) -> None:
        """Close the sending side of the connection."""
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise self._broken(error) from error
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """Close the connection."""
        self.close()
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """Close the connection; a task that waits for it gets `trio.ClosedResourceError`."""
        if not self._closed:
            self._closed = True
            self._hub.forget(self._sock)
            trio.lowlevel.notify_closing(self._sock)  # wakes a task that waits to write
            self._sock.close()
            self.wake()

    def handle_event(self, *, ended: bool) -> None:
        """Handle an event of this socket: data has arrived, or the connection has ended; `wake` follows."""
        self._ready = True
        if ended and not self.ended:
            self.ended = True
            if self.on_end is not None:
                self.on_end()

    def wake(self) -> None:
        """Wake the task that waits for data."""
        if self.reader is not None:
            reschedule(self.reader)
            self.reader = None

    async def _wait_ready(self) -> None:
        if self.reader is not None:
            raise trio.BusyResourceError("another task reads from this stream")
        if not self._closed:
            self.client = current_client.get()
            if not self.is_watched:
                try:
                    self._hub.watch(self)
                except OSError as error:  # the kernel has no memory for it
                    raise self._broken(error) from error
            self.reader = current_task()
            await wait_task_rescheduled(self._abort)
        if self._closed:
            raise trio.ClosedResourceError("this stream is closed")

    def _abort(self, _: object) -> Abort:
        self.reader = None
        return Abort.SUCCEEDED

    def _broken(self, error: OSError) -> trio.BrokenResourceError | trio.ClosedResourceError:
        if self._closed:
            return trio.ClosedResourceError("this stream is closed")
        return trio.BrokenResourceError(f"socket connection broken: {error}")


class Hub:
    """Sockets in one epoll set, edge-triggered: each change is reported once."""

    def __init__(self) -> None:
        if sys.platform != "linux":
            raise NotImplementedError("only Linux has epoll")
        self._epoll = select.epoll()
        self._streams: dict[int, HubStream] = {}

    def add(self, stream: trio.SocketStream, *, is_accepted: bool = False) -> HubStream:
        """Take over a connection; its old object is closed, its socket stays open."""
        sock = socket.socket(fileno=stream.socket.detach())
        sock.setblocking(False)
        hub_stream = HubStream(self, sock)
        if not is_accepted:  # one that is accepted waits for its turn even with its first data
            self.watch(hub_stream)
        return hub_stream

    def watch(self, stream: HubStream) -> None:
        """Begin to report what happens to a connection, and what has happened."""
        stream.is_watched = True
        self._streams[stream.sock.fileno()] = stream
        if sys.platform == "linux":
            self._epoll.register(stream.sock.fileno(), select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)

    async def connect(self, host: str, port: int) -> trio.abc.Stream:
        """Open a connection; raises OSError."""
        return self.add(await dial(host, port))

    def listen(self, listeners: Sequence[trio.SocketListener]) -> Sequence[trio.abc.Listener[trio.abc.Stream]]:
        """Take over listeners; the connections that they accept are in this hub."""
        return [HubListener(self, each) for each in listeners]

    def forget(self, sock: socket.socket) -> None:
        """Remove a socket that is about to be closed; closing it removes it from the epoll set."""
        self._streams.pop(sock.fileno(), None)

    def close(self) -> None:
        """Close the epoll set."""
        if sys.platform == "linux":
            self._epoll.close()

    async def run(self, scope: trio.CancelScope) -> None:
        """Wake the tasks whose sockets are ready, until the scope is cancelled."""
        if sys.platform != "linux":
            return
        ends = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
        ready = ClientQueues[HubStream]()
        with scope:
            while True:
                if ready:
                    for _ in range(FREE_ROUNDS + 1):
                        await trio.lowlevel.checkpoint()
                else:
                    await wait_readable(self._epoll.fileno())
                for descriptor, events in self._epoll.poll(0):
                    stream = self._streams.get(descriptor)
                    if stream is None:
                        continue
                    stream.handle_event(ended=bool(events & ends))
                    if not stream.client:
                        stream.wake()
                    elif stream.reader is not None:
                        ready.add(stream.client, stream)
                for stream in ready.take(WAKES, WAKES_PER_CLIENT):
                    stream.wake()


class HubListener(trio.abc.Listener[trio.abc.Stream]):
    """A listener whose connections are in a hub."""

    def __init__(self, hub: Hub, listener: trio.SocketListener) -> None:
        self._hub = hub
        self._listener = listener
        self._sock = socket.socket(fileno=os.dup(listener.socket.fileno()))  # Trio accepts one in a round
        self._sock.setblocking(False)
        self._accepts = 0

    async def accept(self) -> HubStream:
        """Return the next connection."""
        self._accepts += 1
        if self._accepts < ACCEPTS_PER_CHECKPOINT:
            with suppress(OSError):  # there is none now, or Trio handles the error
                accepted = trio.socket.from_stdlib_socket(self._sock.accept()[0])
                return self._hub.add(trio.SocketStream(accepted), is_accepted=True)
        self._accepts = 0
        return self._hub.add(await self._listener.accept(), is_accepted=True)

    async def aclose(self) -> None:
        """Close the listener; its connections stay open."""
        self._sock.close()
        await self._listener.aclose()


def below_tls(stream: trio.abc.Stream) -> trio.abc.Stream:
    """Return the transport of a TLS stream; return any other stream as it is."""
    if isinstance(stream, HubStream):  # first: it is the most frequent one, and the other checks are slow (ABCs)
        return stream
    while isinstance(stream, TlsStream):  # one in another for an https proxy
        stream = stream.transport
    return stream.transport_stream if isinstance(stream, trio.SSLStream) else stream


class TrioSockets:
    """Trio's own streams, where there is no epoll."""

    async def connect(self, host: str, port: int) -> trio.abc.Stream:
        """Open a connection; raises OSError."""
        return await dial(host, port)

    def listen(self, listeners: Sequence[trio.SocketListener]) -> Sequence[trio.abc.Listener[trio.abc.Stream]]:
        """Return the listeners as they are."""
        return listeners


@asynccontextmanager
async def open_sockets() -> AsyncIterator[Hub | TrioSockets]:
    """Open the fastest implementation of sockets on this system; close its streams before the end of the block."""
    if sys.platform != "linux":
        yield TrioSockets()
        return
    hub = Hub()
    try:
        # Cancelled servers drain over these sockets, so the hub is shielded until the end of the block.
        shield = trio.CancelScope(shield=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hub.run, shield)
            try:
                yield hub
            finally:
                shield.cancel(reason="the hub is closed")
    finally:
        hub.close()
