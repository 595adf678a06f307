"""The bounds of the HTTP server, in one value."""

import attrs


@attrs.frozen
class Limits:
    """Nothing that a client sends, withholds or leaves unread grows or lasts beyond these.

    Attributes:
        max_head_bytes: Request line and headers together; above it the answer is 431.
        max_headers: Header lines of one request; above it the answer is 431.
        max_body_bytes: Body of one request; above it the answer is 413.
        max_bodies_bytes: The bodies of all requests that did not come at once, together; above it the answer is 503.
        max_early_bytes: What a client may send ahead while its request is being answered. Above it the connection
            is not read, so that a disconnect shows only at the next write.
        max_connections: Connections at a time; one that waits for its client makes room for the next one.
        max_connections_per_peer: Of one address; what it opens beyond is closed at once. None where all are one crowd.
        idle_seconds: Waiting for the first byte of a request.
        head_seconds: From the first byte of a request to the end of its head, however slowly it drips in.
        body_stall_seconds: Between two pieces of a request body, and for a body whatever its size.
        body_bytes_per_second: The least rate of a body that takes longer.
        send_stall_seconds: One write that the client does not read.
        linger_seconds: After the last answer, for the client to read it before the socket goes.
        drain_seconds: For requests in flight once the server is told to stop.
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

    def body_deadline(self, started_at: float, now: float, received_bytes: int) -> float:
        """Return until when the next piece of a body has to be there, by the clock of the other two times."""
        slowest = started_at + self.body_stall_seconds + received_bytes / self.body_bytes_per_second
        return min(now + self.body_stall_seconds, slowest)

    @property
    def slow_body_message(self) -> str:
        """What a client is told whose body comes too slowly."""
        stall, rate = self.body_stall_seconds, self.body_bytes_per_second
        return f"the body came too slowly: nothing for {stall:g} seconds, or less than {rate:g} bytes per second"
