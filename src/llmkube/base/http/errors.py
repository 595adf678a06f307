"""What can go wrong between two HTTP peers; every one of these is the world's fault."""

from llmkube.base.errors import ExternalError


class HttpError(ExternalError):
    """An exchange with a peer failed; the sentence names the peer."""


class ConnectError(HttpError):
    """No connection came about: refused, unreachable, unknown host."""


class ConnectionLostError(HttpError):
    """The peer broke off before its message was complete."""


class ProtocolError(HttpError):
    """The peer sent something that is not HTTP/1.1, or is more than we take."""


class PeerClosedError(HttpError):
    """The peer ended a WebSocket and said that something is wrong.

    Attributes:
        code: The status code of its close frame (RFC 6455, 7.4).
        reason: Its words, often none.
    """

    def __init__(self, message: str, code: int, reason: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason


class BodyTooLargeError(HttpError):
    """The answer's body is larger than the caller allowed."""


class ClientGoneError(HttpError):
    """The client went away, and the handler was shielded: without a shield it is cancelled instead."""


class MalformedError(Exception):
    """The peer's bytes are refused; `status` is what a server answers."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
