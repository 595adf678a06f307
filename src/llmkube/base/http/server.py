"""HTTP/1.1 server on Trio: one task per connection, one request at a time, every wait bounded.

```
run_server                       cancelled by its owner
├ accept loops                   end at once, and close the listeners
├ idle timeouts                  end at once: no connection becomes idle any more
└ connections, shielded          idle ones are closed at once, requests in flight get `drain_seconds`
   └ Connection.run              reads a request, has it answered, reads the next
```

At the limit, some of the connections that wait for their clients are closed for new ones: those of the peer that has
the most of them, oldest first. A running handler is never interrupted for another request.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final, NoReturn

import attrs
import structlog
import trio

from llmkube.base.errors import RESOURCE_ERRNOS
from llmkube.base.http.connection import (
    Connection,
    MalformedHandler,
    Phase,
    RequestFilter,
    ServerContext,
    Stamp,
    StreamHandler,
    accept_all,
    no_common_lines,
    plain_text_error,
)
from llmkube.base.http.limits import Limits

CLOSE_ONE_IN: Final = 64
"""At the limit, one in this many connections is closed at once."""

ALMOST_FULL: Final = 16
"""Remaining connections from which on each is accepted in a round of its own, so that clients have time to ask."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger()


async def run_server(
    handler: StreamHandler,
    listeners: Sequence[trio.abc.Listener[trio.abc.Stream]],
    *,
    limits: Limits = Limits(),  # noqa: B008 (a frozen value)
    judge: RequestFilter = accept_all,
    stamp: Stamp = no_common_lines,
    unread: MalformedHandler = plain_text_error,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> NoReturn:
    """Serve until cancelled, then stop in order: listeners close, idle connections close, requests in flight drain.

    Takes ownership of the listeners (any Trio listener, including `trio.SSLListener`). `started()` is called when
    connections are being accepted. After cancellation this returns within `limits.drain_seconds`.

    Args:
        handler: Answers each request; an exception from it costs that request only.
        listeners: At least one.
        limits: Limits on what clients can cost.
        judge: Rejects requests by their heads, before their bodies are read.
        stamp: Returns header lines to add to every response.
        unread: Returns the response to a malformed request.
        task_status: For `nursery.start`.
    """
    if not listeners:
        raise ValueError("a server needs a listener")
    context = ServerContext(handler, limits, judge, stamp, unread)
    connections = _Connections(context)
    arrivals_in, arrivals_out = trio.open_memory_channel[trio.abc.Stream](limits.max_connections)
    async with trio.open_nursery() as nursery:
        # Closing it, after the listeners, stops the connections, even when Ctrl-C comes while they are being started.
        with arrivals_in:
            nursery.start_soon(connections.run, arrivals_out)
            nursery.start_soon(context.idle.run)
            async with trio.open_nursery() as accepting:
                for listener in listeners:
                    accepting.start_soon(_run_accept, listener, arrivals_in, connections)
                task_status.started()
    raise AssertionError("accepting ends by cancellation only")


async def _run_accept(
    listener: trio.abc.Listener[trio.abc.Stream],
    arrivals: trio.MemorySendChannel[trio.abc.Stream],
    connections: "_Connections",
) -> NoReturn:
    async with listener:
        while True:
            await connections.wait_for_capacity()
            try:
                stream = await listener.accept()
            except OSError as exc:
                if exc.errno not in RESOURCE_ERRNOS:
                    raise
                connections.capacity.release()
                _log.warning("connection not accepted", error=str(exc))
                await trio.sleep(0.1)  # it would fail again at once; connections that are closed free resources
            else:
                arrivals.send_nowait(stream)  # never full: its buffer has a slot for every connection


@attrs.define(eq=False)
class _Connections:
    """All connections of one server; `capacity` is the number of further ones that it accepts."""

    context: ServerContext
    capacity: trio.Semaphore = attrs.field(init=False)
    _live: dict[Connection, str] = attrs.field(factory=dict)  # with its owner, the oldest first

    def __attrs_post_init__(self) -> None:
        self.capacity = trio.Semaphore(self.context.limits.max_connections)

    async def wait_for_capacity(self) -> None:
        """Return when another connection can be accepted; at the limit, close some that wait for their clients.

        It closes several at once: going through all connections for each new one would let a flood block the loop.
        """
        if self.capacity.value > ALMOST_FULL:  # without a checkpoint: the next connection may be another client's
            self.capacity.acquire_nowait()
            return
        if self.capacity.value == 0:
            for waiting in self._longest_waiting(max(1, self.context.limits.max_connections // CLOSE_ONE_IN)):
                waiting.close_waiting()
        await self.capacity.acquire()

    async def run(self, arrivals: trio.MemoryReceiveChannel[trio.abc.Stream]) -> None:
        """Serve connections as they arrive; after the last one, let requests in flight drain."""
        limits = self.context.limits
        # The shield outlives the server's cancellation until its deadline, which is set as soon as arrivals end.
        with trio.CancelScope(shield=True) as shield:
            async with trio.open_nursery() as nursery:
                async for first in arrivals:
                    waiting = arrivals.statistics().current_buffer_used
                    for stream in (first, *[arrivals.receive_nowait() for _ in range(waiting)]):  # in one round
                        connection = Connection(self.context, stream)
                        if self._exceeds_share(connection.owner):
                            await trio.aclose_forcefully(stream)
                            self.capacity.release()
                            continue
                        self._live[connection] = connection.owner
                        nursery.start_soon(self._serve, connection)
                shield.deadline = trio.current_time() + limits.drain_seconds
                for connection in self._live:
                    connection.stop_nowait()
                in_flight = len(self._live)
        if shield.cancelled_caught:
            _log.warning("requests cut off after the drain time", connections=in_flight, seconds=limits.drain_seconds)

    async def _serve(self, connection: Connection) -> None:
        try:
            await connection.run()
        finally:
            del self._live[connection]
            self.capacity.release()

    def _exceeds_share(self, peer: str) -> bool:
        share = self.context.limits.max_connections_per_peer
        return share is not None and sum(each == peer for each in self._live.values()) >= share

    def _longest_waiting(self, count: int) -> Sequence[Connection]:
        """Return connections to close: idle ones before half-read requests, of the peer with the most, oldest first."""
        for phase in (Phase.IDLE, Phase.RECEIVING):
            waiting = [connection for connection in self._live if connection.phase is phase]
            if waiting:
                [(busiest_peer, _)] = Counter(self._live[connection] for connection in waiting).most_common(1)
                return [connection for connection in waiting if self._live[connection] == busiest_peer][:count]
        return ()
