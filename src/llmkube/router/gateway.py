"""One OpenAI-compatible address for every model on this machine: the request's `model` names the engine.

Bytes go through as they come. Whether an engine runs, loads or has failed is what the directory knows, not this module.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Protocol

import attrs
import structlog

from llmkube.base.http.client import HttpClient
from llmkube.base.http.connection import Judge, StreamHandler
from llmkube.base.http.errors import HttpError
from llmkube.base.http.exchange import StreamExchange
from llmkube.base.http.forward import forward
from llmkube.base.http.heads import RequestHead
from llmkube.base.http.message import Headers, Response
from llmkube.router.client_key import digest_of_key, key_refusal, only_reads, shows_key
from llmkube.router.model_field import BodyError, read_model, replace_model
from llmkube.router.origin_policy import is_foreign_origin, is_preflight, preflight_answer

_log: structlog.stdlib.BoundLogger = structlog.get_logger()
_HINT = """LLMKube gateway: an OpenAI-compatible API.

  GET  /v1/models              what is served here
  GET  /health                 whether the gateway is there
  POST /v1/chat/completions    and the other /v1 paths; the request's "model" chooses the engine
"""


@attrs.frozen
class Backend:
    """An engine that answers.

    Attributes:
        host: Address.
        port: TCP port.
        alias: The model id that the engine itself goes by.
        credentials: Header lines that let the gateway in; the client's own credentials do not go to the engine then.
    """

    host: str
    port: int
    alias: str
    credentials: bytes = attrs.field(default=b"", repr=False)


@attrs.frozen
class UnavailableModel:
    """A model that exists and does not answer now.

    Attributes:
        reason: One CamelCase word.
        message: A sentence for the client.
        retry_after_seconds: When asking again may help.
    """

    reason: str
    message: str
    retry_after_seconds: int = 5


class ModelDirectory(Protocol):
    """What models there are and where; asked at every request, answers at once."""

    def model_ids(self) -> Sequence[str]:
        """Return the ids of what is served, one for each, in order."""
        ...

    def aliases(self) -> Sequence[str]:
        """Return the further ids that lead to one of them, in order."""
        ...

    def lookup(self, model_id: str) -> Backend | UnavailableModel | None:
        """Return where a model answers or why it does not; None when there is no such model."""
        ...


class _RefusedError(Exception):
    """The request gets an answer of our own."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status)
        self.response = response


def gateway_handler(directory: ModelDirectory, client: HttpClient, utcnow: Callable[[], datetime]) -> StreamHandler:
    """Route `/v1` requests to engines by model name.

    Args:
        directory: The models.
        client: Reaches the engines.
        utcnow: The wall clock, for the `created` field that OpenAI's model objects must have.
    """
    created = int(utcnow().timestamp())  # a model has no birthday here; the gateway's is as good and never changes

    async def handle(exchange: StreamExchange) -> None:
        try:
            local = _answer_locally(exchange.head, directory, created)
            if local is None:
                backend, body = await _route(exchange.body, directory)
                await _forward(exchange, client, backend, body)
                return
        except _RefusedError as refused:
            local = refused.response
        await exchange.respond(local)

    return handle


def refuse_foreign_pages(head: RequestHead, peer: str) -> Response | None:
    """Let web pages from elsewhere use nothing here: the `Judge` of the gateway's server."""
    if not is_foreign_origin(head.lines):
        return None
    ways = "pages of this machine and its networks may, and those of an https proxy that passes their Host on"
    message = f"the web page {head.lines.get('origin')} may not use this gateway; {ways}"
    return _refused(403, message, "origin_refused").response


def lan_judge(keys: Iterable[str]) -> Judge:
    """Let in requests of other machines that show a key, from no page from elsewhere: the `Judge` of `up --listen`."""
    digests = frozenset(map(digest_of_key, keys))

    def judge(head: RequestHead, peer: str) -> Response | None:
        if (refusal := refuse_foreign_pages(head, peer)) is not None:
            return refusal
        if (head.path == "/health" and only_reads(head)) or is_preflight(head) or shows_key(head, digests):
            return None
        return key_refusal("this gateway asks for a key: send `Authorization: Bearer KEY`; its owner has one")

    return judge


def _answer_locally(head: RequestHead, directory: ModelDirectory, created: int) -> Response | None:
    """Answer what needs no engine; None for a request that does."""
    path, method = head.path.rstrip("/") or "/", head.method
    reading = method in ("GET", "HEAD")
    if is_preflight(head):
        return preflight_answer(head)
    if path == "/" and reading:
        return Response.text(200, _HINT)
    if path == "/health" and reading:
        return Response.json(200, {"status": "ok"})  # as llama.cpp's server, for those who probe either
    if path == "/v1/models" or path.startswith("/v1/models/"):
        if not reading:
            raise _refused(405, f"{method} is not allowed on {path}", "method_not_allowed", allow="GET, HEAD")
        models = [_model_object(model_id, created) for model_id in (*directory.model_ids(), *directory.aliases())]
        if path == "/v1/models":
            return Response.json(200, {"object": "list", "data": models})
        wanted = path.removeprefix("/v1/models/")
        found = next((model for model in models if model["id"] == wanted), None)
        if found is None:
            raise _no_such_model(wanted, directory)
        return Response.json(200, found)
    if not path.startswith("/v1/"):
        raise _refused(404, f"nothing at {path}; the API is under /v1, for instance /v1/chat/completions", "not_found")
    if method != "POST":
        raise _refused(405, f"{method} is not allowed on {path}", "method_not_allowed", allow="POST")
    return None


def _model_object(model_id: str, created: int) -> dict[str, Any]:
    return {"id": model_id, "object": "model", "created": created, "owned_by": "llmkube"}


async def _route(body: bytes, directory: ModelDirectory) -> tuple[Backend, bytes]:
    """Choose the engine by the body's `model` and return the body as that engine wants it."""
    try:
        named, spans = await read_model(body)
    except BodyError as exc:
        raise _refused(400, str(exc), "invalid_json") from exc
    model_id = _only_model(directory) if named is None else named
    if not isinstance(model_id, str):
        raise _refused(400, '"model" must be a string', "invalid_model")
    found = directory.lookup(model_id)
    if found is None:
        raise _no_such_model(model_id, directory)
    if isinstance(found, UnavailableModel):
        raise _not_ready(model_id, found)
    if named == found.alias:
        return found, body  # untouched: what a client wrote is what its engine reads
    return found, await replace_model(body, found.alias, spans)


def _only_model(directory: ModelDirectory) -> str:
    model_ids = directory.model_ids()
    if len(model_ids) == 1:
        return model_ids[0]
    raise _refused(400, f'the request names no "model"; {_there_is(model_ids)}', "model_required")


async def _forward(exchange: StreamExchange, client: HttpClient, backend: Backend, body: bytes) -> None:
    """Pass the request on and the answer back, each byte as it comes.

    The client's disconnect cancels this, which closes the engine's connection: that is what stops its generation.
    """
    try:
        await forward(exchange, client, (backend.host, backend.port), body, credentials=backend.credentials)
    except HttpError as exc:
        if exchange.begun:
            raise  # half an answer is out: the server closes the connection, so that no client takes it for a whole
        _log.warning("engine did not answer", model=backend.alias, error=str(exc))
        raise _refused(502, f"the engine of {backend.alias!r} did not answer: {exc}", "engine_failed") from exc


def _no_such_model(model_id: str, directory: ModelDirectory) -> _RefusedError:
    return _refused(404, f"no model {model_id!r}; {_there_is(directory.model_ids())}", "model_not_found")


def _there_is(model_ids: Sequence[str]) -> str:
    return f"there is {', '.join(map(repr, model_ids))}" if model_ids else "no model is served yet"


def _not_ready(model_id: str, state: UnavailableModel) -> _RefusedError:
    message = f"model {model_id!r} is not ready ({state.reason}): {state.message}"
    return _refused(503, message, "model_not_ready", retry_after=str(state.retry_after_seconds))


def _refused(status: int, message: str, code: str, *, allow: str = "", retry_after: str = "") -> _RefusedError:
    """Shape a refusal as OpenAI's clients expect it."""
    kind = "invalid_request_error" if status < 500 else "unavailable_error" if status == 503 else "server_error"
    lines = [("Allow", allow), ("Retry-After", retry_after)]
    headers = Headers((name, value) for name, value in lines if value)
    error = {"message": message, "type": kind, "code": code}
    return _RefusedError(Response.json(status, {"error": error}, headers=headers))
