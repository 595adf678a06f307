"""Entry point for the requests of a route: answer what needs no engine, and pass the rest on.

```
 head ─ judge ─▶ body ─▶ preflight, health, hint, lists
                          ├─▶ any field     PassThrough: the body reaches the user's own engine as it came
                          └─▶ listed fields proxy/handler: a body is written anew, for one backend after the other
```
A ModelRouter takes listed fields. The default route, that of `llmkube up`, takes any field, and has what engines do not
speak answered by listed fields. Which engine a request is for, its `model` says; whether that runs, loads or has failed
is what the directory knows.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import datetime
from typing import Final

import attrs
import structlog

from llmkube.base.http.client import HttpClient
from llmkube.base.http.connection import StreamHandler
from llmkube.base.http.errors import HttpError
from llmkube.base.http.exchange import StreamExchange
from llmkube.base.http.forward import forward
from llmkube.base.http.heads import RequestHead
from llmkube.base.http.message import Response
from llmkube.router.backends import Backend, ModelDirectory, engine_of
from llmkube.router.dialects.inbound import DIALECTS, refusal_at
from llmkube.router.dialects.ollama_models import LIST_PATHS
from llmkube.router.model_field import (
    BodyError,
    boundary_of,
    read_form_model,
    read_model,
    replace_form_model,
    replace_model,
)
from llmkube.router.model_list import ModelList, models_in
from llmkube.router.origin_policy import is_preflight, preflight_answer
from llmkube.router.refusals import RefusedError, refused
from llmkube.router.responses.store import PREFIX as RESPONSES

_log: structlog.stdlib.BoundLogger = structlog.get_logger()

_ENGINE_PATHS: Final = frozenset({"/infill", "/tokenize", "/detokenize", "/apply-template"})
"""What editors ask llama.cpp's server for beside the paths under `/v1`."""

_WITHOUT_SLOT: Final = frozenset({"/tokenize", "/detokenize", "/apply-template", "/v1/messages/count_tokens"})
"""What an engine answers beside its slots."""

_HINT: Final = """LLMKube gateway: an OpenAI-compatible API; clients take its address and /v1 as their base URL.

  GET  /v1/models              what is served here
  GET  /health                 whether the gateway is there
  POST /v1/chat/completions    and the other /v1 paths; the request's "model" chooses the engine
  POST /infill, /tokenize, /detokenize, /apply-template    as llama.cpp's server has them
"""
_OLLAMA: Final = (*(path for path in DIALECTS if path.startswith("/api/")), *LIST_PATHS)
_OLLAMA_HINT: Final = f"  Ollama's API: {', '.join(_OLLAMA)}\n"

_HEALTH: Final = ("/health", "/healthz")
_OPTIONAL: Final = frozenset({"/v1/messages", "/v1/responses"})
"""What some engines speak, so that its bytes pass, and others do not."""

_MISSING_STATUSES: Final = (404, 405)
"""What an engine says of a path that it does not have."""


@attrs.define(eq=False)
class Body:
    """A body whose `model` was read.

    Attributes:
        content: As it came, and as it goes on once it was corrected.
        model: Its `model`; None of one that names none.
        with_model: Returns it with another `model`, and every other byte as it came.
    """

    content: bytes
    model: object
    with_model: Callable[[str], Awaitable[bytes]]


async def _set_engine_name(body: Body, engine: Backend) -> None:
    if body.model != engine.alias:
        body.content = await body.with_model(engine.alias)


CORRECTIONS: Final[Mapping[str, Callable[[Body, Backend], Awaitable[None]]]] = {"model": _set_engine_name}
"""All that is changed of a body, by field: `model` becomes the name that the engine itself goes by."""


Begin = Callable[[str, bool], Callable[[], None]]
"""Counts a request of a service, which takes a slot of its engine or none; its result is called once that has ended."""


def _uncounted(_service: str, _takes_slot: bool) -> Callable[[], None]:
    return lambda: None


@attrs.frozen(eq=False)
class PassThrough:
    """Passes requests on.

    Attributes:
        directory: The models.
        client: Reaches their engines.
        begin: Counts requests.
    """

    directory: ModelDirectory
    client: HttpClient
    begin: Begin = _uncounted

    async def __call__(self, exchange: StreamExchange, *, excluding: Collection[int] = ()) -> bool:
        """Pass a request on and its answer back; return False of an answer with one of these statuses, which stays.

        The client's disconnect cancels this, which closes the engine's connection: that is what stops its generation.

        Raises:
            RefusedError: No engine is asked, or it does not answer.
        """
        head = exchange.head
        path = head.path.rstrip("/")
        if not path.startswith("/v1/") and path not in _ENGINE_PATHS:
            message = f"nothing at {path or '/'}; the API is under /v1, for instance /v1/chat/completions"
            raise refused(404, message, "not_found")
        if head.method != "POST":
            raise refused(405, f"{head.method} is not allowed on {path}", "method_not_allowed", {"Allow": "POST"})
        body = await _read(head, exchange.body)
        engine = engine_of(self.directory, body.model, head.path)
        for correct in CORRECTIONS.values():
            await correct(body, engine)
        end = self.begin(engine.service, path not in _WITHOUT_SLOT)
        try:
            origin, keys = (engine.host, engine.port), engine.credentials
            return await forward(exchange, self.client, origin, body.content, credentials=keys, excluding=excluding)
        except HttpError as exc:
            if exchange.begun:
                raise  # half an answer is out: the server closes the connection, so that no client takes it for a whole
            _log.warning("engine did not answer", model=engine.alias, error=str(exc))
            raise refused(502, f"the engine of {engine.alias!r} did not answer: {exc}", "engine_failed") from exc
        finally:
            end()


async def _read(head: RequestHead, body: bytes) -> Body:
    """Read which model a JSON body or a form names.

    Raises:
        RefusedError: The body is neither.
    """
    media_type = head.lines.get("content-type") or ""
    is_form = media_type.lower().startswith("multipart/form-data")
    try:
        boundary = boundary_of(media_type) if is_form else None
        if boundary is None:
            model, spans = await read_model(body)
            return Body(body, model, lambda name: replace_model(body, name, spans))
        form = await read_form_model(body, boundary)
    except BodyError as exc:
        raise refused(400, str(exc), "invalid_form" if is_form else "invalid_json") from exc

    async def with_model(name: str) -> bytes:  # noqa: ASYNC124 (as for JSON)
        return replace_form_model(body, boundary, form, name)

    return Body(body, form.value, with_model)


@attrs.frozen(eq=False, kw_only=True)
class FrontDoor:
    """The `StreamHandler` of one route.

    Attributes:
        hint: What a person reads who opens the address.
        models: What there is to ask for.
        ready: Returns whether requests can be answered, and why not; None of a route that does not say.
        any_field: Passes requests on; None of a route that takes listed fields alone.
        listed_fields: Answers requests that are written anew; None of a route that only passes them on.
    """

    hint: str
    models: ModelList
    ready: Callable[[], tuple[bool, str]] | None = None
    any_field: PassThrough | None = None
    listed_fields: StreamHandler | None = None

    async def __call__(self, exchange: StreamExchange) -> None:
        """Answer one request."""
        path = exchange.head.path.rstrip("/") or "/"
        try:
            answer = await self._answer(exchange, path)
            if answer is None:
                proxy, listed = self.any_field, self.listed_fields
                if proxy is not None and (listed is None or not _is_translated(exchange.head, path)):
                    is_optional = listed is not None and path in _OPTIONAL
                    if await proxy(exchange, excluding=_MISSING_STATUSES if is_optional else ()):
                        return
                assert listed is not None, "nothing else leaves a request without an answer"
                await listed(exchange)
                return
        except RefusedError as refusal:
            answer = refusal_at(path, refusal.response)
        await exchange.respond(answer)

    async def _answer(self, exchange: StreamExchange, path: str) -> Response | None:
        """Answer what needs no engine; None for a request that does."""
        head = exchange.head
        if is_preflight(head):
            return preflight_answer(head)
        if head.method in ("GET", "HEAD"):
            if path in _HEALTH:
                return Response.json(200, {"status": "ok"})  # as llama.cpp's server, for those who probe either
            if path == "/readyz" and self.ready is not None:
                is_ready, why = self.ready()
                readiness = {"status": "ok" if is_ready else "not ready", "reason": why}
                return Response.json(200 if is_ready else 503, readiness)
            if path in ("/", "/v1"):
                return Response.text(200, self.hint)
        below = path.removeprefix("/v1")
        if below == "/models" or below.startswith("/models/"):
            return await self.models.openai(exchange, path)
        if path in LIST_PATHS and self.listed_fields is not None:
            return self.models.ollama(exchange, path)
        return None


def _is_translated(head: RequestHead, path: str) -> bool:
    """Whether no engine speaks it: Ollama's API, and responses that are kept, for those who read or delete one."""
    return path.startswith("/api/") or (path.startswith(RESPONSES) and head.method != "POST")


def passing_door(proxy: PassThrough, utcnow: Callable[[], datetime], listed: StreamHandler | None = None) -> FrontDoor:
    """Return what passes any field of requests to engines.

    Args:
        proxy: Passes them on.
        utcnow: The wall clock, for the `created` field that OpenAI's model objects must have.
        listed: Answers what engines do not speak; None leaves such requests to the engines.
    """
    return FrontDoor(
        hint=_HINT if listed is None else _HINT + _OLLAMA_HINT,
        # a model has no birthday here; the gateway's is as good and never changes
        models=ModelList(lambda _: models_in(proxy.directory), int(utcnow().timestamp()), proxy.client),
        any_field=proxy,
        listed_fields=listed,
    )
