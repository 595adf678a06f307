"""Another engine of its model goes on with an answer whose engine died, or the same one once it is back."""

from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import trio

from llmkube.router.continuation.places import places
from llmkube.router.dispatch.client_stream import COMMENT_SECONDS, LOADING_COMMENT
from llmkube.router.dispatch.relay import Ending, fail
from llmkube.router.dispatch.routed_request import RoutedRequest
from llmkube.router.dispatch.verdicts import Cause, Failure
from llmkube.router.policy.permits import Permit

LOADING_POLL_SECONDS: Final = 1.0
"""How often an engine that loads is asked again."""

_FOR_GOOD: Final = frozenset({Cause.UNSUPPORTED, Cause.MISSING, Cause.KEY, Cause.BUDGET})
"""Why an engine does not go on, however long it is waited for."""

Ask = Callable[[Permit, RoutedRequest], Awaitable[Failure | None]]


async def go_on(broken: Permit, request: RoutedRequest, ask: Ask) -> bool:
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
