"""Entry point for the requests of a route: answers those that need no engine, and forwards the rest.

```
 head ─ filter ─▶ body ─▶ preflight, health, hint, lists
                          ├─▶ any field     PassThrough: the body reaches the user's own engine unchanged
                          └─▶ listed fields proxy/handler: the body is rebuilt for each backend that is tried
```
A ModelRouter forwards listed fields. The default route, that of `llmkube up`, forwards any field, except at paths that
engines do not implement: those requests are translated, which forwards listed fields. A request names its engine by
`model`; the directory knows whether that engine runs, loads or has failed.
"""

import random
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qs

import attrs
import structlog
import trio

from llmkube import __version__
from llmkube.base.hold import Hold
from llmkube.base.http.client import HttpClient, OnSent
from llmkube.base.http.connection import StreamHandler
from llmkube.base.http.errors import HttpError
from llmkube.base.http.exchange import StreamExchange
from llmkube.base.http.forward import BodyEditor, ErrorEditor, Observer, forward, whole_response
from llmkube.base.http.heads import RequestHead
from llmkube.base.http.message import Response
from llmkube.base.http.streamed_response import StreamedResponse
from llmkube.base.json_text import well_formed
from llmkube.base.loop_shares import long_step
from llmkube.router.backends import NOT_READY, Backend, ModelDirectory, UnavailableModel, engine_of
from llmkube.router.budgets.meter import LIMIT_FIELDS
from llmkube.router.client_models import may_use, permitted_model
from llmkube.router.config.routing_config import Adapter, Preset
from llmkube.router.dialects.dialect import EVENT_STREAM, DialectError, dumped
from llmkube.router.dialects.engine_form import encoded_for_engine
from llmkube.router.dialects.error_shapes import CONTEXT_FULL, parsed_refusal
from llmkube.router.dialects.inbound import DIALECTS, OLLAMA, refusal_at
from llmkube.router.dialects.ollama_models import LIST_PATHS, ModelFacts
from llmkube.router.dispatch.holds import HeldRequest, Holds
from llmkube.router.dispatch.record import HOLD, QUEUE
from llmkube.router.dispatch.relay import ClientStream, refuse
from llmkube.router.dispatch.request_body import STREAMING, BodyError, may_name_urls, parse_body, refuse_urls
from llmkube.router.dispatch.suspects import CULPRIT, Suspect, Suspects
from llmkube.router.dispatch.verdicts import Failure, error_in, is_request_error
from llmkube.router.dispatch.watched_request import WatchedRequest, watch
from llmkube.router.model_field import (
    ModelNameRewriter,
    asks_for_stream,
    boundary_of,
    limit_numbers,
    read_form_model,
    read_model,
    replace_form_model,
    replace_model,
)
from llmkube.router.model_list import DescribeService, ModelEntry, ModelList, models_in
from llmkube.router.origin_policy import is_loopback, is_preflight, names_near_host, preflight_answer
from llmkube.router.presets import NotLoadedError, encoded_with_settings
from llmkube.router.prompt_parts import PartAnswers, split_prompts
from llmkube.router.refusals import RefusedError, error_object, kind_of, refused
from llmkube.router.responses.store import PREFIX as RESPONSES
from llmkube.router.traces import Recorder

_log: structlog.stdlib.BoundLogger = structlog.get_logger()

_ENGINE_PATHS: Final = frozenset(
    (
        *("/infill", "/tokenize", "/detokenize", "/apply-template", "/completion", "/embedding", "/reranking"),
        *("/chat/completions", "/completions", "/embeddings", "/rerank", "/responses", "/audio/transcriptions"),
        "/api/chat",
    )
)
"""Paths of llama.cpp's server outside `/v1`."""

STATE_PATHS: Final = frozenset({"/props", "/slots", "/metrics", "/lora-adapters"})
"""Paths of llama.cpp's server that report its state; the query names the model."""

_SLOTS: Final = "/slots"
_OF_CLIENTS: Final = frozenset({"prompt", "generated", "params"})
"""Members of a slot that clients have sent, or that are answers to them."""

_WITHOUT_SLOT: Final = frozenset(
    ("/tokenize", "/detokenize", "/apply-template", "/v1/messages/count_tokens", "/v1/responses/input_tokens")
)
"""Paths that an engine serves without a slot."""

_WITH_PROMPTS: Final = frozenset({"/completion", "/completions", "/v1/completions"})
"""Paths where an engine writes an answer to each prompt of a list."""

_STREAMS: Final = frozenset((*STREAMING, *(f"/v1{each}" for each in STREAMING), "/completion", "/infill"))
"""Paths where an engine streams its answer if the client requests it."""

_ROUTER_PROPS: Final[Mapping[str, Any]] = {
    "role": "router",
    "max_instances": 0,
    "model_alias": "llmkube",
    "model_path": "none",
    "default_generation_settings": {"params": {}, "n_ctx": 0},
    "build_info": f"llmkube {__version__}",
}
"""Properties of llama.cpp's server with several models: no fixed number of them."""

_HINT: Final = """LLMKube gateway: an OpenAI-compatible API; set your client's base URL to this address and /v1.

  GET  /v1/models              list models
  GET  /health                 check that the gateway is up
  POST /v1/chat/completions    and the other /v1 paths; the request's "model" selects the engine
  POST /infill, /tokenize, /detokenize, /apply-template    as in llama.cpp's server
  GET  /props, /slots, /metrics, /lora-adapters ?model=    as in llama.cpp's server
"""
_OLLAMA: Final = (*(path for path in DIALECTS if path.startswith(OLLAMA)), *LIST_PATHS)
_OLLAMA_HINT: Final = f"  Ollama's API: {', '.join(_OLLAMA)}\n"

HEALTH_PATHS: Final = ("/health", "/healthz", "/v1/health")
_OPTIONAL: Final = frozenset((*("/chat/completions", "/completions", "/embeddings", "/rerank"),))
"""APIs that only some engines implement: requests are passed through first, and translated if that fails."""

_MISSING_STATUSES: Final = (404, 405)
"""Statuses of an engine for a path that it does not implement."""


def computes(head: RequestHead) -> bool:
    """Return whether an engine computes the answer to a request, so that the request loads its model."""
    path = head.path.rstrip("/")
    is_listed = path in _ENGINE_PATHS or (path.startswith("/v1/") and not path.startswith("/v1/models"))
    return head.method == "POST" and is_listed


@attrs.define(eq=False)
class Body:
    """A request body and its `model`.

    Attributes:
        content: Bytes as received, or after corrections.
        model: Value of `model`; None if it is missing.
        with_model: Returns the body with another `model` and every other byte unchanged.
        is_json: Whether the body is a JSON object, not a form.
        answers: Number of answers that it asks for.
    """

    content: bytes
    model: object
    with_model: Callable[[str], Awaitable[bytes]]
    is_json: bool = True
    answers: int = 1


@attrs.frozen
class Passage:
    """A request that is passed through.

    Attributes:
        max_answer_tokens: Longest answer that it may ask for; 0 for no limit.
        is_llama_cpp: Whether the engine is certainly llama.cpp's server.
        slots: Slots of the engine; 0 if they are not known.
        take: Takes so many slots for a request of a client, which waits for them in the context of a `Hold`; the value
            is whether it has waited.
    """

    max_answer_tokens: int = 0
    is_llama_cpp: bool = False
    slots: int = 0
    take: Callable[[str, Hold, int], "Turn"] = lambda *_: nullcontext()


Turn = AbstractAsyncContextManager[bool | None]
Begin = Callable[[str], AbstractContextManager[Passage]]
"""Counts a request of a service while it runs."""


@attrs.frozen(eq=False)
class _Computation:
    """A request that computes, and its wait for a loaded model."""

    exchange: StreamExchange
    path: str
    body: Body
    model_id: str
    hold: Hold
    watched: WatchedRequest


ENGINE_FAILED: Final = "engine_failed"
SUSPECT_SECONDS: Final = 600.0
"""Longest wait of a suspect for other suspects."""


@attrs.frozen(eq=False)
class PassThrough:
    """Forwards requests to engines with their bodies unchanged, with four exceptions.

    `model` becomes the id that the engine uses for itself; the settings of the requested id are added (`presets`);
    limits of the answer do not exceed that of the service (`Passage`); a chat gets the form that the engine needs
    (`engine_form`).

    Attributes:
        begin: Counts requests.
        suspects: Requests that were in engines when these died.
        on_error: Called with the service of an engine that answers with 500 or higher for no fault of the request.
        holds: Requests that wait until their model is loaded.
        credentials: Returns the header lines that replace the client's credentials.
        presets: Returns the presets of a service.
        recorder: Records requests; None if nothing does.
        rng: Source of request and trace IDs.
    """

    directory: ModelDirectory
    client: HttpClient
    begin: Begin = lambda _: nullcontext(Passage())
    suspects: Suspects = attrs.field(factory=Suspects)
    on_error: Callable[[str], None] = lambda _: None
    holds: Holds = attrs.field(factory=Holds)
    credentials: Callable[[StreamExchange, Backend], bytes] = lambda _, engine: engine.credentials
    presets: Callable[[str], tuple[Preset, ...]] = lambda _: ()
    recorder: Recorder | None = None
    rng: random.Random = attrs.field(factory=random.Random)

    async def __call__(self, exchange: StreamExchange, *, excluding: Collection[int] = ()) -> bool:
        """Forward a request and stream the response back; return False, without responding, at an excluded status.

        When the client disconnects, this is cancelled and closes the engine's connection, which stops its generation.

        Raises:
            RefusedError: There is no engine for the request, or it does not respond.
        """
        head = exchange.head
        path = head.path.rstrip("/")
        if path in STATE_PATHS and head.method in ("GET", "HEAD"):
            await self._report_state(exchange, path)
            return True
        if (not path.startswith("/v1/") and path not in _ENGINE_PATHS) or path.startswith("/v1/v1/"):
            message = f"nothing at {path or '/'}; the API is under /v1, for instance /v1/chat/completions"
            raise refused(404, message, "not_found")
        if head.method != "POST":
            raise refused(405, f"{head.method} is not allowed on {path}", "method_not_allowed", {"Allow": "POST"})
        body = await _read(head, exchange.body)
        watched = watch(exchange, path, body.model if isinstance(body.model, str) else "", self.recorder, self.rng)
        with self._recorded(watched):
            model_id, found = permitted_model(exchange, self.directory, body.model, head.path)
            with self.holds.using(found, exchange.owner) as hold:
                return await self._compute(_Computation(exchange, path, body, model_id, hold, watched), excluding)

    @contextmanager
    def _recorded(self, watched: WatchedRequest) -> Iterator[None]:
        """Record a request once the block has answered or refused it, or its client has left."""
        refusal, is_answered_elsewhere = None, False
        try:
            yield
            is_answered_elsewhere = not watched.exchange.begun
        except RefusedError as exc:
            refusal = (exc.response.status, exc.code)
            raise
        finally:
            if self.recorder is not None and not is_answered_elsewhere:
                watched.end(self.recorder, refusal)

    async def _loaded_engine(self, computation: _Computation) -> Backend:
        """Return the engine of a model, once it is loaded."""
        exchange, path, body, model_id = computation.exchange, computation.path, computation.body, computation.model_id
        if isinstance(self.directory.lookup(model_id), UnavailableModel):
            streams = path in _STREAMS and body.is_json and await asks_for_stream(body.content)
            client, lines = ClientStream(exchange), b"" if streams else None
            held = HeldRequest(exchange.owner, trio.current_time(), client, lines)
            try:
                await self.holds.wait(model_id, held, computation.hold)
            finally:
                computation.watched.add_phase(HOLD, model_id, held.arrived_at)
        return engine_of(self.directory, model_id, exchange.head.path)

    async def _compute(self, computation: _Computation, excluding: Collection[int]) -> bool:
        """Forward a request to its engine."""
        exchange, path, body = computation.exchange, computation.path, computation.body
        engine = await self._loaded_engine(computation)
        if body.model != engine.alias:
            body.content = await body.with_model(engine.alias)
        request = Suspect("", path, body.content)
        if self.suspects.is_refused(request):
            raise refused(400, CULPRIT.detail, CULPRIT.cause.value)
        try:
            if body.is_json:
                await self._apply_settings(computation, engine)
            with self.begin(engine.service) as passage:
                if path.endswith("/chat/completions"):
                    async with long_step(len(body.content)):
                        body.content = encoded_for_engine(body.content, is_llama_cpp=passage.is_llama_cpp)
                if passage.max_answer_tokens and body.is_json:
                    body.content = await limit_numbers(body.content, LIMIT_FIELDS, passage.max_answer_tokens)
                is_renamed = isinstance(body.model, str) and body.model != engine.alias
                editor = ModelNameRewriter.between(engine.alias, str(body.model)).edit if is_renamed else None
                slots = 0 if path in _WITHOUT_SLOT else body.answers
                take = partial(passage.take, exchange.owner, computation.hold)
                send = partial(
                    self._send_in_turn, computation, engine, request, take=take, excluding=excluding, editor=editor
                )
                parts = None
                if path in _WITH_PROMPTS and slots > passage.slots > 0:
                    parts = await split_prompts(body.content, passage.slots, slots)
                if parts is None:
                    return await send(body.content, slots)
                return await _send_parts(*parts, PartAnswers(exchange, editor), send)
        except NotLoadedError as exc:
            raise refused(503, str(exc), NOT_READY, {"Retry-After": "5"}) from exc
        except DialectError as exc:
            raise refused(400, str(exc), exc.code) from exc

    async def _apply_settings(self, computation: _Computation, engine: Backend) -> None:
        """Refuse addresses that the engine would fetch, and add the settings of the model id."""
        body, presets = computation.body, self.presets(engine.service)
        if may_name_urls(body.content):
            async with long_step(len(body.content)):
                refuse_urls(parse_body(body.content))
        if presets or engine.adapters:
            adapters = tuple(Adapter(*each) for each in engine.adapters)
            async with long_step(len(body.content)):
                body.content = encoded_with_settings(body.content, computation.model_id, adapters, presets)

    async def _send_in_turn(
        self,
        computation: _Computation,
        engine: Backend,
        request: Suspect,
        content: bytes,
        slots: int,
        *,
        take: Callable[[int], Turn],
        **options: Any,
    ) -> bool:
        """Forward a request, or a part of one, once the engine has slots for it."""
        began_at = trio.current_time()
        async with take(slots) as has_waited:
            if has_waited:  # the engine may be another one by now, or unloaded
                computation.watched.add_phase(QUEUE, engine.service, began_at)
                before, engine = engine, await self._loaded_engine(computation)
                if engine.adapters != before.adapters:
                    raise refused(503, "the adapters of the model have changed", NOT_READY, {"Retry-After": "1"})
            options["observer"] = computation.watched.observer
            to_engine = partial(self._forward, computation.exchange, engine, content, **options)
            try:
                send = partial(self._send, engine, request, to_engine)
                with computation.watched.attempt(engine.service):
                    found = await self.suspects.attempt(engine.service, request, SUSPECT_SECONDS, send)
            finally:
                self.suspects.leave(engine.service, request)
        if isinstance(found, Failure):
            raise refused(503, found.detail, ENGINE_FAILED, {"Retry-After": "5"})
        return found

    async def _send(self, engine: Backend, request: Suspect, forward_body: Callable[..., Awaitable[bool]]) -> bool:
        """Forward a request that may end its engine."""
        sent = trio.Event()
        try:
            found = await forward_body(on_sent=sent.set)
        except (RefusedError, HttpError) as exc:
            has_failed = sent.is_set() and getattr(exc, "code", ENGINE_FAILED) == ENGINE_FAILED
            is_culprit = has_failed and self.suspects.died(engine.service, request, (engine.host, engine.port))
            if is_culprit and isinstance(exc, RefusedError):  # otherwise the client has a part of the answer
                raise refused(400, CULPRIT.detail, CULPRIT.cause.value) from exc
            raise
        self.suspects.answered(request)
        return found

    async def _report_state(self, exchange: StreamExchange, path: str) -> None:
        """Respond with the state of an engine, or with that of the gateway if `/props` names no model.

        A page that points its own name at this machine (DNS rebinding) sends no `Origin` with a GET, but that name.
        """
        head = exchange.head
        if not names_near_host(head):
            message = f"{path} is not available at the name {head.lines.get('host')}; use an address of this machine"
            raise refused(403, message, "host_refused")
        if path == _SLOTS and exchange.peer and not is_loopback(exchange.peer):
            message = "path disabled for other machines: it exposes the prompts of other clients"
            raise refused(403, message, "slots_closed")
        named = parse_qs(head.target.partition("?")[2]).get("model", [None])[-1]
        if named is None and path == "/props":
            loads = {"models_autoload": self.holds.activator is not None}
            await exchange.respond(Response.json(200, {**_ROUTER_PROPS, **loads}))
            return
        editor = _slots_editor() if path == _SLOTS else None
        model_id, _ = permitted_model(exchange, self.directory, named, path)
        await self._forward(exchange, engine_of(self.directory, model_id, path), b"", editor=editor)

    async def _forward(
        self,
        exchange: StreamExchange,
        engine: Backend,
        body: bytes,
        *,
        excluding: Collection[int] = (),
        editor: BodyEditor | None = None,
        on_sent: OnSent | None = None,
        parts: PartAnswers | None = None,
        observer: Observer | None = None,
    ) -> bool:
        """Forward a request; with `on_sent` it computes, and its errors are classified; `parts` keeps the answer."""

        def edit_error(response: Response) -> Response:
            own = request_error(response)
            if own is None and response.status >= 500 and response.status != 503:  # it has no place for the request now
                self.on_error(engine.service)
            return own or response

        late = _LateRelay(ClientStream(exchange), editor, edit_error, observer) if exchange.begun else None
        try:
            return await forward(
                exchange,
                self.client,
                (engine.host, engine.port),
                body,
                credentials=self.credentials(exchange, engine),
                excluding=excluding,
                editor=editor,
                edit_error=None if on_sent is None else edit_error,
                on_sent=on_sent,
                relay=late if parts is None else partial(parts.keep, edit_error),
                observer=observer,
            )
        except HttpError as exc:
            if exchange.begun and (late is None or late.has_begun):
                raise  # the server closes the connection, so that no client takes a partial response for a complete one
            _log.warning("engine request failed", model=engine.alias, error=str(exc))
            raise refused(502, f"the engine of {engine.alias!r} did not answer: {exc}", ENGINE_FAILED) from exc


async def _send_parts(
    bodies: Iterator[bytes], slots: int, answers: PartAnswers, send: Callable[..., Awaitable[bool]]
) -> bool:
    """Send the parts of a request one after the other, and respond with one answer."""
    for body in bodies:
        if not await send(body, slots, parts=answers):
            return False
        if answers.exchange.complete:  # with an error
            return True
    await answers.respond()
    return True


@attrs.define(eq=False)
class _LateRelay:
    """Relays a response to a client whose stream has begun while the model was loaded.

    Attributes:
        has_begun: Whether the client has a part of the response.
    """

    client: ClientStream
    editor: BodyEditor | None
    edit_error: ErrorEditor
    observer: Observer | None
    has_begun: bool = False

    async def __call__(self, answer: StreamedResponse) -> None:
        if answer.status == 200 and (answer.headers.get("content-type") or "").startswith(EVENT_STREAM):
            edit = self.editor or bytes
            while piece := await answer.receive_some():
                self.has_begun = True
                if self.observer is not None:
                    self.observer(piece)
                await self.client.send(edit(piece))
            await self.client.send(edit(b""))
            await self.client.finish()
            return
        response = self.edit_error(await whole_response(answer))
        error = error_in(parsed_refusal(response.body), refused=response.status >= 400)
        error = error or error_object(502, "the engine did not stream its answer", ENGINE_FAILED)
        await self.client.fail(dict(error), is_whole=True)


def request_error(response: Response) -> Response | None:
    """Return the response, with status 400 and the engine's words, to an error in the request; None for other errors.

    Args:
        response: An engine's response with status 400, or 500 and higher.
    """
    reply = parsed_refusal(response.body)
    error = error_in(reply, refused=True)
    if error is None or not (error.get("code") == CONTEXT_FULL or (response.status >= 500 and is_request_error(error))):
        return None
    own = {"code": 400} if isinstance(error.get("code"), int) else {}
    kind = error["type"] if error.get("type") not in (None, "server_error", "api_error") else kind_of(400)
    outer = reply if isinstance(reply, dict) else {}
    return Response.json(400, {**outer, "error": {**error, **own, "type": kind}})


def _slots_editor() -> BodyEditor:
    """Return an editor of `/slots` that leaves out what clients have sent: every user of this machine may read it."""
    received = bytearray()

    def edit(piece: bytes) -> bytes:
        received.extend(piece)
        if piece:
            return b""
        slots = parsed_refusal(bytes(received))
        if not isinstance(slots, list) or not all(isinstance(slot, dict) for slot in slots):
            return bytes(received)
        kept = [{name: each for name, each in slot.items() if name not in _OF_CLIENTS} for slot in slots]
        return dumped(kept).encode()

    return edit


async def _read(head: RequestHead, body: bytes) -> Body:
    """Read the `model` of a JSON body or a form.

    Raises:
        RefusedError: The body is neither.
    """
    media_type = head.lines.get("content-type") or ""
    is_form = media_type.lower().startswith("multipart/form-data")
    try:
        boundary = boundary_of(media_type) if is_form else None
        if boundary is None:
            try:
                model, spans, answers = await read_model(body)
            except BodyError:
                body = well_formed(body)  # no engine reads half a surrogate pair
                model, spans, answers = await read_model(body)
            return Body(body, model, lambda name: replace_model(body, name, spans), answers=answers)
        form = await read_form_model(body, boundary)
    except DialectError as exc:
        raise refused(400, str(exc), "invalid_form" if is_form else exc.code) from exc

    async def with_model(name: str) -> bytes:  # noqa: ASYNC124 (as for JSON)
        return replace_form_model(body, boundary, form, name)

    return Body(body, form.value, with_model, is_json=False)


@attrs.frozen(eq=False, kw_only=True)
class FrontDoor:
    """The `StreamHandler` of one route.

    Attributes:
        hint: Text for people who open the address.
        models: Lists of the available models.
        ready: Returns whether requests can be served, and the reason if not; None disables `/readyz`.
        any_field: Forwards bodies unchanged; None if the route forwards listed fields only.
        listed_fields: Serves requests whose bodies are rebuilt; None if the route only forwards them unchanged.
    """

    hint: str
    models: ModelList
    ready: Callable[[], tuple[bool, str]] | None = None
    any_field: PassThrough | None = None
    listed_fields: StreamHandler | None = None

    async def __call__(self, exchange: StreamExchange) -> None:
        """Answer one request."""
        path = exchange.head.path.rstrip("/") or "/"
        error: dict[str, str] = {}
        try:
            answer = await self._answer(exchange, path)
            if answer is None:
                proxy, listed = self.any_field, self.listed_fields
                if proxy is not None and (listed is None or not _is_translated(exchange.head, path)):
                    is_optional = listed is not None and path in _OPTIONAL
                    if await proxy(exchange, excluding=_MISSING_STATUSES if is_optional else ()):
                        return
                assert listed is not None, "without it, the pass-through responds or raises"
                await listed(exchange)
                return
        except RefusedError as refusal:
            answer, error = refusal_at(path, refusal.response), refusal.error
        await refuse(exchange, answer, error)

    async def _answer(self, exchange: StreamExchange, path: str) -> Response | None:
        """Return the response to a request that needs no engine; None for one that does."""
        head = exchange.head
        if is_preflight(head):
            return preflight_answer(head)
        if head.method in ("GET", "HEAD"):
            if path in HEALTH_PATHS:
                return Response.json(200, {"status": "ok"})  # same as llama.cpp's server
            if path == "/readyz" and self.ready is not None:
                is_ready, why = self.ready()
                readiness = {"status": "ok" if is_ready else "not ready", "reason": why}
                return Response.json(200 if is_ready else 503, readiness)
            if path in ("/", "/v1"):
                return Response.text(200, self.hint)
        below = path.removeprefix("/v1")
        if below in ("/models/load", "/models/unload") and self.any_field is not None:
            return self.models.switch(exchange, below.rpartition("/")[2])
        if below == "/models" or below.startswith("/models/"):
            return await self.models.openai(exchange, path)
        if path in LIST_PATHS and self.listed_fields is not None:
            return await self.models.ollama(exchange, path)
        return None


def _is_translated(head: RequestHead, path: str) -> bool:
    """Return whether requests at a path are translated, whatever the engine implements: those in another dialect.

    llama.cpp's server ignores the schema of an answer there, and stores no responses.
    """
    is_stored = path.startswith(RESPONSES) and head.method != "POST"
    return is_stored or path.startswith(OLLAMA) or path in DIALECTS or f"/v1{path}" in DIALECTS


def passing_door(
    proxy: PassThrough,
    utcnow: Callable[[], datetime],
    listed: StreamHandler | None = None,
    describe: DescribeService = lambda _: ModelFacts(),
    further: Callable[[], list[ModelEntry]] = list,
) -> FrontDoor:
    """Return the front door of a route that forwards any field.

    Args:
        proxy: Forwards requests to engines.
        utcnow: Wall clock, for the mandatory `created` field of OpenAI's model objects.
        listed: Serves requests that engines do not implement; None forwards them to the engines as well.
        describe: Returns the facts about a service.
        further: Returns entries to list besides the models of the engines.
    """
    directory = proxy.directory

    def entries(exchange: StreamExchange) -> list[ModelEntry]:
        every = [*models_in(directory, proxy.client, describe), *further()]
        return [each for each in every if may_use(exchange, directory, each.name)]

    return FrontDoor(
        hint=_HINT if listed is None else _HINT + _OLLAMA_HINT,
        # the creation time of a model is unknown; the gateway's start time is constant
        models=ModelList(entries, int(utcnow().timestamp()), proxy.client, proxy.holds.activator),
        any_field=proxy,
        listed_fields=listed,
    )
