"""Calls one backend and sends its answer to the client; requests queue for backends with slots."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import attrs
import orjson
import trio

from llmkube.base.hold import Hold
from llmkube.base.http.message import NO_HEADERS, Headers, Origin
from llmkube.router.backends import NOT_READY, UnavailableModel
from llmkube.router.budgets.meter import answer_count, prompt_bytes, requested_tokens, usage_of_all_answers
from llmkube.router.config.routing_config import Backend
from llmkube.router.dialects.dialect import DialectError, error_in_answer
from llmkube.router.dispatch.attempt import Answer, Attempts, ClientRequest, Stream, without_unseen_pictures
from llmkube.router.dispatch.circuits import BackendStats, Circuit, Circuits
from llmkube.router.dispatch.forwarded_headers import answer_lines
from llmkube.router.dispatch.holds import HeldRequest, Holds
from llmkube.router.dispatch.record import ANSWERED, HOLD, QUEUE, Record, RoutedRequest, server_timing
from llmkube.router.dispatch.relay import (
    BREAKS,
    COMMENT_SECONDS,
    LOADING_COMMENT,
    QUEUE_COMMENT,
    UNTRANSLATABLE,
    ClientStream,
    Ending,
    comment_until,
    relay,
)
from llmkube.router.dispatch.request_body import COUNT_TOKENS, STREAMING
from llmkube.router.dispatch.suspects import CULPRIT, Suspect, Suspects
from llmkube.router.dispatch.verdicts import INTERRUPTED, Cause, Failure, retry_after
from llmkube.router.health.engine_watch import EngineWatch, WaitingRequest
from llmkube.router.policy.permits import Permit
from llmkube.router.prefix_cache.tenant_prompts import TenantPrompts
from llmkube.router.prefix_cache.warm_prefixes import WarmPrefixes
from llmkube.router.refusals import RefusedError, error_object
from llmkube.router.turns import EngineQueue, Turn, Turns


@attrs.frozen(eq=False)
class BackendCalls:
    """Calls backends.

    Attributes:
        attempts: Makes one attempt.
        turns: Queues of engines.
        circuits: Circuit breakers; no request queues for a backend whose circuit is open.
        stats: Load and latency of backends.
        watch: Detects frozen engines.
        suspects: Requests that were in engines when these died.
        on_attempt: Called with the name of the backend and the result of each attempt.
        on_continuation: Called with the result of each interruption of an answer.
        on_error: Called with the model of an engine of ours that answers with status 500 or higher.
        prefixes: Marks prompts.
        own_prompts: Answered prompts of each tenant.
        holds: Requests that wait until their model is loaded.
    """

    attempts: Attempts
    turns: Turns
    circuits: Circuits
    stats: BackendStats
    watch: EngineWatch
    suspects: Suspects
    on_attempt: Callable[[str, str], None]
    on_continuation: Callable[[str], None]
    on_error: Callable[[str], None]
    prefixes: WarmPrefixes
    own_prompts: TenantPrompts = attrs.field(factory=TenantPrompts)
    holds: Holds = attrs.field(factory=Holds)

    async def call(self, permit: Permit, request: RoutedRequest) -> Failure | None:
        """Return why the backend failed; None if the client has its answer.

        After `INTERRUPTED` the client has the beginning of an answer, which another engine can continue.
        """
        name = permit.backend.name
        self.stats.in_flight[name] += 1
        found = self.holds.state_of(permit.backend)
        try:
            with self.holds.using(found, request.suspect.tenant) as hold:
                if found is not None and (failure := await self._hold(permit.backend, request, hold)) is not None:
                    return failure
                queues = permit.backend.slots and request.inbound.path != COUNT_TOKENS
                if not queues or self.circuits.is_open(name, request.suspect.tenant, trio.current_time()):
                    return await self._call(permit, request)
                return await self._call_in_turn(permit, request, hold)
        finally:
            self.stats.in_flight[name] -= 1

    async def _hold(self, backend: Backend, request: RoutedRequest, hold: Hold) -> Failure | None:
        """Wait until the model of a backend is loaded; return a failure if it takes too long."""
        if not isinstance(self.holds.state_of(backend), UnavailableModel):
            return None
        record, began_at, lines = request.record, trio.current_time(), None
        if request.inbound.streams:
            lines = answer_lines(NO_HEADERS, request.inbound.request_id, backend.name)
        held = HeldRequest(record.decided.tenant, record.request.started_at, request.client, lines)
        try:
            await self.holds.wait(backend.directory_id, held, hold)
        except RefusedError as refusal:
            record.add_phase(HOLD, backend.name, began_at, trio.current_time())
            cause = Cause.NOT_LOADED if refusal.code == NOT_READY else Cause.QUEUE
            seconds, words = retry_after(refusal.response.headers), refusal.error["message"]
            failure = Failure(cause, words, 503, seconds, has_siblings=True, reason=refusal.error.get("reason", ""))
            self._record_attempt(record, backend.name, failure, trio.current_time() - began_at)
            return failure
        if waited := trio.current_time() - began_at:
            record.add_phase(HOLD, backend.name, began_at, began_at + waited)
            record.update(load_seconds=(record.answer.load_seconds or 0.0) + waited)
            self.circuits.apply(backend.name, record.decided.tenant, Circuit.succeeded)  # its engine is a new one
        return None

    async def _call_in_turn(self, permit: Permit, request: RoutedRequest, hold: Hold) -> Failure | None:
        backend, inbound, record, started_at = permit.backend, request.inbound, request.record, trio.current_time()
        name, engine_queue = backend.name, self.turns.queue_of(backend)
        seconds = request.decision.first_byte_seconds[name]
        writes, parts = inbound.path in STREAMING, answer_count(inbound.body)
        if writes and parts > backend.slots:  # its own queue would have the rest before other tenants' requests
            failure = Failure(Cause.UNSUPPORTED, _TOO_MANY_PARTS.format(parts=parts, slots=backend.slots))
            self._record_attempt(record, backend.name, failure, 0.0)
            return failure
        size = prompt_bytes(inbound.body, inbound.size)
        tokens = engine_queue.tokens_of(size, requested_tokens(inbound.body) if writes else 0, parts)
        with self.turns.turn(backend, request.suspect.tenant, tokens, min(parts, backend.slots)) as turn:
            lines = answer_lines(NO_HEADERS, inbound.request_id, backend.name) if inbound.streams else None
            with hold():  # an unload does not wait for what no engine has
                is_admitted = await _wait_for_turn(turn, seconds, request.client, lines)
            waited = trio.current_time() - started_at
            record.update(queue_seconds=(record.answer.queue_seconds or 0.0) + waited)
            record.add_phase(QUEUE, name, started_at, started_at + waited)
            if not is_admitted:
                failure = _queue_failure(turn, engine_queue)
                self._record_attempt(record, backend.name, failure, waited)
                return failure
            # its engine may have been unloaded, or its door closed, since it began to queue
            result = await self._hold(backend, request, hold) or await self._call(permit, request)
            if result is not None:
                turn.charge = turn.tokens if result.is_fault else 0
            elif (usage := record.answer.last_usage) is not None:
                engine_queue.record_answer(turn, usage.prompt - usage.cached + usage.completion, usage.completion)
            return result

    async def _call(self, permit: Permit, request: RoutedRequest) -> Failure | None:
        """Call a backend if the request's budget and the backend's circuit allow it."""
        name, record, tenant = permit.backend.name, request.record, request.suspect.tenant
        refusal = await record.charges.begin()
        started_at = trio.current_time()
        if refusal is None and not self.circuits.admit(name, tenant, started_at):
            refusal = Failure(Cause.CIRCUIT, "circuit open after failures")
        if refusal is not None:
            self._record_attempt(record, name, refusal, 0.0)
            return refusal
        found: Answer | Stream | Failure | None = None
        waiting = WaitingRequest(name in request.decision.extends, started_at)
        address = self.attempts.transport.engine_address(permit.backend)
        try:
            with self.watch.watching(permit, waiting):
                attempt = self._commented_attempt if request.client.begun else self._attempt
                found = await attempt(permit, request, waiting)
            joined = request.client.joined
            if isinstance(found, Answer) and joined is not None and joined.continuations:
                found = Failure(Cause.UNSUPPORTED, f"it cannot continue an answer: {found.error_code}", found.status)
            now = trio.current_time()
            is_evidence = joined is None or name not in joined.broken
            is_evidence = is_evidence and not self._is_shared_exit(permit.backend, found, request)
            self._record(name, found, record, now - started_at, is_fault=is_evidence)
            if isinstance(found, Failure):
                return self._failed(permit.backend, found, request, address)
            record.charges.status = found.status if isinstance(found, Answer) else 200
            answer = record.answer
            answer.backend, answer.dropped = name, found.dropped
            answer.hides_cache = request.inbound.hides_cache(permit.backend)
            if answer.first_byte_seconds is None:
                answer.first_byte_seconds = now - record.request.started_at
            if isinstance(found, Answer):
                self.suspects.answered(request.suspect)
                await self._respond(found, permit, request, now)
                return None
            return await self._relay(found, permit, request)
        finally:
            self.suspects.leave(name, request.suspect)
            if found is None:
                self.circuits.apply(name, tenant, Circuit.abandoned)
            if isinstance(found, Stream):
                await self.attempts.transport.release(permit, found.answer)  # noqa: ASYNC102 (closes at once)

    def _is_shared_exit(self, backend: Backend, found: Answer | Stream | Failure, request: RoutedRequest) -> bool:
        """Return whether another tenant's request may have ended the engine: that is no evidence against the engine."""
        has_died = isinstance(found, Failure) and _has_died(found, request) and not backend.provider
        return has_died and self.suspects.is_shared(backend.name, request.suspect)

    def _failed(self, backend: Backend, failure: Failure, request: RoutedRequest, address: Origin | None) -> Failure:
        """Report a failure that may be evidence against the engine or the request; return the one to continue with."""
        charges, has_died = request.record.charges, _has_died(failure, request)
        charges.failed(failure.status)
        if failure.cause is Cause.SERVER_ERROR and failure.status != 503 and not backend.provider:
            self.on_error(backend.model)
        return CULPRIT if has_died and self.suspects.died(backend.name, request.suspect, address) else failure

    async def _attempt(
        self, permit: Permit, request: RoutedRequest, waiting: WaitingRequest
    ) -> Answer | Stream | Failure:
        """Make the attempt, and again without earlier pictures if neither this model nor another one sees them."""
        seconds, on_sent = request.decision.first_byte_seconds[permit.backend.name], request.record.charges.mark_sent

        def send(inbound: ClientRequest) -> Awaitable[Answer | Stream | Failure]:
            return self.attempts.make(permit, inbound, seconds, waiting, on_sent)

        inbound, trace = request.inbound, request.record.trace
        if trace is not None and trace.sampled:
            inbound = attrs.evolve(inbound, trace=trace.headers(len(request.record.attempts)))
        first = partial(send, inbound)
        found = await self.suspects.attempt(permit.backend.name, request.suspect, seconds, first)
        falls_back = isinstance(found, Failure) and permit is not request.decision.order[-1]
        blind = None if falls_back else without_unseen_pictures(inbound, found)
        return found if blind is None else await send(blind)

    async def _commented_attempt(
        self, permit: Permit, request: RoutedRequest, waiting: WaitingRequest
    ) -> Answer | Stream | Failure:
        """Make the attempt for a client whose stream has already started, and send comments meanwhile."""
        found: list[Answer | Stream | Failure] = []
        done = trio.Event()

        async def make() -> None:
            found.append(await self._attempt(permit, request, waiting))
            done.set()

        handed_over = False
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(make)
                await comment_until(done, request.client, _comment(request.record))
            handed_over = True
        finally:
            if not handed_over and found and isinstance(found[0], Stream):
                await self.attempts.transport.release(permit, found[0].answer)  # noqa: ASYNC102 (closes at once)
        return found[0]

    def _record_attempt(
        self, record: Record, name: str, failure: Failure | None, seconds: float, status: int = 200
    ) -> None:
        """Add an attempt to record and metrics; without a failure it was answered with this status."""
        record.add_attempt(name, failure, seconds, status)
        self.on_attempt(name, ANSWERED if failure is None else failure.cause.value)

    def _record(
        self, name: str, found: Answer | Stream | Failure, record: Record, seconds: float, *, is_fault: bool
    ) -> None:
        """Add the result of an attempt to record, metrics and circuit; a circuit counts only faults."""
        if not isinstance(found, Failure):
            result = Circuit.began if isinstance(found, Stream) else Circuit.succeeded
            self.circuits.apply(name, record.decided.tenant, result)
            self.stats.began(name, seconds)
            headers, status = (
                (found.answer.head.lines, 200) if isinstance(found, Stream) else (found.headers, found.status)
            )
            self.watch.responded(name, headers.derived(_server))
            self._record_attempt(record, name, None, seconds, status)
            return
        self._record_attempt(record, name, found, seconds)
        now, tenant = trio.current_time(), record.decided.tenant
        if found.cause is Cause.RATE_LIMITED or found.retry_after_seconds is not None:
            self.circuits.put(name, self.circuits.of(name).rate_limited(now, found.retry_after_seconds or 1.0))
        elif found.is_fault and is_fault:
            self.circuits.failed(name, tenant, now, is_own=found.is_own)
        else:
            self.circuits.apply(name, tenant, Circuit.abandoned)

    async def _respond(self, answer: Answer, permit: Permit, request: RoutedRequest, now: float) -> None:
        client, record = request.client, request.record
        usage = usage_of_all_answers(answer.usage, request.inbound.body)
        sent = record.answer
        sent.status, sent.model, sent.usage, sent.last_usage = answer.status, answer.model, usage, usage
        sent.outcome = "ok" if answer.status < 400 else answer.error_code
        self._record_divergence(request)
        translator = request.inbound.translator if request.inbound.streams else None
        if client.begun or (translator is not None and translator.streamed_code == answer.error_code):
            await client.begin(answer_lines(answer.headers, request.inbound.request_id, permit.backend.name))
            words = error_in_answer(orjson.loads(answer.body)).get("message")
            error = error_object(answer.status, words or "the backend refused the request", answer.error_code)
            await client.fail(error, is_whole=True)
            return
        more = f"Content-Type: application/json\r\nServer-Timing: {server_timing(record, now)}\r\n"
        lines = answer_lines(answer.headers, request.inbound.request_id, permit.backend.name, more)
        try:
            await client.respond(answer.status, lines, answer.body)
        except DialectError as exc:
            record.update(status=502, outcome=Ending.UNTRANSLATABLE.value)
            error = error_object(502, f"{UNTRANSLATABLE}: {exc}", Ending.UNTRANSLATABLE.value)
            await client.respond(502, lines, orjson.dumps({"error": error}))

    async def _relay(self, stream: Stream, permit: Permit, request: RoutedRequest) -> Failure | None:
        """Relay a stream to the client; return a failure if it broke off, unless the client has the error already."""
        client, record, suspect, deaths = request.client, request.record, request.suspect, request.suspect.deaths
        address = stream.answer.origin if self.attempts.transport.directory_of(permit.backend) is not None else None
        died = bool if permit.backend.provider else partial(self.suspects.died, permit.backend.name, suspect, address)
        record.update(status=200, streamed=True)
        more = f"Server-Timing: {server_timing(record, trio.current_time())}\r\n"
        lines = answer_lines(stream.answer.head.lines, request.inbound.request_id, permit.backend.name, more)
        name, joined = permit.backend.name, client.joined
        assert joined is not None, "a client that gets a stream has requested one"
        joined.begin(permit.backend, stream.state.model)
        if joined.continuations:
            record.update(continuations=record.answer.continuations + 1)
            self.on_continuation("continued")

        def update() -> None:
            last = usage_of_all_answers(stream.state.usage, request.inbound.body)
            usage = joined.usage if joined.continuations else last
            record.update(usage=usage, last_usage=last, model=record.answer.model or stream.state.model)

        def timing() -> str:
            update()
            self._record_divergence(request)
            return server_timing(record, trio.current_time())

        ended = "client_gone"
        try:
            await client.begin(lines)
            waiting = WaitingRequest(extends=False, began_at=trio.current_time())
            with self.watch.watching(permit, waiting):
                ending = await relay(stream, client, waiting, timing, died)
            ended = ANSWERED if ending is Ending.COMPLETE else f"stream_{ending.value}"
            record.update(outcome=ending.value if ending is Ending.COMPLETE else ended)
        finally:
            update()
            record.end_stream(ended)
        self._record_ending(name, ending, suspect, has_died=suspect.deaths > deaths)
        if ending is Ending.CULPRIT:
            record.update(not_continued=CULPRIT.detail)
            return CULPRIT
        if ending in BREAKS or ending is Ending.UNJOINED:
            if not joined.obstacle:
                record.charges.mark_interrupted()
                return INTERRUPTED
            record.update(not_continued=joined.obstacle)
            self.on_continuation("not_continuable")
        return None

    def _record_ending(self, name: str, ending: Ending, suspect: Suspect, *, has_died: bool) -> None:
        """Report the end of a stream to circuit and suspects."""
        if ending is Ending.COMPLETE:
            self.circuits.apply(name, suspect.tenant, Circuit.succeeded)
            if not has_died:
                self.suspects.answered(suspect)
        elif has_died and self.suspects.is_shared(name, suspect):
            self.circuits.apply(name, suspect.tenant, Circuit.abandoned)
        elif ending not in (Ending.ERROR, Ending.UNTRANSLATABLE, Ending.UNJOINED):
            self.circuits.failed(name, suspect.tenant, trio.current_time(), is_own=True)

    def _record_divergence(self, request: RoutedRequest) -> None:
        """Record where the prompt diverges from earlier ones, if llama.cpp's server reports how much was cached."""
        record, inbound, usage = request.record, request.inbound, request.record.answer.usage
        if usage is None or usage.prefill_ms is None or not record.decided.principal.team:
            return  # without authentication, tenants are unknown
        tenant = record.decided.tenant
        prompt = record.decided.prompt or self.prefixes.prompt(tenant, inbound.path, inbound.body, inbound.size)
        if prompt is None:
            return
        found = self.own_prompts.record_answer(tenant, prompt, cached=usage.cached, tokens=usage.prompt)
        record.update(diverged=found.position(prompt.text) if found is not None else "")


_TOO_MANY_PARTS: Final = (
    "the request asks for {parts} answers (prompts by n), and its engine computes {slots} at a time; "
    "send at most {slots} in a request"
)


def _has_died(failure: Failure, request: RoutedRequest) -> bool:
    """Return whether the engine may have exited; on a reused connection, the second try is refused then."""
    return failure.cause in (Cause.BROKEN, Cause.CONNECT) and request.record.charges.is_sent


def _server(headers: Headers) -> str:
    return headers.get("server") or ""


def _comment(record: Record) -> bytes:
    """Return the comment for a client that waits."""
    loads = any(each.result == Cause.LOADING.value for each in record.attempts)
    return LOADING_COMMENT if loads else QUEUE_COMMENT


async def _wait_for_turn(turn: Turn, seconds: float, client: ClientStream, comment_lines: bytes | None) -> bool:
    """Return whether a turn is admitted in time; with header lines, start the stream and send comments meanwhile."""
    until = trio.current_time() + seconds
    while not turn.settled.is_set() and (left := until - trio.current_time()) > 0:
        with trio.move_on_after(left if comment_lines is None else min(left, COMMENT_SECONDS)):
            await turn.settled.wait()
        if comment_lines is not None and not turn.settled.is_set() and trio.current_time() < until:
            await client.begin(comment_lines)
            await client.send(QUEUE_COMMENT)
    return turn.admitted_at is not None


def _queue_failure(turn: Turn, engine_queue: EngineQueue) -> Failure:
    """Return why a turn was not admitted."""
    retry_seconds, has_siblings = engine_queue.retry_info(turn)
    why = "its queue is full" if turn.is_dropped else "no free slot in time"
    return Failure(Cause.QUEUE, why, retry_after_seconds=float(retry_seconds), has_siblings=has_siblings)
