"""Asks one backend after the other until one answers, and gives its answer to the client.

It leads on only for the causes of `verdicts`, and only while the client has nothing of an answer. Every wait has the
bound that the decision gave its backend. An engine of ours that loads its model is waited for, if no other answers.
An answer whose engine dies goes on at another one of the same model, or at the same one once it is back.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

import attrs
import trio

from llmkube.base.http.exchange import StreamExchange
from llmkube.base.http.message import Headers, Response
from llmkube.router.continuation.joined_answer import JoinedAnswer
from llmkube.router.continuation.places import places
from llmkube.router.dispatch.attempt import Asked
from llmkube.router.dispatch.backend_call import BackendCalls
from llmkube.router.dispatch.circuits import Circuits
from llmkube.router.dispatch.client_stream import COMMENT_SECONDS, LOADING_COMMENT, ClientStream
from llmkube.router.dispatch.no_answer import no_answer
from llmkube.router.dispatch.passed_headers import answer_headers
from llmkube.router.dispatch.record import Record, RoutedRequest, server_timing
from llmkube.router.dispatch.relay import Ending, fail
from llmkube.router.dispatch.verdicts import NO_BUDGET, Cause, Failure
from llmkube.router.policy.decision import Decision
from llmkube.router.policy.permits import Permit
from llmkube.router.refusals import error_object

LOADING_POLL_SECONDS: Final = 1.0
"""How often an engine that loads is asked again."""

_FOR_GOOD: Final = frozenset({Cause.UNSUPPORTED, Cause.MISSING, Cause.KEY, Cause.BUDGET})
"""Why an engine does not go on, however long it is waited for."""

Ask = Callable[[Permit, RoutedRequest], Awaitable[Failure | None]]


@attrs.frozen(eq=False)
class Dispatcher:
    """Carries decisions out.

    Attributes:
        calls: Asks one backend.
        circuits: Which backends are left alone.
        on_break: Told of each answer that no engine went on with.
    """

    calls: BackendCalls
    circuits: Circuits
    on_break: Callable[[str], None]

    async def answer(self, decision: Decision, asked: Asked, exchange: StreamExchange, record: Record) -> None:
        """Give the client the answer of the first backend that has one, else say why there is none."""
        joined = JoinedAnswer(asked.path, asked.body) if asked.streams else None
        request = RoutedRequest(decision, asked, ClientStream(exchange, asked.answers, joined), record)
        failures: list[Failure] = []
        for permit, ask in self._in_turn(decision.order, failures):
            failure = await ask(permit, request)
            if failure is None:
                return
            if failure.cause is Cause.INTERRUPTED:
                if not await _go_on(permit, request, self.calls.ask):
                    self.on_break("no_engine")
                return
            failures.append(failure)
            if failure.cause in NO_BUDGET:
                break
        await self._refuse(request, failures)

    def _in_turn(self, order: Sequence[Permit], failures: Sequence[Failure]) -> Iterator[tuple[Permit, Ask]]:
        """Yield each backend, and then, for the time that it takes to load, the first of those that load."""
        for permit in order:
            yield permit, self.calls.ask
        for permit, failure in zip(order, failures, strict=True):
            if failure.cause is Cause.LOADING:
                yield permit, self._ask_until_loaded
                return

    async def _ask_until_loaded(self, permit: Permit, request: RoutedRequest) -> Failure | None:
        """Ask an engine of ours that loads its model again and again, for as long as its first byte may take."""
        name, client, record = permit.backend.name, request.client, request.record
        until = record.started_at + request.first_byte_seconds(name)
        silent_since = began_at = trio.current_time()
        queued_before = record.queue_seconds or 0.0
        while trio.current_time() + LOADING_POLL_SECONDS < until:
            await trio.sleep(LOADING_POLL_SECONDS)
            if request.asked.streams and trio.current_time() - silent_since >= COMMENT_SECONDS:
                await client.begin(answer_headers(Headers(), record.request_id, name))
                await client.send(LOADING_COMMENT)
                silent_since = trio.current_time()
            record.load_seconds = trio.current_time() - began_at - ((record.queue_seconds or 0.0) - queued_before)
            failure = await self.calls.ask(permit, request)
            if failure is None or failure.cause is not Cause.LOADING:
                return failure
            record.tries.pop()  # the first time it said so is there
        return Failure(Cause.LOADING, "it still loads its model", 503)

    async def _refuse(self, request: RoutedRequest, failures: Sequence[Failure]) -> None:
        client, record, decision = request.client, request.record, request.decision
        now, rule = trio.current_time(), decision.rule
        said = no_answer(
            failures,
            record.tries,
            closing_rule=rule.name if rule is not None and rule.fail_closed else "",
            wait_seconds=min((self.circuits.of(each.backend.name).open_until for each in decision.order), default=now)
            - now,
        )
        record.status, record.outcome = said.status, said.code
        error = error_object(said.status, said.message, said.code)
        if client.begun:
            await client.fail(error)
            return
        timing = server_timing(record, now - record.started_at)
        named = Headers.of({"X-Request-Id": record.request_id, "Server-Timing": timing, **said.headers})
        await client.respond(Response.json(said.status, {"error": error}, headers=named))


async def _go_on(broken: Permit, request: RoutedRequest, ask: Ask) -> bool:
    """Have engines go on with an answer until it ends; tell the client if none does, and return whether one did.

    Args:
        broken: Whose engine died.
        request: The request, whose client has the beginning of an answer.
        ask: Asks one backend.
    """
    joined, record, at = request.client.joined, request.record, broken
    assert joined is not None, "only an answer that is joined can go on"
    while True:
        ended, record.outcome = record.outcome, "client_gone"
        rest = attrs.evolve(request, asked=attrs.evolve(request.asked, body=joined.next_body()))
        at, failure = await _next(at, rest, ask)
        if failure is None:
            return True
        if failure.cause is not Cause.INTERRUPTED:
            break
    record.outcome, record.not_continued = ended, f"no engine of its model went on: {failure.detail}"
    await fail(request.client, Ending(ended.removeprefix("stream_")))
    return False


async def _next(broken: Permit, rest: RoutedRequest, ask: Ask) -> tuple[Permit, Failure | None]:
    """Ask engines that may go on, for as long as a first byte may take; return the last, and why it has not ended.

    No failure means that the client has the end of its answer.
    """
    tries, kept = rest.record.tries, -1
    until = trio.current_time() + rest.first_byte_seconds(broken.backend.name)
    silent_since = trio.current_time()
    while True:
        failures = []
        for permit in places(rest.decision.order, broken):
            failure = await ask(permit, rest)
            if failure is None or failure.cause is Cause.INTERRUPTED:
                return permit, failure
            failures.append(failure)
        kept = len(tries) if kept < 0 else kept
        del tries[kept:]  # the first time that they said so is there
        if trio.current_time() + LOADING_POLL_SECONDS >= until or all(each.cause in _FOR_GOOD for each in failures):
            return broken, failures[-1]
        await trio.sleep(LOADING_POLL_SECONDS)
        if trio.current_time() - silent_since >= COMMENT_SECONDS:
            await rest.client.send(LOADING_COMMENT)
            silent_since = trio.current_time()
