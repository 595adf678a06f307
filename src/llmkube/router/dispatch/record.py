"""Record of one request in three phases, for metrics, the audit log and `Server-Timing`."""

import random
from collections.abc import Mapping
from typing import Any, Final

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
from llmkube.router.traces import Recorder, Trace

ANSWERED: Final = "answered"
HOLD: Final = "hold"
QUEUE: Final = "queue"
ATTEMPT: Final = "attempt"
CONTINUATION: Final = "continuation"


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


@attrs.define
class Phase:
    """One part of a request's time, for its trace.

    Attributes:
        name: `HOLD`, `QUEUE`, `ATTEMPT` or `CONTINUATION`.
        backend: Name of the backend.
        began_at: Start on Trio's clock.
        ended_at: End on Trio's clock.
        index: Number of an attempt, from 0; -1 for other phases.
        result: As `AttemptRecord.result`, or the way in which its stream broke off.
        status: HTTP status of the backend; 0 without a response.
        first_at: Time of the first event of a stream; None for others.
        usage: Tokens of a stream, if reported.
    """

    name: str
    backend: str
    began_at: float
    ended_at: float
    index: int = -1
    result: str = ""
    status: int = 0
    first_at: float | None = None
    usage: Usage | None = None


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
        trace: Place in its trace; None if that is not exported.
        phases: Parts of its time, if it has a trace.
    """

    request: Request
    decided: DecisionRecord = attrs.field(factory=DecisionRecord)
    answer: AnswerRecord = attrs.field(factory=AnswerRecord, init=False)
    attempts: list[AttemptRecord] = attrs.field(factory=list)
    charges: AttemptCharges = attrs.field(factory=AttemptCharges)
    trace: Trace | None = None
    phases: list[Phase] = attrs.field(factory=list)

    def update(self, **changes: Any) -> None:
        """Update attributes of `AnswerRecord`."""
        for name, value in changes.items():
            setattr(self.answer, name, value)

    def add_attempt(self, backend: str, failure: Failure | None, seconds: float, status: int = 200) -> None:
        """Append an attempt."""
        result, detail, reason = ANSWERED, "", ""
        if failure is not None:
            result, detail, status, reason = failure.cause.value, failure.detail, failure.status, failure.reason
        if self.trace is not None:
            name, now = CONTINUATION if self.answer.streamed else ATTEMPT, trio.current_time()
            self.phases.append(Phase(name, backend, now - seconds, now, len(self.attempts), result, status))
        self.attempts.append(AttemptRecord(backend, result, detail, seconds, status, reason))

    def keep_attempts(self, count: int) -> None:
        """Forget all attempts but the first ones."""
        del self.attempts[count:]
        self.phases = [each for each in self.phases if each.index < count]

    def add_phase(self, name: str, backend: str, began_at: float, ended_at: float) -> None:
        """Append a phase, if the request has a trace."""
        if self.trace is not None and ended_at > began_at:
            self.phases.append(Phase(name, backend, began_at, ended_at))

    def end_stream(self, result: str = ANSWERED) -> None:
        """Record the end of the last attempt's stream, and how it ended."""
        if self.trace is not None and self.phases:
            last = self.phases[-1]
            last.first_at, last.ended_at, last.result = last.ended_at, trio.current_time(), result
            last.usage = self.answer.last_usage


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


def record_of(head: RequestHead, peer: str, path: str, rng: random.Random, traces: Recorder | None = None) -> Record:
    """Create the record of a request.

    Args:
        head: Request head.
        peer: Client address.
        path: Path as logged.
        rng: Source of request and trace IDs.
        traces: Records requests; None if nothing does.
    """
    fresh = f"{rng.getrandbits(320):080x}"
    headers, trace = trace_of(head.joined, fresh[:48]), None
    if traces is not None:
        headers, trace = traces.begin(headers, is_root=fresh[:32] == headers["traceparent"][3:35])
    request = Request(
        request_id=request_id_of(head.joined, fresh[48:]),
        path=path,
        method=head.method,
        peer=peer,
        started_at=trio.current_time(),
        trace=headers,
    )
    return Record(request, trace=trace)


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
