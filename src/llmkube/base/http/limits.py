"""Limits of the HTTP server."""

from typing import Final

import attrs

RESERVED_ONE_IN: Final = 16
"""Share of the connections that are reserved for health checks: one in so many."""

CONNECTIONS_PER_PEER: Final = 768
"""Limit for the connections of one peer, for a server that several peers use."""

PROBE_PATHS: Final = frozenset({"/health", "/healthz", "/livez", "/readyz", "/v1/health"})
"""Health checks, which are answered at once."""


@attrs.frozen
class Limits:
    """Limits on what a client can cost, whatever it sends, withholds or leaves unread.

    Attributes:
        max_head_bytes: Request line and headers together; beyond it the response is 431.
        max_headers: Header lines of one request; beyond it the response is 431.
        max_body_bytes: Body of one request; beyond it the response is 413.
        max_bodies_bytes: Total of all request bodies that did not arrive at once; beyond it the response is 503.
        max_early_bytes: Bytes that a client may send ahead while its request is being handled. Beyond it the connection
            is not read, so that a disconnect is noticed only at the next write.
        max_connections: Concurrent connections; at the limit, some that wait for their clients are closed for new ones.
        max_connections_per_peer: The same for one address, on loopback for one user where the kernel tells, but further
            ones are closed at once. None: no limit.
        idle_seconds: Time to wait for the first byte of a request.
        head_seconds: From the first byte of a request to the end of its head, even if it trickles in.
        body_stall_seconds: Between two pieces of a request body; also the time that a body of any size may take.
        body_bytes_per_second: Minimum rate of a body that takes longer than that.
        send_stall_seconds: For one write that the client does not read.
        linger_seconds: For the client to read the last response before the socket is closed.
        drain_seconds: For requests in flight when the server stops.
    """

    max_head_bytes: int = 64 * 1024
    max_headers: int = 128
    max_body_bytes: int = 64 * 1024 * 1024
    max_bodies_bytes: int = 256 * 1024 * 1024
    max_early_bytes: int = 64 * 1024
    max_connections: int = 1024
    max_connections_per_peer: int | None = None
    idle_seconds: float = 75.0
    head_seconds: float = 10.0
    body_stall_seconds: float = 30.0
    body_bytes_per_second: float = 16 * 1024
    send_stall_seconds: float = 60.0
    linger_seconds: float = 1.0
    drain_seconds: float = 10.0

    @property
    def max_requests(self) -> int:
        """Limit for requests in handlers; the remaining connections serve health checks."""
        return self.max_connections - self.max_connections // RESERVED_ONE_IN

    def body_deadline(self, started_at: float, now: float, received_bytes: int) -> float:
        """Return the time by which the next piece of a body must arrive, by the clock of the arguments."""
        slowest = started_at + self.body_stall_seconds + received_bytes / self.body_bytes_per_second
        return min(now + self.body_stall_seconds, slowest)

    @property
    def slow_body_message(self) -> str:
        """Message for a client whose body arrives too slowly."""
        stall, rate = self.body_stall_seconds, self.body_bytes_per_second
        return f"the body arrived too slowly: no data for {stall:g} seconds, or less than {rate:g} bytes per second"
