"""A TCP proxy on this machine to wherever a service answers at the moment; bytes go both ways as they come.

```
 run_tunnel
 └ one nursery: listeners, and per connection
   └ a nursery of two pumps; each ends with a half-close, the connection ends when both have.
     To a pod there is no half-close: the end of one is the end of both
```

At most `MAX_CONNECTIONS` are open; a further one is closed at once.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, Never

import attrs
import trio

from llmkube.base.errors import LLMKubeError
from llmkube.base.http.dial import dial
from llmkube.k8s.resource import Key

MAX_CONNECTIONS: Final = 128
DIAL_SECONDS: Final = 10.0
WAIT_SECONDS: Final = 30.0
"""How long a new connection is held while the engine restarts."""

_GONE: Final = (trio.BrokenResourceError, trio.ClosedResourceError)


@attrs.frozen
class Destination:
    """Where connections go: an address, or a pod, which is reached through the API server."""

    host: str
    port: int
    pod: Key | None = None

    def __str__(self) -> str:
        if self.pod is not None:
            return f"port {self.port} of pod {self.pod}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


FindDestination = Callable[[], Awaitable[Destination]]
"""Waits until there is one; asked anew for each connection."""

Dial = Callable[[Destination], Awaitable[trio.abc.Stream]]


async def dial_directly(destination: Destination) -> trio.abc.Stream:
    """Open a connection from this machine to an address; raises OSError."""
    return await dial(destination.host, destination.port)


async def run_tunnel(
    listeners: Sequence[trio.SocketListener],
    find: FindDestination,
    tell: Callable[[str], None],
    *,
    dial: Dial = dial_directly,
) -> Never:
    """Serve connections until cancelled; one that fails is reported and ends alone.

    Args:
        listeners: Where to accept.
        find: Says where a new connection goes.
        tell: Takes a sentence about a connection that could not be made.
        dial: Opens connections.
    """
    room = trio.CapacityLimiter(MAX_CONNECTIONS)

    async def handle(stream: trio.SocketStream) -> None:
        if not room.available_tokens:
            tell(f"a connection was closed: {MAX_CONNECTIONS} are open already")
            await trio.aclose_forcefully(stream)
            return
        async with room:
            await carry(stream, find, tell, dial)

    await trio.serve_listeners(handle, list(listeners))
    raise AssertionError("serve_listeners never ends")


async def carry(
    near: trio.abc.HalfCloseableStream, find: FindDestination, tell: Callable[[str], None], dial: Dial
) -> None:
    """Join one connection with a new one to the destination; return when both directions have ended."""
    async with near:
        far = await _connect(find, tell, dial)
        if far is None:
            return
        async with far, trio.open_nursery() as nursery:
            nursery.start_soon(partial(_pump, near, far, nursery.cancel_scope, tell))
            nursery.start_soon(partial(_pump, far, near, nursery.cancel_scope, tell))


async def _connect(find: FindDestination, tell: Callable[[str], None], dial: Dial) -> trio.abc.Stream | None:
    with trio.move_on_after(WAIT_SECONDS) as waiting:
        destination = await find()
    if waiting.cancelled_caught:
        tell(f"a connection was closed: nothing answers for {WAIT_SECONDS:g} s")
        return None
    with trio.move_on_after(DIAL_SECONDS):
        try:
            return await dial(destination)
        except LLMKubeError as exc:
            tell(f"a connection was closed: {exc}")
            return None
        except OSError as exc:
            tell(f"a connection was closed: {destination} cannot be reached ({exc.strerror or exc})")
            return None
    tell(f"a connection was closed: {destination} did not answer within {DIAL_SECONDS:g} s")
    return None


async def _pump(
    source: trio.abc.ReceiveStream, sink: trio.abc.SendStream, both: trio.CancelScope, tell: Callable[[str], None]
) -> None:
    """Copy until the source ends, and say so to the sink; a broken connection ends the other direction too.

    So does the end of the source, where the sink cannot be told without being closed.
    """
    try:
        async for piece in source:
            await sink.send_all(piece)
        if isinstance(sink, trio.abc.HalfCloseableStream):
            await sink.send_eof()
        else:
            both.cancel(reason="one side has ended, and the other knows no half-close")
    except _GONE as exc:
        if isinstance(exc.__cause__, LLMKubeError):
            tell(f"a connection broke: {exc.__cause__}")
        both.cancel(reason="one side broke off")
