"""Series that make each alert fire: they replace those of a healthy installation, in promtool's notation.

`0x60` is a 0 for sixty-one minutes, `0+2x60` a counter that grows by two a minute.
"""

from collections.abc import Mapping

import attrs

CHAT = 'instance="studio", namespace="default", name="chat"'
AGENT = "llmkube_metal_agent"

HEALTHY: Mapping[str, str] = {
    'up{job="llmkube-controller", instance="a"}': "1x120",
    'up{job="llmkube-agent", instance="studio"}': "1x120",
    'llmkube_reconcile_total{controller="model", result="success"}': "0+60x120",
    'llmkube_reconcile_total{controller="model", result="retry"}': "0+6x120",
    'llmkube_reconcile_total{controller="model", result="error"}': "0x120",
    'llmkube_reconcile_duration_seconds_bucket{controller="model", le="0.5"}': "0+60x120",
    'llmkube_reconcile_duration_seconds_bucket{controller="model", le="2.5"}': "0+60x120",
    'llmkube_reconcile_duration_seconds_bucket{controller="model", le="10.0"}': "0+60x120",
    'llmkube_reconcile_duration_seconds_bucket{controller="model", le="+Inf"}': "0+60x120",
    'llmkube_model_status{namespace="n", model="m", phase="Ready"}': "1x120",
    'llmkube_inferenceservice_phase{namespace="n", inferenceservice="s", phase="Ready"}': "1x120",
    'llmkube_gpu_queue_depth{namespace="n"}': "0x20 1x10 0x90",
    f'{AGENT}_service_state{{{CHAT}, reason="Loaded"}}': "1x120",
    f"{AGENT}_process_restarts_total{{{CHAT}}}": "0x60 1x60",
    f'{AGENT}_memory_pressure_level{{instance="studio"}}': "0x120",
    f'{AGENT}_evictions_total{{instance="studio", cause="critical"}}': "0x60 1x60",
    f"{AGENT}_memory_estimate_error_ratio{{{CHAT}}}": "-0.1x120",
    'llmkube_download_bytes_per_second{instance="studio", source="hf://o/r"}': "1000000x120",
    'llmkube_event_loop_stalls_total{instance="studio"}': "0x60 1x60",
    'llamacpp:requests_deferred{instance="studio"}': "0x10 3x5 0x105",
    'vllm:kv_cache_usage_perc{instance="gpu"}': "0.5x120",
}


@attrs.frozen
class Case:
    """One way to make one alert fire, and nothing else."""

    alert: str
    series: Mapping[str, str]
    minute: int = 60

    def __str__(self) -> str:
        return self.alert


def _state(reason: str) -> dict[str, str]:
    return {
        f'{AGENT}_service_state{{{CHAT}, reason="Loaded"}}': "_x120",
        f'{AGENT}_service_state{{{CHAT}, reason="{reason}"}}': "1x120",
    }


CASES = (
    Case("LLMKubeControllerDown", {'up{job="llmkube-controller", instance="a"}': "0x120"}),
    Case("LLMKubeControllerDown", {'up{job="llmkube-controller", instance="a"}': "_x120"}),
    Case("LLMKubeReconcileErrors", {'llmkube_reconcile_total{controller="model", result="error"}': "0+1x120"}),
    Case("LLMKubeReconcileRetries", {'llmkube_reconcile_total{controller="model", result="retry"}': "0+90x120"}),
    Case(
        "LLMKubeReconcileSlow",
        {'llmkube_reconcile_duration_seconds_bucket{controller="model", le="2.5"}': "0+40x120"}
        | {'llmkube_reconcile_duration_seconds_bucket{controller="model", le="0.5"}': "0+40x120"},
    ),
    Case("LLMKubeModelFailed", {'llmkube_model_status{namespace="n", model="m", phase="Failed"}': "1x120"}),
    Case(
        "LLMKubeServiceFailed",
        {'llmkube_inferenceservice_phase{namespace="n", inferenceservice="s", phase="Failed"}': "1x120"},
    ),
    Case("LLMKubeGPUQueue", {'llmkube_gpu_queue_depth{namespace="n"}': "1x120"}),
    Case("LLMKubeAgentDown", {'up{job="llmkube-agent", instance="studio"}': "0x120"}),
    Case("LLMKubeEngineCrashLoop", _state("CrashLoopBackOff")),
    Case("LLMKubeEngineRestarts", {f"{AGENT}_process_restarts_total{{{CHAT}}}": "0x50 4x70"}),
    Case("LLMKubeServiceStuck", _state("InsufficientMemory")),
    Case("LLMKubeServiceStuck", _state("ExceedsMemory")),
    Case("LLMKubeServiceStuck", _state("FetchFailed")),
    Case("LLMKubeMemoryCritical", {f'{AGENT}_memory_pressure_level{{instance="studio"}}': "2x120"}),
    Case("LLMKubeEvictions", {f'{AGENT}_evictions_total{{instance="studio", cause="critical"}}': "0x50 5x70"}),
    Case("LLMKubeMemoryEstimateOff", {f"{AGENT}_memory_estimate_error_ratio{{{CHAT}}}": "0.4x120"}),
    Case("LLMKubeMemoryEstimateOff", {f"{AGENT}_memory_estimate_error_ratio{{{CHAT}}}": "-0.4x120"}),
    Case(
        "LLMKubeDownloadStalled",
        {'llmkube_download_bytes_per_second{instance="studio", source="hf://o/r"}': "0x120"},
    ),
    Case("LLMKubeHostRefused", {f'{AGENT}_credential_refused{{instance="studio"}}': "1x120"}),
    Case("LLMKubeEventLoopStalled", {'llmkube_event_loop_stalls_total{instance="studio"}': "0x50 5x70"}),
    Case("LLMKubeRequestsQueued", {'llamacpp:requests_deferred{instance="studio"}': "2x120"}),
    Case("LLMKubeRequestsQueued", {'vllm:num_requests_waiting{instance="gpu"}': "2x120"}),
    Case("LLMKubeRequestsQueued", {'tgi_queue_size{instance="gpu"}': "2x120"}),
    Case("LLMKubeKVCacheFull", {'vllm:kv_cache_usage_perc{instance="gpu"}': "0.99x120"}),
)
