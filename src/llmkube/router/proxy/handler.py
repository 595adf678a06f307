"""Request handler of routes that forward listed fields: parses, decides by policy, dispatches, and records the result.

```
 body ─▶ facts ─▶ permits ─▶ decision ─▶ dispatcher ─▶ backend
                                  └────▶ shadows
```

Malformed requests are counted. Those of authenticated clients also get an audit log line, without the body, and with
the path only if it is a known one. Nothing is logged for unauthenticated clients and for requests without a head, so
that a client without a key cannot make the log grow.
"""

import hashlib
import math
import random
from collections.abc import Callable
from functools import partial
from typing import Final

import attrs
import trio

from llmkube.base.http.exchange import StreamExchange
from llmkube.base.http.heads import RequestHead
from llmkube.base.http.message import Response
from llmkube.base.loop_shares import current_client, long_step
from llmkube.router.auth.principals import principal_of
from llmkube.router.backends import NOT_FOUND, UnavailableModel, not_ready
from llmkube.router.budget_store.router_budgets import RouterBudgets
from llmkube.router.budgets.meter import usage_bound, with_max_tokens
from llmkube.router.client_models import client_of
from llmkube.router.config.routing_config import Backend, RoutingConfig, preset_in
from llmkube.router.dialects.dialect import DialectError, Translation
from llmkube.router.dialects.inbound import (
    DIALECTS,
    OLLAMA,
    refusal_at,
    translated_request,
    unread_code,
    unread_refusal,
)
from llmkube.router.dialects.ollama_models import LIST_PATHS, MODEL_NAME, known_name
from llmkube.router.dialects.providers import FIELDS
from llmkube.router.dispatch.attempt import ClientRequest
from llmkube.router.dispatch.attempt_charges import AttemptCharges
from llmkube.router.dispatch.dispatcher import Dispatcher, budget_refusal
from llmkube.router.dispatch.holds import HeldRequest, Holds
from llmkube.router.dispatch.record import DecisionRecord, Record, record_of
from llmkube.router.dispatch.relay import ClientStream, refuse
from llmkube.router.dispatch.request_body import (
    COUNT_TOKENS,
    STREAMING,
    BodyError,
    check_types,
    known_fields,
    parse_body,
    refuse_urls,
)
from llmkube.router.dispatch.spans import spans_of
from llmkube.router.dispatch.verdicts import Cause
from llmkube.router.fair_queue import Shares
from llmkube.router.model_field import check_grammars, parsed_bytes
from llmkube.router.model_list import ModelEntry
from llmkube.router.policy.decision import Decision, Refusal, decide
from llmkube.router.policy.permits import permits_for
from llmkube.router.policy.request_facts import ANONYMOUS, Principal, RequestFacts, facts_of
from llmkube.router.prefix_cache.warm_prefixes import Prompt
from llmkube.router.presets import with_settings
from llmkube.router.proxy.audit_log import AuditLog, fields_of
from llmkube.router.proxy.live_config import MAX_DECISIONS, Routing
from llmkube.router.proxy.metrics import RouterMetrics, class_label
from llmkube.router.proxy.shadows import Shadows
from llmkube.router.refusals import DO_NOT_RETRY, RefusedError, refused
from llmkube.router.responses.conversations import Conversations
from llmkube.router.responses.store import PREFIX, logged_path
from llmkube.router.traces import Recorder

ROUTES: Final = tuple(dict.fromkeys((*(f"/v1{each}" for each in FIELDS), *DIALECTS)))
"""Paths that are forwarded to backends, each with a permit and a budget reservation."""

_SHORT: Final = {each.removeprefix("/v1"): each for each in ROUTES}
"""These paths without `/v1`, as llama.cpp's server has them."""

HINT: Final = """LLMKube router: an OpenAI-compatible API; set your client's base URL to this address and /v1.

  GET  /v1/models              list models
  POST /v1/chat/completions, /v1/completions, /v1/embeddings, /v1/rerank
  POST /v1/responses, /v1/responses/input_tokens; GET and DELETE /v1/responses/ID, GET /v1/responses/ID/input_items
  POST /v1/messages, /v1/messages/count_tokens (Anthropic's)
  Ollama's API: /api/chat, /api/generate, /api/embed, /api/embeddings, and /api/tags, /api/ps, /api/show, /api/version
  GET  /healthz, /readyz       check that the router is up, and that it can serve requests
"""

MAX_BODY_BYTES: Final = 16 << 20
"""A body is parsed in one step, which takes a tenth of a second for 16 MiB."""

MEMORY_BYTES: Final = 224 << 20
"""Memory for the bodies of requests under way, in addition to their own bytes: with these, a router fits in 512 MiB."""

REQUEST_BYTES: Final = 64 << 10
"""Memory of a request without its body: tasks, buffers, the events of its answer."""

_FOR_OWNER: Final = "needs a key of the team `owner` at this router"
_STAYS_LOADED: Final = (
    "keep_alive is 0 without a prompt, which unloads a model in Ollama; this model stays loaded until "
    "`llmkube scale NAME 0`"
)
_CONNECT_ERROR: Final = Cause.CONNECT.value
_REFUSALS: Final = {
    Refusal.NO_ROUTE: (404, "no_route"),
    Refusal.FAIL_CLOSED: (503, "fail_closed"),
    Refusal.NOT_PERMITTED: (503, "not_permitted"),
    Refusal.MODEL_NOT_ALLOWED: (403, "model_not_allowed"),
    Refusal.NO_MODEL: (404, NOT_FOUND),
    Refusal.AMBIGUOUS: (400, "model_ambiguous"),
}


@attrs.define(eq=False, kw_only=True)
class ListedFields:
    """Serves requests whose bodies are rebuilt from listed fields: a `StreamHandler`.

    Attributes:
        routing: Returns the current config.
        dispatcher: Carries out decisions.
        shadows: Sends copies to shadow backends.
        conversations: Stored responses.
        rng: Source of weighted choices and request IDs.
        obstacle: Returns why a backend gets no requests now; "" if it does.
        memory: Memory for the bodies of requests under way, by tenant.
        traces: Records requests; None if nothing does.
    """

    routing: Callable[[], Routing]
    dispatcher: Dispatcher
    shadows: Shadows
    metrics: RouterMetrics
    audit: AuditLog
    budgets: RouterBudgets
    conversations: Conversations
    rng: random.Random
    obstacle: Callable[[str], str]
    memory: Shares = attrs.field(factory=lambda: Shares(MEMORY_BYTES))
    traces: Recorder | None = None

    async def __call__(self, exchange: StreamExchange) -> None:
        """Serve one request.

        Raises:
            RefusedError: The path does not exist.
        """
        path = route_of(exchange.head.path) or "/"
        if path in ROUTES:
            await self._route(exchange, path)
        elif path.startswith(PREFIX):
            await self._stored_response(exchange, path)
        else:
            known = ", ".join((*ROUTES, "/v1/models", *LIST_PATHS))
            raise refused(404, f"nothing at {path}; available: {known}", "not_found")

    def models(self, exchange: StreamExchange) -> list[ModelEntry]:
        """Return the models that the client may request, each with the capabilities of the backend that it reaches."""
        routing, found = self.routing(), []
        config = routing.config
        principal = _principal(exchange, routing) or ANONYMOUS
        for model_id, owner in _ids(config):
            decision = self._decision(routing, facts_of(config, {}, {"model": model_id}, principal))
            if decision.order:
                permit = decision.order[0]
                backend = permit.backend
                runs = not backend.provider and not backend.missing
                runs = runs and not isinstance(self._holds.state_of(backend), UnavailableModel)
                ask = partial(self.dispatcher.calls.attempts.ask, permit) if runs and backend.base_url else None
                found.append(ModelEntry(name=model_id, owner=owner, runs=runs, tags=backend.capabilities, ask=ask))
        return found

    def _decision(self, routing: Routing, facts: RequestFacts, prompt: Prompt | None = None) -> Decision:
        """Return the routing decision; backends that have the prompt cached come first, if a prompt is given."""
        headers = tuple(map(facts.headers.get, routing.matched_headers))
        limits = facts.classes, facts.capabilities, facts.regions, facts.principal.team, facts.principal.models
        key, config = (facts.model, facts.complexity, limits, headers), routing.config
        if (kept := routing.decisions) is not None and key in kept:
            return kept[key]
        calls = self.dispatcher.calls
        decision = decide(
            config,
            facts,
            permits_for(config, facts),
            first_byte_seconds=calls.stats.first_byte_seconds,
            pick=self.rng.random(),
            load=calls.stats.in_flight,
            warmth=calls.prefixes.warmth(prompt, config.candidates(facts.model)) if prompt is not None else {},
        )
        if kept is not None:
            if len(kept) == MAX_DECISIONS:
                kept.clear()  # a client invents models
            kept[key] = decision
        return decision

    # -- one request -------------------------------------------------------------------------------------------------

    async def _route(self, exchange: StreamExchange, path: str) -> None:
        routing = self.routing()
        record = record_of(exchange.head, exchange.peer, path, self.rng, self.traces)
        try:
            need = await self._admit_body(exchange, path, routing, record)
            with self.memory.hold(record.decided.tenant, need) as is_held:
                if not is_held:
                    message = f"the requests under way leave no memory for one of {len(exchange.body)} bytes; retry"
                    raise refused(503, message, "bodies_full", {"Retry-After": "2"})
                await self._answer(exchange, path, routing, record)
        except RefusedError as exc:
            record.update(status=exc.response.status, outcome=exc.code)
            await refuse(exchange, refusal_at(path, _with_request_id(exc.response, record)), exc.error)
        except Exception:
            record.update(outcome="crashed")  # the server's own broad catch responds and logs it
            raise
        finally:
            await self._end(record, routing, exchange.body)  # noqa: ASYNC102 (it shields itself, with a deadline)

    async def _answer(self, exchange: StreamExchange, path: str, routing: Routing, record: Record) -> None:
        async with long_step(len(exchange.body)):
            inbound, facts, decision = self._decide(exchange, path, routing, record)
        if not inbound.path:
            record.update(status=200, outcome="ok")
            await exchange.respond(_with_request_id(await self._loaded(exchange, inbound, decision, record), record))
            return
        body, size, writes = inbound.body, inbound.size, inbound.path in STREAMING
        bound = usage_bound(routing.config, decision, body, size, writes=writes)
        admit, is_free = partial(self.budgets.admit, routing.config), inbound.path == COUNT_TOKENS
        charges = AttemptCharges(None, partial(admit, bound, facts), self.budgets.settle, is_free=is_free)
        if (failure := await charges.begin()) is not None:
            raise budget_refusal(failure, failure.detail)
        record.charges = charges
        if decision.shadows:  # copies are sent only once
            bound = usage_bound(routing.config, attrs.evolve(decision, shadows=()), body, size, writes=writes)
            charges.reserve = partial(admit, bound, facts)
        cap = charges.reservation.cap if charges.reservation is not None else None
        if cap is not None and (capped := with_max_tokens(body, cap)) is not body:
            inbound = attrs.evolve(inbound, body=capped)
        for permit in decision.shadows:
            seconds = decision.first_byte_seconds[permit.backend.name]
            self.shadows.offer_nowait(permit, inbound, seconds)
        await self.dispatcher.answer(decision, inbound, exchange, record)
        if record.answer.status == 200 and inbound.keep_seconds is not None:
            self._keep(routing.config.backends.get(record.answer.backend), inbound.keep_seconds)

    async def _admit_body(self, exchange: StreamExchange, path: str, routing: Routing, record: Record) -> int:
        """Identify the client, and return the most memory that the request takes.

        Raises:
            RefusedError: The client is unknown, or the body exceeds a limit.
        """
        head = exchange.head
        if head.method != "POST":
            message = f"{head.method} is not allowed on {path}"
            raise refused(405, message, "method_not_allowed", {"Allow": "POST"})
        principal = _principal(exchange, routing)
        if principal is None:  # admitted by its head, but the token has expired since, or the keys have changed
            raise refused(401, "this key or token is no longer valid", "invalid_api_key")
        record.decided.principal = principal
        if routing.clients is not None:
            current_client.set(record.decided.tenant)
        size = len(exchange.body)
        if size > MAX_BODY_BYTES:  # the listener of a route that forwards any field accepts longer ones
            message = f"the body has {size} bytes; the limit for this path is {MAX_BODY_BYTES}"
            raise refused(413, message, "body_too_large")
        try:
            await check_grammars(exchange.body)
            return REQUEST_BYTES + await parsed_bytes(exchange.body)
        except BodyError as exc:
            raise refused(400, str(exc), exc.code) from exc

    def _decide(
        self, exchange: StreamExchange, path: str, routing: Routing, record: Record
    ) -> tuple[ClientRequest, RequestFacts, Decision]:
        """Parse the request and decide where it goes.

        Raises:
            RefusedError: The request is invalid, or no backend may serve it.
        """
        head, config, decided = exchange.head, routing.config, record.decided
        principal, size = decided.principal, len(exchange.body)
        try:
            at_host = config.model_at(head.lines.get("host") or "") if config.hosts else ""
            body = parse_body(exchange.body, MODEL_NAME if path.startswith(OLLAMA) else "", at_host)
            if at_host and config.backend_named(body["model"]) != config.backend_named(at_host):
                body["model"] = at_host  # its engine serves requests under any name
            translated = translated_request(path, body)
            if path not in DIALECTS:  # the fields that are left are walked
                known, others = known_fields(translated.path, translated.body)
                translated = Translation(path=translated.path, body=known, dropped=others)
            translated.body["model"] = known_name(body["model"], partial(_is_known, config))
            if translated.translator is not None:
                translated.translator.begin(self.conversations.now())
            refuse_urls(translated.body)
            check_types(translated.body)
        except DialectError as exc:
            raise refused(400, str(exc), exc.code) from exc
        joined = self.conversations.join(translated, principal)
        translated, decided.history_bytes = joined.translated, joined.history_bytes
        body, size = translated.body, size + decided.history_bytes
        decided.facts = facts_of(config, head.joined, body, principal)
        decided.facts = facts = joined.apply_limits(decided.facts)
        if routing.balances:
            decided.prompt = self.dispatcher.calls.prefixes.prompt(decided.tenant, translated.path, body, size)
        decision = decided.decision = self._decision(routing, facts, decided.prompt)
        if not decision.order:
            raise no_backend_error(config, facts, decision)
        if config.ids is not None:
            self._check_ready(facts.model, decision)
        if (preset := preset_in(decision.order[0].backend.presets, facts.model)) is not None:
            body, size = dict(with_settings(body, preset)), size + len(preset.system.encode())
        keep_seconds = self._permitted_keep(translated, principal)
        if keep_seconds is not None:
            dropped = tuple(name for name in translated.dropped if name != "keep_alive")
            translated = attrs.evolve(translated, dropped=dropped)
        inbound = ClientRequest(
            path=translated.path,
            body=body,
            size=size,
            request_id=record.request.request_id,
            trace=record.request.trace,
            translator=translated.translator,
            dropped=translated.dropped,
            cache_salt="" if routing.clients is None or config.auth.shares_caches else _salt(config, decided.tenant),
            keep_seconds=keep_seconds,
        )
        return inbound, facts, decision

    def _check_ready(self, model: str, decision: Decision) -> None:
        """Refuse a request whose services all have no engine, and get none for it."""
        found = [self._holds.state_of(permit.backend) for permit in decision.order]
        absent = [each for each in found if isinstance(each, UnavailableModel) and not each.wakes]
        if len(absent) == len(found):
            raise not_ready(model, absent[0])

    @property
    def _holds(self) -> Holds:
        return self.dispatcher.calls.holds

    def _permitted_keep(self, translated: Translation, principal: Principal) -> float | None:
        """Return the time for which a request keeps its model loaded; None if it has no effect.

        Raises:
            RefusedError: Only the owner may unload or pin it, or it is always loaded.
        """
        seconds = translated.keep_seconds
        if self._holds.activator is None:
            if seconds == 0 and not translated.path:
                raise refused(400, _STAYS_LOADED, "invalid_value")
            return None
        if seconds in (0, math.inf) and not principal.is_owner:
            raise refused(403, f"keep_alive 0 and -1 {_FOR_OWNER}; omit it", "owner_only")
        return seconds if principal.is_owner else None

    def _keep(self, backend: Backend | None, seconds: float | None) -> bool:
        """Unload the model of a backend, or keep it for some time; return whether it is no longer loaded, or kept."""
        found, activator = self._holds.state_of(backend) if backend is not None else None, self._holds.activator
        if found is None or activator is None or seconds is None:
            return False
        if seconds == 0:
            return activator.unload(found.service) or isinstance(found, UnavailableModel)
        activator.pin(found.service, None if math.isinf(seconds) else seconds)
        return True

    async def _loaded(
        self, exchange: StreamExchange, inbound: ClientRequest, decision: Decision, record: Record
    ) -> Response:
        """Load the first backend's model, or unload it, and return the response.

        Raises:
            RefusedError: No backend gets requests now, or the model cannot be loaded or unloaded.
        """
        backend, decided, holds = decision.order[0].backend, record.decided, self._holds
        assert inbound.translator is not None, "it answers a request without a path"
        if inbound.keep_seconds == 0:
            if not self._keep(backend, 0):
                raise refused(400, _STAYS_LOADED, "invalid_value")
            return Response.json(200, inbound.translator.answer({}))
        found = holds.state_of(backend)
        if isinstance(found, UnavailableModel) and holds.activator and not decided.principal.is_owner:
            raise refused(403, f"a request without a prompt loads the model, which {_FOR_OWNER}", "owner_only")
        with holds.using(found, decided.tenant) as hold:
            client, began_at = ClientStream(exchange), record.request.started_at
            await holds.wait(backend.directory_id, HeldRequest(decided.tenant, began_at, client, None), hold)
            self._keep(backend, inbound.keep_seconds)
        obstacles = [self.obstacle(permit.backend.name) for permit in decision.order]
        if all(obstacles):
            message = f"the model is not loaded: {obstacles[0]}; retry later"
            raise refused(503, message, "no_backend_available", {"Retry-After": "5"})
        return Response.json(200, inbound.translator.answer({}))

    def _update_prefixes(self, record: Record, backend: Backend | None) -> None:
        """Update the estimate of the engines' caches from the backend's answer, and from failures to connect."""
        prefixes = self.dispatcher.calls.prefixes
        for each in record.attempts:
            if each.result == _CONNECT_ERROR:
                prefixes.forget(each.backend)
        prompt, usage = record.decided.prompt, record.answer.usage
        if prompt is None or backend is None or usage is None:
            return
        if found := prefixes.record_answer(prompt, backend, cached=usage.cached, tokens=usage.prompt):
            self.metrics.count(self.metrics.prompts, backend.name, found)

    async def _end(self, record: Record, routing: Routing, body: bytes) -> None:
        facts = record.decided.facts
        if record.decided.history_bytes:
            self.conversations.history_bytes -= record.decided.history_bytes
        answering = routing.config.backends.get(record.answer.backend)
        record.charges.end(record.answer.usage, answering.charged_prices if answering is not None else None)
        self._update_prefixes(record, answering)
        seconds = trio.current_time() - record.request.started_at
        classes = class_label(facts.classes, routing.classes) if facts is not None and facts.classes else "none"
        self.metrics.count_request(record, classes, answering, seconds)
        fields = fields_of(record, routing.config, seconds)
        if routing.config.audit.bodies:
            fields["body"] = body.decode("utf-8", "replace")
        if self.traces is not None and (trace := record.trace) is not None:
            model, now = facts.model if facts is not None else "", record.request.started_at + seconds
            self.traces.offer_nowait(trace, spans_of(record, trace, routing.config.backends, model, now))
        await self.audit.record_request(fields)

    async def _stored_response(self, exchange: StreamExchange, path: str) -> None:
        """Serve a stored response to its owner."""
        routing, head = self.routing(), exchange.head
        record = record_of(head, exchange.peer, logged_path(path), self.rng)
        try:
            principal = _principal(exchange, routing)
            if principal is None:
                response = refused(401, "this key is no longer valid", "invalid_api_key").response
            else:
                record.decided = DecisionRecord(principal=principal)
                response = self.conversations.page(head, path, principal)
            record.update(status=response.status, outcome="ok" if response.status < 400 else "client_error")
            await exchange.respond(_with_request_id(response, record))
        finally:
            await self._end(record, routing, b"")  # noqa: ASYNC102 (it shields itself, with a deadline)

    async def refuse_malformed(self, head: RequestHead | None, peer: str, status: int, message: str) -> Response:
        """Record a malformed request, and return the error response: a `MalformedHandler`."""
        code, response = unread_code(status), await unread_refusal(head, peer, status, message)
        self.metrics.count_refused(code)
        routing = self.routing()
        principal = None if head is None else principal_of(head.lines, peer, routing.clients)
        if head is None or principal is None:
            return response
        path = route_of(head.path)
        record = record_of(head, peer, path if path in ROUTES else "other", self.rng)
        record.decided = DecisionRecord(principal=principal)
        record.update(status=status, outcome=code)
        await self.audit.record_request(fields_of(record, routing.config, 0.0))
        return _with_request_id(response, record)


def _principal(exchange: StreamExchange, routing: Routing) -> Principal | None:
    """Return the client; a router without authentication trusts the gateway before it, which checks the models."""
    if routing.clients is None and (client := client_of(exchange)) is not None:
        return attrs.evolve(client, models=())
    return principal_of(exchange.head.lines, exchange.owner, routing.clients)


def route_of(path: str) -> str:
    """Return a request's path in `ROUTES`, or the path itself if there is none."""
    path = path.rstrip("/")
    return _SHORT.get(path, path)


def _with_request_id(response: Response, record: Record) -> Response:
    return attrs.evolve(response, headers=response.headers.with_("X-Request-Id", record.request.request_id))


def no_backend_error(config: RoutingConfig, facts: RequestFacts, decision: Decision) -> RefusedError:
    """Return the error for a request that no backend may serve; 503 instead of 404 if its data class is the reason."""
    status, code = _REFUSALS[Refusal(decision.reason)]
    sensitive = sorted(facts.classes & config.classes.sensitive)
    why = decision.why
    if sensitive and status == 404:
        status, code = _REFUSALS[Refusal.NOT_PERMITTED]
        why = f"data class {', '.join(sensitive)} stays local, and {why}"
    headers = DO_NOT_RETRY if status == 503 else {}
    return refused(status, f"no backend may answer this request: {why}", code, headers)


def _salt(config: RoutingConfig, tenant: str) -> str:
    """Return the name of a tenant's prompt caches, equal in all processes of a router."""
    return hashlib.blake2b(f"{config.name}\0{tenant}".encode(), digest_size=16).hexdigest()


def _is_known(config: RoutingConfig, model_id: str) -> bool:
    return model_id in (config.ids or ()) or model_id in dict(_ids(config))


def _ids(config: RoutingConfig) -> list[tuple[str, str]]:
    """Return every model name in the config, with the owner of its first backend."""
    found = {backend.model_id: backend.provider or "llmkube" for backend in config.backends.values()}
    for model_id, name in (config.ids or {}).items():
        if model_id != config.backends[name].model:  # each service has a shorter one
            found.setdefault(model_id, "llmkube")
    for rule in config.rules:
        for pattern in rule.match.models:
            if not set(pattern) & set("*?["):
                found.setdefault(pattern, "llmkube")
    for backend in config.backends.values():
        if config.by_model or backend.name == config.default_backend:
            found |= {each.name: "llmkube" for each in backend.presets if each.name and each.name not in found}
    return list(found.items())
