"""SGLang in a pod. Facts: SGLang's server arguments, v0.5 (https://docs.sglang.ai)."""

from typing import Final

from llmkube.k8s.crd.serving import SGLangConfig, SGLangSpeculative
from llmkube.runtimes.container.builder import ANY_IPV4, ContainerBuilder, Runtime, fetches_repositories
from llmkube.runtimes.container.container_plan import ContainerPlan, Probes, ScalingMetric
from llmkube.runtimes.container.gpu import check_parallel

PORT: Final = 30000
COMMAND: Final = ("python3", "-m", "sglang.launch_server")

_PATH: Final = "spec.sglangConfig"
_STRATEGY: Final = "Model.spec.hardware.gpu.sharding.strategy"
_OWNED: Final = {
    "--model-path": "the Model's spec.source",
    "--model": "the Model's spec.source",
    "--port": "spec.containerPort",
}
_FLAGS: Final = {
    "context_length": "--context-length",
    "quantization": "--quantization",
    "data_parallel_size": "--dp",
    "expert_parallel_size": "--ep",
    "mem_fraction_static": "--mem-fraction-static",
    "max_running_requests": "--max-running-requests",
    "chunked_prefill_size": "--chunked-prefill-size",
    "enable_prefix_caching": "|--disable-radix-cache",  # on by default; there is no flag to turn it on
    "chat_template": "--chat-template",
    "reasoning_parser": "--reasoning-parser",
    "skip_tokenizer_init": "--skip-tokenizer-init",
    "trust_remote_code": "--trust-remote-code",
    "log_level": "--log-level",
    "lora_target_modules": "--lora-target-modules",
    "max_lora_rank": "--max-lora-rank",
}
_SPECULATION: Final = {
    "draft_model_path": "--speculative-draft-model-path",
    "num_steps": "--speculative-num-steps",
    "eagle_top_k": "--speculative-eagle-topk",
    "accept_threshold_single": "--speculative-accept-threshold-single",
    "accept_threshold_acc": "--speculative-accept-threshold-acc",
}
_ATTENTION: Final = {"flash_attn": "fa3"}
_TOOL_PARSERS: Final = {"qwen3": "qwen25"}  # the same format, which the engine knows by the older name
_NO_PARSER: Final = {"functionary": "it has no parser for that format; name another one, or an image that has"}
_NO_ALGORITHM: Final = {"Medusa": "use EAGLE or EAGLE3, or name an image that has it"}


def plan(builder: ContainerBuilder) -> ContainerPlan:
    """Return the container that serves one model with SGLang."""
    builder.refuse(_OWNED)
    config = builder.spec.sglang_config or SGLangConfig()
    line = builder.line
    builder.add_model("--model-path")
    port = builder.port(PORT)
    # uvicorn opens the socket; the empty host, for both families, fails since SGLang also connects to that address
    builder.add_listener("--host", "--port", port, anywhere=ANY_IPV4)
    line.default("--served-model-name", value=builder.name)
    line.default("--enable-metrics")
    _add_parallelism(builder, config)
    line.add_block(config, _PATH, _FLAGS)
    builder.add_cache_type(_PATH, config.kv_cache_dtype, config.kv_cache_custom_dtype)
    if backend := config.attention_backend:
        line.add(f"{_PATH}.attentionBackend", "--attention-backend", _ATTENTION.get(backend, backend))
    if parser := config.tool_call_parser:
        builder.refuse_value(f"{_PATH}.toolCallParser", parser, _NO_PARSER)
        line.add(f"{_PATH}.toolCallParser", "--tool-call-parser", _TOOL_PARSERS.get(parser, parser))
    if config.max_running_requests is None and builder.spec.parallel_slots > 1:
        line.add("spec.parallelSlots", "--max-running-requests", builder.spec.parallel_slots)
    _add_adapters(builder, config)
    if config.speculative is not None:
        _add_speculation(builder, config.speculative)
    if builder.mode != "chat":
        line.default("--is-embedding")
    builder.add_token(config.hf_token_secret_ref, f"{_PATH}.hfTokenSecretRef")
    return builder.finish(
        container_name="sglang",
        port=port,
        command=COMMAND,
        probes=Probes.http("/health", loaded="/health_generate"),  # generates a token
        hpa_metric=ScalingMetric("sglang:num_running_reqs"),
        latency_metric="sglang:e2e_request_latency_seconds",
        busy_metrics=("sglang:num_running_reqs", "sglang:num_queue_reqs"),
        shared_memory=builder.resources.gpu_count > 1,
        model_id=builder.name,
    )


def _add_parallelism(builder: ContainerBuilder, config: SGLangConfig) -> None:
    """Split each layer among the GPUs of one copy; the copies share nothing."""
    count, gpu = builder.resources.gpu_count, builder.model.spec.hardware.gpu
    strategy = gpu.sharding.strategy if gpu and gpu.sharding else "layer"
    size, copies, path = config.tensor_parallel_size, config.data_parallel_size or 1, f"{_PATH}.tensorParallelSize"
    check_parallel((size or 1) * copies, builder.resources, path if size else f"{_PATH}.dataParallelSize")
    check_parallel(config.expert_parallel_size or 1, builder.resources, f"{_PATH}.expertParallelSize")
    if size is not None:
        builder.line.add(path, "--tp", size)
    elif strategy not in ("pipeline", "none") and count // copies > 1:
        builder.line.default("--tp", "--tp-size", "--tensor-parallel-size", value=count // copies)
    if count > 1:
        builder.honour(_STRATEGY)
        if strategy == "pipeline" and (stages := count // ((size or 1) * copies)) > 1:
            builder.line.default("--pp-size", "--pipeline-parallel-size", value=stages)


def _add_adapters(builder: ContainerBuilder, config: SGLangConfig) -> None:
    """Write `name=path` for each adapter; of two with one name, that of `loraAdapters` has precedence."""
    adapters = {each.partition("=")[0]: each for each in config.lora_modules}
    adapters |= {each.name: f"{each.name}={each.path}" for each in config.lora_adapters}
    if adapters:
        builder.line.add(f"{_PATH}.loraAdapters", "--lora-paths", *adapters.values())
        builder.honour(f"{_PATH}.loraModules")


def _add_speculation(builder: ContainerBuilder, speculative: SGLangSpeculative) -> None:
    path = f"{_PATH}.speculative"
    builder.honour(f"{path}.enabled")
    if speculative.enabled and speculative.algorithm:
        builder.refuse_value(f"{path}.algorithm", speculative.algorithm, _NO_ALGORITHM)
        builder.line.add(f"{path}.algorithm", "--speculative-algorithm", speculative.algorithm)
        builder.line.add(f"{path}.numDraftTokens", "--speculative-num-draft-tokens", speculative.num_draft_tokens)
        builder.line.add_block(speculative, path, _SPECULATION)


_IMAGE: Final = "lmsysorg/sglang:v0.5.15.post1-cu129"
_ROCM: Final = "lmsysorg/sglang:v0.5.15-rocm720-mi30x"
RUNTIME: Final = Runtime(
    name="sglang", plan=plan, fetches=fetches_repositories, images={"": _IMAGE, "cuda": _IMAGE, "rocm": _ROCM}
)
