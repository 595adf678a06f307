"""Errors between two HTTP peers, all of them external failures."""

from llmkube.base.errors import ExternalError


class HttpError(ExternalError):
    """An exchange with a peer failed; the message names the peer."""


class ConnectError(HttpError):
    """No connection could be established: refused, unreachable, unknown host."""


class ConnectionLostError(HttpError):
    """The connection was lost before the peer's message was complete."""


class ProtocolError(HttpError):
    """The peer sent something that is not HTTP/1.1, or exceeds a limit."""


class PeerClosedError(HttpError):
    """The peer closed a WebSocket and reported an error.

    Attributes:
        code: Status code of its close frame (RFC 6455, 7.4).
        reason: Reason in its close frame, often empty.
    """

    def __init__(self, message: str, code: int, reason: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason


class BodyTooLargeError(HttpError):
    """The body of a response is larger than the caller allows."""


class ClientGoneError(HttpError):
    """The client has disconnected, and the handler was shielded: without a shield it is cancelled instead."""


class MalformedError(Exception):
    """The peer's bytes are rejected; `status` is the status of a server's response."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
