"""Asks one backend, whose turn it is, and gives its answer to the client; circuits and metrics learn of it."""

from collections.abc import Callable

import attrs
import trio

from llmkube.base.http.message import Response
from llmkube.router.budgets.meter import of_all_answers
from llmkube.router.dialects.dialect import DialectError
from llmkube.router.dispatch.attempt import Attempts, Begun, Whole
from llmkube.router.dispatch.circuits import Circuits
from llmkube.router.dispatch.client_stream import LOADING_COMMENT, QUEUE_COMMENT, comment_until
from llmkube.router.dispatch.observed import Observed
from llmkube.router.dispatch.passed_headers import answer_headers
from llmkube.router.dispatch.record import Record, server_timing
from llmkube.router.dispatch.relay import BREAKS, UNTRANSLATABLE, Ending, relay
from llmkube.router.dispatch.routed_request import RoutedRequest
from llmkube.router.dispatch.verdicts import Cause, Failure
from llmkube.router.health.engine_watch import EngineWatch, Waiting
from llmkube.router.policy.permits import Permit
from llmkube.router.prefix_cache.own_prompts import OwnPrompts
from llmkube.router.prefix_cache.warm_prefixes import WarmPrefixes
from llmkube.router.refusals import error_object


@attrs.frozen(eq=False)
class BackendCalls:
    """Asks backends.

    Attributes:
        attempts: Makes one attempt.
        circuits: Which backends are left alone.
        observed: What was seen of them.
        watch: Tells a frozen engine from one that computes.
        on_try: Told of each attempt: the backend's name and what came of it.
        on_break: Told of each answer whose engine died: what came of it.
        prefixes: Marks prompts.
        own_prompts: Those that each tenant was answered.
    """

    attempts: Attempts
    circuits: Circuits
    observed: Observed
    watch: EngineWatch
    on_try: Callable[[str, str], None]
    on_break: Callable[[str], None]
    prefixes: WarmPrefixes
    own_prompts: OwnPrompts = attrs.field(factory=OwnPrompts)

    async def ask(self, permit: Permit, request: RoutedRequest) -> Failure | None:
        """Return why the backend does not answer; None when the client has its answer.

        A failure that is `INTERRUPTED` leaves a client with the beginning of an answer, which can go on elsewhere.
        """
        name, record = permit.backend.name, request.record
        if (unpaid := await record.charges.begin()) is not None:
            record.tried(name, unpaid, 0.0)
            self.on_try(name, unpaid.cause.value)
            return unpaid
        started_at = trio.current_time()
        if not self.circuits.admit(name, started_at):
            failure = Failure(Cause.CIRCUIT, "it failed before, and is left alone for now")
            record.tried(name, failure, 0.0)
            self.on_try(name, failure.cause.value)
            return failure
        found: Whole | Begun | Failure | None = None
        waiting = Waiting(name in request.decision.extends, started_at)
        try:
            with self.watch.watching(permit, waiting):
                found = await self._attempt(permit, request, waiting)
            joined = request.client.joined
            if isinstance(found, Whole) and joined is not None and joined.continuations:
                found = Failure(
                    Cause.UNSUPPORTED, f"it does not go on with an answer: {found.error_code}", found.status
                )
            now = trio.current_time()
            self._note(name, found, record, started_at, now, counts=joined is None or name not in joined.broken)
            if isinstance(found, Failure):
                record.charges.failed(found.status)
                return found
            record.charges.status = found.status if isinstance(found, Whole) else 200
            record.backend, record.dropped = name, found.dropped
            if record.first_byte_seconds is None:
                record.first_byte_seconds = now - record.started_at
            if isinstance(found, Whole):
                await self._give(found, permit, request)
                return None
            return await self._relay(found, permit, request)
        finally:
            if found is None:
                self.circuits.abandoned(name)
            if isinstance(found, Begun):
                await self.attempts.transport.release(permit, found.answer)  # noqa: ASYNC102 (closes at once)

    async def _attempt(self, permit: Permit, request: RoutedRequest, waiting: Waiting) -> Whole | Begun | Failure:
        """Make the attempt; a client that waits for a stream already hears comments meanwhile."""
        silence_seconds, charges = request.first_byte_seconds(permit.backend.name), request.record.charges
        if not request.client.begun:
            return await self.attempts.make(permit, request.asked, silence_seconds, waiting, charges.sent)
        found: list[Whole | Begun | Failure] = []
        done = trio.Event()

        async def make() -> None:
            found.append(await self.attempts.make(permit, request.asked, silence_seconds, waiting, charges.sent))
            done.set()

        handed = False
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(make)
                await comment_until(done, request.client, _comment(request.record))
            handed = True
        finally:
            if not handed and found and isinstance(found[0], Begun):
                await self.attempts.transport.release(permit, found[0].answer)  # noqa: ASYNC102 (closes at once)
        return found[0]

    def _note(
        self, name: str, found: Whole | Begun | Failure, record: Record, began: float, now: float, *, counts: bool
    ) -> None:
        """Tell circuit, metrics and record what came of an attempt; the circuit, if it counts."""
        seconds = now - began
        if not isinstance(found, Failure):
            (self.circuits.began if isinstance(found, Begun) else self.circuits.succeeded)(name)
            self.observed.began(name, seconds)
            headers = found.headers if isinstance(found, Whole) else found.answer.head.lines
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

    async def _give(self, whole: Whole, permit: Permit, request: RoutedRequest) -> None:
        client, record = request.client, request.record
        record.status, record.model = whole.status, whole.model
        record.usage = record.last_usage = of_all_answers(whole.usage, request.asked.body)
        record.outcome = "ok" if whole.status < 400 else whole.error_code
        self._compare(request)
        if client.begun:  # with 200, while the engine loaded
            await client.fail(error_object(whole.status, "the backend refuses the request", whole.error_code))
            return
        more = ("Content-Type", "application/json"), ("Server-Timing", _timing(record))
        headers = answer_headers(whole.headers, record.request_id, permit.backend.name, *more)
        try:
            await client.respond(Response(whole.status, headers, whole.body))
        except DialectError as exc:
            record.status, record.outcome = 502, Ending.UNTRANSLATABLE.value
            said = {"error": error_object(502, f"{UNTRANSLATABLE}: {exc}", record.outcome)}
            await client.respond(Response.json(502, said, headers=headers))

    async def _relay(self, begun: Begun, permit: Permit, request: RoutedRequest) -> Failure | None:
        """Give the client a stream; return a failure if it broke off and can go on elsewhere."""
        client, record = request.client, request.record
        record.status, record.streamed = 200, True
        so_far = ("Server-Timing", _timing(record))
        headers = answer_headers(begun.answer.head.lines, record.request_id, permit.backend.name, so_far)
        name, joined = permit.backend.name, client.joined
        if joined is not None:
            joined.begin(permit.backend)
            if joined.continuations:
                record.continuations += 1
                self.on_break("continued")

        def note() -> None:
            record.usage = record.last_usage = of_all_answers(begun.judge.usage, request.asked.body)
            record.model = record.model or begun.judge.model
            if joined is not None and joined.continuations:
                record.usage = joined.usage

        def timing() -> str:
            note()
            self._compare(request)
            return _timing(record)

        try:
            await client.begin(headers)
            waiting = Waiting(extends=False, began_at=trio.current_time())
            with self.watch.watching(permit, waiting):
                ending = await relay(begun, client, waiting, timing)
            record.outcome = ending.value if ending is Ending.WHOLE else f"stream_{ending.value}"
        finally:
            note()
        if ending is Ending.WHOLE:
            self.circuits.succeeded(name)
        elif ending not in (Ending.ERROR, Ending.UNTRANSLATABLE, Ending.UNJOINED):
            self.circuits.failed(name, trio.current_time())
        if joined is not None and (ending in BREAKS or ending is Ending.UNJOINED):
            if not joined.why_not:
                record.charges.broke_off()
                return Failure(Cause.INTERRUPTED, "it broke off", 200)
            record.not_continued = joined.why_not
            self.on_break("not_continuable")
        return None

    def _compare(self, request: RoutedRequest) -> None:
        """Find out where the prompt of an answer leaves those before; llama.cpp's server says what of it was cached."""
        record, asked, usage = request.record, request.asked, request.record.usage
        if usage is None or usage.prefill_ms is None:
            return
        prompt = record.prompt or self.prefixes.prompt(record.tenant, asked.path, asked.body, asked.size)
        if prompt is None:
            return
        found = self.own_prompts.answered(record.tenant, prompt, cached=usage.cached, tokens=usage.prompt)
        record.diverged = found.said(prompt.text) if found is not None else ""


def _timing(record: Record) -> str:
    return server_timing(record, trio.current_time() - record.started_at)


def _comment(record: Record) -> bytes:
    """Return what a client that waits is told."""
    loads = any(each.result == Cause.LOADING.value for each in record.tries)
    return LOADING_COMMENT if loads else QUEUE_COMMENT
