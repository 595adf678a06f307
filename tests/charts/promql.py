"""The names of series that a PromQL expression reads, and those that somebody exports."""

import re
from collections.abc import Iterator
from types import SimpleNamespace

from prometheus_client import CollectorRegistry

from llmkube.base.loop_watchdog import LoopWatchdog
from llmkube.controller.metrics import FleetCollector, ReconcileMetrics
from llmkube.router.health.signs import CacheUse
from llmkube.router.proxy.metrics import BackendGauges
from llmkube.supervisor.host.sample import Level, Sample
from llmkube.supervisor.memory.budget import host_budget
from llmkube.supervisor.memory.capacity import MemoryView
from llmkube.supervisor.metrics import agent_registry
from llmkube.supervisor.power.meter import PowerView
from llmkube.supervisor.power.powermetrics import DOMAINS

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
"""What our dashboards use of llama.cpp; a real server is asked for them in `test_chart_metrics.py`."""

VLLM = {
    f"vllm:{name}"
    for name in (
        *("generation_tokens_total", "kv_cache_usage_perc", "num_requests_running", "num_requests_waiting"),
        "prompt_tokens_total",
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

PROMETHEUS = {"up"}


class _Nothing:
    """An agent without services, and a controller without objects."""

    def services(self):
        return {}

    def values(self):
        return ()


def _some_memory() -> MemoryView:
    """A host whose memory is looked at: an agent exports nothing about one that is not."""
    return MemoryView(Level.NORMAL, Sample(64 << 30, 20 << 30, Level.NORMAL), host_budget(64 << 30), 0, (), (), {}, {})


def _some_power() -> PowerView:
    """A Mac whose power is measured."""
    domains = dict.fromkeys((*DOMAINS, "combined"), 1.0)
    return PowerView(domains, domains)


def router_gauges(use: CacheUse | None = None) -> BackendGauges:
    """Return the gauges of a router `r` with one backend `b`, whose engine says how full its KV cache is."""
    config = SimpleNamespace(backends={"b": SimpleNamespace(local=True)})
    return BackendGauges(
        "r",
        config=lambda: config,
        healthy=lambda _: True,
        in_flight={},
        waiting=lambda _: 0,
        cache_use=lambda _: use,
        config_valid=lambda: True,
        budgets=list,
    )


def names_in(expression: str) -> set[str]:
    """Return the series that an expression reads; what stands in braces and groupings is a label."""
    without = _BRACES.sub(" ", re.sub(r'"[^"]*"', '""', expression))
    words = {found[0] for found in _WORD.finditer(_GROUPING.sub(" ", without))}
    return {word for word in words if word not in _OPERATORS and not word.isdigit()}


def _exported(registry: CollectorRegistry) -> Iterator[str]:
    for family in registry.collect():
        yield from (family.name + suffix for suffix in _SUFFIXES.get(family.type, ("",)))


def known_names() -> set[str]:
    """Return every series that an agent, a controller, a router or a supported engine exports."""
    controller = CollectorRegistry()
    ReconcileMetrics(controller)
    controller.register(FleetCollector(_Nothing(), _Nothing(), {}))
    controller.register(LoopWatchdog())
    controller.register(router_gauges())
    ours = {
        *_exported(controller),
        *_exported(agent_registry(_Nothing().services, memory=_some_memory, power=_some_power)),
    }
    return ours | LLAMACPP | VLLM | TGI | PROMETHEUS
