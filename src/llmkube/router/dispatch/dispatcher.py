"""Asks one backend after the other until one answers, and gives its answer to the client.

It leads on only for the causes of `verdicts`, and only while the client has nothing of an answer. Every wait has the
bound that the decision gave its backend. An engine of ours that loads its model is waited for, if no other answers.
An answer whose engine dies goes on at another one of the same model, or at the same one once it is back.
"""

import math
from collections.abc import Callable, Mapping
from typing import Final

import attrs
import trio

from llmkube.base.http.exchange import StreamExchange
from llmkube.base.http.message import Headers, Response
from llmkube.router.budgets.meter import asked_tokens
from llmkube.router.continuation.joined_answer import JoinedAnswer
from llmkube.router.continuation.places import places
from llmkube.router.dialects.dialect import DialectError
from llmkube.router.dispatch.attempt import Asked, Attempts, Begun, Whole
from llmkube.router.dispatch.circuits import Circuits, State
from llmkube.router.dispatch.client_stream import COMMENT_SECONDS, ClientStream, comment_until
from llmkube.router.dispatch.observed import Observed
from llmkube.router.dispatch.passed_headers import answer_headers
from llmkube.router.dispatch.record import Record, server_timing
from llmkube.router.dispatch.relay import BREAKS, UNTRANSLATABLE, Ending, fail, relay
from llmkube.router.dispatch.request_body import COUNT_TOKENS, STREAMING
from llmkube.router.dispatch.verdicts import Cause, Failure
from llmkube.router.health.engine_watch import FROZEN, EngineWatch, Waiting
from llmkube.router.policy.decision import Decision
from llmkube.router.policy.permits import Permit
from llmkube.router.policy.request_facts import NOBODY
from llmkube.router.queue.turns import Line, Turn, Turns
from llmkube.router.refusals import error_object

LOADING_POLL_SECONDS: Final = 1.0
"""How often an engine that loads is asked again."""

LOADING_COMMENT: Final = b": the model is loading\n\n"
QUEUE_COMMENT: Final = b": the request waits for its turn\n\n"
_FOR_GOOD: Final = frozenset({Cause.UNSUPPORTED, Cause.MISSING, Cause.KEY})
"""Why an engine does not go on, however long it is waited for."""


@attrs.define(eq=False)
class Dispatcher:
    """Carries decisions out.

    Attributes:
        attempts: Makes one attempt.
        circuits: Which backends are left alone.
        observed: What was seen of them.
        turns: The queues in front of engines.
        watch: Tells a frozen engine from one that computes.
        on_try: Told of each attempt: the backend's name and what came of it.
        on_break: Told of each answer whose engine died: what came of it.
    """

    attempts: Attempts
    circuits: Circuits
    observed: Observed
    turns: Turns
    watch: EngineWatch
    on_try: Callable[[str, str], None]
    on_break: Callable[[str], None]

    async def answer(self, decision: Decision, asked: Asked, exchange: StreamExchange, record: Record) -> None:
        """Give the client the answer of the first backend that has one, else say why there is none."""
        joined = JoinedAnswer(asked.path, asked.body) if asked.streams else None
        client = ClientStream(exchange, asked.answers, joined)
        failures: list[Failure] = []
        cold: list[Permit] = []
        for permit in decision.order:
            failure = await self._try(permit, decision, asked, client, record)
            if failure is None:
                return
            if failure.cause is Cause.INTERRUPTED:
                await self._go_on(permit, decision, asked, client, record)
                return
            failures.append(failure)
            if failure.cause is Cause.LOADING:
                cold.append(permit)
        if cold:
            last = await self._wait_for(cold[0], decision, asked, client, record)
            if last is None:
                return
            if last.cause is Cause.INTERRUPTED:
                await self._go_on(cold[0], decision, asked, client, record)
                return
            failures.append(last)
        status, code, message, headers = self._refusal(decision, failures, record)
        record.status, record.outcome = status, code
        if client.begun:
            await client.fail(error_object(status, message, code))
            return
        said = {"error": error_object(status, message, code)}
        named = Headers.of({"X-Request-Id": record.request_id, **headers})
        await client.respond(Response.json(status, said, headers=named))

    async def _try(
        self, permit: Permit, decision: Decision, asked: Asked, client: ClientStream, record: Record
    ) -> Failure | None:
        """Return why a backend does not answer; None when the client has its answer. One with slots is waited for."""
        backend, started_at = permit.backend, trio.current_time()
        is_open = self.circuits.of(backend.name).state(started_at) is State.OPEN
        self.observed.in_flight[backend.name] += 1
        try:
            if not backend.slots or is_open or asked.path == COUNT_TOKENS:
                return await self._ask(permit, decision, asked, client, record)
            line = self.turns.line(backend)
            most = asked_tokens(asked.body) if asked.path in STREAMING else 0
            tokens = line.tokens_of(asked.size, most)
            with self.turns.turn(backend, _tenant(record), tokens) as turn:
                seconds = decision.first_byte_seconds[backend.name]
                headers = answer_headers(Headers(), record.request_id, backend.name) if asked.streams else None
                if not await _until_called(turn, seconds, client, headers):
                    failure = _not_called(turn, line)
                    record.tried(backend.name, failure, trio.current_time() - started_at)
                    self.on_try(backend.name, failure.cause.value)
                    return failure
                unanswered = await self._ask(permit, decision, asked, client, record)
                if unanswered is not None:
                    turn.took = turn.tokens if unanswered.counts else 0
                elif record.last_usage is not None:
                    usage = record.last_usage
                    line.answered(turn, usage.prompt - usage.cached + usage.completion, usage.completion)
                return unanswered
        finally:
            self.observed.in_flight[backend.name] -= 1

    async def _ask(
        self, permit: Permit, decision: Decision, asked: Asked, client: ClientStream, record: Record
    ) -> Failure | None:
        """Return why a backend does not answer, whose turn it is; None when the client has its answer."""
        name, started_at = permit.backend.name, trio.current_time()
        if not self.circuits.admit(name, started_at):
            failure = Failure(Cause.CIRCUIT, "it failed before, and is left alone for now")
            record.tried(name, failure, 0.0)
            self.on_try(name, failure.cause.value)
            return failure
        found: Whole | Begun | Failure | None = None
        try:
            with self.watch.watching(permit, extends=name in decision.extends) as waiting:
                limit = decision.first_byte_seconds[name]
                found = await self._attempt(permit, asked, limit, client, record, waiting=waiting)
            if found is None and waiting.scope.cancelled_caught:
                found = Failure(Cause.FROZEN, FROZEN)
            joined = client.joined
            if isinstance(found, Whole) and joined is not None and joined.continuations:
                found = Failure(
                    Cause.UNSUPPORTED, f"it does not go on with an answer: {found.error_code}", found.status
                )
            seconds = trio.current_time() - started_at
            self._note(name, found, seconds, record, counts=joined is None or name not in joined.broken)
            if isinstance(found, Failure):
                return found
            record.backend, record.dropped = name, found.dropped
            if record.first_byte_seconds is None:
                record.first_byte_seconds = trio.current_time() - record.started_at
            if isinstance(found, Whole):
                await self._give(found, permit, client, record)
                return None
            return await self._relay(found, permit, client, record)
        finally:
            if found is None:
                self.circuits.abandoned(name)
            if isinstance(found, Begun):
                await self.attempts.transport.release(permit, found.answer)  # noqa: ASYNC102 (closes at once)

    async def _attempt(
        self,
        permit: Permit,
        asked: Asked,
        silence_seconds: float,
        client: ClientStream,
        record: Record,
        *,
        waiting: Waiting,
    ) -> Whole | Begun | Failure:
        """Make the attempt; a client that waits for a stream already hears comments meanwhile."""
        if not client.begun:
            return await self.attempts.make(permit, asked, silence_seconds, waiting)
        found: list[Whole | Begun | Failure] = []
        done = trio.Event()

        async def make() -> None:
            found.append(await self.attempts.make(permit, asked, silence_seconds, waiting))
            done.set()

        handed = False
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(make)
                await comment_until(done, client, _comment(record))
            handed = True
        finally:
            if not handed and found and isinstance(found[0], Begun):
                await self.attempts.transport.release(permit, found[0].answer)  # noqa: ASYNC102 (closes at once)
        return found[0]

    def _note(self, name: str, found: Whole | Begun | Failure, seconds: float, record: Record, *, counts: bool) -> None:
        """Tell circuit, metrics and record what came of an attempt; the circuit, if it counts."""
        now = trio.current_time()
        if not isinstance(found, Failure):
            (self.circuits.began if isinstance(found, Begun) else self.circuits.succeeded)(name)
            self.observed.began(name, seconds)
            headers = found.headers if isinstance(found, Whole) else found.answer.headers
            self.watch.heard(name, headers.get("server") or "")
            record.tried(name, None, seconds, found.status if isinstance(found, Whole) else 200)
            self.on_try(name, "answered")
            return
        record.tried(name, found, seconds)
        self.on_try(name, found.cause.value)
        if found.cause is Cause.RATE_LIMITED or found.retry_after_seconds is not None:
            self.circuits.failed(name, now, wait_seconds=found.retry_after_seconds or 1.0)
        elif found.counts and counts:
            self.circuits.failed(name, now)
        else:
            self.circuits.abandoned(name)

    async def _give(self, whole: Whole, permit: Permit, client: ClientStream, record: Record) -> None:
        record.status, record.usage, record.model = whole.status, whole.usage, whole.model
        record.last_usage = whole.usage
        record.outcome = "ok" if whole.status < 400 else whole.error_code
        if client.begun:  # with 200, while the engine loaded
            await client.fail(error_object(whole.status, "the backend refuses the request", whole.error_code))
            return
        headers = answer_headers(whole.headers, record.request_id, permit.backend.name)
        headers = headers.with_("Content-Type", "application/json").with_("Server-Timing", server_timing(record))
        try:
            await client.respond(Response(whole.status, headers, whole.body))
        except DialectError as exc:
            record.status, record.outcome = 502, Ending.UNTRANSLATABLE.value
            said = {"error": error_object(502, f"{UNTRANSLATABLE}: {exc}", record.outcome)}
            await client.respond(Response.json(502, said, headers=headers))

    async def _relay(self, begun: Begun, permit: Permit, client: ClientStream, record: Record) -> Failure | None:
        """Give the client a stream; return a failure if it broke off and can go on elsewhere."""
        record.status, record.streamed = 200, True
        headers = answer_headers(begun.answer.headers, record.request_id, permit.backend.name)
        name, joined = permit.backend.name, client.joined
        if joined is not None:
            joined.begin(permit.backend)
            if joined.continuations:
                record.continuations += 1
                self.on_break("continued")
        try:
            await client.begin(headers.with_("Server-Timing", server_timing(record)))
            ending = await relay(begun, client)
            record.outcome = ending.value if ending is Ending.WHOLE else f"stream_{ending.value}"
        finally:
            record.usage = record.last_usage = begun.judge.usage
            record.model = record.model or begun.judge.model
            if joined is not None and joined.continuations:
                record.usage = joined.usage
        if ending is Ending.WHOLE:
            self.circuits.succeeded(name)
        elif ending not in (Ending.ERROR, Ending.UNTRANSLATABLE, Ending.UNJOINED):
            self.circuits.failed(name, trio.current_time())
        if joined is not None and (ending in BREAKS or ending is Ending.UNJOINED):
            if not joined.why_not:
                return Failure(Cause.INTERRUPTED, "it broke off", 200)
            record.not_continued = joined.why_not
            self.on_break("not_continuable")
        return None

    async def _go_on(
        self, broken: Permit, decision: Decision, asked: Asked, client: ClientStream, record: Record
    ) -> None:
        """Have other engines go on with an answer, or the same one once it is back; tell the client if none does."""
        joined, at = client.joined, broken
        assert joined is not None, "only an answer that is joined can go on"
        while True:
            ended, record.outcome = record.outcome, "client_gone"
            rest = attrs.evolve(asked, body=joined.next_body())
            at, failure = await self._continue(at, decision, rest, client, record)
            if failure is None:
                return
            if failure.cause is not Cause.INTERRUPTED:
                break
        record.outcome, record.not_continued = ended, f"no engine of its model went on: {failure.detail}"
        self.on_break("no_engine")
        await fail(client, Ending(ended.removeprefix("stream_")))

    async def _continue(
        self, broken: Permit, decision: Decision, rest: Asked, client: ClientStream, record: Record
    ) -> tuple[Permit, Failure | None]:
        """Ask engines that may go on, for as long as a first byte may take; return the last, and why it has not ended.

        No failure means that the client has the end of its answer.
        """
        until = trio.current_time() + decision.first_byte_seconds[broken.backend.name]
        silent_since, tries = trio.current_time(), -1
        while True:
            failures = []
            for permit in places(decision.order, broken):
                failure = await self._try(permit, decision, rest, client, record)
                if failure is None or failure.cause is Cause.INTERRUPTED:
                    return permit, failure
                failures.append(failure)
            tries = len(record.tries) if tries < 0 else tries
            del record.tries[tries:]  # the first time that they said so is there
            if trio.current_time() + LOADING_POLL_SECONDS >= until or all(each.cause in _FOR_GOOD for each in failures):
                return broken, failures[-1]
            await trio.sleep(LOADING_POLL_SECONDS)
            if trio.current_time() - silent_since >= COMMENT_SECONDS:
                await client.send(LOADING_COMMENT)
                silent_since = trio.current_time()

    async def _wait_for(
        self, permit: Permit, decision: Decision, asked: Asked, client: ClientStream, record: Record
    ) -> Failure | None:
        """Ask an engine of ours that loads its model again and again, for as long as its first byte may take."""
        until = record.started_at + decision.first_byte_seconds[permit.backend.name]
        silent_since = trio.current_time()
        while trio.current_time() + LOADING_POLL_SECONDS < until:
            await trio.sleep(LOADING_POLL_SECONDS)
            if asked.streams and trio.current_time() - silent_since >= COMMENT_SECONDS:
                await client.begin(answer_headers(Headers(), record.request_id, permit.backend.name))
                await client.send(LOADING_COMMENT)
                silent_since = trio.current_time()
            failure = await self._try(permit, decision, asked, client, record)
            if failure is None or failure.cause is not Cause.LOADING:
                return failure
            record.tries.pop()  # the first time it said so is there
        return Failure(Cause.LOADING, "it still loads its model", 503)

    def _refusal(
        self, decision: Decision, failures: list[Failure], record: Record
    ) -> tuple[int, str, str, Mapping[str, str]]:
        """Return status, code, message and headers of the answer to a request that no backend answers."""
        tried = "; ".join(f"{each.backend}: {each.result}" for each in record.tries)
        message = f"no backend answered ({tried})"
        if all(each.cause is Cause.UNSUPPORTED for each in failures):
            return 400, "unsupported", failures[0].detail, {}
        last = next((each for each in reversed(failures) if each.cause is not Cause.CIRCUIT), failures[-1])
        again = {"Retry-After": str(self._seconds_until_again(decision))}
        if decision.rule is not None and decision.rule.fail_closed:
            return 503, "fail_closed_runtime", f"{message}, and rule {decision.rule.name!r} fails closed", again
        if last.cause is Cause.QUEUE:
            again = {"Retry-After": f"{last.retry_after_seconds or 1:.0f}"}
            return (429, "tenant_queue_full", message, again) if last.is_own else (503, "queue_full", message, again)
        if last.cause in (Cause.TIMEOUT, Cause.FROZEN):
            return 504, "backend_timeout", message, {}
        if last.cause is Cause.RATE_LIMITED:
            return 429, "rate_limited", message, again
        if last.cause is Cause.LOADING:
            return 503, "model_loading", message, {"Retry-After": "5"}
        if last.cause in (Cause.CIRCUIT, Cause.KEY, Cause.MISSING):
            return 503, "no_backend_available", message, again
        return 502, "all_backends_failed", message, {}

    def _seconds_until_again(self, decision: Decision) -> int:
        now = trio.current_time()
        waits = [self.circuits.of(permit.backend.name).open_until - now for permit in decision.order]
        return max(1, math.ceil(min(waits, default=1.0)))


def _tenant(record: Record) -> str:
    """Return whom a turn is charged to: the team, else the tenant."""
    principal = record.facts.principal if record.facts is not None else NOBODY
    return principal.team or principal.tenant


async def _until_called(turn: Turn, seconds: float, client: ClientStream, comment_headers: Headers | None) -> bool:
    """Return whether a turn comes in time; with headers the client wants a stream, and hears comments meanwhile."""
    until = trio.current_time() + seconds
    while not turn.called.is_set() and (left := until - trio.current_time()) > 0:
        with trio.move_on_after(left if comment_headers is None else min(left, COMMENT_SECONDS)):
            await turn.called.wait()
        if comment_headers is not None and not turn.called.is_set() and trio.current_time() < until:
            await client.begin(comment_headers)
            await client.send(QUEUE_COMMENT)
    return turn.admitted_at is not None


def _not_called(turn: Turn, line: Line) -> Failure:
    """Return why it never was a request's turn."""
    again = float(line.retry_seconds())
    if turn.is_dropped:
        return Failure(Cause.QUEUE, "its queue is full", retry_after_seconds=again, is_own=turn.is_own)
    is_own = line.queue.waiting_of(turn.tenant) > 1
    return Failure(Cause.QUEUE, "no slot of it was free in time", retry_after_seconds=again, is_own=is_own)


def _comment(record: Record) -> bytes:
    """Return what a client that waits is told."""
    loads = any(each.result == Cause.LOADING.value for each in record.tries)
    return LOADING_COMMENT if loads else QUEUE_COMMENT
