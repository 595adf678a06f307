"""A TCP proxy on this machine to wherever a service answers at the moment; bytes go both ways as they come.

```
 run_tunnel
 └ one nursery: listeners, and per connection
   └ a nursery of two pumps; each ends with a half-close, the connection ends when both have
```

At most `MAX_CONNECTIONS` are open; a further one is closed at once.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, Never

import attrs
import trio

from llmkube.base.http.dial import dial as dial_directly

MAX_CONNECTIONS: Final = 128
DIAL_SECONDS: Final = 10.0
WAIT_SECONDS: Final = 30.0
"""How long a new connection is held while the engine restarts."""

_GONE: Final = (trio.BrokenResourceError, trio.ClosedResourceError)


@attrs.frozen
class Destination:
    """Where connections go."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


FindDestination = Callable[[], Awaitable[Destination]]
"""Waits until there is one; asked anew for each connection."""

Dial = Callable[[str, int], Awaitable[trio.abc.HalfCloseableStream]]


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
            nursery.start_soon(partial(_pump, near, far, nursery.cancel_scope))
            nursery.start_soon(partial(_pump, far, near, nursery.cancel_scope))


async def _connect(
    find: FindDestination, tell: Callable[[str], None], dial: Dial
) -> trio.abc.HalfCloseableStream | None:
    with trio.move_on_after(WAIT_SECONDS) as waiting:
        destination = await find()
    if waiting.cancelled_caught:
        tell(f"a connection was closed: nothing answers for {WAIT_SECONDS:g} s")
        return None
    with trio.move_on_after(DIAL_SECONDS):
        try:
            return await dial(destination.host, destination.port)
        except OSError as exc:
            tell(f"a connection was closed: {destination} cannot be reached ({exc.strerror or exc})")
            return None
    tell(f"a connection was closed: {destination} did not answer within {DIAL_SECONDS:g} s")
    return None


async def _pump(source: trio.abc.ReceiveStream, sink: trio.abc.HalfCloseableStream, both: trio.CancelScope) -> None:
    """Copy until the source ends, and say so to the sink; a broken connection ends the other direction too."""
    try:
        async for piece in source:
            await sink.send_all(piece)
        await sink.send_eof()
    except _GONE:
        both.cancel(reason="one side broke off")
