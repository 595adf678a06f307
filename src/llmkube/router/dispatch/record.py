"""What became of one request: written by those who handle it, read by the metrics and the audit log."""

import random
from collections.abc import Mapping

import attrs
import trio

from llmkube.base.http.heads import RequestHead
from llmkube.router.budgets.usage import Usage
from llmkube.router.dispatch.attempt import Asked
from llmkube.router.dispatch.attempt_charges import AttemptCharges
from llmkube.router.dispatch.client_stream import ClientStream
from llmkube.router.dispatch.passed_headers import request_id_of, trace_of
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


@attrs.define(eq=False, kw_only=True)
class Record:
    """One request.

    Attributes:
        request_id: Its name.
        path: What was asked.
        method: How; only responses that are kept are asked for otherwise than by POST.
        peer: The address that it comes from.
        started_at: By Trio's clock.
        principal: Who asks; NOBODY until that is known.
        facts: None until they are known.
        decision: None until it is made.
        tries: In order.
        backend: The one that answered; "" for none.
        status: What the client got; 0 if it went away before.
        outcome: One word for what became of it.
        streamed: Whether the answer was a stream.
        first_byte_seconds: Until the answer began.
        usage: Tokens.
        last_usage: Those of the last attempt alone, where others wrote the answer before it.
        continuations: How often the answer went on at an engine after another had died.
        not_continued: Why it did not, or not again; "" of one that came to its end.
        model: The model that the backend says it is.
        dropped: Fields that the backend did not get.
        trace_id: Of its trace.
        charges: What is reserved for it in budgets.
        prompt: What is remembered of its prompt; None where that has no part in the choice.
        history_bytes: How long the conversation is that it continues.
        queue_seconds: How long it waited for its turn; None where it was asked without a queue.
        diverged: Where its prompt leaves an earlier one of its tenant, in characters; "" where it leaves none.
        load_seconds: How long it waited for an engine that loaded its model; None where none did.
    """

    request_id: str
    path: str
    peer: str
    started_at: float
    method: str = "POST"
    trace_id: str = ""
    principal: Principal = NOBODY
    charges: AttemptCharges = attrs.field(factory=AttemptCharges)
    prompt: Prompt | None = None
    history_bytes: int = 0
    facts: RequestFacts | None = None
    decision: Decision | None = None
    tries: list[Try] = attrs.field(factory=list)
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

    @property
    def tenant(self) -> str:
        """Whose it is: a team's, else that of its key or its address."""
        return self.principal.team or self.principal.tenant

    def tried(self, backend: str, failure: Failure | None, seconds: float, status: int = 200) -> None:
        """Note an attempt."""
        if failure is None:
            self.tries.append(Try(backend, "answered", "", seconds, status))
        else:
            cause, detail = failure.cause.value, failure.detail
            self.tries.append(Try(backend, cause, detail, seconds, failure.status, reason=failure.reason))

    @property
    def rule(self) -> str:
        """The name of the rule that decided; "default" where none did."""
        return self.decision.rule.name if self.decision is not None and self.decision.rule is not None else "default"


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


def record_of(head: RequestHead, peer: str, path: str, rng: random.Random) -> tuple[Record, Mapping[str, str]]:
    """Begin to remember a request; the second is the headers of its trace.

    Args:
        head: What has come of it.
        peer: The address that it comes from.
        path: What logs say of its path.
        rng: Draws names.
    """
    headers = head.joined
    fresh = f"{rng.getrandbits(320):080x}"
    trace = trace_of(headers, fresh[:48])
    record = Record(
        request_id=request_id_of(headers, fresh[48:]),
        path=path,
        method=head.method,
        peer=peer,
        started_at=trio.current_time(),
        trace_id=trace["traceparent"][3:35],
    )
    return record, trace


def server_timing(record: Record, total_seconds: float) -> str:
    """Return where the time of a request went, in milliseconds (W3C Server Timing); what is not known is left out.

    Args:
        record: What is known of it so far.
        total_seconds: Since the request came.
    """
    parts = [f"total;dur={_ms(total_seconds)}"]
    if record.queue_seconds is not None:
        parts.append(f"queue;dur={_ms(record.queue_seconds)}")
    if record.load_seconds is not None:
        parts.append(f"load;dur={_ms(record.load_seconds)}")
    if record.tries:
        parts.append(f"backend;dur={_ms(record.tries[-1].seconds)}")
        parts.append(f'attempts;desc="{len(record.tries)}"')
    usage = record.usage
    if usage is not None and (usage.cached or usage.prefill_ms is not None):  # others do not say
        parts.append(f'cached;desc="{usage.cached}"')
    if record.diverged:
        parts.append(f'diverged;desc="{record.diverged}"')
    if usage is not None and usage.prefill_ms is not None:
        parts.append(f"prefill;dur={usage.prefill_ms:.1f}")
    if usage is not None and usage.decode_ms is not None:
        parts.append(f"decode;dur={usage.decode_ms:.1f}")
    return ", ".join(parts)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f}"
