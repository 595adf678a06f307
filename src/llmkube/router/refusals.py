"""Error responses of the router itself, in OpenAI's format, which clients understand."""

from collections.abc import Mapping
from typing import Final

from llmkube.base.http.message import Headers, Response

NO_HEADERS: Final[Mapping[str, str]] = {}
DO_NOT_RETRY: Final[Mapping[str, str]] = {"X-Should-Retry": "false"}
"""For clients that retry automatically."""

_KINDS: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    503: "unavailable_error",
}


class RefusedError(Exception):
    """The router responds with an error of its own."""

    def __init__(self, response: Response, code: str, error: dict[str, str]) -> None:
        super().__init__(response.status)
        self.response = response
        self.code = code
        self.error = error


def error_object(status: int, message: str, code: str) -> dict[str, str]:
    """Return the value of `error`."""
    return {"message": message, "type": kind_of(status), "code": code}


def kind_of(status: int) -> str:
    """Return OpenAI's error `type` for a status."""
    return _KINDS.get(status) or ("invalid_request_error" if status < 500 else "server_error")


def refused(status: int, message: str, code: str, headers: Mapping[str, str] = NO_HEADERS, **more: str) -> RefusedError:
    """Return an exception to raise; `more` are additional members of the error."""
    error = error_object(status, message, code) | more
    return RefusedError(Response.json(status, {"error": error}, headers=Headers.of(headers)), code, error)


def queue_refusal(message: str, seconds: float, *, has_siblings: bool) -> RefusedError:
    """Return the error for a request that got no slot of its engine.

    Args:
        message: For the client.
        seconds: Time after which a retry may succeed.
        has_siblings: Whether more requests of the client's own tenant wait.
    """
    status, code = (429, "tenant_queue_full") if has_siblings else (503, "queue_full")
    return refused(status, message, code, {"Retry-After": f"{seconds:.0f}"})
