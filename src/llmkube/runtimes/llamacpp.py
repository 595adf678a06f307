"""llama.cpp's server, planned: the fields of a service and its model become one command line.

Flags move between llama.cpp versions, so a field's flag is written only if the engine's `--help` lists it. A field that
was given but found no flag is reported in `LaunchPlan.not_honoured`, as is every field that means nothing on a host.
"""

from collections.abc import Iterator
from typing import Final

import attrs

from llmkube.k8s.crd.inferenceservice import InferenceService, InferenceServiceSpec
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.serving import SpeculativeDecoding
from llmkube.k8s.fields import changed_paths
from llmkube.runtimes.demand import demand_of
from llmkube.runtimes.environment import plan_environment
from llmkube.runtimes.llama_flags import (
    check_extra_args,
    flags_in,
    parse_help,
    parse_switches,
    parse_version,
    render_extra_args,
)
from llmkube.runtimes.plan import EngineInfo, LaunchPlan, PlanError, Slot
from llmkube.weights.gguf import GGUFFacts
from llmkube.weights.shape import Shape
from llmkube.weights.sizing import default_cache_ram_bytes
from llmkube.weights.store import WeightsFile

__all__ = ["check", "mode_of", "parse_help", "parse_switches", "parse_version", "plan"]

RUNTIME: Final = "llamacpp"
DEFAULT_CONTEXT: Final = 4096
"""Tokens when spec.contextSize is unset and the model was trained for at least as many."""
ALL_LAYERS: Final = 99
VERBOSITY: Final = 4
"""llama.cpp's level 4 prints buffer sizes at start; 5 would print what users ask."""
EMBEDDING_BATCH: Final = 2048
"""Tokens. An embedding model sees a text in one physical batch or not at all; llama.cpp's own 512 are a paragraph."""

_UNQUANTIZED: Final = (None, "f16", "f32", "bf16")

# Fields that take effect on a host without reaching the command line
_HONOURED_ELSEWHERE: Final = frozenset(
    {
        "spec.modelRef",
        "spec.runtime",
        "spec.replicas",
        "spec.suspend",
        "spec.priority",
        "spec.evictionProtection",
        "spec.mode",
        "spec.endpoint.path",
        "spec.env",
        "spec.extraArgs",
        "Model.spec.source",
        "Model.spec.sha256",
        "Model.spec.sourceSecretRef.name",
        "Model.spec.files",
        "Model.spec.format",
        "Model.spec.quantization",
        "Model.spec.hardware.accelerator",
        "Model.spec.hardware.memoryBudget",
        "Model.spec.hardware.memoryFraction",
        "Model.spec.hardware.gpu.enabled",
    }
)


def check(isvc: InferenceService, model: Model) -> None:
    """Refuse what the objects alone show to be impossible, before anything is downloaded.

    Raises:
        PlanError: The field that stands in the way, and what to do about it.
    """
    spec = isvc.spec
    if model.spec.format != "gguf":
        raise PlanError(f"llama.cpp reads gguf, not {model.spec.format}", field="Model.spec.format")
    if spec.flash_attention is False and (spec.cache_type_custom_v or spec.cache_type_v) not in _UNQUANTIZED:
        raise PlanError("a quantized V cache needs flash attention, which is turned off", field="spec.cacheTypeV")
    check_extra_args(spec.extra_args)
    plan_environment(spec.env)


def plan(
    isvc: InferenceService, model: Model, weights: WeightsFile, gguf: GGUFFacts, engine: EngineInfo, *, alias: str
) -> LaunchPlan:
    """Return the command line for this service on this engine.

    Raises:
        PlanError: As `check`, and when extraArgs has a flag that the engine does not know.
    """
    check(isvc, model)
    spec = isvc.spec
    context = spec.context_size or min(gguf.context_length or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
    line = _Line(engine)
    line.argv += [Slot.PROGRAM, "--model", Slot.MODEL, "--host", Slot.HOST, "--port", Slot.PORT, "--alias", alias]
    line.argv += ["--ctx-size", str(context), "--parallel", str(spec.parallel_slots)]
    line.honoured |= {"spec.contextSize", "spec.parallelSlots"}
    _add_placement(line, spec, model)
    _add_memory(line, spec)
    _add_rope(line, spec)
    _add_answers(line, spec)
    _add_speculation(line, spec.speculative_decoding)
    _add_mode(line, spec, gguf, context)
    _add_ours(line, flags_in(spec.extra_args))
    _limit_prompt_cache(line, flags_in(spec.extra_args), gguf.shape)
    line.argv += render_extra_args(spec.extra_args, engine)
    return LaunchPlan(
        argv=tuple(line.argv),
        env=plan_environment(spec.env),
        runtime=RUNTIME,
        alias=alias,
        weights_identity=weights.identity,
        not_honoured=tuple(path for path in _given(isvc, model) if path not in line.honoured | _HONOURED_ELSEWHERE),
        demand=demand_of(line.argv, engine),
    )


def mode_of(spec: InferenceServiceSpec) -> str:
    """Return `chat`, `embedding` or `rerank`: what the spec says, else what its endpoint's path tells."""
    if spec.mode:
        return spec.mode
    last = spec.endpoint.path.rstrip("/").rpartition("/")[2]
    return {"embeddings": "embedding", "rerank": "rerank", "reranking": "rerank"}.get(last, "chat")


@attrs.define(eq=False)
class _Line:
    """A command line that is being written, and the fields that have found a flag in it."""

    engine: EngineInfo
    argv: list[str] = attrs.Factory(list)
    honoured: set[str] = attrs.Factory(set)

    def add(self, path: str, flag: str, *values: object) -> None:
        """Write the flag for the field at `path`, if the engine knows it."""
        if flag in self.engine.flags:
            self.argv += [flag, *map(str, values)]
            self.honoured.add(path)

    def default(self, given: frozenset[str], *spellings: str, value: str = "") -> None:
        """Write a flag of ours in the spelling that the engine knows, unless the user chose one of them."""
        flag = self.engine.first_known(*spellings)
        if flag and not given.intersection(spellings):
            self.argv += [flag, value] if value else [flag]


def _given(isvc: InferenceService, model: Model) -> Iterator[str]:
    yield from changed_paths(isvc.spec, "spec")
    yield from changed_paths(model.spec, "Model.spec")


def _add_placement(line: _Line, spec: InferenceServiceSpec, model: Model) -> None:
    hardware = model.spec.hardware
    on_gpu = hardware.accelerator != "cpu"
    layers = 0
    if on_gpu:
        wanted = hardware.gpu.layers if hardware.gpu else None
        layers = wanted if wanted and wanted > 0 else ALL_LAYERS
        line.honoured.add("Model.spec.hardware.gpu.layers")
    line.argv += ["--n-gpu-layers", str(layers)]
    if hardware.gpu and hardware.gpu.count == 1 and on_gpu:
        line.honoured.add("Model.spec.hardware.gpu.count")  # a Mac has one
    flash = {True: "on", False: "off", None: "on" if hardware.accelerator == "metal" else "auto"}
    _add_flash_attention(line, flash[spec.flash_attention])


def _add_flash_attention(line: _Line, wish: str) -> None:
    """Write the flag as this build has it: older ones have a switch, whose absence means off."""
    path, flag = "spec.flashAttention", "--flash-attn"
    if flag not in line.engine.switches:
        line.add(path, flag, wish)
    elif wish == "on":
        line.add(path, flag)
    else:
        line.honoured.add(path)


def _add_memory(line: _Line, spec: InferenceServiceSpec) -> None:
    k, v = spec.cache_type_custom_k, spec.cache_type_custom_v
    fields: tuple[tuple[str, str, object], ...] = (
        ("spec.cacheTypeCustomK" if k else "spec.cacheTypeK", "--cache-type-k", k or spec.cache_type_k),
        ("spec.cacheTypeCustomV" if v else "spec.cacheTypeV", "--cache-type-v", v or spec.cache_type_v),
        ("spec.batchSize", "--batch-size", spec.batch_size),
        ("spec.uBatchSize", "--ubatch-size", spec.u_batch_size),
        ("spec.noKvOffload", "--no-kv-offload", spec.no_kv_offload),
        ("spec.moeCPUOffload", "--cpu-moe", spec.moe_cpu_offload),
        ("spec.moeCPULayers", "--n-cpu-moe", spec.moe_cpu_layers),
        ("spec.tensorOverrides", "--override-tensor", ",".join(spec.tensor_overrides) or None),
        # repeated, not joined: a string among the values may hold commas
        *(("spec.metadataOverrides", "--override-kv", override) for override in spec.metadata_overrides),
        ("spec.noWarmup", "--no-warmup", spec.no_warmup),
    )
    for path, flag, value in fields:
        if value is False:
            line.honoured.add(path)  # leaving a switch out is what was asked for
        elif value is not None:
            line.add(path, flag, *(() if value is True else (value,)))


def _add_rope(line: _Line, spec: InferenceServiceSpec) -> None:
    rope = spec.rope_scaling
    if rope is None or rope.type == "longrope":  # llama-server takes longrope from the file only: no flag asks for it
        return
    line.add("spec.ropeScaling.type", "--rope-scaling", rope.type)
    if rope.factor:
        line.add("spec.ropeScaling.factor", "--rope-scale", rope.factor)
    if rope.original_context:
        line.add("spec.ropeScaling.originalContext", "--yarn-orig-ctx", rope.original_context)


def _add_answers(line: _Line, spec: InferenceServiceSpec) -> None:
    if spec.jinja is not None:
        line.add("spec.jinja", "--jinja" if spec.jinja else "--no-jinja")
    if spec.reasoning_budget is not None:  # 0 is a wish: do not think
        line.add("spec.reasoningBudget", "--reasoning-budget", spec.reasoning_budget)
        if spec.reasoning_budget_message:
            line.add("spec.reasoningBudgetMessage", "--reasoning-budget-message", spec.reasoning_budget_message)


def _add_speculation(line: _Line, speculation: SpeculativeDecoding | None) -> None:
    """Guess from n-grams or the model's own heads; a draft model would be a second file, which nobody fetches yet."""
    if speculation is None or speculation.draft_model or speculation.draft_model_ref:
        return
    path = "spec.speculativeDecoding"
    kind = {"mtp": "draft-mtp", "disabled": "none"}.get(speculation.type, speculation.type)
    line.add(f"{path}.type", "--spec-type", kind)
    if speculation.n_draft_max is not None:
        line.add(f"{path}.nDraftMax", "--spec-draft-n-max", speculation.n_draft_max)
    if speculation.p_min is not None:
        line.add(f"{path}.pMin", "--spec-draft-p-min", speculation.p_min)


def _add_mode(line: _Line, spec: InferenceServiceSpec, gguf: GGUFFacts, context: int) -> None:
    given = flags_in(spec.extra_args)
    mode = mode_of(spec)
    if mode == "chat":
        return
    line.argv.append("--embedding")
    if mode == "rerank":
        line.argv.append("--reranking")
        line.default(given, "--pooling", value="rank")
    elif not gguf.pooling_type:  # most embedding models say how to pool; without it the engine refuses /v1/embeddings
        line.default(given, "--pooling", value="last")
    batch = str(min(context, EMBEDDING_BATCH))
    if spec.u_batch_size is None:
        line.default(given, "--ubatch-size", value=batch)
        if spec.batch_size is None:
            line.default(given, "--batch-size", value=batch)
    # its prompt cache would take up to 8 GiB outside the model's buffers, and no embedding ever reads it
    line.default(given, "--cache-ram", "-cram", value="0")


def _add_ours(line: _Line, given: frozenset[str]) -> None:
    line.default(given, "--metrics")
    line.default(given, "--fit", value="off")  # the host places models; the engine must not shrink them in silence
    line.default(given, "--no-ui", "--no-webui")
    # builds from before --fit print buffer sizes anyway, and prompts at level 4
    if "--fit" in line.engine.flags and not given & {"-v", "--verbose", "--log-verbose"}:
        line.default(given, "--verbosity", "-lv", "--log-verbosity", value=str(VERBOSITY))


def _limit_prompt_cache(line: _Line, given: frozenset[str], shape: Shape | None) -> None:
    """Give the prompt cache a limit that can be reserved: the engine's own, 8 GiB, may be more than the model needs."""
    if shape is not None and "--cache-ram" not in line.argv:
        size_bytes = default_cache_ram_bytes(shape, demand_of(line.argv, line.engine))
        line.default(given, "--cache-ram", "-cram", value=str(size_bytes >> 20))
