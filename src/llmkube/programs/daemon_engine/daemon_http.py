"""Questions to a daemon over HTTP, with a deadline each, and what its refusals say."""

import json
from collections.abc import Mapping
from typing import Any, Final

import attrs
import trio

from llmkube.base.http.client import HttpClient
from llmkube.base.http.errors import HttpError
from llmkube.base.http.message import Headers, Response

ASK_SECONDS: Final = 2.0
"""For what a daemon knows without looking at a file."""

_MOST_BYTES: Final = 1 << 20


class DaemonError(Exception):
    """The daemon did not do what it was asked for.

    Attributes:
        status: What it answered; 0 without an answer.
        gone: Nothing listens there, or it broke off.
    """

    def __init__(self, message: str, status: int = 0, *, gone: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.gone = gone


class DaemonLateError(DaemonError):
    """It listens, and has not answered in time."""


@attrs.frozen
class DaemonHttp:
    """The way to one daemon.

    Attributes:
        http: The client.
        url: Where it is.
        name: What people call it.
        headers: What every question carries.
    """

    http: HttpClient
    url: str
    name: str
    headers: Headers

    async def within(
        self, seconds: float, method: str, path: str, body: bytes = b"", *, most: int = _MOST_BYTES
    ) -> Response:
        """Return what it answers in time.

        Raises:
            DaemonError: Nothing listens there, or it broke off.
            DaemonLateError: It has not answered in time.
        """
        with trio.move_on_after(seconds):
            try:
                return await self.http.request(
                    method, self.url + path, headers=self.headers, body=body, max_body_bytes=most
                )
            except HttpError as error:
                raise DaemonError(f"no {self.name} answers at {self.url}: {error}", gone=True) from error
        raise DaemonLateError(f"{self.name} at {self.url} has not answered {path} in {seconds:g} s")

    async def ask(self, path: str) -> dict[str, Any]:
        """Return the object that it answers at a path.

        Raises:
            DaemonError: As `within`, or it answers something else.
        """
        return self.object_of(await self.within(ASK_SECONDS, "GET", path))

    def object_of(self, answer: Response) -> dict[str, Any]:
        """Return the object in an answer.

        Raises:
            DaemonError: It is a refusal, or holds none.
        """
        if answer.status != 200:
            raise self.refusal(answer)
        return self.parsed(answer.body)

    def refusal(self, answer: Response) -> DaemonError:
        """Return what an answer of another status says."""
        try:
            said = self.parsed(answer.body)
        except DaemonError:
            said = {}
        return DaemonError(f"{self.name} answers {answer.status}: {words_of(said, answer.body)}", answer.status)

    def parsed(self, body: bytes) -> dict[str, Any]:
        """Return the object that a body is.

        Raises:
            DaemonError: It is none.
        """
        try:
            said = json.loads(body)
        except ValueError as error:
            raise DaemonError(f"what {self.name} answers is not JSON: {body[:80]!r}") from error
        if not isinstance(said, dict):
            raise DaemonError(f"what {self.name} answers is no object: {body[:80]!r}")
        return said


def words_of(said: Mapping[str, Any], body: bytes) -> str:
    """Return the words of a refusal, as Ollama, OpenAI's API or FastAPI has them; else its body."""
    error = said.get("error", said.get("detail"))
    if isinstance(error, dict):
        error = error.get("message")
    return (error if isinstance(error, str) and error else body.decode("utf-8", "replace"))[:500]


def body_of(said: Mapping[str, Any]) -> bytes:
    """Return the body of a question."""
    return json.dumps(said).encode()
