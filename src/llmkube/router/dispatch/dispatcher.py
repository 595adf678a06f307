"""Tries backends in order until one answers, and sends its answer to the client.

It falls back only for the causes in `verdicts`, and only while the client has no part of an answer. The decision sets a
timeout per backend for every wait. If no other backend answers, it waits for an engine of ours that is loading its
model. An answer whose engine dies is continued by another engine of the same model, or by the same one once it is back.
If none answers, status and code of the error follow from the failures.
"""

import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

import attrs
import trio

from llmkube.base.http.exchange import StreamExchange
from llmkube.base.http.message import NO_HEADERS, encode_lines
from llmkube.router.backends import NOT_READY, UnavailableModel
from llmkube.router.continuation.joined_answer import JoinedAnswer, continuation_targets, is_twin
from llmkube.router.dispatch.attempt import ClientRequest
from llmkube.router.dispatch.backend_call import BackendCalls
from llmkube.router.dispatch.forwarded_headers import answer_lines
from llmkube.router.dispatch.record import HOLD, AttemptRecord, Record, RoutedRequest, server_timing
from llmkube.router.dispatch.relay import COMMENT_SECONDS, LOADING_COMMENT, ClientStream, Ending, fail
from llmkube.router.dispatch.suspects import CULPRIT, MAX_DEATHS, Suspect
from llmkube.router.dispatch.verdicts import FINAL, INTERRUPTED, Cause, Failure
from llmkube.router.policy.decision import Decision
from llmkube.router.policy.permits import Permit
from llmkube.router.refusals import DO_NOT_RETRY, RefusedError, queue_refusal, refused

LOADING_RETRY_SECONDS: Final = 5

_CODES: Final = {
    Cause.TIMEOUT: (504, "backend_timeout"),
    Cause.FROZEN: (504, "backend_timeout"),
    Cause.RATE_LIMITED: (429, "rate_limited"),
    **dict.fromkeys((Cause.CIRCUIT, Cause.KEY, Cause.MISSING, Cause.NOT_READY), (503, "no_backend_available")),
}
"""Status and code of the error, by the cause of the last failure."""


def no_answer(
    failures: Sequence[Failure], attempts: Sequence[AttemptRecord], *, closed_by: str, wait_seconds: float
) -> RefusedError:
    """Return the error for a request that no backend answered.

    Args:
        failures: Failures in order; at least one.
        attempts: All attempts.
        closed_by: Name of the matched rule, if it fails closed; "" otherwise.
        wait_seconds: Time until the first circuit admits requests again.
    """
    message = f"no backend answered ({'; '.join(map(str, attempts))})"
    blamed = failures[-1] if failures[-1].cause is Cause.CULPRIT else failures[0]
    if blamed.cause is Cause.CULPRIT or all(each.cause is Cause.UNSUPPORTED for each in failures):
        return refused(400, blamed.detail, blamed.cause.value)
    loads = [each.retry_after_seconds or 0.0 for each in failures if each.cause is Cause.NOT_LOADED]
    seconds, is_stuck = max(1, math.ceil(max(wait_seconds, *loads, 0.0))), all(each.is_stuck for each in failures)
    headers = DO_NOT_RETRY if is_stuck else {"Retry-After": str(seconds)}
    if closed_by:
        return refused(503, f"{message}, and rule {closed_by!r} fails closed", "fail_closed_runtime", headers)
    last = next((each for each in reversed(failures) if each.cause is not Cause.CIRCUIT), failures[-1])
    match last.cause:
        case Cause.QUEUE:
            return queue_refusal(message, last.retry_after_seconds or 1, has_siblings=last.has_siblings)
        case Cause.BUDGET | Cause.BUDGET_STORE:
            return budget_refusal(last, f"{message}: {last.detail}")
        case Cause.NOT_LOADED:
            return refused(503, f"{message}: {last.detail}", NOT_READY, headers, reason=last.reason)
        case Cause.LOADING:
            return refused(503, message, "model_loading", {"Retry-After": str(LOADING_RETRY_SECONDS)})
        case _:
            status, code = _CODES.get(last.cause, (502, "all_backends_failed"))
            return refused(status, message, code, headers if status in (429, 503) else {})


def budget_refusal(failure: Failure, message: str) -> RefusedError:
    """Return the error for a request that its budget does not admit, or whose reservation cannot be stored."""
    if failure.cause is Cause.BUDGET_STORE:
        return refused(503, message, failure.cause.value, {"Retry-After": "5"})
    wait = failure.retry_after_seconds
    return refused(429, message, failure.cause.value, DO_NOT_RETRY if wait is None else {"Retry-After": f"{wait:.0f}"})


LOADING_POLL_SECONDS: Final = 1.0
"""Interval between requests to an engine that is loading."""

_PERMANENT: Final = frozenset({Cause.UNSUPPORTED, Cause.MISSING, Cause.KEY, Cause.BUDGET})
"""Causes for which waiting is pointless: the engine will not continue the answer."""

_GONE: Final = frozenset({Cause.CONNECT, Cause.BROKEN})
"""Causes of an engine that has stopped."""

Call = Callable[[Permit, RoutedRequest], Awaitable[Failure | None]]


@attrs.frozen(eq=False)
class Dispatcher:
    """Carries out routing decisions.

    Attributes:
        calls: Calls one backend.
    """

    calls: BackendCalls

    async def answer(
        self, decision: Decision, inbound: ClientRequest, exchange: StreamExchange, record: Record
    ) -> None:
        """Send the client the answer of the first backend that has one, or an error if none has."""
        joined = JoinedAnswer(inbound.path, inbound.body) if inbound.streams else None
        client = ClientStream(exchange, inbound.translator, joined)
        suspect = Suspect(record.decided.tenant, record.request.path, exchange.body)
        request = RoutedRequest(decision, inbound, client, record, suspect)
        failures: list[Failure] = []
        if self.calls.suspects.is_refused(suspect):
            await self._refuse(request, [CULPRIT])
            return
        for permit, call in self._candidates(decision.order, failures):
            failure = (_left_out(permit, decision.order, failures) if failures else None) or await call(permit, request)
            if failure is None:
                return
            if failure.cause is Cause.INTERRUPTED:
                failure = await _continue_answer(permit, request, self.calls.call)
                if failure is not None:
                    self.calls.on_continuation("no_engine")
                if failure is None or failure.cause is not Cause.CULPRIT:
                    return
            failures.append(failure)
            if failure.cause in FINAL or suspect.deaths >= MAX_DEATHS:
                break
        await self._refuse(request, failures)

    def _candidates(self, order: Sequence[Permit], failures: Sequence[Failure]) -> Iterator[tuple[Permit, Call]]:
        """Yield each backend, and then the first one that is loading, or whose engine has been unloaded."""
        for permit in order:
            yield permit, self.calls.call
        for permit, failure in zip(order, failures, strict=True):
            if failure.cause is Cause.LOADING:
                yield permit, self._call_until_loaded
                return
            if failure.cause in _GONE and self._is_unloaded(permit):
                yield permit, self.calls.call  # which waits until the next engine is loaded, or for too long
                while failures[-1].cause in _GONE and self._is_unloaded(permit):
                    yield permit, self.calls.call
                return

    def _is_unloaded(self, permit: Permit) -> bool:
        found = self.calls.holds.state_of(permit.backend)
        return isinstance(found, UnavailableModel) and found.wakes

    async def _call_until_loaded(self, permit: Permit, request: RoutedRequest) -> Failure | None:
        """Retry an engine of ours while it loads its model, up to the first-byte timeout."""
        name, client, record = permit.backend.name, request.client, request.record
        held = record.answer.load_seconds or 0.0
        until = record.request.started_at + held + request.decision.first_byte_seconds[name]
        silent_since = began_at = trio.current_time()
        queued_before = record.answer.queue_seconds or 0.0
        while trio.current_time() + LOADING_POLL_SECONDS < until:
            await trio.sleep(LOADING_POLL_SECONDS)
            if request.inbound.streams and trio.current_time() - silent_since >= COMMENT_SECONDS:
                await client.begin(answer_lines(NO_HEADERS, request.inbound.request_id, name))
                await client.send(LOADING_COMMENT)
                silent_since = trio.current_time()
            queued = (record.answer.queue_seconds or 0.0) - queued_before
            record.update(load_seconds=held + trio.current_time() - began_at - queued)
            called_at, tried = trio.current_time(), len(record.attempts)
            failure = await self.calls.call(permit, request)
            if failure is None or failure.cause is not Cause.LOADING:
                record.add_phase(HOLD, name, began_at, called_at)
                return failure
            record.keep_attempts(tried)  # the first of these attempts
        return Failure(Cause.LOADING, "it is still loading its model", 503)

    async def _refuse(self, request: RoutedRequest, failures: Sequence[Failure]) -> None:
        client, record, decision = request.client, request.record, request.decision
        now, rule = trio.current_time(), decision.rule
        names, tenant = [each.backend.name for each in decision.order], record.decided.tenant
        refusal = no_answer(
            failures,
            record.attempts,
            closed_by=rule.name if rule is not None and rule.fail_closed else "",
            wait_seconds=min((self.calls.circuits.open_until(name, tenant) for name in names), default=now) - now,
        )
        record.update(status=refusal.response.status, outcome=refusal.code)
        if client.begun:
            await client.fail(refusal.error)
            return
        own = (("X-Request-Id", request.inbound.request_id), ("Server-Timing", server_timing(record, now)))
        response = refusal.response
        await client.respond(response.status, encode_lines((*own, *response.headers)), response.body)


def _left_out(permit: Permit, order: Sequence[Permit], failures: Sequence[Failure]) -> Failure | None:
    """Return the failure of an earlier backend that this one would repeat: it has the same model; None otherwise."""
    tried = zip(order, failures, strict=False)
    same = (each for one, each in tried if each.cause is Cause.UNSUPPORTED and is_twin(one.backend, permit.backend))
    return next(same, None)


async def _continue_answer(broken: Permit, request: RoutedRequest, call: Call) -> Failure | None:
    """Have other engines continue an answer to its end; if none does, send the client an error and return the failure.

    The caller sends the error of a request that has ended engines.

    Args:
        broken: Permit of the backend whose engine failed.
        request: Request whose client has the beginning of an answer.
        call: Calls one backend.
    """
    joined, record, at = request.client.joined, request.record, broken
    assert joined is not None, "only a JoinedAnswer can be continued"
    failure, ended = INTERRUPTED, record.answer.outcome
    while failure.cause is Cause.INTERRUPTED and request.suspect.deaths < MAX_DEATHS:
        record.update(outcome="client_gone")
        continuation = attrs.evolve(request, inbound=attrs.evolve(request.inbound, body=joined.next_body()))
        at, found = await _try_to_continue(at, continuation, call)
        if found is None:
            return None
        failure, ended = found, record.answer.outcome if found.cause is Cause.INTERRUPTED else ended
    record.update(outcome=ended, not_continued=f"no engine of its model continued it: {failure.detail}")
    if failure.cause is not Cause.CULPRIT:
        await fail(request.client, Ending(ended.removeprefix("stream_")))
    return failure


async def _try_to_continue(broken: Permit, continuation: RoutedRequest, call: Call) -> tuple[Permit, Failure | None]:
    """Try the engines that may continue an answer, up to the first-byte timeout.

    Return the last one tried and its failure, None if the client has the end of its answer.
    """
    record, kept = continuation.record, -1
    until = trio.current_time() + continuation.decision.first_byte_seconds[broken.backend.name]
    silent_since = trio.current_time()
    while True:
        failures = []
        for permit in continuation_targets(continuation.decision.order, broken):
            failure = await call(permit, continuation)
            is_over = continuation.suspect.deaths >= MAX_DEATHS
            if failure is None or failure.cause is Cause.INTERRUPTED or is_over:
                return permit, failure
            failures.append(failure)
        kept = len(record.attempts) if kept < 0 else kept
        record.keep_attempts(kept)  # the first round of attempts
        if trio.current_time() + LOADING_POLL_SECONDS >= until or all(each.cause in _PERMANENT for each in failures):
            return broken, failures[-1]
        await trio.sleep(LOADING_POLL_SECONDS)
        if trio.current_time() - silent_since >= COMMENT_SECONDS:
            await continuation.client.send(LOADING_COMMENT)
            silent_since = trio.current_time()
