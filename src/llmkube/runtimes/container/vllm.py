"""vLLM in a pod. Facts: vLLM's engine arguments, v0.25 (https://docs.vllm.ai)."""

import json
from typing import Final

import attrs

from llmkube.k8s.crd.inferenceservice import InferenceService, InferenceServiceSpec
from llmkube.k8s.crd.serving import VLLMConfig, VLLMSpeculative
from llmkube.runtimes.arguments import flag_of
from llmkube.runtimes.container.builder import ContainerBuilder, Runtime, fetches_repositories
from llmkube.runtimes.container.container_plan import ContainerPlan, Group, Probes, ScalingMetric, Variable, literal
from llmkube.runtimes.container.gpu import check_parallel
from llmkube.runtimes.container.group import LEADER_ADDRESS, PATH, RANK, check_group, variables
from llmkube.runtimes.plan import Placeholder, PlanError

PORT: Final = 8000
# The module does not know --headless, with which all nodes of a group but the first are started
GROUP_COMMAND: Final = ("vllm", "serve")
# `vllm serve` requires the model as its first argument; the module has --model in every version
COMMAND: Final = ("python3", "-m", "vllm.entrypoints.openai.api_server")

_PATH: Final = "spec.vllmConfig"
_NAMES: Final = "--served-model-name"
_STRATEGY: Final = "Model.spec.hardware.gpu.sharding.strategy"
_OWNED: Final = {
    "--model": "the Model's spec.source",
    "--port": "spec.containerPort",
    "--uds": "LLMKube, which connects to the engine's port",
    "--root-path": "LLMKube, which checks at /health whether the engine is ready",
}
_FLAGS: Final = {
    "max_model_len": "--max-model-len",
    "dtype": "--dtype",
    "gpu_memory_utilization": "--gpu-memory-utilization",
    "max_num_batched_tokens": "--max-num-batched-tokens",
    "cpu_offload_gb": "--cpu-offload-gb",
    # on by default in all recent versions: there is a flag to turn it off
    "enable_prefix_caching": "--enable-prefix-caching|--no-enable-prefix-caching",
    "enable_chunked_prefill": "--enable-chunked-prefill|--no-enable-chunked-prefill",
    "enable_expert_parallel": "--enable-expert-parallel",
}
_QUANTIZATIONS: Final = {"nvfp4": "modelopt_fp4"}
_NO_QUANTIZATION: Final = {"squeezellm": "vLLM has removed it; unset the field, or name an image that has it"}
_NO_ATTENTION: Final = dict.fromkeys(
    ("XFORMERS", "TORCH_SDPA"), "use FLASH_ATTN or FLASHINFER, or name an image that has it"
)


def plan(builder: ContainerBuilder) -> ContainerPlan:
    """Return the container that serves one model with vLLM."""
    builder.refuse(_OWNED)
    served_names, builder.service = _split_served_names(builder.service)
    config = builder.spec.vllm_config or VLLMConfig()
    line = builder.line
    group = _group(builder.spec)
    repository = builder.add_model(*(() if group else ("--model",)))
    # without --served-model-name vLLM uses the repository's name, which some clients know
    names = tuple(dict.fromkeys((*builder.names(), *served_names, *((repository.name,) if repository else ()))))
    port = builder.port(PORT)
    builder.add_listener("--host", "--port", port)
    line.argv += [_NAMES, *(literal(name) for name in names)]  # it answers 404 to any other name
    _add_parallelism(builder, config)
    line.add_block(config, _PATH, _FLAGS)
    builder.add_cache_type(_PATH, config.kv_cache_dtype, config.kv_cache_custom_dtype)
    if wanted := config.quantization:
        builder.refuse_value(f"{_PATH}.quantization", wanted, _NO_QUANTIZATION)
        line.add(f"{_PATH}.quantization", "--quantization", _QUANTIZATIONS.get(wanted, wanted))
    if config.attention_backend:
        backend = config.attention_backend.upper()
        builder.refuse_value(f"{_PATH}.attentionBackend", backend, _NO_ATTENTION)
        line.add(f"{_PATH}.attentionBackend", "--attention-backend", backend)
    if builder.spec.parallel_slots > 1:  # 1 is the schema's default, and too few for vLLM
        line.add("spec.parallelSlots", "--max-num-seqs", builder.spec.parallel_slots)
    if limit := builder.spec.max_answer_tokens:  # for all requests, unlike llama.cpp's flag
        line.add("spec.maxAnswerTokens", "--override-generation-config", json.dumps({"max_new_tokens": limit}))
    if config.speculative is not None:
        _add_speculation(builder, config.speculative)
    if builder.mode != "chat":
        line.default("--runner", value="pooling")
    builder.add_token(config.hf_token_secret_ref, f"{_PATH}.hfTokenSecretRef")
    builder.env.append(Variable("VLLM_CACHE_ROOT", Placeholder.CACHE))
    return builder.finish(
        container_name="vllm",
        port=port,
        command=COMMAND if group is None else GROUP_COMMAND,
        probes=Probes.http("/health"),
        hpa_metric=ScalingMetric("vllm:num_requests_running"),
        latency_metric="vllm:e2e_request_latency_seconds",
        busy_metrics=("vllm:num_requests_running", "vllm:num_requests_waiting"),
        shared_memory=builder.resources.gpu_count > 1,
        group=group,
        model_id=builder.name,
    )


def _group(spec: InferenceServiceSpec) -> Group | None:
    """Return the flags for processes on several nodes: address of the first node, number of nodes, rank of each."""
    block = spec.multi_node
    if block is None:
        return None
    check_group(spec, block)
    first, second, *_ = block.members
    address = literal(first.fabric.address) if first.fabric and first.fabric.address else LEADER_ADDRESS
    port = ("--master-port", str(block.rendezvous_port)) if block.rendezvous_port else ()
    meet = ("--nnodes", str(len(block.members)), "--master-addr", address, *port, "--node-rank", f"$({RANK})")
    return Group(
        len(block.members), meet, (*meet, "--headless"), variables(spec, block, first), variables(spec, block, second)
    )


def _split_served_names(service: InferenceService) -> tuple[tuple[str, ...], InferenceService]:
    """Return the model's names in extraArgs, and the service without these arguments."""
    served_names: list[str] = []
    rest: list[str] = []
    in_names = False
    for word in service.spec.extra_args:
        flag = flag_of(word)
        if flag == _NAMES:
            in_names = "=" not in word
            served_names += [] if in_names else [word.partition("=")[2]]
        elif in_names and not flag:
            served_names.append(word)
        else:
            in_names = False
            rest.append(word)
    if not served_names:
        return (), service
    return tuple(served_names), attrs.evolve(service, spec=attrs.evolve(service.spec, extra_args=tuple(rest)))


def _add_parallelism(builder: ContainerBuilder, config: VLLMConfig) -> None:
    """Split each layer among all GPUs, unless the Model requests a pipeline, or the service sets the numbers."""
    block, gpu = builder.spec.multi_node, builder.model.spec.hardware.gpu
    if block is not None:
        _share_among_nodes(builder, config, len(block.members))
        return
    count = builder.resources.gpu_count
    strategy = gpu.sharding.strategy if gpu and gpu.sharding else "layer"
    size, path = config.tensor_parallel_size, f"{_PATH}.tensorParallelSize"
    stages, stages_path = config.pipeline_parallel_size, f"{_PATH}.pipelineParallelSize"
    if size is not None:
        check_parallel(size * (stages or 1), builder.resources, path)
        builder.line.add(path, "--tensor-parallel-size", size)
    elif stages is not None:
        check_parallel(stages, builder.resources, stages_path)
        if count // stages > 1:
            builder.line.default("--tensor-parallel-size", "-tp", value=count // stages)
    elif count > 1 and strategy not in ("pipeline", "none"):
        builder.line.default("--tensor-parallel-size", "-tp", value=count)
    if stages is not None:
        builder.line.add(stages_path, "--pipeline-parallel-size", stages)
    if count > 1:
        builder.honour(_STRATEGY)
        if stages is None and strategy == "pipeline" and (remaining_stages := count // (size or 1)) > 1:
            builder.line.default("--pipeline-parallel-size", "-pp", value=remaining_stages)


def _share_among_nodes(builder: ContainerBuilder, config: VLLMConfig, nodes: int) -> None:
    """Split each layer among the GPUs of a node, and the layers among nodes, unless the service sets the numbers."""
    total = builder.resources.gpu_count * nodes
    if not total:
        raise PlanError(f"{PATH} needs a GPU on each node; set the number per node", field="spec.resources.gpu")
    stages = config.pipeline_parallel_size or (total // config.tensor_parallel_size if config.tensor_parallel_size
                                               else nodes)  # fmt: skip
    size = config.tensor_parallel_size or max(1, total // stages)
    if size * stages != total:
        raise PlanError(
            f"{size} GPUs per layer in {stages} stages are {size * stages} GPUs, but {nodes} nodes with "
            f"{builder.resources.gpu_count} GPUs each have {total}; make them equal",
            field=f"{_PATH}.{'tensorParallelSize' if config.tensor_parallel_size else 'pipelineParallelSize'}",
        )
    for path, flag, short, value, given in (
        (f"{_PATH}.tensorParallelSize", "--tensor-parallel-size", "-tp", size, config.tensor_parallel_size),
        (f"{_PATH}.pipelineParallelSize", "--pipeline-parallel-size", "-pp", stages, config.pipeline_parallel_size),
    ):
        if given is not None:
            builder.line.add(path, flag, value)
        else:
            builder.line.default(flag, short, value=value)
    builder.honour(_STRATEGY)


def _add_speculation(builder: ContainerBuilder, block: VLLMSpeculative) -> None:
    builder.honour(f"{_PATH}.speculative.enabled")
    if not block.enabled or not block.model:
        return
    settings = {"model": block.model, "num_speculative_tokens": block.num_speculative_tokens}
    builder.line.add(f"{_PATH}.speculative.model", "--speculative-config", json.dumps(settings))
    builder.honour(f"{_PATH}.speculative.numSpeculativeTokens")


_IMAGE: Final = "vllm/vllm-openai:v0.25.1"
RUNTIME: Final = Runtime(name="vllm", plan=plan, fetches=fetches_repositories, images={"": _IMAGE, "cuda": _IMAGE})
