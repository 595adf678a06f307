"""Record of one request in three phases, for metrics, the audit log and `Server-Timing`."""

import random
from collections.abc import Mapping
from typing import Any

import attrs
import trio

from llmkube.base.http.heads import RequestHead
from llmkube.router.budgets.usage import Usage
from llmkube.router.dispatch.attempt import ClientRequest
from llmkube.router.dispatch.attempt_charges import AttemptCharges
from llmkube.router.dispatch.forwarded_headers import request_id_of, trace_of
from llmkube.router.dispatch.relay import ClientStream
from llmkube.router.dispatch.suspects import Suspect
from llmkube.router.dispatch.verdicts import Failure
from llmkube.router.policy.decision import Decision
from llmkube.router.policy.request_facts import ANONYMOUS, Principal, RequestFacts
from llmkube.router.prefix_cache.warm_prefixes import Prompt


@attrs.frozen
class AttemptRecord:
    """One attempt at a backend.

    Attributes:
        backend: Name of the backend.
        result: `answered`, or the cause of the failure.
        detail: Details for the operator.
        seconds: Duration until the result was known.
        status: HTTP status of the backend; 0 without a response.
        reason: Reason why a service is not ready; "" otherwise.
    """

    backend: str
    result: str
    detail: str
    seconds: float
    status: int
    reason: str = ""

    def __str__(self) -> str:
        """Return a summary for clients: `chat: not_ready (ScaledToZero)`."""
        return f"{self.backend}: {self.result}" + (f" ({self.reason})" if self.reason else "")


@attrs.frozen(kw_only=True)
class Request:
    """Request as received.

    Attributes:
        request_id: Unique ID.
        path: Path as logged.
        method: POST, except for requests about stored responses.
        peer: Client address.
        started_at: Time of arrival on Trio's clock.
        trace: Trace headers.
    """

    request_id: str
    path: str
    method: str
    peer: str
    started_at: float
    trace: Mapping[str, str]


@attrs.define(kw_only=True)
class DecisionRecord:
    """Client identity and routing decision.

    Attributes:
        principal: ANONYMOUS until the client is authenticated.
        facts: None until the request is parsed.
        decision: None until it is made.
        prompt: Prompt prefix for cache-aware routing; None if the route does not use it.
        history_bytes: Length of the stored conversation that the request continues.
    """

    principal: Principal = ANONYMOUS
    facts: RequestFacts | None = None
    decision: Decision | None = None
    prompt: Prompt | None = None
    history_bytes: int = 0

    @property
    def tenant(self) -> str:
        """Team of the client, else the tenant of its key or address."""
        return self.principal.team or self.principal.tenant

    @property
    def rule(self) -> str:
        """Name of the matched rule; "default" without one."""
        return self.decision.rule.name if self.decision is not None and self.decision.rule is not None else "default"


@attrs.define(kw_only=True)
class AnswerRecord:
    """Response to the client.

    Attributes:
        backend: Name of the backend that answered; "" for none.
        status: HTTP status; 0 if the client disconnected first.
        outcome: Result as a metric label.
        first_byte_seconds: Time to the first byte.
        last_usage: Tokens of the last attempt, if earlier attempts wrote a part of the answer.
        continuations: Number of times that another engine continued the answer.
        not_continued: Reason why no engine continued it; "" for a complete answer.
        model: Model name that the backend reported.
        dropped: Request fields that the backend did not receive.
        queue_seconds: Time in the queue; None without a queue.
        load_seconds: Time until a model was loaded; None if none was loading.
        diverged: Character range where the prompt diverges from an earlier one of the tenant; "" if it does not.
        hides_cache: Whether the client gets no counters of the backend's prompt cache.
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
    hides_cache: bool = False


@attrs.define(eq=False)
class Record:
    """Record of one request.

    Attributes:
        attempts: Attempts in order.
        charges: Budget reservations.
    """

    request: Request
    decided: DecisionRecord = attrs.field(factory=DecisionRecord)
    answer: AnswerRecord = attrs.field(factory=AnswerRecord, init=False)
    attempts: list[AttemptRecord] = attrs.field(factory=list)
    charges: AttemptCharges = attrs.field(factory=AttemptCharges)

    def update(self, **changes: Any) -> None:
        """Update attributes of `AnswerRecord`."""
        for name, value in changes.items():
            setattr(self.answer, name, value)

    def add_attempt(self, backend: str, failure: Failure | None, seconds: float, status: int = 200) -> None:
        """Append an attempt."""
        result, detail, reason = "answered", "", ""
        if failure is not None:
            result, detail, status, reason = failure.cause.value, failure.detail, failure.status, failure.reason
        self.attempts.append(AttemptRecord(backend, result, detail, seconds, status, reason))


@attrs.frozen(eq=False)
class RoutedRequest:
    """Request with its routing decision.

    Attributes:
        decision: Permitted backends in order, with their timeouts.
        inbound: Request for the backends.
        client: Receiver of the answer.
        record: Record of the request.
        suspect: The request as one that may end an engine.
    """

    decision: Decision
    inbound: ClientRequest
    client: ClientStream
    record: Record
    suspect: Suspect


def record_of(head: RequestHead, peer: str, path: str, rng: random.Random) -> Record:
    """Create the record of a request.

    Args:
        head: Request head.
        peer: Client address.
        path: Path as logged.
        rng: Source of request and trace IDs.
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


def server_timing(record: Record, now: float) -> str:
    """Return the `Server-Timing` value of a request, in milliseconds (W3C Server Timing), without unknown metrics."""
    answer = record.answer
    parts = [f"total;dur={1000 * (now - record.request.started_at):.1f}"]
    if answer.queue_seconds is not None:
        parts.append(f"queue;dur={1000 * answer.queue_seconds:.1f}")
    if answer.load_seconds is not None:
        parts.append(f"load;dur={1000 * answer.load_seconds:.1f}")
    if record.attempts:
        parts.append(f"backend;dur={1000 * record.attempts[-1].seconds:.1f}")
        parts.append(f'attempts;desc="{len(record.attempts)}"')
    usage = None if answer.hides_cache else answer.usage
    if usage is not None and (usage.cached or usage.prefill_ms is not None):  # other servers do not report them
        parts.append(f'cached;desc="{usage.cached}"')
    if answer.diverged:
        parts.append(f'diverged;desc="{answer.diverged}"')
    if usage is not None and usage.prefill_ms is not None:
        parts.append(f"prefill;dur={usage.prefill_ms:.1f}")
    if usage is not None and usage.decode_ms is not None:
        parts.append(f"decode;dur={usage.decode_ms:.1f}")
    return ", ".join(parts)
