"""llama-server's flags as a table over the engine's CommonParams: the whole truth of what the bundled server honours.

Names and meanings are those of llama.cpp's own llama-server
(https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md). A row that has no effect does not belong.
"""

import argparse
import json
import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

DEFAULT_PORT: Final = 8080

Settings = dict[str, Any]
"""What to set, by attribute of CommonParams."""


class Member(NamedTuple):
    """A member of one of the engine's enumerations, by name: the engine itself is imported only to serve."""

    kind: str
    name: str


class Choice:
    """Read one of a few words as a member: `on auto dio=DIRECT_IO`, where a member is named unlike its word.

    With `many`, read several of them with commas in between, as a list.
    """

    def __init__(self, kind: str, prefix: str, words: str, *, many: bool = False) -> None:
        pairs = (word.partition("=") for word in words.split())
        self._members = {word: Member(kind, prefix + (name or word.upper())) for word, _, name in pairs}
        self._many = many
        self.metavar = "{" + ",".join(self._members) + "}"

    def __call__(self, text: str) -> Member | list[Member]:
        """Argparse calls this with what the user wrote."""
        words = _words(text) if self._many else [text]
        if unknown := [word for word in words if word not in self._members]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(self._members)}")
        members = [self._members[word] for word in words]
        return members if self._many else members[0]


class Value(NamedTuple):
    """A flag with a value, for one or more attributes of the engine's CommonParams (`a.b` reaches into a part)."""

    names: str
    targets: str
    read: Callable[[str], Any]
    help: str
    metavar: str = "N"


class Switch(NamedTuple):
    """A flag without a value, and what it sets."""

    names: str
    sets: Mapping[str, Any]
    help: str


def _one_of(**values: Any) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        if text not in values:
            raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(values)}")
        return values[text]

    return read


def _layers(text: str) -> int:
    return {"auto": -1, "all": -2}.get(text) or int(text)


def _stretch(text: str) -> float:
    factor = float(text)
    if factor <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not above zero")
    return 1 / factor


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _names(text: str) -> set[str]:
    return set(_words(text))


def _numbers(text: str) -> list[float]:
    return [float(word) for word in _words(text)]


def _seed(text: str) -> int:
    return int(text) % 2**32  # -1 is the engine's word for a random one


def _file(text: str) -> str:
    try:
        return Path(text).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise argparse.ArgumentTypeError(f"cannot read {text}: {exc}") from exc


def _keys(text: str) -> list[str]:
    lines = (line.strip() for line in _file(text).splitlines())
    if keys := [line for line in lines if line and not line.startswith("#")]:
        return keys
    raise argparse.ArgumentTypeError(f"{text} holds no key")  # the engine would take an empty list for "let all in"


def _template_values(text: str) -> dict[str, str]:
    values = json.loads(text)
    if not isinstance(values, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object")
    return {name: json.dumps(value) for name, value in values.items()}  # the engine keeps each as JSON text


# Expert weights, as llama.cpp matches them for its own --cpu-moe (LLM_FFN_EXPS_REGEX)
_EXPERTS: Final = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"


def _first_experts(text: str) -> str:
    return ",".join(rf"blk\.{layer}{_EXPERTS}=CPU" for layer in range(int(text)))


_ON_OFF: Final = _one_of(on=True, off=False)
_THINK: Final = _one_of(on=1, off=0, auto=-1)
_CACHE_TYPE: Final = Choice("ggml_type", "GGML_TYPE_", "f32 f16 bf16 q8_0 q4_0 q4_1 iq4_nl q5_0 q5_1")
_FLASH: Final = Choice("llama_flash_attn_type", "LLAMA_FLASH_ATTN_TYPE_", "on=ENABLED off=DISABLED auto")
_LOAD: Final = Choice("llama_load_mode", "LLAMA_LOAD_MODE_", "auto none mmap mlock mmap+mlock=MMAP_MLOCK dio=DIRECT_IO")
_LAZY: Final = Choice("llama_lazy_mode", "LLAMA_LAZY_MODE_", "on auto off")
_SPLIT: Final = Choice("llama_split_mode", "LLAMA_SPLIT_MODE_", "none layer row tensor")
_POOLING: Final = Choice("llama_pooling_type", "LLAMA_POOLING_TYPE_", "none mean cls last rank")
_ROPE: Final = Choice("llama_rope_scaling_type", "LLAMA_ROPE_SCALING_TYPE_", "none linear yarn longrope")
_THOUGHT: Final = Choice(
    "common_reasoning_format", "COMMON_REASONING_FORMAT_", "none auto deepseek deepseek-legacy=DEEPSEEK_LEGACY"
)
_GUESS: Final = Choice(
    "common_speculative_type",
    "COMMON_SPECULATIVE_TYPE_",
    "none draft-simple=DRAFT_SIMPLE draft-eagle3=DRAFT_EAGLE3 draft-mtp=DRAFT_MTP ngram-simple=NGRAM_SIMPLE "
    "ngram-map-k=NGRAM_MAP_K ngram-map-k4v=NGRAM_MAP_K4V ngram-mod=NGRAM_MOD ngram-cache=NGRAM_CACHE",
    many=True,
)
_RANK: Final = Member("llama_pooling_type", "LLAMA_POOLING_TYPE_RANK")

FLAGS: Final[Mapping[str, tuple[Value | Switch, ...]]] = {
    "model and memory": (
        Value("-m --model", "model.path", str, "model file in GGUF", "FILE"),
        Value("-a --alias", "model_alias", _names, "names that the API knows the model by", "NAMES"),
        Value("-c --ctx-size", "n_ctx", int, "context in tokens, shared by all slots (0: as trained)"),
        Value("-np --parallel", "n_parallel", int, "slots: requests served at the same time (default: 1)"),
        Value("-b --batch-size", "n_batch", int, "logical batch in tokens"),
        Value("-ub --ubatch-size", "n_ubatch", int, "physical batch in tokens"),
        Value("-ngl --gpu-layers --n-gpu-layers", "n_gpu_layers", _layers, "layers on the GPU: a number, auto or all"),
        Value("-sm --split-mode", "split_mode", _SPLIT, "how several GPUs share the model"),
        Value("-ts --tensor-split", "tensor_split", _numbers, "share of each GPU, as N0,N1,...", "SHARES"),
        Value("-mg --main-gpu", "main_gpu", int, "the GPU for what is not split"),
        Value("-fa --flash-attn", "flash_attn_type", _FLASH, "flash attention (default: auto)"),
        Value("-ctk --cache-type-k", "cache_type_k", _CACHE_TYPE, "type of the K cache"),
        Value("-ctv --cache-type-v", "cache_type_v", _CACHE_TYPE, "type of the V cache"),
        Switch("-kvo --kv-offload", {"no_kv_offload": False}, "KV cache on the GPU (default)"),
        Switch("-nkvo --no-kv-offload", {"no_kv_offload": True}, "KV cache in host memory"),
        Switch("-kvu --kv-unified", {"kv_unified": True}, "one KV cache for all slots"),
        Switch("--swa-full", {"swa_full": True}, "full-size cache for sliding windows"),
        Value("-lm --load-mode", "load_mode", _LOAD, "how the file gets into memory"),
        Value("-lzm --lazy-mode", "lazy_mode", _LAZY, "read rarely used tensors on demand"),
        Value(
            "-ot --override-tensor", "tensor_buft_overrides", str, "buffer for tensors by pattern", "PATTERN=BUFFER,..."
        ),
        Switch("-cmoe --cpu-moe", {"tensor_buft_overrides": f"{_EXPERTS}=CPU"}, "all experts in host memory"),
        Value(
            "-ncmoe --n-cpu-moe",
            "tensor_buft_overrides",
            _first_experts,
            "experts of the first N layers in host memory",
        ),
        Switch("-nr --no-repack", {"no_extra_bufts": True}, "weights stay as they are in the file"),
        Switch("--no-host", {"no_host": True}, "no host buffers"),
        Switch("--no-op-offload", {"no_op_offload": True}, "work on host tensors stays on the CPU"),
        Switch("--check-tensors", {"check_tensors": True}, "look for invalid values while loading"),
        Value("-fit --fit", "fit_params", _ON_OFF, "shrink what is not set until it fits", "{on,off}"),
        Switch("--warmup", {"warmup": True}, "run once after loading (default)"),
        Switch("--no-warmup", {"warmup": False}, "do not"),
        Value("-t --threads", "cpuparams.n_threads", int, "CPU threads (default: one per core; 1 for a small model)"),
        Value("-tb --threads-batch", "cpuparams_batch.n_threads", int, "CPU threads for prompts (default: the same)"),
    ),
    "long contexts": (
        Value("--rope-scaling", "rope_scaling_type", _ROPE, "method of stretching the context"),
        Value("--rope-scale", "rope_freq_scale", _stretch, "stretch N times"),
        Value("--rope-freq-base", "rope_freq_base", float, "base frequency"),
        Value("--rope-freq-scale", "rope_freq_scale", float, "frequency factor: 1/N stretches N times"),
        Value("--yarn-orig-ctx", "yarn_orig_ctx", int, "context that the model was trained for"),
        Value("--yarn-ext-factor", "yarn_ext_factor", float, "extrapolation mix"),
        Value("--yarn-attn-factor", "yarn_attn_factor", float, "attention magnitude"),
        Value("--yarn-beta-slow", "yarn_beta_slow", float, "high correction dimension"),
        Value("--yarn-beta-fast", "yarn_beta_fast", float, "low correction dimension"),
        Switch("--context-shift", {"ctx_shift": True}, "drop the oldest text when the context is full"),
        Switch("--no-context-shift", {"ctx_shift": False}, "stop there instead (default)"),
    ),
    "caches and batching": (
        Value("-cram --cache-ram", "cache_ram_mib", int, "prompt cache in MiB (0: none, -1: no limit)"),
        Value("-ctxcp --ctx-checkpoints", "n_ctx_checkpoints", int, "context checkpoints per slot"),
        Value("--cache-reuse", "n_cache_reuse", int, "shortest piece of a cached prompt to reuse, in tokens"),
        Switch("--cache-prompt", {"cache_prompt": True}, "reuse the start of earlier prompts (default)"),
        Switch("--no-cache-prompt", {"cache_prompt": False}, "do not"),
        Value(
            "-sps --slot-prompt-similarity",
            "slot_prompt_similarity",
            float,
            "how alike prompts must be to share a slot",
        ),
        Switch("-cb --cont-batching", {"cont_batching": True}, "let requests join a running batch (default)"),
        Switch("-nocb --no-cont-batching", {"cont_batching": False}, "do not"),
    ),
    "what it answers": (
        Switch("--embedding --embeddings", {"embedding": True}, "serve embeddings only"),
        Switch("--rerank --reranking", {"embedding": True, "pooling_type": _RANK}, "serve reranking"),
        Value("--pooling", "pooling_type", _POOLING, "how an embedding model joins its tokens' vectors"),
        Value("--embd-normalize", "embd_normalize", int, "norm of embeddings (2: euclidean, -1: none)"),
        Switch("--jinja", {"use_jinja": True}, "the model's own chat template, with tools (default)"),
        Switch("--no-jinja", {"use_jinja": False}, "built-in chat templates only"),
        Value("--chat-template", "chat_template", str, "a chat template in place of the model's", "TEMPLATE"),
        Value("--chat-template-file", "chat_template", _file, "the same, from a file", "FILE"),
        Value("--chat-template-kwargs", "default_template_kwargs", _template_values, "values for the template", "JSON"),
        Value("--reasoning-format", "reasoning_format", _THOUGHT, "where thoughts go in an answer"),
        Value("-rea --reasoning", "enable_reasoning", _THINK, "think before answering", "{on,off,auto}"),
        Value("--reasoning-budget", "sampling.reasoning_budget_tokens", int, "tokens to think in (-1: no limit)"),
        Value("--reasoning-budget-message", "sampling.reasoning_budget_message", str, "what ends it then", "TEXT"),
        Value("-n --predict --n-predict", "n_predict", int, "most tokens to answer with (-1: no limit)"),
        Value("-s --seed", "sampling.seed", _seed, "seed (-1: random)"),
        Value("--temp", "sampling.temp", float, "temperature when a request gives none"),
        Value("--top-k", "sampling.top_k", int, "the same for top-k"),
        Value("--top-p", "sampling.top_p", float, "the same for top-p"),
        Value("--min-p", "sampling.min_p", float, "the same for min-p"),
        Value("--repeat-penalty", "sampling.penalty_repeat", float, "the same for the penalty on repetition"),
    ),
    "guessing ahead": (
        Value("--spec-type", "speculative.types", _GUESS, "who guesses"),
        Value("-md --model-draft --spec-draft-model", "speculative.draft.mparams.path", str, "draft file", "FILE"),
        Value("--spec-draft-n-max", "speculative.draft.n_max", int, "most tokens to guess at once"),
        Value("--spec-draft-n-min", "speculative.draft.n_min", int, "fewest tokens to guess"),
        Value("--spec-draft-p-min", "speculative.draft.p_min", float, "least probability to go on guessing", "P"),
        Value("-ngld --spec-draft-ngl", "speculative.draft.n_gpu_layers", _layers, "layers of the draft on the GPU"),
    ),
    "server": (
        Value("--host", "hostnames", _words, "addresses to listen on (default: 127.0.0.1)", "ADDRESSES"),
        Value("--port", "port", int, f"port to listen on (default: {DEFAULT_PORT}; 0: a free one)"),
        Switch("--reuse-port", {"reuse_port": True}, "let several processes share the port"),
        Value("--api-key-file", "api_keys", _keys, "keys that clients must show, one per line", "FILE"),
        Value("--api-prefix", "api_prefix", str, "path before every route", "PATH"),
        Value("--cors-origins", "cors_origins", str, "origins that browsers may call from", "ORIGINS"),
        Value("-to --timeout", "timeout_read timeout_write", int, "longest silence on a connection, in seconds"),
        Value("--sse-ping-interval", "sse_ping_interval", int, "seconds between pings in a stream"),
        Value("--threads-http", "n_threads_http", int, "threads for requests"),
        Value("--sleep-idle-seconds", "sleep_idle_seconds", int, "unload after so long without a request (-1: never)"),
        Switch("--metrics", {"endpoint_metrics": True}, "GET /metrics for Prometheus"),
        Switch("--props", {"endpoint_props": True}, "POST /props changes settings"),
        Switch("--slots", {"endpoint_slots": True}, "GET /slots (default)"),
        Switch("--no-slots", {"endpoint_slots": False}, "no GET /slots"),
        Switch("--ui --webui", {"ui": True}, "a web page to chat (default)"),
        Switch("--no-ui --no-webui", {"ui": False}, "no web page"),
        Value("-lv --verbosity --log-verbosity", "verbosity", int, "1 errors, 2 warnings, 3 info, 4 more, 5 all"),
        Switch("-v --verbose --log-verbose", {"verbosity": 2**31 - 1}, "log everything"),
    ),
}

# The engine lets a model file bring its own sampling; what the command line sets must win over that
_USER_SET: Final[Mapping[str, str]] = {
    "sampling.temp": "TEMP",
    "sampling.top_k": "TOP_K",
    "sampling.top_p": "TOP_P",
    "sampling.min_p": "MIN_P",
    "sampling.penalty_repeat": "PENALTY_REPEAT",
}


def note(settings: Settings, flag: Value | Switch, value: Any) -> None:
    """Note what a flag sets; of two values for one attribute the later wins, but tensor overrides add up."""
    sets = flag.sets if isinstance(flag, Switch) else dict.fromkeys(flag.targets.split(), value)
    for target, new in sets.items():
        earlier = settings.get(target) if target == "tensor_buft_overrides" else None
        settings[target] = f"{earlier},{new}" if earlier else new


def apply(settings: Settings, engine: Any) -> Any:
    """Return the engine's CommonParams with the settings in them.

    Raises:
        ValueError: The engine does not take a value.
    """
    params = engine.CommonParams()
    params.port = DEFAULT_PORT
    batch_threads = {"cpuparams_batch.n_threads": settings.get("cpuparams.n_threads", -1)}
    for target, value in {**batch_threads, **settings}.items():
        owner, _, name = target.rpartition(".")
        part = operator.attrgetter(owner)(params) if owner else params
        if target == "tensor_split":
            value = [*value, *params.tensor_split[len(value) :]]  # noqa: PLW2901 (the engine wants its full length)
        try:
            setattr(part, name, _resolve(value, engine))
        except (ValueError, OverflowError, TypeError) as exc:
            raise ValueError(f"the engine does not take {value!r} for {target}: {exc}") from exc
        if target in _USER_SET:
            bit = getattr(engine.common_params_sampling_config, f"COMMON_PARAMS_SAMPLING_CONFIG_{_USER_SET[target]}")
            params.sampling.user_sampling_config |= bit.value
    return params


def _resolve(value: Any, engine: Any) -> Any:
    if isinstance(value, Member):
        return getattr(getattr(engine, value.kind), value.name)
    return [_resolve(item, engine) for item in value] if isinstance(value, list) else value
