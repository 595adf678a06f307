"""One OpenAI-compatible address for every model on this machine: the request's `model` names the engine.

Bytes go through as they come. Whether an engine runs, loads or has failed is what the directory knows, not this module.
What engines do not speak is answered by a router, whose backends are the models of this gateway (`translator`).
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from typing import Final

import structlog

from llmkube.base.http.client import HttpClient
from llmkube.base.http.connection import Judge, StreamHandler
from llmkube.base.http.errors import HttpError
from llmkube.base.http.exchange import StreamExchange
from llmkube.base.http.forward import forward
from llmkube.base.http.heads import RequestHead
from llmkube.base.http.message import Response
from llmkube.router.auth.client_key import digest_of_key, key_refusal, only_reads, shows_key
from llmkube.router.backends import NOT_FOUND, NOT_READY, Backend, ModelDirectory, UnavailableModel
from llmkube.router.dialects.inbound import DIALECTS, refusal_at
from llmkube.router.dialects.ollama_models import LISTS
from llmkube.router.model_field import BodyError, read_model, replace_model
from llmkube.router.model_list import ModelList
from llmkube.router.multipart_model import boundary_of, read_form_model, replace_form_model
from llmkube.router.ollama_lists import Listed, ollama_list, refused_method
from llmkube.router.origin_policy import is_foreign_origin, is_preflight, preflight_answer
from llmkube.router.refusals import RefusedError, refused
from llmkube.router.responses.stored_pages import PREFIX as RESPONSES

_log: structlog.stdlib.BoundLogger = structlog.get_logger()
_HINT: Final = """LLMKube gateway: an OpenAI-compatible API; clients take its address and /v1 as their base URL.

  GET  /v1/models              what is served here
  GET  /health                 whether the gateway is there
  POST /v1/chat/completions    and the other /v1 paths; the request's "model" chooses the engine
  POST /infill, /tokenize, /detokenize, /apply-template    as llama.cpp's server has them
"""
_TRANSLATED: Final = ("/api/", RESPONSES)
"""Below these no engine is asked: Ollama's API, and responses that a router keeps (for those, but by POST)."""

_OLLAMA: Final = (*(path for path in DIALECTS if path.startswith("/api/")), *LISTS)
_OLLAMA_HINT: Final = f"  Ollama's API: {', '.join(_OLLAMA)}\n"
_MODE_OF_LAST: Final = {"embeddings": "embedding", "embed": "embedding", "rerank": "rerank", "reranking": "rerank"}
_ENGINE_PATHS: Final = frozenset({"/infill", "/tokenize", "/detokenize", "/apply-template"})
"""What editors ask llama.cpp's server for beside the paths under `/v1`."""

_OPTIONAL: Final = frozenset({"/v1/messages", "/v1/responses"})
"""What some engines speak, so that its bytes pass, and others do not.

Of what a translator asks engines for (chat completions, embeddings, `count_tokens`) nothing may stand here: such a
request would come back to it without end.
"""
_NOT_THERE: Final = (404, 405)
"""What an engine says of a path that it does not have."""


def gateway_handler(
    directory: ModelDirectory,
    client: HttpClient,
    utcnow: Callable[[], datetime],
    translator: StreamHandler | None = None,
) -> StreamHandler:
    """Route `/v1` requests to engines by model name.

    Args:
        directory: The models.
        client: Reaches the engines.
        utcnow: The wall clock, for the `created` field that OpenAI's model objects must have.
        translator: Answers what engines do not speak, by chat completions of the same models: a router that has this
            gateway's address for its backends. None leaves such requests to the engines.
    """
    # a model has no birthday here; the gateway's is as good and never changes
    models = ModelList(directory, client, int(utcnow().timestamp()))
    hint = _HINT if translator is None else _HINT + _OLLAMA_HINT

    async def handle(exchange: StreamExchange) -> None:
        head = exchange.head
        path = head.path
        try:
            if translator is not None and path.startswith(_TRANSLATED) and not _is_for_engine(head):
                local = await _answer_for_translator(exchange, models)
                if local is None:
                    await translator(exchange)
                    return
            elif (local := await _answer_locally(head, models, hint)) is None:
                backend, body = await _route(head, exchange.body, directory)
                if translator is None or path not in _OPTIONAL:
                    await _forward(exchange, client, backend, body)
                elif not await _forward(exchange, client, backend, body, unless=_NOT_THERE):
                    await translator(exchange)
                return
        except RefusedError as refusal:
            local = refusal_at(path, refusal.response)
        await exchange.respond(local)

    return handle


def refuse_foreign_pages(head: RequestHead, peer: str) -> Response | None:
    """Let web pages from elsewhere use nothing here: the `Judge` of the gateway's server."""
    if not is_foreign_origin(head.lines):
        return None
    ways = "pages of this machine and its networks may, and those of an https proxy that passes their Host on"
    message = f"the web page {head.lines.get('origin')} may not use this gateway; {ways}"
    return refused(403, message, "origin_refused").response


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


def _is_for_engine(head: RequestHead) -> bool:
    """Whether it is below the path of kept responses, and asks for something else than to read or delete one."""
    return head.method == "POST" and head.path.startswith(RESPONSES)


async def _answer_for_translator(exchange: StreamExchange, models: ModelList) -> Response | None:
    """Answer what the directory knows: which models there are, and why one cannot be asked; None for the rest."""
    head, path = exchange.head, exchange.head.path.rstrip("/")
    if is_preflight(head):
        return preflight_answer(head)
    if path in LISTS:
        listed = _listed(models.directory)
        return refused_method(head.method, path) or ollama_list(path, exchange.body, listed, models.created)
    if path in DIALECTS and head.method == "POST":
        with contextlib.suppress(BodyError):  # the translator says what is wrong with it
            named, _ = await read_model(exchange.body)
            _backend(named, path, models.directory)
    return None


def _listed(directory: ModelDirectory) -> list[Listed]:
    found = [(one, directory.lookup(one)) for one in (*directory.model_ids(), *directory.aliases())]
    return [
        Listed(one, True, {state.mode}) if isinstance(state, Backend) else Listed(one, False) for one, state in found
    ]


async def _answer_locally(head: RequestHead, models: ModelList, hint: str) -> Response | None:
    """Answer what needs no engine; None for a request that does."""
    path, method = head.path.rstrip("/") or "/", head.method
    reading = method in ("GET", "HEAD")
    if is_preflight(head):
        return preflight_answer(head)
    if path in ("/", "/v1") and reading:
        return Response.text(200, hint)
    if path == "/health" and reading:
        return Response.json(200, {"status": "ok"})  # as llama.cpp's server, for those who probe either
    if path == "/v1/models" or path.startswith("/v1/models/"):
        if not reading:
            raise refused(405, f"{method} is not allowed on {path}", "method_not_allowed", {"Allow": "GET, HEAD"})
        if path == "/v1/models":
            return Response.json(200, {"object": "list", "data": await models.all()})
        found = await models.one(wanted := path.removeprefix("/v1/models/"))
        if found is None:
            raise _no_such_model(wanted, models.directory)
        return Response.json(200, found)
    if not path.startswith("/v1/") and path not in _ENGINE_PATHS:
        raise refused(404, f"nothing at {path}; the API is under /v1, for instance /v1/chat/completions", "not_found")
    if method != "POST":
        raise refused(405, f"{method} is not allowed on {path}", "method_not_allowed", {"Allow": "POST"})
    return None


async def _route(head: RequestHead, body: bytes, directory: ModelDirectory) -> tuple[Backend, bytes]:
    """Choose the engine by the body's `model` and return the body as that engine wants it."""
    try:
        boundary = boundary_of(head.lines.get("content-type"))
        if boundary is not None:
            form = await read_form_model(body, boundary)
            backend = _backend(form.value, head.path, directory)
            same = form.value == backend.alias
            return backend, body if same else replace_form_model(body, boundary, form, backend.alias)
        named, spans = await read_model(body)
    except BodyError as exc:
        raise refused(400, str(exc), "invalid_form" if _is_form(head) else "invalid_json") from exc
    backend = _backend(named, head.path, directory)
    if named == backend.alias:
        return backend, body  # untouched: what a client wrote is what its engine reads
    return backend, await replace_model(body, backend.alias, spans)


def _backend(named: object, path: str, directory: ModelDirectory) -> Backend:
    """Return the engine of the model that a request names, or of the only one."""
    model_id = _only_model(directory) if named is None else named
    if not isinstance(model_id, str):
        raise refused(400, '"model" must be a string', "invalid_model")
    found = directory.lookup(model_id)
    if found is None:
        raise _no_such_model(model_id, directory)
    if isinstance(found, UnavailableModel):
        raise _not_ready(model_id, found)
    wanted = _MODE_OF_LAST.get(path.rstrip("/").rpartition("/")[2])
    if wanted is not None and found.mode == "chat":  # the engine would name a flag of its own, which users do not write
        message = f"model {model_id!r} is served for chat; for {path} its InferenceService needs spec.mode: {wanted}"
        raise refused(501, message, "mode_not_served")
    return found


def _is_form(head: RequestHead) -> bool:
    return (head.lines.get("content-type") or "").lower().startswith("multipart/form-data")


def _only_model(directory: ModelDirectory) -> str:
    model_ids = directory.model_ids()
    if len(model_ids) == 1:
        return model_ids[0]
    raise refused(400, f'the request names no "model"; {_there_is(model_ids)}', "model_required")


async def _forward(
    exchange: StreamExchange, client: HttpClient, backend: Backend, body: bytes, *, unless: Collection[int] = ()
) -> bool:
    """Pass the request on and the answer back, each byte as it comes, unless that has one of these statuses.

    The client's disconnect cancels this, which closes the engine's connection: that is what stops its generation.
    """
    try:
        origin = (backend.host, backend.port)
        return await forward(exchange, client, origin, body, credentials=backend.credentials, unless=unless)
    except HttpError as exc:
        if exchange.begun:
            raise  # half an answer is out: the server closes the connection, so that no client takes it for a whole
        _log.warning("engine did not answer", model=backend.alias, error=str(exc))
        raise refused(502, f"the engine of {backend.alias!r} did not answer: {exc}", "engine_failed") from exc


def _no_such_model(model_id: str, directory: ModelDirectory) -> RefusedError:
    return refused(404, f"no model {model_id!r}; {_there_is(directory.model_ids())}", NOT_FOUND)


def _there_is(model_ids: Sequence[str]) -> str:
    return f"there is {', '.join(map(repr, model_ids))}" if model_ids else "no model is served yet"


def _not_ready(model_id: str, state: UnavailableModel) -> RefusedError:
    message = f"model {model_id!r} is not ready ({state.reason}): {state.message}"
    seconds = state.retry_after_seconds
    # OpenAI's and Anthropic's clients read the second header: to ask again now would only be refused again.
    again = {"Retry-After": str(seconds)} if seconds is not None else {"X-Should-Retry": "false"}
    return refused(503, message, NOT_READY, again, reason=state.reason)
