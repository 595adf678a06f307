"""Dialects by request path, and errors in the dialect of a path. Pure."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from llmkube.base.http.heads import RequestHead
from llmkube.base.http.message import Response
from llmkube.router.dialects.dialect import Dialect, Translation
from llmkube.router.dialects.messages_answers import messages_error
from llmkube.router.dialects.messages_client import read_count, read_messages
from llmkube.router.dialects.ollama_client import ollama_error, read_chat, read_embed, read_embeddings, read_generate
from llmkube.router.dialects.responses_answers import responses_error
from llmkube.router.dialects.responses_client import read_input_tokens, read_responses
from llmkube.router.refusals import refused

DIALECTS: Final[Mapping[str, Dialect]] = {
    "/v1/responses": Dialect(read_responses, responses_error),
    "/v1/responses/input_tokens": Dialect(read_input_tokens, responses_error),
    "/v1/messages": Dialect(read_messages, messages_error),
    "/v1/messages/count_tokens": Dialect(read_count, messages_error),
    "/api/chat": Dialect(read_chat, ollama_error),
    "/api/generate": Dialect(read_generate, ollama_error),
    "/api/embed": Dialect(read_embed, ollama_error),
    "/api/embeddings": Dialect(read_embeddings, ollama_error),
}
"""By path; requests at other paths need no translation."""


def translated_request(path: str, body: dict[str, Any]) -> Translation:
    """Translate a request to OpenAI's API.

    Args:
        path: Path without a trailing slash.
        body: Parsed body.

    Raises:
        DialectError: It cannot be translated.
    """
    dialect = DIALECTS.get(path)
    return Translation(path=path.removeprefix("/v1"), body=body) if dialect is None else dialect.read(body)


OLLAMA: Final = "/api/"
"""Prefix of the paths of Ollama's API."""


def refusal_at(path: str, response: Response) -> Response:
    """Convert an error in OpenAI's format to the dialect of the path, which may lack its `/v1`."""
    path = path.rstrip("/")
    dialect = DIALECTS.get(path) or DIALECTS.get(f"/v1{path}")
    if dialect is None and not path.startswith(OLLAMA):
        return response
    error, write = orjson.loads(response.body)["error"], ollama_error if dialect is None else dialect.refusal
    return Response(response.status, response.headers, orjson.dumps(write(response.status, error)))


def in_dialect(judge: Callable[[RequestHead, str], Response | None]) -> Callable[[RequestHead, str], Response | None]:
    """Return a `RequestFilter` whose errors have the dialect of the request's path."""

    def judge_in_dialect(head: RequestHead, peer: str) -> Response | None:
        refusal = judge(head, peer)
        return None if refusal is None else refusal_at(head.path, refusal)

    return judge_in_dialect


async def unread_refusal(  # noqa: ASYNC124 (a MalformedHandler)
    head: RequestHead | None, peer: str, status: int, message: str
) -> Response:
    """Return the error for a malformed request: a `MalformedHandler`."""
    response = refused(status, message, unread_code(status)).response
    return response if head is None else refusal_at(head.path, response)


def unread_code(status: int) -> str:
    """Return the error code for a malformed request."""
    return _UNREAD.get(status, "malformed_request")


_UNREAD: Final[Mapping[int, str]] = {
    408: "request_too_slow",
    413: "body_too_large",
    431: "headers_too_large",
    503: "bodies_full",
}
