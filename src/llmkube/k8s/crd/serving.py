"""Options of the runtimes that are more than one flag."""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import attrs

from llmkube.k8s.crd.meta import DECIMAL, NAMED, SecretKeySelector
from llmkube.k8s.fields import REQUIRED, Rule, SchemaFacts, Wired, field

MODEL_ID: Final = r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$"
"""A model id from clients: `qwen3.5-4b`, `org/name`, `llama3:8b`. No comma: llama.cpp separates ids by commas."""

CACHE_TYPES: Final = ("f16", "f32", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl")
KV_DTYPES: Final = ("auto", "fp8_e5m2", "fp8_e4m3")
VLLM_QUANTIZATIONS: Final = ("awq", "gptq", "squeezellm", "fp8", "nvfp4", "mxfp4", "compressed-tensors")
SGLANG_ATTENTION: Final = ("flashinfer", "flash_attn", "torch_native")
SGLANG_TOOL_PARSERS: Final = ("llama3", "qwen3", "qwen25", "hermes", "functionary", "mistral")
VLLM_ATTENTION: Final = (
    "FLASH_ATTN", "FLASHINFER", "XFORMERS", "flashinfer", "flash_attn", "xformers", "torch_sdpa"
)  # fmt: skip

_WITH_DRAFT: Final = ("draft", "draft-simple", "draft-eagle3", "draft-dflash", "draft-dspark")
_WITH_OPTIONAL_DRAFT: Final = ("draft-mtp", "mtp")  # two names of one method
_WITHOUT_DRAFT: Final = (
    "none", "disabled", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"
)  # fmt: skip
SPECULATION_TYPES: Final = (*_WITH_DRAFT, *_WITH_OPTIONAL_DRAFT, *_WITHOUT_DRAFT)

# An API server compares an integer with the truncated bounds: 0 is then not below 0.1
_NOT_ZERO: Final = (Rule("self != 0.0", "must be at least 0.1"),)

_NUMBER: Final[Mapping[str, Any]] = {"pattern": DECIMAL, "max_length": 16}

# -- all engines ------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Adapter(Wired):
    """LoRA adapter of a service. One without a name applies to all of its requests."""

    model_ref: str = field("Name of the Model with the adapter's file, in the same namespace.", REQUIRED, **NAMED)
    name: str | None = field(
        "Model id of the requests that it applies to; presets can list it, too.", **NAMED, pattern=MODEL_ID
    )
    scale: str = field("Factor of its effect, as a decimal number.", "1", **_NUMBER)


@attrs.frozen(kw_only=True)
class PresetAdapter(Wired):
    """Adapter that a preset uses."""

    name: str = field("Name of the adapter in spec.adapters.", REQUIRED, **NAMED)
    scale: str | None = field("Factor of its effect, as a decimal number; defaults to the adapter's.", **_NUMBER)


@attrs.frozen(kw_only=True)
class Preset(Wired):
    """Settings of the requests under one model id, where they set none themselves."""

    name: str = field("Model id that clients send.", REQUIRED, **NAMED, pattern=MODEL_ID)
    temperature: str | None = field("Sampling temperature, as a decimal number.", **_NUMBER)
    top_p: str | None = field("Sum of the probabilities of the tokens to sample from.", **_NUMBER)
    top_k: int | None = field("Number of tokens to sample from; 0 means all.", minimum=0, maximum=1048576)
    min_p: str | None = field("Least probability of a token, as a share of the highest one.", **_NUMBER)
    max_tokens: int | None = field("Maximum tokens of one answer.", minimum=1, maximum=2097152)
    thinking: bool | None = field("Whether the model reasons before it answers, if its chat template has a switch.")
    system: str | None = field("System text of chats that have none.", min_length=1, max_length=32768)
    adapters: tuple[PresetAdapter, ...] = field(
        "Adapters that apply to its requests, besides those without a name.", (), max_items=16, list_map_keys=("name",)
    )


# -- llama.cpp --------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class RopeScaling(Wired):
    """RoPE scaling, which extends the context beyond the trained one."""

    type: str = field("Scaling method.", REQUIRED, enum=("linear", "yarn", "longrope"))
    factor: str | None = field("Scaling factor, as a decimal number.", pattern=DECIMAL)
    original_context: int | None = field("Trained context in tokens, for yarn.", minimum=128)


@attrs.frozen(kw_only=True)
class SpeculativeDecoding(Wired):
    """Speculative decoding in llama.cpp: several tokens are drafted and verified in one pass."""

    RULES: ClassVar = (
        Rule(
            f"!(self.type in {list(_WITH_DRAFT)}) || has(self.draftModel) || has(self.draftModelRef)",
            "this type needs draftModel or draftModelRef",
        ),
        Rule(
            f"!(self.type in {list(_WITHOUT_DRAFT)}) || !(has(self.draftModel) || has(self.draftModelRef))",
            "this type takes no draft model",
        ),
        Rule("!(has(self.draftModel) && has(self.draftModelRef))", "draftModel and draftModelRef exclude each other"),
    )
    type: str = field(
        "Source of the draft: a draft model, the model's own extra heads, or n-grams of the preceding text.",
        REQUIRED,
        enum=SPECULATION_TYPES,
    )
    draft_model: str | None = field("File of the draft model, one of the Model's files.", **NAMED)
    draft_model_ref: str | None = field("Name of the Model with the draft model.", **NAMED)
    n_draft_max: int | None = field("Maximum tokens per draft.", minimum=1)
    p_min: float | None = field("Minimum probability at which drafting continues.", minimum=0, maximum=1)


# -- engines of a host's owner ----------------------------------------------------------------------------------------

ENGINE_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9_-]*$"
"""A name of an engine, or of one of its options, in `config.toml`."""


@attrs.frozen(kw_only=True)
class EngineSelection(Wired):
    """Engine of the runtime generic on hosts."""

    name: str = field("Name of an engine in the host's config.toml.", REQUIRED, max_length=63, pattern=ENGINE_NAME)
    options: Mapping[str, str] = field("Values of the engine's options, among those in config.toml.", dict)


# -- vLLM -------------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class VLLMSpeculative(Wired):
    """Speculative decoding in vLLM."""

    RULES: ClassVar = (Rule("!has(self.enabled) || !self.enabled || has(self.model)", "speculation needs a model"),)
    enabled: bool | None = field("Whether to use speculative decoding.")
    model: str | None = field("Draft model, in vLLM's notation.", min_length=1)
    num_speculative_tokens: int = field("Number of tokens per draft.", 4, minimum=1, maximum=16)


@attrs.frozen(kw_only=True)
class VLLMConfig(Wired):
    """Options of the runtime vllm."""

    max_model_len: int | None = field("Context length in tokens.", minimum=1)
    dtype: str | None = field("Type of weights and activations.", enum=("auto", "float16", "bfloat16"))
    quantization: str | None = field("Quantization method of the weights.", enum=VLLM_QUANTIZATIONS)
    tensor_parallel_size: int | None = field("Number of GPUs per layer; defaults to all of a replica.", minimum=1)
    pipeline_parallel_size: int | None = field("Number of pipeline stages, each with part of the layers.", minimum=1)
    gpu_memory_utilization: float | None = field(
        "Share of GPU memory to use.", minimum=0.1, maximum=0.99, rules=_NOT_ZERO
    )
    max_num_batched_tokens: int | None = field("Maximum tokens per step.", minimum=512)
    kv_cache_dtype: str = field("Type of the KV cache.", "auto", enum=KV_DTYPES)
    kv_cache_custom_dtype: str | None = field("KV cache type of a vLLM fork; overrides kvCacheDtype.")
    cpu_offload_gb: int | None = field("GiB of weights in host memory.", minimum=0, name="cpuOffloadGB")
    attention_backend: str | None = field("Attention implementation.", enum=VLLM_ATTENTION)
    enable_prefix_caching: bool | None = field("Whether to reuse the KV cache of common prefixes.")
    enable_chunked_prefill: bool | None = field("Whether to mix chunks of long prompts with decoding.")
    enable_expert_parallel: bool | None = field("Whether to distribute experts over GPUs.")
    speculative: VLLMSpeculative | None = field("Speculative decoding.")
    hf_token_secret_ref: SecretKeySelector | None = field("Hugging Face token, passed as HF_TOKEN.", atomic=True)


# -- SGLang -----------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class LoRAAdapter(Wired):
    """LoRA adapter that SGLang loads at startup."""

    name: str = field("Name of the adapter in requests.", REQUIRED, min_length=1)
    path: str = field("Path of the adapter in the container.", REQUIRED, min_length=1)


@attrs.frozen(kw_only=True)
class SGLangSpeculative(Wired):
    """Speculative decoding in SGLang."""

    RULES: ClassVar = (
        Rule("!has(self.enabled) || !self.enabled || has(self.algorithm)", "speculation needs an algorithm"),
        Rule(
            "(has(self.enabled) && self.enabled) || !(has(self.acceptThresholdSingle) || has(self.acceptThresholdAcc))",
            "acceptance thresholds mean nothing unless enabled is true",
        ),
    )
    enabled: bool | None = field("Whether to use speculative decoding.")
    algorithm: str | None = field("Drafting algorithm.", enum=("EAGLE", "EAGLE3", "Medusa"))
    draft_model_path: str | None = field("Draft model, in SGLang's notation.", min_length=1)
    num_draft_tokens: int = field("Number of tokens per draft.", 4, minimum=1)
    num_steps: int | None = field("Number of drafting steps per verification.", minimum=1)
    eagle_top_k: int | None = field("Number of candidates per step.", minimum=1)
    accept_threshold_single: float | None = field("Acceptance threshold of a single token.", minimum=0, maximum=1)
    accept_threshold_acc: float | None = field("Acceptance threshold of accumulated probability.", minimum=0, maximum=1)


@attrs.frozen(kw_only=True)
class SGLangConfig(Wired):
    """Options of the runtime sglang."""

    context_length: int | None = field("Context length in tokens.", minimum=128)
    quantization: str | None = field("Quantization method of the weights.", min_length=1)
    tensor_parallel_size: int | None = field("Number of GPUs per layer; defaults to all of a replica.", minimum=1)
    data_parallel_size: int | None = field("Number of copies of the model in the process.", minimum=1)
    expert_parallel_size: int | None = field("Number of GPUs for the experts.", minimum=1)
    mem_fraction_static: float | None = field(
        "Share of GPU memory for weights and KV cache.", minimum=0.1, maximum=0.99, rules=_NOT_ZERO
    )
    max_running_requests: int | None = field("Maximum concurrent requests.", minimum=1)
    chunked_prefill_size: int | None = field("Maximum tokens of a prompt per step.", minimum=512)
    kv_cache_dtype: str = field("Type of the KV cache.", "auto", enum=KV_DTYPES)
    kv_cache_custom_dtype: str | None = field("KV cache type of an SGLang fork; overrides kvCacheDtype.", min_length=1)
    attention_backend: str | None = field("Attention implementation.", enum=SGLANG_ATTENTION)
    enable_prefix_caching: bool | None = field("Whether to reuse the KV cache of common prefixes.")
    chat_template: str | None = field("Chat template, by name or path in the container.", min_length=1)
    reasoning_parser: str | None = field("Parser that extracts reasoning.", enum=("qwen3", "deepseek-r1"))
    tool_call_parser: str | None = field("Parser that extracts tool calls.", enum=SGLANG_TOOL_PARSERS)
    skip_tokenizer_init: bool | None = field("Whether requests and responses have token ids instead of text.")
    trust_remote_code: bool | None = field("Whether to run code from the model's repository.")
    log_level: str | None = field("Log level of the engine.", enum=("debug", "info", "warning", "error"))
    lora_adapters: tuple[LoRAAdapter, ...] = field("Adapters loaded at startup; override loraModules by name.", ())
    lora_modules: tuple[str, ...] = field("Adapters loaded at startup: NAME=PATH.", (), items=SchemaFacts(min_length=1))
    lora_target_modules: tuple[str, ...] = field("Layers that adapters modify.", (), items=SchemaFacts(min_length=1))
    max_lora_rank: int | None = field("Maximum rank of an adapter.", minimum=1)
    speculative: SGLangSpeculative | None = field("Speculative decoding.")
    hf_token_secret_ref: SecretKeySelector | None = field("Hugging Face token, passed as HF_TOKEN.", atomic=True)


# -- TGI --------------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class TGIConfig(Wired):
    """Options of the runtime tgi (Text Generation Inference)."""

    RULES: ClassVar = (
        Rule(
            "!has(self.maxInputLength) || !has(self.maxTotalTokens) || self.maxInputLength < self.maxTotalTokens",
            "maxInputLength must be less than maxTotalTokens, or no answer fits",
        ),
    )
    quantize: str | None = field("Quantization method.", enum=("bitsandbytes", "gptq", "awq", "eetq"))
    dtype: str | None = field("Type of weights and activations.", enum=("float16", "bfloat16"))
    max_input_length: int | None = field("Maximum tokens in a prompt.", minimum=1)
    max_total_tokens: int | None = field("Maximum tokens in a prompt and its output.", minimum=1)
    hf_token_secret_ref: SecretKeySelector | None = field("Hugging Face token.", atomic=True)


# -- PersonaPlex ------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class PersonaPlexConfig(Wired):
    """Options of the runtime personaplex (speech to speech)."""

    quantize_4bit: bool | None = field(
        "Whether to load the weights in 4 bits; the image must support --quantize-4bit, which NVIDIA's does not.",
        name="quantize4Bit",
    )
    cpu_offload: bool | None = field("Whether to keep part of the weights in host memory.")
    hf_token_secret_ref: SecretKeySelector | None = field("Hugging Face token, passed as HF_TOKEN.", atomic=True)
