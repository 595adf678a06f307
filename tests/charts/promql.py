"""The names of series that a PromQL expression reads, and those that a program exports."""

import re

from docs.reference import families

_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)")
_BRACES = re.compile(r"\{[^}]*\}|\[[^\]]*\]")
_WORD = re.compile(r"(?<![\w:])[a-zA-Z_:][a-zA-Z0-9_:]*(?!\s*\()\b")
_OPERATORS = {"and", "or", "unless", "bool", "offset"}
_SUFFIXES = {
    "counter": ("_total",),
    "histogram": ("_bucket", "_sum", "_count"),
    "summary": ("_sum", "_count"),
    "info": ("_info",),
}

LLAMACPP = {
    f"llamacpp:{name}"
    for name in (
        *("n_busy_slots_per_decode", "n_tokens_max", "prompt_tokens_cached_total", "prompt_tokens_total"),
        *("requests_deferred", "requests_processing", "tokens_predicted_seconds_total", "tokens_predicted_total"),
    )
}
"""Series of llama.cpp that our dashboards use; `test_chart_metrics.py` checks them against a real server."""

VLLM = {
    f"vllm:{name}"
    for name in (
        *("generation_tokens_total", "kv_cache_usage_perc", "num_requests_running", "num_requests_waiting"),
        *("prefix_cache_hits_total", "prefix_cache_queries_total", "prompt_tokens_total"),
        *(
            f"{name}_{part}"
            for name in ("e2e_request_latency_seconds", "inter_token_latency_seconds", "time_to_first_token_seconds")
            for part in ("bucket", "sum", "count")
        ),
    )
}
"""Facts: vLLM's documentation, "Production Metrics" (the V1 engine); counters carry `_total` on the wire."""

TGI = {
    *("tgi_batch_current_size", "tgi_queue_size"),
    *(
        f"{name}_{part}"
        for name in ("tgi_request_duration", "tgi_request_generated_tokens", "tgi_request_input_length")
        for part in ("bucket", "sum", "count")
    ),
}
"""Facts: text-generation-inference's documentation, "Metrics"."""

SGLANG = {
    f"sglang:{name}"
    for name in (
        *("cache_hit_rate", "generation_tokens_total", "num_queue_reqs", "num_running_reqs", "prompt_tokens_total"),
        "token_usage",
        *(
            f"{name}_{part}"
            for name in ("e2e_request_latency_seconds", "time_to_first_token_seconds")
            for part in ("bucket", "sum", "count")
        ),
    )
}
"""Facts: SGLang's documentation, "Production Metrics"."""

TRITON = {
    *("nv_gpu_memory_used_bytes", "nv_gpu_utilization", "nv_inference_compute_infer_duration_us"),
    *("nv_inference_pending_request_count", "nv_inference_queue_duration_us", "nv_inference_request_duration_us"),
    *("nv_inference_request_failure", "nv_inference_request_success"),
}
"""Facts: Triton Inference Server's documentation, "Metrics": its counters have no suffix."""

PROMETHEUS = {"up", "process_resident_memory_bytes"}
"""Of Prometheus itself, and what its client says of each program's process."""


def names_in(expression: str) -> set[str]:
    """Return the series that an expression reads; names in braces and groupings are labels."""
    without = _BRACES.sub(" ", re.sub(r'"[^"]*"', '""', expression))
    words = {found[0] for found in _WORD.finditer(_GROUPING.sub(" ", without))}
    return {word for word in words if word not in _OPERATORS and not word.isdigit()}


def known_names() -> set[str]:
    """Return every series that a program of ours or a supported engine exports."""
    ours = {
        family.name + suffix
        for metric, _ in families()
        for family in (metric.collect() if hasattr(metric, "collect") else (metric,))
        for suffix in _SUFFIXES.get(family.type, ("",))
    }
    return ours | LLAMACPP | VLLM | TGI | SGLANG | TRITON | PROMETHEUS
