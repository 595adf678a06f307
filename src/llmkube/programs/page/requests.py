"""The last requests that went through the gateway, each with the parts of its time, from their spans."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import attrs
import trio

from llmkube.base.mailbox import Mailbox
from llmkube.programs.page.captures import Captures
from llmkube.programs.page.state import Rates, State
from llmkube.router.traces import Span, Trace, Traces

KEPT_REQUESTS: Final = 2000

_FACTS: Final[Mapping[str, str]] = {
    "url.path": "path",
    "http.response.status_code": "status",
    "gen_ai.request.model": "model",
    "gen_ai.usage.input_tokens": "prompt",
    "gen_ai.usage.output_tokens": "answer",
    "gen_ai.usage.cache_read.input_tokens": "cached",
    "error.type": "error",
    "llmkube.request_id": "id",
    "llmkube.rule": "rule",
}
"""Attributes of a request's span, with the members that have them."""


@attrs.define(eq=False)
class RecentRequests:
    """Takes the spans of each request, and passes those of exported traces on.

    Attributes:
        utcnow: Wall clock.
        rates: Gets the tokens of each answer.
        traces: Exports traces; None if they are off.
        captures: Bodies, if the owner wants them.
        rows: The requests with their numbers, the oldest first.
        changes: Its version is the number of the newest.
    """

    utcnow: Callable[[], datetime]
    rates: Rates
    traces: Traces | None = None
    captures: Captures = attrs.field(factory=Captures)
    rows: deque[tuple[int, State]] = attrs.field(factory=lambda: deque(maxlen=KEPT_REQUESTS))
    changes: Mailbox[None] = attrs.field(factory=lambda: Mailbox(None))

    def begin(self, headers: Mapping[str, str], *, is_root: bool) -> tuple[Mapping[str, str], Trace | None]:
        """Return the trace headers of a request, and its place in its trace, which may not be exported."""
        trace = None
        if self.traces is not None:
            headers, trace = self.traces.begin(headers, is_root=is_root)
        if trace is None:
            _, trace_id, span, _, *_ = headers["traceparent"].split("-")
            trace = Trace(trace_id, int(span, 16), state=headers.get("tracestate", ""), sampled=False)
        return headers, trace

    def offer_nowait(self, trace: Trace, spans: Iterable[Span]) -> None:
        """Keep what the page shows of a request; pass its spans on if its trace is exported."""
        found = list(spans)
        if self.traces is not None and trace.sampled:
            self.traces.offer_nowait(trace, found)
        row = row_of(found, self.utcnow().timestamp() - (trio.current_time() - found[0].began_at))
        if row["answer"] and row["backend"]:
            service = row["backend"].partition("#")[0]  # one of its engines
            self.rates.record(service, row["answer"], row["prompt"] or 0)
        number = self.changes.version + 1
        if self.captures.keep(number):
            row["body"] = number
        self.rows.append((number, row))
        self.changes.put_nowait(None)

    def after(self, number: int) -> list[State]:
        """Return the requests after a number, the oldest first."""
        return [row for own, row in self.rows if own > number]


def row_of(spans: Sequence[Span], began_at: float) -> State:
    """Return what the page shows of a request: its facts, and its parts with start and length in milliseconds.

    Args:
        spans: That of the request, and then its parts.
        began_at: Wall-clock time of its start, in seconds since 1970.
    """
    root, *parts = spans
    facts: dict[str, Any] = {name: root.attributes.get(source) for source, name in _FACTS.items()}
    attempts = [each for each in parts if each.kind == "CLIENT"]
    return {
        **facts,
        "at": round(began_at, 3),
        "ms": _ms(root.ended_at - root.began_at),
        "failed": root.has_failed,
        "backend": attempts[-1].attributes.get("llmkube.backend") if attempts else None,
        "parts": [
            [each.name, _ms(each.began_at - root.began_at), _ms(each.ended_at - each.began_at), each.has_failed]
            for each in parts
        ],
    }


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 1)
