"""Spans of a finished request, from its record, in the names of OpenTelemetry's conventions for generative AI.

```
chat MODEL                 SERVER    the request, from its arrival to the last byte
 ├ hold                    INTERNAL  it waited until its model was loaded
 ├ queue                   INTERNAL  it waited for its turn at the engine
 ├ attempt, continuation   CLIENT    one request to a backend; its ID is the parent of the backend's own spans
 │  ├ prefill              INTERNAL  up to the first token
 │  └ decode               INTERNAL  from the first token to the last
```
Prompts and answers are in no attribute. Names: https://github.com/open-telemetry/semantic-conventions-genai,
docs/gen-ai.
"""

from collections.abc import Mapping
from typing import Any, Final

from llmkube.router.budgets.usage import Usage
from llmkube.router.config.routing_config import Backend
from llmkube.router.dispatch.record import ANSWERED, Record
from llmkube.router.traces import Span, Trace

OWN_PROVIDER: Final = "llmkube"
"""The provider of a backend that is an InferenceService."""

OPERATIONS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat"), "chat"),
    **dict.fromkeys(("/v1/completions", "/api/generate"), "text_completion"),
    **dict.fromkeys(("/v1/embeddings", "/api/embed", "/api/embeddings"), "embeddings"),
}
"""Operation of each path, as named by the conventions; other paths have no name there."""

_PROVIDERS: Final[Mapping[str, str]] = {"bedrock": "aws.bedrock", "vertex_ai": "gcp.vertex_ai"}
"""Provider names that differ from ours."""

_MAX_CHARS: Final = 256
_TIMED_BY: Final = ("gateway", "engine")
_FIRST_OTHER: Final = 1 << 16
"""Number of the first span ID that is not an attempt's."""


def provider_of(backend: Backend) -> str:
    """Return the provider of a backend, as named by the conventions."""
    return _PROVIDERS.get(backend.provider, backend.provider) or OWN_PROVIDER


def spans_of(record: Record, trace: Trace, backends: Mapping[str, Backend], model: str, now: float) -> list[Span]:
    """Return the spans of a request, that of the request first.

    Args:
        record: Record of the request.
        trace: Its place in the trace.
        backends: Backends by name.
        model: Requested model; "" if it is not known.
        now: End of the request on Trio's clock.
    """
    request, answer, path = record.request, record.answer, record.request.path[:_MAX_CHARS]
    is_stream, operation = answer.streamed, OPERATIONS.get(path, path)
    error = "" if answer.outcome == "ok" else answer.outcome
    of_request = {
        "http.request.method": request.method,
        "url.path": path,
        "http.response.status_code": answer.status,
        "gen_ai.operation.name": operation,
        "gen_ai.request.model": model[:_MAX_CHARS],
        "gen_ai.request.stream": is_stream or None,
        "gen_ai.response.model": answer.model[:_MAX_CHARS],
        "gen_ai.response.time_to_first_chunk": answer.first_byte_seconds if is_stream else None,
        **_common(backends.get(answer.backend), answer.usage, error),
        "llmkube.request_id": request.request_id,
        "llmkube.rule": record.decided.rule if record.decided.decision is not None else "",
        "llmkube.continuations": answer.continuations or None,
    }
    spans: list[Span] = []

    def add(name: str, parent: int, began: float, ended: float, own: Mapping[str, Any], **more: Any) -> None:
        span_id = more.pop("span_id", trace.span_after(_FIRST_OTHER + len(spans)))
        known = {each: value for each, value in own.items() if value is not None and value != ""}
        spans.append(Span(name, span_id, parent, began, ended, known, has_failed="error.type" in known, **more))

    name = f"{operation} {model}".strip()[:_MAX_CHARS]
    add(name, trace.parent_id, request.started_at, now, of_request, span_id=trace.span_id, kind="SERVER")
    last = max((each.index for each in record.phases), default=-1)
    for phase in record.phases:
        began, ended, first_at = phase.began_at, phase.ended_at, phase.first_at
        if phase.index < 0:
            add(phase.name, trace.span_id, began, ended, {"llmkube.backend": phase.backend})
            continue
        usage = phase.usage or (answer.last_usage if phase.index == last else None)
        span_id, backend = trace.span_after(phase.index), backends.get(phase.backend)
        own = {"llmkube.backend": phase.backend, "http.response.status_code": phase.status or None}
        if backend is not None:
            own["gen_ai.request.model"] = backend.model or backend.model_id
        own |= _common(backend, usage, "" if phase.result == ANSWERED else phase.result)
        add(phase.name, trace.span_id, began, ended, own, span_id=span_id, kind="CLIENT")
        prefill, decode = (None, None) if usage is None else (usage.prefill_ms, usage.decode_ms)
        if first_at is None and decode is not None:
            first_at = max(began, ended - decode / 1000)
        if first_at is not None:  # else a provider's whole answer
            start = began if prefill is None else max(began, first_at - prefill / 1000)
            end = ended if decode is None else min(ended, first_at + decode / 1000)
            add("prefill", span_id, start, first_at, {"llmkube.timed_by": _TIMED_BY[prefill is not None]})
            add("decode", span_id, first_at, end, {"llmkube.timed_by": _TIMED_BY[decode is not None]})
    return spans


def _common(backend: Backend | None, usage: Usage | None, error: str) -> dict[str, Any]:
    """Return the attributes that a request has as well as each of its attempts."""
    found: dict[str, Any] = {"error.type": error}
    if backend is not None:
        found["gen_ai.provider.name"] = provider_of(backend)
    if usage is not None:
        found["gen_ai.usage.input_tokens"] = usage.prompt
        found["gen_ai.usage.output_tokens"] = usage.completion
        found["gen_ai.usage.cache_read.input_tokens"] = usage.cached
        found["gen_ai.usage.cache_creation.input_tokens"] = (usage.written_5m + usage.written_1h) or None
    return found
