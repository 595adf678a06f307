"""Connections that wait for their client's next request: each is ended once it has waited too long.

One task looks after those of a server, the longest waiting first. To set a deadline of Trio's for each request, and to
take it back, costs more than to read the request's head.
"""

from typing import NoReturn, Protocol

import attrs
import trio


class Waits(Protocol):
    """A connection that may be idle."""

    def make_room(self) -> None:
        """End it."""


@attrs.define(eq=False)
class IdleConnections:
    """The idle connections of one server.

    Attributes:
        seconds: How long one may be idle.
    """

    seconds: float
    _since: dict[Waits, float] = attrs.field(factory=dict)  # the longest waiting first

    def begin(self, connection: Waits) -> None:
        """Note that a connection waits from now on."""
        self._since[connection] = trio.current_time()

    def end(self, connection: Waits) -> None:
        """Note that it waits no more."""
        self._since.pop(connection, None)

    async def run(self) -> NoReturn:
        """End each connection at the moment when its time is over, until cancelled."""
        while True:
            now = trio.current_time()
            # What begins to wait from here on is over later than this.
            wake_at = now + self.seconds
            for connection, since in list(self._since.items()):
                if since + self.seconds > now:
                    wake_at = since + self.seconds
                    break
                self.end(connection)
                connection.make_room()
            await trio.sleep_until(wake_at)
