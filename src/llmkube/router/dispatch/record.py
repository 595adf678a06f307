"""What became of one request, in phases: written by those who handle it, read by the metrics and the audit log."""

import random
from collections.abc import Mapping
from typing import Any

import attrs
import trio

from llmkube.base.http.heads import RequestHead
from llmkube.router.budgets.usage import Usage
from llmkube.router.dispatch.attempt import Asked
from llmkube.router.dispatch.attempt_charges import AttemptCharges
from llmkube.router.dispatch.passed_headers import request_id_of, trace_of
from llmkube.router.dispatch.relay import ClientStream
from llmkube.router.dispatch.verdicts import Failure
from llmkube.router.policy.decision import Decision
from llmkube.router.policy.request_facts import NOBODY, Principal, RequestFacts
from llmkube.router.prefix_cache.warm_prefixes import Prompt


@attrs.frozen
class Try:
    """One attempt.

    Attributes:
        backend: Name.
        result: `answered`, or the cause.
        detail: More of it, for the operator.
        seconds: Until that was known.
        status: What the backend answered; 0 for nothing.
        reason: Why a service is not ready; "" otherwise.
    """

    backend: str
    result: str
    detail: str
    seconds: float
    status: int
    reason: str = ""

    def __str__(self) -> str:
        """Return it for clients: `chat: not_ready (ScaledToZero)`."""
        return f"{self.backend}: {self.result}" + (f" ({self.reason})" if self.reason else "")


@attrs.frozen(kw_only=True)
class Request:
    """A request as it came.

    Attributes:
        request_id: Its name.
        path: What logs say of its path.
        method: Only responses that are kept are asked for otherwise than by POST.
        peer: The address that it comes from.
        started_at: By Trio's clock.
        trace: The headers of its trace.
    """

    request_id: str
    path: str
    method: str
    peer: str
    started_at: float
    trace: Mapping[str, str]


@attrs.frozen(kw_only=True)
class Decided:
    """Who asks, and where the request goes.

    Attributes:
        principal: NOBODY until that is known.
        facts: None until they are known.
        decision: None until it is made.
        prompt: What is remembered of its prompt; None where that has no part in the choice.
        history_bytes: Length of the conversation that it continues.
    """

    principal: Principal = NOBODY
    facts: RequestFacts | None = None
    decision: Decision | None = None
    prompt: Prompt | None = None
    history_bytes: int = 0

    @property
    def tenant(self) -> str:
        """Whose it is: a team's, else that of its key or its address."""
        return self.principal.team or self.principal.tenant

    @property
    def rule(self) -> str:
        """The name of the rule that decided; "default" where none did."""
        return self.decision.rule.name if self.decision is not None and self.decision.rule is not None else "default"


@attrs.frozen(kw_only=True)
class Answered:
    """What the client got.

    Attributes:
        backend: The one that answered; "" for none.
        status: 0 if the client went away before.
        outcome: One word for what became of the request.
        first_byte_seconds: Until the answer began.
        last_usage: Tokens of the last attempt alone, where others wrote the answer before it.
        continuations: How often the answer went on at an engine after another had died.
        not_continued: Why it did not, or not again; "" of one that came to its end.
        model: The model that the backend says it is.
        dropped: Fields that the backend did not get.
        queue_seconds: How long it waited for its turn; None where it was asked without a queue.
        load_seconds: How long it waited for an engine that loaded its model; None where none did.
        diverged: Where the prompt leaves an earlier one of its tenant, in characters; "" where it leaves none.
    """

    backend: str = ""
    status: int = 0
    outcome: str = "client_gone"
    streamed: bool = False
    first_byte_seconds: float | None = None
    usage: Usage | None = None
    last_usage: Usage | None = None
    continuations: int = 0
    not_continued: str = ""
    model: str = ""
    dropped: tuple[str, ...] = ()
    queue_seconds: float | None = None
    load_seconds: float | None = None
    diverged: str = ""


@attrs.define(eq=False)
class Record:
    """What became of one request; each phase is replaced as a whole.

    Attributes:
        tries: The attempts, in order.
        charges: What is reserved for it in budgets.
    """

    request: Request
    decided: Decided = Decided()
    answered: Answered = Answered()
    tries: list[Try] = attrs.field(factory=list)
    charges: AttemptCharges = attrs.field(factory=AttemptCharges)

    def note(self, **changes: Any) -> None:
        """Note more of the answer, by the attributes of `Answered`."""
        self.answered = attrs.evolve(self.answered, **changes)

    def tried(self, backend: str, failure: Failure | None, seconds: float, status: int = 200) -> None:
        """Note an attempt."""
        if failure is None:
            self.tries.append(Try(backend, "answered", "", seconds, status))
        else:
            cause, detail = failure.cause.value, failure.detail
            self.tries.append(Try(backend, cause, detail, seconds, failure.status, reason=failure.reason))


@attrs.frozen(eq=False)
class RoutedRequest:
    """One request.

    Attributes:
        decision: Which backends may be asked, in which order, and for how long.
        asked: What they are asked.
        client: Gets the answer.
        record: Remembers what became of it.
    """

    decision: Decision
    asked: Asked
    client: ClientStream
    record: Record

    def first_byte_seconds(self, name: str) -> float:
        """How long this backend has for the first byte of its answer."""
        return self.decision.first_byte_seconds[name]


def record_of(head: RequestHead, peer: str, path: str, rng: random.Random) -> Record:
    """Begin to remember a request.

    Args:
        head: What has come of it.
        peer: The address that it comes from.
        path: What logs say of its path.
        rng: Draws names.
    """
    fresh = f"{rng.getrandbits(320):080x}"
    request = Request(
        request_id=request_id_of(head.joined, fresh[48:]),
        path=path,
        method=head.method,
        peer=peer,
        started_at=trio.current_time(),
        trace=trace_of(head.joined, fresh[:48]),
    )
    return Record(request)


def server_timing(record: Record) -> str:
    """Return where the time of a request went, in milliseconds (W3C Server Timing); what is not known is left out."""
    answered = record.answered
    parts = [f"total;dur={_ms(trio.current_time() - record.request.started_at)}"]
    if answered.queue_seconds is not None:
        parts.append(f"queue;dur={_ms(answered.queue_seconds)}")
    if answered.load_seconds is not None:
        parts.append(f"load;dur={_ms(answered.load_seconds)}")
    if record.tries:
        parts.append(f"backend;dur={_ms(record.tries[-1].seconds)}")
        parts.append(f'attempts;desc="{len(record.tries)}"')
    usage = answered.usage
    if usage is not None and (usage.cached or usage.prefill_ms is not None):  # others do not say
        parts.append(f'cached;desc="{usage.cached}"')
    if answered.diverged:
        parts.append(f'diverged;desc="{answered.diverged}"')
    if usage is not None and usage.prefill_ms is not None:
        parts.append(f"prefill;dur={usage.prefill_ms:.1f}")
    if usage is not None and usage.decode_ms is not None:
        parts.append(f"decode;dur={usage.decode_ms:.1f}")
    return ", ".join(parts)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f}"
