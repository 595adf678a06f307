"""Idle connections by origin: the last used first, none that is old, none on which anything has come."""

from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack

import attrs
import trio

from llmkube.base.http.hub import HubStream, below_tls

Origin = tuple[str, int]
"""A host and a port."""


@attrs.frozen(eq=False)
class _Idle:
    stream: trio.abc.Stream
    since: float  # by `trio.current_time`


@attrs.define(eq=False)
class Pool:
    """The idle connections of one client.

    Attributes:
        max_per_origin: How many are kept to one host and port.
        max_in_all: How many are kept, so that engines that came and went leave few behind.
        max_seconds: One that is older, by Trio's clock, is not used again.
    """

    max_per_origin: int
    max_in_all: int
    max_seconds: float
    _idle: dict[Origin, list[_Idle]] = attrs.field(factory=dict)  # of each the oldest first
    _count: int = 0

    def __iter__(self) -> Iterator[Origin]:
        """The origin of each connection that is kept."""
        return (origin for origin, idle in self._idle.items() for _ in idle)

    async def take(self, origin: Origin) -> trio.abc.Stream | None:
        """Return the connection to this origin that was used last; close those that are of no use any more."""
        oldest = trio.current_time() - self.max_seconds
        if self._count >= self.max_in_all:
            await self._close_older(oldest)
        while (idle := self._idle.get(origin)) is not None:
            newest = idle.pop()
            self._count -= 1
            if not idle:
                del self._idle[origin]
            if newest.since >= oldest and _is_quiet(newest.stream):
                return newest.stream
            await trio.aclose_forcefully(newest.stream)
        return None

    def keep_nowait(self, origin: Origin, stream: trio.abc.Stream) -> bool:
        """Take a connection back, unless there are enough."""
        if self._count >= self.max_in_all or len(self._idle.get(origin, ())) >= self.max_per_origin:
            return False
        self._idle.setdefault(origin, []).append(_Idle(stream, trio.current_time()))
        self._count += 1
        return True

    async def aclose(self) -> None:
        """Close all."""
        idle, self._idle, self._count = self._idle, {}, 0
        await _close_all(one for each in idle.values() for one in each)

    async def _close_older(self, oldest: float) -> None:
        everything = [(origin, one) for origin, each in self._idle.items() for one in each]
        young = [(origin, one) for origin, one in everything if one.since >= oldest]
        self._idle, self._count = {}, len(young)
        for origin, one in young:
            self._idle.setdefault(origin, []).append(one)
        await _close_all(one for _, one in everything if one.since < oldest)


def _is_quiet(stream: trio.abc.Stream) -> bool:
    """Whether nothing came on an idle connection: not its end, and no late words that would pass for an answer."""
    stream = below_tls(stream)
    if isinstance(stream, HubStream):
        return stream.quiet
    return not (isinstance(stream, trio.SocketStream) and stream.socket.is_readable())


async def _close_all(idle: Iterable[_Idle]) -> None:
    async with AsyncExitStack() as stack:  # closes every one, even when the first close is cancelled
        for each in idle:
            stack.push_async_callback(trio.aclose_forcefully, each.stream)
