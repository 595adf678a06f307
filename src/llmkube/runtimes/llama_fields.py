"""Translate the fields of a service into flags of llama.cpp's server, for processes on hosts and containers in pods."""

import re
from typing import Final

from llmkube.k8s.crd.inferenceservice import InferenceService, InferenceServiceSpec
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.placement import GPU
from llmkube.k8s.crd.serving import SpeculativeDecoding
from llmkube.runtimes.arguments import EXTRA_ARGS, CommandLine, flags_in
from llmkube.runtimes.llama_flags import TRAINED_CONTEXT, known_flags, read_as_fields
from llmkube.runtimes.llama_verdicts import spellings_of
from llmkube.runtimes.plan import PlanError
from llmkube.weights.source import NO_PROJECTOR

DEFAULT_CONTEXT: Final = 4096
"""Tokens when spec.contextSize is unset and the model was trained for at least as many."""
ALL_LAYERS: Final = 99
MIN_SLOT: Final = 256
"""Tokens of one slot at least: a context that is not shared is rounded up to so many for each."""
EMBEDDING_BATCH: Final = 2048
"""Tokens. A text to embed must fit into one physical batch; llama.cpp's default of 512 is only a paragraph."""

POOLING_LAST: Final = 3
"""Number of the pooling `last` in a header."""
MIN_EMBEDDING_BATCH: Final = 512
"""Tokens of a text that every embedding server takes, unless its context is smaller."""
_UNIFIED: Final = frozenset({"-kvu", "--kv-unified"})
_RUNTIMES: Final = frozenset({"llamacpp", "llama-server", "llamacpp-router"})
_UNQUANTIZED: Final = (None, "f16", "f32", "bf16")
DRAFT_FLAGS: Final = frozenset(spellings_of("--spec-draft-model"))
ALIAS_FLAGS: Final = frozenset(spellings_of("--alias"))
WRITTEN_FLAGS: Final = ALIAS_FLAGS | {*spellings_of("--embedding"), *spellings_of("--rerank")}
"""Flags that the plan reads from extraArgs and writes itself."""

_STRETCH_FLAGS: Final = frozenset(
    flag
    for name in ("--rope-scaling", "--rope-scale", "--rope-freq-base", "--rope-freq-scale", "--yarn-orig-ctx")
    for flag in (*spellings_of(name), *spellings_of("--override-kv"))
)
"""Flags that can change the trained context that the engine assumes."""
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_EMBEDDING: Final = frozenset({"--embedding", "--embeddings"})
_RERANK: Final = frozenset({"--rerank", "--reranking"})
_SPEC_TYPES: Final = {"mtp": "draft-mtp", "draft": "draft-simple", "disabled": "none"}


def check_fields(spec: InferenceServiceSpec) -> None:
    """Reject fields that are mutually exclusive.

    Raises:
        PlanError: The invalid field, with a fix.
    """
    explicit = _mode_from_args(spec)
    if explicit and spec.mode and spec.mode != explicit and (spec.mode, explicit) != ("rerank", "embedding"):
        raise PlanError(f"extraArgs set {explicit}; remove one of the two", field="spec.mode")
    _check_names(spec)
    if spec.flash_attention is False and (spec.cache_type_custom_v or spec.cache_type_v) not in _UNQUANTIZED:
        raise PlanError("a quantized V cache needs spec.flashAttention, which is false", field="spec.cacheTypeV")


def _check_names(spec: InferenceServiceSpec) -> None:
    names = adapter_names(spec)
    if names and mode_of(spec) != "chat":
        raise PlanError("only chats and completions can name an adapter; remove the name", field="spec.adapters")
    if repeated := {one for one in names if names.count(one) > 1}:
        raise PlanError(f"{min(repeated)!r} is the name of several adapters; give each its own", field="spec.adapters")
    for preset in spec.presets:
        if unknown := {each.name for each in preset.adapters}.difference(names):
            message = f"no adapter is named {min(unknown)!r}; the names in spec.adapters: {', '.join(names) or 'none'}"
            raise PlanError(message, field=f"spec.presets[{preset.name}].adapters")


def mode_of(spec: InferenceServiceSpec) -> str:
    """Return `chat`, `embedding` or `rerank`, from `spec.mode` or extraArgs, or else from the endpoint's path."""
    if mode := spec.mode or _mode_from_args(spec):
        return mode
    last = spec.endpoint.path.rstrip("/").rpartition("/")[2]
    return {"embeddings": "embedding", "rerank": "rerank", "reranking": "rerank"}.get(last, "chat")


def _mode_from_args(spec: InferenceServiceSpec) -> str:
    flags = flags_in(spec.extra_args)
    return "rerank" if flags & _RERANK else "embedding" if flags & _EMBEDDING else ""


def additional_ids(name: str, spec: InferenceServiceSpec) -> tuple[str, ...]:
    """Return the model ids that clients may send besides a service's name: `engine_ids`, and those with settings."""
    named = (*engine_ids(name, spec), *(each.name for each in spec.presets), *adapter_names(spec))
    return tuple(one for one in dict.fromkeys(named) if one != name)


def adapter_names(spec: InferenceServiceSpec) -> tuple[str, ...]:
    """Return the names of the adapters that requests choose."""
    return tuple(each.name for each in spec.adapters if each.name)


def engine_ids(name: str, spec: InferenceServiceSpec) -> tuple[str, ...]:
    """Return the ids that the engine itself is given besides a service's name: `spec.aliases`, values of `--alias`."""
    texts = [text for each in known_flags(spec.extra_args) if each.flag in ALIAS_FLAGS for text in each.values]
    explicit = (one for text in texts for one in map(str.strip, text.split(",")) if one)
    return tuple(one for one in dict.fromkeys((*spec.aliases, *explicit)) if one != name)


def draft_of(spec: InferenceServiceSpec) -> str:
    """Return the draft model for speculative decoding on a host: a Model's name, a file's absolute path, or "".

    Raises:
        PlanError: extraArgs name neither, or another draft model than the field does.
    """
    requested = spec.speculative_decoding
    named = (requested.draft_model_ref if requested else None) or ""
    explicit = [each.values[-1] for each in known_flags(spec.extra_args) if each.flag in DRAFT_FLAGS and each.values]
    if named and not _NAME.fullmatch(named):
        raise PlanError(
            "not a valid name; name a Model in this namespace", field="spec.speculativeDecoding.draftModelRef"
        )
    if not explicit:
        return named
    if named and explicit[-1] != named:
        problem = "--spec-draft-model is controlled by spec.speculativeDecoding.draftModelRef; remove one of the two"
        raise PlanError(problem, field=EXTRA_ARGS)
    if not explicit[-1].startswith("/") and not _NAME.fullmatch(explicit[-1]):
        raise PlanError(
            "--spec-draft-model is neither a Model nor a path; name a Model in this namespace, or the absolute path of "
            "a file below a folder that --allow-local-sources lists",
            field=EXTRA_ARGS,
        )
    return explicit[-1]


_NO_PROJECTOR_FLAGS: Final = frozenset({"--no-mmproj", "--no-mmproj-auto"})


def takes_projector(service: InferenceService, model: Model) -> bool:
    """Return whether llama.cpp is to load the Model's projector: for chats, if there is one, or if the Model names it.

    A service goes without by `--no-mmproj` in its extraArgs.
    """
    spec, named = service.spec, model.spec.mmproj
    refused = named == NO_PROJECTOR or spec.runtime not in _RUNTIMES or flags_in(spec.extra_args) & _NO_PROJECTOR_FLAGS
    return not refused and bool(named or mode_of(spec) == "chat")


def max_context(spec: InferenceServiceSpec, trained: int | None) -> int | None:
    """Return the context in tokens beyond which more has no effect; None if not known.

    llama.cpp limits each slot to the trained context (`n_ctx_slot`), but allocates memory for the rest. With rope
    scaling or overrides of the header, the trained context of the engine is not known.
    """
    stretched = spec.rope_scaling is not None or spec.metadata_overrides or flags_in(spec.extra_args) & _STRETCH_FLAGS
    return None if stretched or not trained else trained * max(1, spec.parallel_slots)


def unused_context(spec: InferenceServiceSpec, trained: int | None) -> tuple[str, ...]:
    """Return a description of the part of `spec.contextSize` that has no effect; empty if there is none."""
    limit = max_context(spec, trained)
    if limit is None or (spec.context_size or 0) <= limit:
        return ()
    slots = f" in each of {spec.parallel_slots} slots" if spec.parallel_slots > 1 else ""
    return (f"spec.contextSize beyond {limit} (the model was trained for {trained} tokens{slots})",)


def context_of(spec: InferenceServiceSpec, trained: int | None) -> int:
    """Return the context in tokens: that of the spec, or else the trained one, up to `DEFAULT_CONTEXT`.

    It is limited to `max_context`. `--ctx-size 0` requests the trained context; if that is not known, the result is 0,
    which the engine resolves.
    """
    if spec.context_size == TRAINED_CONTEXT:
        return trained or TRAINED_CONTEXT
    wanted = spec.context_size or min(trained or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
    limit = max_context(spec, trained)
    return wanted if limit is None else min(wanted, limit)


def answer_tokens(spec: InferenceServiceSpec, context: int) -> int:
    """Return the longest answer in tokens: that of the spec, or else the context.

    If the context is not known (0), the result is 0: the engine stops there; one that shifts its context does not stop,
    so it gets `DEFAULT_CONTEXT`.
    """
    return spec.max_answer_tokens or context or (DEFAULT_CONTEXT if _shifts_context(spec) else 0)


def _shifts_context(spec: InferenceServiceSpec) -> bool:
    flags = flags_in(spec.extra_args)
    return "--context-shift" in flags or any(each.name == "LLAMA_ARG_CONTEXT_SHIFT" for each in spec.env)


def request_limit(service: InferenceService, model: Model) -> int:
    """Return the longest answer that a request may ask for; 0 if the engine itself bounds it, or is not llama.cpp.

    llama.cpp's flag applies only to requests without a limit of their own. Without a shift of the context, each answer
    ends with it.
    """
    if service.spec.runtime not in _RUNTIMES:
        return 0
    try:
        service, model = read_as_fields(service, model)
    except PlanError:
        return 0  # such a service does not run
    spec, gguf = service.spec, model.status.gguf
    if mode_of(spec) != "chat" or (spec.max_answer_tokens is None and not _shifts_context(spec)):
        return 0
    return answer_tokens(spec, context_of(spec, gguf.context_length if gguf else None))


def layers_of(gpu: GPU | None) -> int:
    """Return the number of layers on the GPU: all of them, unless the Model sets a number."""
    wanted = gpu.layers if gpu else None
    return ALL_LAYERS if wanted is None or wanted < 0 else wanted


def add_size(line: CommandLine, spec: InferenceServiceSpec, context: int) -> None:
    """Write context and slots; the engine's own defaults are never used.

    Raises:
        PlanError: The context that slots share is too small for them.
    """
    unified = [each.flag for each in known_flags(spec.extra_args) if each.flag in spellings_of("--kv-unified")]
    if unified and unified[-1] in _UNIFIED and 0 < context < MIN_SLOT * spec.parallel_slots:
        share = f"--kv-unified makes {spec.parallel_slots} slots share {context} tokens"
        least = MIN_SLOT * spec.parallel_slots
        raise PlanError(f"{share}; write at least {least}, or reduce spec.parallelSlots", field="spec.contextSize")
    line.argv += ["--ctx-size", str(context), "--parallel", str(spec.parallel_slots)]
    line.honoured |= {"spec.contextSize", "spec.parallelSlots"}


def add_flash_attention(line: CommandLine, requested: str) -> None:
    """Add the flag in the form of this build: in older ones it is a switch, off by default."""
    path, flag = "spec.flashAttention", "--flash-attn"
    if line.engine is None or flag not in line.engine.switches:
        line.add(path, flag, requested)
    elif requested == "on":
        line.add(path, flag)
    else:
        line.honoured.add(path)


def add_memory(line: CommandLine, spec: InferenceServiceSpec) -> None:
    """Add the flags that determine memory: caches, batches, experts, overrides."""
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
        # repeated, not joined: a value may contain commas
        *(("spec.metadataOverrides", "--override-kv", override) for override in spec.metadata_overrides),
        ("spec.noWarmup", "--no-warmup", spec.no_warmup),
    )
    for path, flag, value in fields:
        if value is False:
            line.honoured.add(path)  # without the flag, the switch is off
        elif value is not None:
            line.add(path, flag, *(() if value is True else (value,)))


def add_rope(line: CommandLine, spec: InferenceServiceSpec) -> None:
    """Add the flags for rope scaling."""
    rope = spec.rope_scaling
    if rope is None or rope.type == "longrope":  # llama-server takes longrope from the file only: it has no flag
        return
    line.add("spec.ropeScaling.type", "--rope-scaling", rope.type)
    if rope.factor:
        line.add("spec.ropeScaling.factor", "--rope-scale", rope.factor)
    if rope.original_context:
        line.add("spec.ropeScaling.originalContext", "--yarn-orig-ctx", rope.original_context)


def add_chat_options(line: CommandLine, spec: InferenceServiceSpec) -> None:
    """Add the flags for chat templates and reasoning."""
    if spec.jinja is not None:
        line.add("spec.jinja", "--jinja" if spec.jinja else "--no-jinja")
    if spec.reasoning_budget is not None:  # 0 is a value: no reasoning
        line.add("spec.reasoningBudget", "--reasoning-budget", spec.reasoning_budget)
        if spec.reasoning_budget_message:
            line.add("spec.reasoningBudgetMessage", "--reasoning-budget-message", spec.reasoning_budget_message)


def add_speculation(line: CommandLine, speculation: SpeculativeDecoding | None, draft: str = "") -> None:
    """Add the flags for speculative decoding: by a draft model, from n-grams, or by the model's own heads.

    Args:
        line: The command line.
        speculation: The service's settings.
        draft: The argument for the draft model; "" if there is none, or if it is not fetched. A service with a draft
            model then runs without speculative decoding.
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


def _add_answer_limit(line: CommandLine, spec: InferenceServiceSpec, context: int) -> None:
    if spec.max_answer_tokens is not None:
        line.add("spec.maxAnswerTokens", "--n-predict", spec.max_answer_tokens)
    elif tokens := answer_tokens(spec, context):
        line.default("--n-predict", value=tokens)


def add_mode(line: CommandLine, spec: InferenceServiceSpec, context: int, *, pools: bool, splits: bool = True) -> None:
    """Add the flags of an embedding or reranking server, or else the limit of answers.

    Args:
        line: The command line.
        spec: The service's spec.
        context: Context in tokens.
        pools: Whether the model's header sets the pooling type.
        splits: Whether that is or may be `last`, with which a text may take several batches.

    Raises:
        PlanError: A physical batch is too small for the texts to embed.
    """
    mode = mode_of(spec)
    if mode == "chat":
        _add_answer_limit(line, spec, context)
        return
    line.argv.append("--embedding")
    if mode == "rerank":
        line.argv.append("--reranking")
        line.default("--pooling", value="rank")
    elif not pools:  # without it the engine refuses /v1/embeddings
        line.default("--pooling", value="last")
    pooling = line.explicit.get("--pooling") or ("rank" if mode == "rerank" else "" if pools else "last")
    if pooling != "last" and (pooling or not splits):
        _check_batch(line, spec, context)
    batch = str(min(context or EMBEDDING_BATCH, EMBEDDING_BATCH))
    if spec.u_batch_size is None:
        line.default("--ubatch-size", value=batch)
        if spec.batch_size is None:
            line.default("--batch-size", value=batch)
    # the prompt cache would take up to 8 GiB outside the model's buffers, and embeddings never use it
    line.default("--cache-ram", "-cram", value="0")


def _check_batch(line: CommandLine, spec: InferenceServiceSpec, context: int) -> None:
    """Refuse a physical batch that is too small for a text: with most kinds of pooling, a text must fit into one."""
    fields = (("spec.uBatchSize", spec.u_batch_size, "-ub"), ("spec.batchSize", spec.batch_size, "-b"))
    least = min(context or MIN_EMBEDDING_BATCH, MIN_EMBEDDING_BATCH)
    for field, value, flag in fields:
        text = str(value or line.explicit.get(flag, ""))
        tokens = int(text) if text.isdecimal() else least
        if tokens < least:
            problem = f"it is {tokens}, and a text to embed or to rank must fit into one batch"
            raise PlanError(f"{problem}; write at least {least}, or leave it out", field=field)
