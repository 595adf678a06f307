"""What the fields of a service mean to llama.cpp's server: one copy, for processes on hosts and containers in pods."""

import re
from typing import Final

from llmkube.k8s.crd.inferenceservice import InferenceServiceSpec
from llmkube.k8s.crd.placement import GPU
from llmkube.k8s.crd.serving import SpeculativeDecoding
from llmkube.runtimes.arguments import EXTRA_ARGS, CommandLine, flags_in
from llmkube.runtimes.llama_flags import TRAINED_CONTEXT, known_flags
from llmkube.runtimes.llama_verdicts import spellings_of
from llmkube.runtimes.plan import PlanError

DEFAULT_CONTEXT: Final = 4096
"""Tokens when spec.contextSize is unset and the model was trained for at least as many."""
ALL_LAYERS: Final = 99
EMBEDDING_BATCH: Final = 2048
"""Tokens. An embedding model sees a text in one physical batch or not at all; llama.cpp's own 512 are a paragraph."""

_UNQUANTIZED: Final = (None, "f16", "f32", "bf16")
DRAFT_FLAGS: Final = frozenset(spellings_of("--spec-draft-model"))
ALIAS_FLAGS: Final = frozenset(spellings_of("--alias"))
WRITTEN_FLAGS: Final = ALIAS_FLAGS | {*spellings_of("--embedding"), *spellings_of("--rerank")}
"""What extraArgs say and the plan writes by itself, having read it."""

_STRETCH_FLAGS: Final = frozenset(
    flag
    for name in ("--rope-scaling", "--rope-scale", "--rope-freq-base", "--rope-freq-scale", "--yarn-orig-ctx")
    for flag in (*spellings_of(name), *spellings_of("--override-kv"))
)
"""Flags after which the engine takes another context for the trained one, or may."""
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_EMBEDDING: Final = frozenset({"--embedding", "--embeddings"})
_RERANK: Final = frozenset({"--rerank", "--reranking"})
_SPEC_TYPES: Final = {"mtp": "draft-mtp", "draft": "draft-simple", "disabled": "none"}


def check_fields(spec: InferenceServiceSpec) -> None:
    """Refuse fields that exclude each other.

    Raises:
        PlanError: The field that stands in the way, and what to do about it.
    """
    explicit = _mode_from_args(spec)
    if explicit and spec.mode and spec.mode != explicit and (spec.mode, explicit) != ("rerank", "embedding"):
        raise PlanError(f"extraArgs ask for {explicit}: leave one of the two out", field="spec.mode")
    if spec.flash_attention is False and (spec.cache_type_custom_v or spec.cache_type_v) not in _UNQUANTIZED:
        raise PlanError("a quantized V cache needs flash attention, which is turned off", field="spec.cacheTypeV")


def mode_of(spec: InferenceServiceSpec) -> str:
    """Return `chat`, `embedding` or `rerank`: what the spec says or its extraArgs, else what its path implies."""
    if mode := spec.mode or _mode_from_args(spec):
        return mode
    last = spec.endpoint.path.rstrip("/").rpartition("/")[2]
    return {"embeddings": "embedding", "rerank": "rerank", "reranking": "rerank"}.get(last, "chat")


def _mode_from_args(spec: InferenceServiceSpec) -> str:
    flags = flags_in(spec.extra_args)
    return "rerank" if flags & _RERANK else "embedding" if flags & _EMBEDDING else ""


def additional_ids(name: str, spec: InferenceServiceSpec) -> tuple[str, ...]:
    """Return the model ids besides a service's name that clients may send: `spec.aliases`, and what `--alias` says."""
    texts = [text for each in known_flags(spec.extra_args) if each.flag in ALIAS_FLAGS for text in each.values]
    explicit = (one for text in texts for one in map(str.strip, text.split(",")) if one)
    return tuple(one for one in dict.fromkeys((*spec.aliases, *explicit)) if one != name)


def draft_of(spec: InferenceServiceSpec) -> str:
    """Return the model that shall guess ahead on a host: a Model's name, or a file's absolute path; or nothing.

    Raises:
        PlanError: extraArgs name one that is neither, or another one than the field.
    """
    requested = spec.speculative_decoding
    named = (requested.draft_model_ref if requested else None) or ""
    explicit = [each.values[-1] for each in known_flags(spec.extra_args) if each.flag in DRAFT_FLAGS and each.values]
    if named and not _NAME.fullmatch(named):
        raise PlanError("name a Model of this namespace", field="spec.speculativeDecoding.draftModelRef")
    if not explicit:
        return named
    if named and explicit[-1] != named:
        problem = "--spec-draft-model is decided by spec.speculativeDecoding.draftModelRef: leave one of the two out"
        raise PlanError(problem, field=EXTRA_ARGS)
    if not explicit[-1].startswith("/") and not _NAME.fullmatch(explicit[-1]):
        raise PlanError(
            "--spec-draft-model names the file of a host only by an absolute path below a folder that its owner lists "
            "(--allow-local-sources), or else a Model of this namespace",
            field=EXTRA_ARGS,
        )
    return explicit[-1]


def max_context(spec: InferenceServiceSpec, trained: int | None) -> int | None:
    """Return the tokens beyond which more context has no effect, since a slot gets no more than was trained.

    llama.cpp caps each slot so (`n_ctx_slot`), and reserves the memory of the rest in vain. None where that is not
    known: rope scaling and overrides of the header change what the engine takes for trained.
    """
    stretched = spec.rope_scaling is not None or spec.metadata_overrides or flags_in(spec.extra_args) & _STRETCH_FLAGS
    return None if stretched or not trained else trained * max(1, spec.parallel_slots)


def unused_context(spec: InferenceServiceSpec, trained: int | None) -> tuple[str, ...]:
    """Return what of `spec.contextSize` has no effect, in words; nothing where all of it has."""
    limit = max_context(spec, trained)
    if limit is None or (spec.context_size or 0) <= limit:
        return ()
    slots = f" in each of {spec.parallel_slots} slots" if spec.parallel_slots > 1 else ""
    return (f"spec.contextSize beyond {limit} (the model was trained for {trained} tokens{slots})",)


def context_of(spec: InferenceServiceSpec, trained: int | None) -> int:
    """Return the context in tokens: what the service asks for, else what the model was trained for, within reason.

    No more than has an effect (`max_context`). `--ctx-size 0` asks for all that it was trained for; 0 comes back where
    that is not known, and the engine reads it.
    """
    if spec.context_size == TRAINED_CONTEXT:
        return trained or TRAINED_CONTEXT
    wanted = spec.context_size or min(trained or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
    limit = max_context(spec, trained)
    return wanted if limit is None else min(wanted, limit)


def layers_of(gpu: GPU | None) -> int:
    """Return how many layers go to the GPU: all of them, unless the Model names a number."""
    wanted = gpu.layers if gpu else None
    return ALL_LAYERS if wanted is None or wanted < 0 else wanted


def add_size(line: CommandLine, spec: InferenceServiceSpec, context: int) -> None:
    """Write context and slots, which are never left to the engine."""
    line.argv += ["--ctx-size", str(context), "--parallel", str(spec.parallel_slots)]
    line.honoured |= {"spec.contextSize", "spec.parallelSlots"}


def add_flash_attention(line: CommandLine, requested: str) -> None:
    """Write the flag as this build has it: older ones have a switch, whose absence means off."""
    path, flag = "spec.flashAttention", "--flash-attn"
    if line.engine is None or flag not in line.engine.switches:
        line.add(path, flag, requested)
    elif requested == "on":
        line.add(path, flag)
    else:
        line.honoured.add(path)


def add_memory(line: CommandLine, spec: InferenceServiceSpec) -> None:
    """Write what decides the memory: caches, batches, experts, overrides."""
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


def add_rope(line: CommandLine, spec: InferenceServiceSpec) -> None:
    """Write how the context is stretched."""
    rope = spec.rope_scaling
    if rope is None or rope.type == "longrope":  # llama-server takes longrope from the file only: no flag asks for it
        return
    line.add("spec.ropeScaling.type", "--rope-scaling", rope.type)
    if rope.factor:
        line.add("spec.ropeScaling.factor", "--rope-scale", rope.factor)
    if rope.original_context:
        line.add("spec.ropeScaling.originalContext", "--yarn-orig-ctx", rope.original_context)


def add_chat_options(line: CommandLine, spec: InferenceServiceSpec) -> None:
    """Write how the model talks: its template, and for how long it thinks."""
    if spec.jinja is not None:
        line.add("spec.jinja", "--jinja" if spec.jinja else "--no-jinja")
    if spec.reasoning_budget is not None:  # 0 is a wish: do not think
        line.add("spec.reasoningBudget", "--reasoning-budget", spec.reasoning_budget)
        if spec.reasoning_budget_message:
            line.add("spec.reasoningBudgetMessage", "--reasoning-budget-message", spec.reasoning_budget_message)


def add_speculation(line: CommandLine, speculation: SpeculativeDecoding | None, draft: str = "") -> None:
    """Guess ahead: by a draft model, from n-grams, or by the model's own heads.

    Args:
        line: The command line.
        speculation: What the service asks for.
        draft: The word for the draft model; empty where there is none, or where it is not fetched: a service that asks
            for one then gets no speculation.
    """
    if speculation is None or ((speculation.draft_model or speculation.draft_model_ref) and not draft):
        return
    path = "spec.speculativeDecoding"
    line.add(f"{path}.type", "--spec-type", _SPEC_TYPES.get(speculation.type, speculation.type))
    if draft:
        line.add(f"{path}.draftModel" if speculation.draft_model else f"{path}.draftModelRef", "-md", draft)
    if speculation.n_draft_max is not None:
        line.add(f"{path}.nDraftMax", "--spec-draft-n-max", speculation.n_draft_max)
    if speculation.p_min is not None:
        line.add(f"{path}.pMin", "--spec-draft-p-min", speculation.p_min)


def add_mode(line: CommandLine, spec: InferenceServiceSpec, context: int, *, pools: bool) -> None:
    """Make it an embedding or a reranking server, if the service wants one.

    Args:
        line: The command line.
        spec: What is asked.
        context: Tokens.
        pools: Whether the model's own header says how to pool.
    """
    mode = mode_of(spec)
    if mode == "chat":
        return
    line.argv.append("--embedding")
    if mode == "rerank":
        line.argv.append("--reranking")
        line.default("--pooling", value="rank")
    elif not pools:  # without it the engine refuses /v1/embeddings
        line.default("--pooling", value="last")
    batch = str(min(context or EMBEDDING_BATCH, EMBEDDING_BATCH))
    if spec.u_batch_size is None:
        line.default("--ubatch-size", value=batch)
        if spec.batch_size is None:
            line.default("--batch-size", value=batch)
    # its prompt cache would take up to 8 GiB outside the model's buffers, and no embedding ever reads it
    line.default("--cache-ram", "-cram", value="0")
