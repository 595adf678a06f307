"""Export of traces with OpenTelemetry's SDK, configured by its variables (`OTEL_*`); off without an endpoint.

The SDK is an optional dependency (`llmkube[traces]`), which is imported only when traces are on. Spans are made once a
request has ended, and wait in a queue of limited length. A task has a thread send them, so that no request waits for
the collector; spans that the queue has no place for, or that the collector does not take, are counted.
"""

import math
import os
import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final, NoReturn, Protocol

import attrs
import structlog
import trio
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from llmkube import __version__
from llmkube.base.errors import UserError

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL: Final = "http/protobuf"

FLUSH_SECONDS: Final = 3.0
"""Time limit for the last spans when the program stops."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger()


@attrs.frozen
class Trace:
    """The place of a sampled request in its trace.

    Attributes:
        trace_id: 32 hexadecimal digits.
        span_id: ID of the request's span. The span of its n-th attempt has the n-th ID after it.
        parent_id: ID of the client's span; 0 for none.
        state: `tracestate` of the client.
        sampled: Whether it is exported.
    """

    trace_id: str
    span_id: int
    parent_id: int = 0
    state: str = ""
    sampled: bool = True

    def span_after(self, number: int) -> int:
        """Return the n-th ID after that of the request, counted from 0."""
        return (self.span_id + number) % 0xFFFF_FFFF_FFFF_FFFF + 1

    def headers(self, attempt: int) -> Mapping[str, str]:
        """Return the trace headers of an attempt."""
        parent = {"traceparent": f"00-{self.trace_id}-{self.span_after(attempt):016x}-01"}
        return parent | ({"tracestate": self.state} if self.state else {})


@attrs.frozen
class Span:
    """One span of a request.

    Attributes:
        kind: `SERVER`, `CLIENT` or `INTERNAL`.
        began_at: Start on Trio's clock.
        ended_at: End on Trio's clock.
        has_failed: Whether its status is an error.
    """

    name: str
    span_id: int
    parent_id: int
    began_at: float
    ended_at: float
    attributes: Mapping[str, str | int | float | bool]
    kind: str = attrs.field(default="INTERNAL", kw_only=True)
    has_failed: bool = attrs.field(default=False, kw_only=True)


class Recorder(Protocol):
    """Takes the spans of requests: `Traces`, or the page's list of requests."""

    def begin(self, headers: Mapping[str, str], *, is_root: bool) -> tuple[Mapping[str, str], Trace | None]:
        """Return the trace headers of a request, and its place in the trace; None if its spans are not wanted.

        Args:
            headers: Valid trace headers: the client's, or those of a new trace.
            is_root: Whether they are those of a new trace.
        """

    def offer_nowait(self, trace: Trace, spans: Iterable[Span]) -> None:
        """Take the spans of a request that has ended, that of the request first."""


Batch = Sequence[tuple[Trace, Span]]
Export = Callable[[Batch, float], bool]
"""Exports spans, given the wall-clock time of Trio's time 0; returns whether they were accepted."""

Judge = Callable[[str, int, bool, str], bool]
"""Decides whether a trace is sampled, from its ID, the client's span (0 for none), its decision and its state."""


@attrs.define(eq=False)
class Traces(Collector):
    """Traces of one program.

    Attributes:
        export: Sends spans; runs in a thread.
        is_sampled: Decides which traces are exported.
        utcnow: Wall clock.
        rng: Source of span IDs.
        delay_seconds: Longest wait of a span for others.
        max_waiting: Spans that wait; further ones are dropped. The default is OpenTelemetry's, as that of `batch`.
        batch: Most spans in one request to the collector.
        counts: Number of spans by result.
        is_failing: Whether the collector did not take the last spans.
    """

    export: Export
    is_sampled: Judge
    utcnow: Callable[[], datetime]
    rng: random.Random
    delay_seconds: float = 2.0
    max_waiting: int = 2048
    batch: int = 512
    counts: dict[str, int] = attrs.field(factory=lambda: {"exported": 0, "dropped": 0})
    is_failing: bool = False
    _waiting: list[tuple[Trace, Span]] = attrs.field(factory=list)
    _arrived: trio.Event = attrs.field(factory=trio.Event)
    _full: trio.Event = attrs.field(factory=trio.Event)

    def begin(self, headers: Mapping[str, str], *, is_root: bool) -> tuple[Mapping[str, str], Trace | None]:
        """Return the trace headers of a request, and its place in the trace; None if it is not sampled.

        Args:
            headers: Valid trace headers: the client's, or those of a new trace.
            is_root: Whether they are those of a new trace.
        """
        _, trace_id, span, flags, *_ = headers["traceparent"].split("-")
        parent_id, state = 0 if is_root else int(span, 16), headers.get("tracestate", "")
        if self.is_sampled(trace_id, parent_id, bool(int(flags, 16) & 1), state):
            span_id = int(span, 16) if is_root else self.rng.getrandbits(64) or 1
            return headers, Trace(trace_id, span_id, parent_id, state)
        return {**headers, "traceparent": f"00-{trace_id}-{span}-00"} if is_root else headers, None

    def offer_nowait(self, trace: Trace, spans: Iterable[Span]) -> None:
        """Enqueue the spans of a request, or drop those that have no place."""
        found = [(trace, each) for each in spans]
        kept = found[: self.max_waiting - len(self._waiting)]
        self._waiting += kept
        self.counts["dropped"] += len(found) - len(kept)
        self._arrived.set()
        if len(self._waiting) >= self.batch:
            self._full.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> NoReturn:
        """Send spans until cancelled, then the rest."""
        task_status.started()
        try:
            while True:
                await self._arrived.wait()
                with trio.move_on_after(self.delay_seconds):
                    await self._full.wait()
                self._arrived, self._full = trio.Event(), trio.Event()
                while self._waiting:
                    await self._send_batch()
        finally:
            with trio.move_on_after(FLUSH_SECONDS, shield=True):
                while self._waiting:
                    await self._send_batch()
            self.counts["dropped"] += len(self._waiting)

    async def _send_batch(self) -> None:
        """Send the oldest spans; those of a send that is cancelled are dropped: the collector may have them."""
        sent, self._waiting = self._waiting[: self.batch], self._waiting[self.batch :]
        offset, is_taken = self.utcnow().timestamp() - trio.current_time(), False
        try:
            is_taken = await trio.to_thread.run_sync(self.export, sent, offset, abandon_on_cancel=True)
            if not is_taken and not self.is_failing:
                _log.warning("traces dropped", why="the collector does not take them")
            self.is_failing = not is_taken
        except Exception as exc:  # noqa: BLE001 - an error of the exporter must not end the program
            _log.warning("traces dropped", error=str(exc))
        finally:
            self.counts["exported" if is_taken else "dropped"] += len(sent)

    def collect(self) -> Iterable[CounterMetricFamily]:
        """Yield the metric of the spans."""
        text = "Spans of traces by result: exported, dropped (no place in the queue, or not taken by the collector)."
        family = CounterMetricFamily("llmkube_trace_spans", text, labels=["result"])
        for result, count in self.counts.items():
            family.add_metric([result], count)
        yield family


def are_on(environ: Mapping[str, str]) -> bool:
    """Return whether the standard variables turn traces on.

    Raises:
        UserError: The protocol is not supported.
    """
    off = environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    exporters = environ.get("OTEL_TRACES_EXPORTER") or "otlp"
    if off or "otlp" not in exporters.split(",") or not any(environ.get(name) for name in ENDPOINTS):
        return False
    for name in _PROTOCOLS:
        if (found := environ.get(name) or PROTOCOL) != PROTOCOL:
            raise UserError(f"{found!r} is not supported; set {PROTOCOL} and the collector's port for it", field=name)
    return True


@asynccontextmanager
async def open_traces(utcnow: Callable[[], datetime]) -> AsyncIterator[Traces | None]:
    """Export traces during the block, if the program's environment turns them on; the value is None otherwise.

    An invalid variable is logged and turns traces off; requests are served without traces.
    """
    loaded = None
    try:
        loaded = await trio.to_thread.run_sync(_load) if are_on(os.environ) else None
    except (UserError, ImportError, ValueError) as error:
        fix = "; install llmkube[traces]" if isinstance(error, ImportError) else ""
        _log.error("traces turned off", error=f"{error}{fix}")
    if loaded is None:
        yield None
        return
    traces = Traces(*loaded, utcnow, random.Random())  # noqa: S311 (names of spans: no secret)
    async with trio.open_nursery() as tasks:
        await tasks.start(traces.run)
        yield traces
        tasks.cancel_scope.cancel(reason="the program stops")


def _load() -> tuple[Export, Judge]:
    """Import the SDK, and return its exporter and its sampler, as the standard variables configure them."""
    from opentelemetry import trace as api  # noqa: PLC0415 (optional, and slow to import)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import SpanExportResult  # noqa: PLC0415
    from opentelemetry.sdk.trace.sampling import Decision  # noqa: PLC0415
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415

    found = Resource.create()
    if str(found.attributes.get("service.name", "")).startswith("unknown_service"):
        found = found.merge(Resource({"service.name": "llmkube", "service.version": __version__}))
    exporter, sampler = OTLPSpanExporter(), TracerProvider(resource=found, shutdown_on_exit=False).sampler
    scope = InstrumentationScope("llmkube", __version__)

    def context(trace_id: str, span_id: int, state: str, *, sampled: bool = True, is_remote: bool = True) -> Any:
        states = api.TraceState.from_header([state]) if state else None
        return api.SpanContext(int(trace_id, 16), span_id, is_remote, api.TraceFlags(int(sampled)), states)

    def is_sampled(trace_id: str, parent_id: int, sampled: bool, state: str) -> bool:
        parent = context(trace_id, parent_id, state, sampled=sampled)
        ctx = api.set_span_in_context(api.NonRecordingSpan(parent)) if parent_id else None
        return sampler.should_sample(ctx, int(trace_id, 16), "request").decision is not Decision.DROP

    def readable(trace: Trace, span: Span, offset: float) -> Any:
        is_root = span.span_id == trace.span_id
        parent = context(trace.trace_id, span.parent_id, trace.state, is_remote=is_root) if span.parent_id else None
        return ReadableSpan(
            span.name,
            context(trace.trace_id, span.span_id, trace.state, is_remote=False),
            parent,
            found,
            dict(span.attributes),
            kind=api.SpanKind[span.kind],
            status=api.Status(api.StatusCode.ERROR if span.has_failed else api.StatusCode.UNSET),
            start_time=math.floor((span.began_at + offset) * 1e9),
            end_time=math.floor((span.ended_at + offset) * 1e9),
            instrumentation_scope=scope,
        )

    def export(batch: Batch, offset: float) -> bool:
        return exporter.export([readable(*each, offset) for each in batch]) is SpanExportResult.SUCCESS

    return export, is_sampled
