"""Listed fields of a request reach a backend: it is read, decided on by policy alone, carried out, and leaves a record.

```
 body ─▶ facts ─▶ permits ─▶ decision ─▶ dispatcher ─▶ backend
                                  └────▶ shadows
```

A request that cannot be read is counted. One of a client that the judge has let in has a line of the audit log as
well, as what it sends and is refused for has: without its body, and with a path only of those that there are. Of
strangers, and of requests without a head, nothing is written, so that a client without a key cannot make the log grow.
"""

import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import attrs
import trio

from llmkube.base.http.exchange import StreamExchange
from llmkube.base.http.heads import RequestHead
from llmkube.base.http.message import Response
from llmkube.router.auth.principals import principal_of
from llmkube.router.budget_store.router_budgets import RouterBudgets
from llmkube.router.budgets.meter import (
    BudgetsNotKeptError,
    Claim,
    Demand,
    Exhausted,
    Reservation,
    claim_of,
    with_limit,
)
from llmkube.router.config.routing_config import RoutingConfig
from llmkube.router.dialects.dialect import DialectError
from llmkube.router.dialects.inbound import DIALECTS, refusal_at, translated_request, unread_code, unread_refusal
from llmkube.router.dialects.ollama_models import LISTS
from llmkube.router.dispatch.attempt import Asked
from llmkube.router.dispatch.attempt_charges import NOT_KEPT, AttemptCharges
from llmkube.router.dispatch.circuits import Observed
from llmkube.router.dispatch.dispatcher import Dispatcher
from llmkube.router.dispatch.record import Decided, Record, record_of
from llmkube.router.dispatch.request_body import FIELDS, STREAMING, BodyError, check_types, parse_body, refuse_urls
from llmkube.router.dispatch.verdicts import Cause
from llmkube.router.model_list import Listed
from llmkube.router.policy.decision import FAIL_CLOSED, MODEL_NOT_ALLOWED, NO_ROUTE, NOT_PERMITTED, Decision, decide
from llmkube.router.policy.permits import permits_for
from llmkube.router.policy.request_facts import NOBODY, RequestFacts, facts_of
from llmkube.router.prefix_cache.warm_prefixes import Prompt, WarmPrefixes
from llmkube.router.proxy.audit_log import AuditLog, fields_of
from llmkube.router.proxy.live_config import Routing
from llmkube.router.proxy.metrics import RouterMetrics, class_label
from llmkube.router.proxy.shadows import Shadows
from llmkube.router.refusals import RefusedError, refused
from llmkube.router.responses.conversations import Conversations
from llmkube.router.responses.store import PREFIX, Wanted

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

NEVER_AGAIN: Final[Mapping[str, str]] = {"X-Should-Retry": "false"}
"""For a client that would ask again by itself."""

_REFUSALS: Final = {
    NO_ROUTE: (404, "no_route"),
    FAIL_CLOSED: (503, "fail_closed"),
    NOT_PERMITTED: (503, "not_permitted"),
    MODEL_NOT_ALLOWED: (403, "model_not_allowed"),
}


@attrs.define(eq=False, kw_only=True)
class ListedFields:
    """Answers the requests of a route that are written anew by a list of fields: a `StreamHandler`.

    Attributes:
        routing: Returns what counts now.
        dispatcher: Carries decisions out.
        observed: What requests have shown of backends.
        shadows: Sends copies.
        metrics: Counts.
        audit: Writes down.
        budgets: Those that requests are under.
        prefixes: What is believed of the engines' caches.
        conversations: Responses that are kept.
        rng: Draws for weights, and names of requests.
    """

    routing: Callable[[], Routing]
    dispatcher: Dispatcher
    observed: Observed
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
        """Return each name that the client can ask for and that reaches a backend as it is: what that can is listed."""
        routing, found = self.routing(), []
        config = routing.config
        principal = principal_of(exchange.head.lines, exchange.peer, routing.clients) or NOBODY
        for model_id, owner in _ids(config):
            decision = self._decision(config, facts_of(config, {}, {"model": model_id}, principal))
            if decision.order:
                backend = decision.order[0].backend
                runs = not backend.provider and not backend.missing
                found.append(Listed(name=model_id, owner=owner, runs=runs, tags=backend.capabilities))
        return found

    def _decision(self, config: RoutingConfig, facts: RequestFacts, prompt: Prompt | None = None) -> Decision:
        """Return where a request goes; with a prompt, first to where that is warm."""
        return decide(
            config,
            facts,
            permits_for(config, facts),
            first_byte_seconds=self.observed.first_byte_seconds,
            pick=self.rng.random(),
            load=self.observed.in_flight,
            warmth=self.prefixes.warmth(prompt, config.backends.values()) if prompt is not None else {},
        )

    # -- one request -------------------------------------------------------------------------------------------------

    async def _route(self, exchange: StreamExchange, path: str) -> None:
        routing = self.routing()
        record = record_of(exchange.head, exchange.peer, path, self.rng)
        try:
            asked, facts, decision = self._decide(exchange, path, routing, record)
            demand = Demand(body=asked.body, body_bytes=asked.size, writes=asked.path in STREAMING)
            reservation = await self._admit(routing.config, claim_of(routing.config, decision, demand), facts)
            alone = attrs.evolve(decision, shadows=())  # they get their copies once
            again = partial(self.budgets.admit, routing.config, claim_of(routing.config, alone, demand), facts)
            record.charges = AttemptCharges(reservation, again, self.budgets.settle)
            cap = reservation.cap
            if cap is not None and (body := with_limit(asked.body, cap)) is not asked.body:
                asked = attrs.evolve(asked, body=body)
            for permit in decision.shadows:
                seconds = decision.first_byte_seconds[permit.backend.name]
                self.shadows.offer_nowait(permit, asked, seconds, asked.size)
            await self.dispatcher.answer(decision, asked, exchange, record)
        except RefusedError as exc:
            record.note(status=exc.response.status, outcome=exc.code)
            await exchange.respond(refusal_at(path, _named(exc.response, record)))
        except Exception:
            record.note(outcome="crashed")  # the server's own broad catch answers and logs it
            raise
        finally:
            await self._end(record, routing, exchange.body)  # noqa: ASYNC102 (it shields itself, with a deadline)

    def _decide(
        self, exchange: StreamExchange, path: str, routing: Routing, record: Record
    ) -> tuple[Asked, RequestFacts, Decision]:
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
        record.decided = decided = Decided(principal=principal)
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
        translated, size = joined.translated, size + joined.history_bytes
        body = translated.body
        facts = facts_of(config, head.joined, body, principal)
        record.decided = decided = attrs.evolve(decided, history_bytes=joined.history_bytes, facts=facts)
        facts = joined.limited(facts)
        balances = routing.balances
        prompt = self.prefixes.prompt(decided.tenant, translated.path, body, size) if balances else None
        decision = self._decision(config, facts, prompt)
        record.decided = attrs.evolve(decided, facts=facts, prompt=prompt, decision=decision)
        if not decision.order:
            raise nowhere(config, facts, decision)
        asked = Asked(
            path=translated.path,
            body=body,
            size=size,
            request_id=record.request.request_id,
            trace=record.request.trace,
            answers=translated.answers,
            dropped=translated.dropped,
        )
        return asked, facts, decision

    async def _admit(self, config: RoutingConfig, claim: Claim | None, facts: RequestFacts) -> Reservation:
        """Reserve what a request may take, where it holds, before anything is sent.

        Raises:
            RefusedError: A budget has no room for it, or cannot be kept.
        """
        try:
            found = await self.budgets.admit(config, claim, facts)
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
        backend, usage = config.backends.get(record.answered.backend), record.answered.usage
        if (prompt := record.decided.prompt) is not None and backend is not None and usage is not None:
            found = self.prefixes.answered(prompt, backend, cached=usage.cached, tokens=usage.prompt)
            self.metrics.prompt_answered(backend.name, found)

    async def _end(self, record: Record, routing: Routing, body: bytes) -> None:
        facts = record.decided.facts
        self.conversations.ended(record.decided.history_bytes)
        answering = routing.config.backends.get(record.answered.backend)
        record.charges.end(record.answered.usage, answering.prices if answering is not None else None)
        self._learn(record, routing.config)
        seconds = trio.current_time() - record.request.started_at
        classes = facts.classes if facts is not None else frozenset[str]()
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
        record = record_of(head, exchange.peer, shown, self.rng)
        try:
            principal = principal_of(head.lines, exchange.peer, routing.clients)
            if principal is None:
                said = refused(401, "this key counts no more", "invalid_api_key").response
            else:
                record.decided = Decided(principal=principal)
                wanted = Wanted(head.method, path, head.target.partition("?")[2])
                said = self.conversations.page(wanted, principal)
            record.note(status=said.status, outcome="ok" if said.status < 400 else "client_error")
            await exchange.respond(_named(said, record))
        finally:
            await self._end(record, routing, b"")  # noqa: ASYNC102 (it shields itself, with a deadline)

    async def unread(self, head: RequestHead | None, peer: str, status: int, words: str) -> Response:
        """Count a request that cannot be read, write it down, and return what its client is told: an `Unread`."""
        code, said = unread_code(status), await unread_refusal(head, peer, status, words)
        self.metrics.unread(code)
        routing = self.routing()
        principal = None if head is None else principal_of(head.lines, peer, routing.clients)
        if head is None or principal is None:
            return said
        path = head.path.rstrip("/")
        record = record_of(head, peer, path if path in ROUTES else "other", self.rng)
        record.decided = Decided(principal=principal)
        record.note(status=status, outcome=code)
        await self.audit.dispatched(fields_of(record, routing.config, 0.0))
        return _named(said, record)


def _named(said: Response, record: Record) -> Response:
    return attrs.evolve(said, headers=said.headers.with_("X-Request-Id", record.request.request_id))


def nowhere(config: RoutingConfig, facts: RequestFacts, decision: Decision) -> RefusedError:
    """Return what is said where no backend may answer; what only stays away for its data is not "not found"."""
    status, code = _REFUSALS.get(decision.reason, (503, "no_route"))
    sensitive = sorted(facts.classes & config.classes.sensitive)
    why = decision.why
    if sensitive and status == 404:
        status, code = _REFUSALS[NOT_PERMITTED]
        why = f"data class {', '.join(sensitive)} stays local, and {why}"
    again = NEVER_AGAIN if status == 503 else {}
    return refused(status, f"no backend may answer this request: {why}", code, again)


def _ids(config: RoutingConfig) -> list[tuple[str, str]]:
    """Return each name that a client could ask for, with the owner of the first backend that it may mean."""
    found = {backend.model_id: backend.provider or "llmkube" for backend in config.backends.values()}
    for rule in config.rules:
        for pattern in rule.match.models:
            if not set(pattern) & set("*?["):
                found.setdefault(pattern, "llmkube")
    return list(found.items())
