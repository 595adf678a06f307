"""Listed fields of a request reach a backend: it is read, decided on by policy alone, carried out, and leaves a record.

```
 body ─▶ facts ─▶ permits ─▶ decision ─▶ dispatcher ─▶ backend
                                  └────▶ shadows
```
"""

import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import attrs
import trio

from llmkube.base.http.exchange import StreamExchange
from llmkube.router.auth.principals import principal_of
from llmkube.router.budget_store.errors import BudgetsNotKeptError
from llmkube.router.budget_store.router_budgets import RouterBudgets
from llmkube.router.budgets.meter import Demand, Exhausted, Reservation, with_limit
from llmkube.router.config.routing_config import RoutingConfig
from llmkube.router.dialects.dialect import DialectError
from llmkube.router.dialects.inbound import DIALECTS, refusal_at, translated_request
from llmkube.router.dialects.ollama_models import LISTS
from llmkube.router.dispatch.attempt import Asked
from llmkube.router.dispatch.attempt_charges import NOT_KEPT, AttemptCharges
from llmkube.router.dispatch.dispatcher import Dispatcher
from llmkube.router.dispatch.record import Record, record_of
from llmkube.router.dispatch.request_body import FIELDS, STREAMING, BodyError, check_types, parse_body, refuse_urls
from llmkube.router.dispatch.verdicts import Cause
from llmkube.router.model_list import Listed
from llmkube.router.policy.decision import Decision
from llmkube.router.policy.request_facts import Principal, RequestFacts, facts_of
from llmkube.router.prefix_cache.warm_prefixes import WarmPrefixes
from llmkube.router.proxy.audit_log import AuditLog, fields_of
from llmkube.router.proxy.decisions import NEVER_AGAIN, Decisions, nowhere
from llmkube.router.proxy.live_config import Routing
from llmkube.router.proxy.metrics import RouterMetrics, class_label
from llmkube.router.proxy.shadows import Shadows
from llmkube.router.refusals import RefusedError, refused
from llmkube.router.responses.conversations import Conversations
from llmkube.router.responses.stored_pages import PREFIX, Wanted

ROUTES: Final = tuple(dict.fromkeys((*(f"/v1{each}" for each in FIELDS), *DIALECTS)))
"""What is asked of backends: each with a permit, and a reserve in its budgets."""

HINT: Final = """LLMKube router: an OpenAI-compatible API; clients take its address and /v1 as their base URL.

  GET  /v1/models              what can be asked for
  POST /v1/chat/completions, /v1/completions, /v1/embeddings, /v1/rerank
  POST /v1/responses; GET and DELETE /v1/responses/ID, GET /v1/responses/ID/input_items
  POST /v1/messages, /v1/messages/count_tokens (Anthropic's)
  Ollama's API: /api/chat, /api/generate, /api/embed, /api/tags, /api/ps, /api/show, /api/version
  GET  /healthz, /readyz       whether the router is there, and whether it can answer
"""

MAX_BODY_BYTES: Final = 16 << 20
"""A body is parsed as a whole: 16 MiB take a tenth of a second."""


@attrs.define(eq=False, kw_only=True)
class ListedFields:
    """Answers the requests of a route that are written anew by a list of fields: a `StreamHandler`.

    Attributes:
        routing: Returns what counts now.
        dispatcher: Carries decisions out.
        decisions: Says where requests go.
        shadows: Sends copies.
        metrics: Counts.
        audit: Writes down.
        budgets: Those that requests are under.
        prefixes: What is believed of the engines' caches.
        conversations: Responses that are kept.
        rng: Draws names of requests.
    """

    routing: Callable[[], Routing]
    dispatcher: Dispatcher
    decisions: Decisions
    shadows: Shadows
    metrics: RouterMetrics
    audit: AuditLog
    budgets: RouterBudgets
    prefixes: WarmPrefixes
    conversations: Conversations
    rng: random.Random

    async def __call__(self, exchange: StreamExchange) -> None:
        """Answer one request.

        Raises:
            RefusedError: There is nothing at its path.
        """
        path = exchange.head.path.rstrip("/") or "/"
        if path in ROUTES:
            await self._route(exchange, path)
        elif path.startswith(PREFIX):
            await self._kept_response(exchange, path)
        else:
            known = ", ".join((*ROUTES, "/v1/models", *LISTS))
            raise refused(404, f"nothing at {path}; there is {known}", "not_found")

    def models(self, exchange: StreamExchange) -> list[Listed]:
        """Return what the client of a request can ask for."""
        routing = self.routing()
        principal = principal_of(exchange.head.lines, exchange.peer, routing.clients)
        return self.decisions.models(routing.config, principal or Principal())

    # -- one request -------------------------------------------------------------------------------------------------

    async def _route(self, exchange: StreamExchange, path: str) -> None:
        routing = self.routing()
        record, trace = record_of(exchange.head, exchange.peer, path, self.rng)
        try:
            asked, decision = await self._decide(exchange, path, routing, record, trace)
            demand = Demand(body=asked.body, body_bytes=asked.size, writes=asked.path in STREAMING)
            assert record.facts is not None, "_decide() has found them"
            reservation = await self._admit(routing.config, decision, record.facts, demand)
            alone = attrs.evolve(decision, shadows=())  # they get their copies once
            again = partial(self.budgets.admit, routing.config, alone, record.facts, demand)
            record.charges = AttemptCharges(reservation, again, self.budgets.settle)
            cap = reservation.cap
            if cap is not None and (body := with_limit(asked.body, cap)) is not asked.body:
                asked = attrs.evolve(asked, body=body)
            for permit in decision.shadows:
                seconds = decision.first_byte_seconds[permit.backend.name]
                self.shadows.offer_nowait(permit, asked, seconds, asked.size)
            await self.dispatcher.answer(decision, asked, exchange, record)
        except RefusedError as exc:
            record.status, record.outcome = exc.response.status, exc.code
            named = exc.response.headers.with_("X-Request-Id", record.request_id)
            await exchange.respond(refusal_at(path, attrs.evolve(exc.response, headers=named)))
        except Exception:
            record.outcome = "crashed"  # the server's own broad catch answers and logs it
            raise
        finally:
            await self._end(record, routing, exchange.body)  # noqa: ASYNC102 (it shields itself, with a deadline)

    async def _decide(
        self, exchange: StreamExchange, path: str, routing: Routing, record: Record, trace: Mapping[str, str]
    ) -> tuple[Asked, Decision]:
        """Read the request and decide where it goes.

        Raises:
            RefusedError: Nowhere.
        """
        head, config = exchange.head, routing.config
        if head.method != "POST":
            words = f"{head.method} is not allowed on {path}"
            raise refused(405, words, "method_not_allowed", {"Allow": "POST"})
        principal = principal_of(head.lines, exchange.peer, routing.clients)
        if principal is None:  # the judge let it in: its time is over since, or keys have changed
            raise refused(401, "this key or token counts no more", "invalid_api_key")
        record.principal = principal
        size = len(exchange.body)
        if size > MAX_BODY_BYTES:  # the listener of a route that takes any field lets longer ones in
            words = f"the body has {size} bytes; here it is parsed as a whole, and may have {MAX_BODY_BYTES}"
            raise refused(413, words, "body_too_large")
        try:
            translated = translated_request(path, parse_body(exchange.body))
            refuse_urls(translated.body)
            check_types(translated.body)
        except BodyError as exc:
            raise refused(400, str(exc), exc.code) from exc
        except DialectError as exc:
            raise refused(400, str(exc), "invalid_value") from exc
        joined = self.conversations.join(translated, principal)
        record.history_bytes = joined.history_bytes
        translated = joined.translated
        body, size = translated.body, size + joined.history_bytes
        record.facts = facts_of(config, head.joined, body, principal)
        facts = record.facts = joined.limited(record.facts)
        if routing.balances:
            record.prompt = self.prefixes.prompt(record.tenant, translated.path, body, size)
        decision = self.decisions.of(config, facts, record.prompt)
        record.decision = decision
        if not decision.order:
            raise nowhere(config, facts, decision)
        asked = Asked(
            path=translated.path,
            body=body,
            size=size,
            request_id=record.request_id,
            trace=trace,
            answers=translated.answers,
            dropped=translated.dropped,
        )
        return asked, decision

    async def _admit(
        self, config: RoutingConfig, decision: Decision, facts: RequestFacts, demand: Demand
    ) -> Reservation:
        """Reserve what a request may take, where it holds, before anything is sent.

        Raises:
            RefusedError: A budget has no room for it, or cannot be kept.
        """
        try:
            found = await self.budgets.admit(config, decision, facts, demand)
        except BudgetsNotKeptError as exc:
            raise refused(503, NOT_KEPT, "budget_not_kept", {"Retry-After": "5"}) from exc
        if isinstance(found, Exhausted):
            again = {"Retry-After": str(found.wait_seconds)} if found.wait_seconds is not None else NEVER_AGAIN
            raise refused(429, found.message, "budget_exhausted", again)
        return found

    def _learn(self, record: Record, config: RoutingConfig) -> None:
        """Take what an answer says of its engine's cache to heart, and that an engine cannot be reached."""
        for each in record.tries:
            if each.result == Cause.CONNECT.value:
                self.prefixes.forget(each.backend)
        backend, usage = config.backends.get(record.backend), record.usage
        if record.prompt is not None and backend is not None and usage is not None:
            found = self.prefixes.answered(record.prompt, backend, cached=usage.cached, tokens=usage.prompt)
            self.metrics.prompt_answered(backend.name, found)

    async def _end(self, record: Record, routing: Routing, body: bytes) -> None:
        self.conversations.ended(record.history_bytes)
        answering = routing.config.backends.get(record.backend)
        record.charges.end(record.usage, answering.prices if answering is not None else None)
        self._learn(record, routing.config)
        seconds = trio.current_time() - record.started_at
        classes = record.facts.classes if record.facts is not None else frozenset[str]()
        self.metrics.ended(record, class_label(classes, routing.classes), answering, seconds)
        fields = fields_of(record, routing.config, seconds)
        if routing.config.audit.bodies:
            fields["body"] = body.decode("utf-8", "replace")
        await self.audit.dispatched(fields)

    async def _kept_response(self, exchange: StreamExchange, path: str) -> None:
        """Answer about a response that is kept, to whom it belongs."""
        routing, head = self.routing(), exchange.head
        below = "/input_items" if path.endswith("/input_items") else ""
        shown = f"{PREFIX}ID{below}"  # who reads the log shall not learn how to ask for it
        record, _ = record_of(head, exchange.peer, shown, self.rng)
        try:
            principal = principal_of(head.lines, exchange.peer, routing.clients)
            if principal is None:
                said = refused(401, "this key counts no more", "invalid_api_key").response
            else:
                record.principal = principal
                wanted = Wanted(head.method, path, head.target.partition("?")[2])
                said = self.conversations.page(wanted, principal)
            record.status, record.outcome = said.status, "ok" if said.status < 400 else "client_error"
            await exchange.respond(attrs.evolve(said, headers=said.headers.with_("X-Request-Id", record.request_id)))
        finally:
            await self._end(record, routing, b"")  # noqa: ASYNC102 (it shields itself, with a deadline)
