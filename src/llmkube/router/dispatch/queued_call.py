"""A backend with slots is asked when it is the request's turn; the others at once."""

from collections.abc import Callable

import attrs
import trio

from llmkube.base.http.message import Headers
from llmkube.router.budgets.meter import asked_tokens
from llmkube.router.dispatch.backend_call import BackendCalls
from llmkube.router.dispatch.circuits import Circuits, State
from llmkube.router.dispatch.client_stream import COMMENT_SECONDS, QUEUE_COMMENT, ClientStream
from llmkube.router.dispatch.observed import Observed
from llmkube.router.dispatch.passed_headers import answer_headers
from llmkube.router.dispatch.request_body import COUNT_TOKENS, STREAMING
from llmkube.router.dispatch.routed_request import RoutedRequest
from llmkube.router.dispatch.verdicts import Cause, Failure
from llmkube.router.policy.permits import Permit
from llmkube.router.queue.turns import Line, Turn, Turns


@attrs.frozen(eq=False)
class QueuedCalls:
    """Asks backends, each in its turn.

    Attributes:
        calls: Asks one whose turn it is.
        turns: The queues in front of engines.
        circuits: Which backends are left alone; no request waits in their queues.
        observed: Counts what is in flight.
        on_try: Told of each attempt: the backend's name and what came of it.
    """

    calls: BackendCalls
    turns: Turns
    circuits: Circuits
    observed: Observed
    on_try: Callable[[str, str], None]

    async def ask(self, permit: Permit, request: RoutedRequest) -> Failure | None:
        """Return why a backend does not answer; None when the client has its answer."""
        name = permit.backend.name
        self.observed.in_flight[name] += 1
        try:
            if not permit.backend.slots or request.asked.path == COUNT_TOKENS or self._is_open(name):
                return await self.calls.ask(permit, request)
            return await self._ask_in_turn(permit, request)
        finally:
            self.observed.in_flight[name] -= 1

    def _is_open(self, name: str) -> bool:
        return self.circuits.of(name).state(trio.current_time()) is State.OPEN

    async def _ask_in_turn(self, permit: Permit, request: RoutedRequest) -> Failure | None:
        backend, asked, record, started_at = permit.backend, request.asked, request.record, trio.current_time()
        line = self.turns.line(backend)
        most = asked_tokens(asked.body) if asked.path in STREAMING else 0
        with self.turns.turn(backend, record.tenant, line.tokens_of(asked.size, most)) as turn:
            headers = answer_headers(Headers(), record.request_id, backend.name) if asked.streams else None
            is_called = await _until_called(turn, request.first_byte_seconds(backend.name), request.client, headers)
            record.queue_seconds = (record.queue_seconds or 0.0) + trio.current_time() - started_at
            if not is_called:
                failure = _not_called(turn, line)
                record.tried(backend.name, failure, trio.current_time() - started_at)
                self.on_try(backend.name, failure.cause.value)
                return failure
            unanswered = await self.calls.ask(permit, request)
            if unanswered is not None:
                turn.took = turn.tokens if unanswered.counts else 0
            elif record.last_usage is not None:
                usage = record.last_usage
                line.answered(turn, usage.prompt - usage.cached + usage.completion, usage.completion)
            return unanswered


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
    again, is_own = line.why_not_called(turn)
    why = "its queue is full" if turn.is_dropped else "no slot of it was free in time"
    return Failure(Cause.QUEUE, why, retry_after_seconds=float(again), is_own=is_own)
