"""What a client is told when no backend has answered: a status and a code, by what the attempts came to."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from llmkube.router.dispatch.record import Try
from llmkube.router.dispatch.verdicts import Cause, Failure

LOADING_RETRY_SECONDS: Final = 5


@attrs.frozen
class NoAnswer:
    """The refusal.

    Attributes:
        status: Of the answer.
        code: For programs, and the outcome in the audit log.
        message: For people.
        headers: Of the answer: when to come again, where that is known.
    """

    status: int
    code: str
    message: str
    headers: Mapping[str, str] = attrs.field(factory=dict)


def no_answer(failures: Sequence[Failure], tries: Sequence[Try], *, closing_rule: str, wait_seconds: float) -> NoAnswer:
    """Return what the client is told.

    Args:
        failures: Of the attempts, in order; at least one.
        tries: The attempts.
        closing_rule: The name of the rule that decided, if that fails closed; "" otherwise.
        wait_seconds: Until the first circuit lets requests through again.
    """
    message = f"no backend answered ({'; '.join(map(str, tries))})"
    if all(each.cause is Cause.UNSUPPORTED for each in failures):
        return NoAnswer(400, "unsupported", failures[0].detail)
    seconds, stays = max(1, math.ceil(wait_seconds)), all(each.stays for each in failures)
    again = {"X-Should-Retry": "false"} if stays else {"Retry-After": str(seconds)}
    if closing_rule:
        return NoAnswer(503, "fail_closed_runtime", f"{message}, and rule {closing_rule!r} fails closed", again)
    last = next((each for each in reversed(failures) if each.cause is not Cause.CIRCUIT), failures[-1])
    match last.cause:
        case Cause.QUEUE:
            again = {"Retry-After": f"{last.retry_after_seconds or 1:.0f}"}
            status, code = (429, "tenant_queue_full") if last.is_own else (503, "queue_full")
            return NoAnswer(status, code, message, again)
        case Cause.BUDGET:
            wait = last.retry_after_seconds
            again = {"X-Should-Retry": "false"} if wait is None else {"Retry-After": f"{wait:.0f}"}
            return NoAnswer(429, last.cause.value, f"{message}: {last.detail}", again)
        case Cause.BUDGET_STORE:
            return NoAnswer(503, last.cause.value, f"{message}: {last.detail}", {"Retry-After": "5"})
        case Cause.TIMEOUT | Cause.FROZEN:
            return NoAnswer(504, "backend_timeout", message)
        case Cause.RATE_LIMITED:
            return NoAnswer(429, "rate_limited", message, again)
        case Cause.LOADING:
            return NoAnswer(503, "model_loading", message, {"Retry-After": str(LOADING_RETRY_SECONDS)})
        case Cause.CIRCUIT | Cause.KEY | Cause.MISSING | Cause.NOT_READY:
            return NoAnswer(503, "no_backend_available", message, again)
        case _:
            return NoAnswer(502, "all_backends_failed", message)
