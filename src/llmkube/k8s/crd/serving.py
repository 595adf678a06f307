"""How engines serve a model: the options of each runtime that are more than one flag."""

from typing import ClassVar, Final

import attrs

from llmkube.k8s.crd.meta import DECIMAL, NAMED, SecretKeySelector
from llmkube.k8s.fields import REQUIRED, Rule, SchemaFacts, Wired, field

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

# An API server compares a whole number with the bounds' whole parts: to it, 0 is not below 0.1
_NOT_ZERO: Final = (Rule("self != 0.0", "must be at least 0.1"),)

# -- llama.cpp --------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class RopeScaling(Wired):
    """Stretch a model's context beyond what it was trained for."""

    type: str = field("Method of stretching.", REQUIRED, enum=("linear", "yarn", "longrope"))
    factor: str | None = field("How far to stretch, as a decimal number.", pattern=DECIMAL)
    original_context: int | None = field("Trained context in tokens, for yarn.", minimum=128)


@attrs.frozen(kw_only=True)
class SpeculativeDecoding(Wired):
    """Guess several tokens ahead and let the model check them in one pass (llama.cpp)."""

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
        "Who guesses: a draft model, the model's own extra heads, or n-grams of the text so far.",
        REQUIRED,
        enum=SPECULATION_TYPES,
    )
    draft_model: str | None = field("Draft file among the Model's files.", **NAMED)
    draft_model_ref: str | None = field("Name of a Model that holds the draft.", **NAMED)
    n_draft_max: int | None = field("Most tokens to guess at once.", minimum=1)
    p_min: float | None = field("Least probability at which guessing goes on.", minimum=0, maximum=1)


# -- vLLM -------------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class VLLMSpeculative(Wired):
    """Speculative decoding in vLLM."""

    RULES: ClassVar = (Rule("!has(self.enabled) || !self.enabled || has(self.model)", "speculation needs a model"),)
    enabled: bool | None = field("Turns speculation on.")
    model: str | None = field("Draft model, as vLLM names it.", min_length=1)
    num_speculative_tokens: int = field("Tokens to guess at once.", 4, minimum=1, maximum=16)


@attrs.frozen(kw_only=True)
class VLLMConfig(Wired):
    """Options of the vLLM runtime."""

    max_model_len: int | None = field("Context length in tokens.", minimum=1)
    dtype: str | None = field("Type of weights and activations.", enum=("auto", "float16", "bfloat16"))
    quantization: str | None = field("Quantization method of the weights.", enum=VLLM_QUANTIZATIONS)
    tensor_parallel_size: int | None = field("GPUs that share each layer; unset means all of the replica's.", minimum=1)
    pipeline_parallel_size: int | None = field("GPUs that hold one layer after the other.", minimum=1)
    gpu_memory_utilization: float | None = field(
        "Share of GPU memory to take.", minimum=0.1, maximum=0.99, rules=_NOT_ZERO
    )
    max_num_batched_tokens: int | None = field("Most tokens in one step.", minimum=512)
    kv_cache_dtype: str = field("Type of the KV cache.", "auto", enum=KV_DTYPES)
    kv_cache_custom_dtype: str | None = field("KV cache type that a fork knows; wins over kvCacheDtype.")
    cpu_offload_gb: int | None = field("GiB of weights to keep in host memory.", minimum=0, name="cpuOffloadGB")
    attention_backend: str | None = field("Attention implementation.", enum=VLLM_ATTENTION)
    enable_prefix_caching: bool | None = field("Reuse the KV cache of common prefixes.")
    enable_chunked_prefill: bool | None = field("Mix pieces of long prompts with decoding.")
    enable_expert_parallel: bool | None = field("Spread experts over GPUs.")
    speculative: VLLMSpeculative | None = field("Speculative decoding.")
    hf_token_secret_ref: SecretKeySelector | None = field("Hugging Face token, given as HF_TOKEN.", atomic=True)


# -- SGLang -----------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class LoRAAdapter(Wired):
    """An adapter that SGLang loads when it starts."""

    name: str = field("Name that requests ask for.", REQUIRED, min_length=1)
    path: str = field("Where the adapter lies in the container.", REQUIRED, min_length=1)


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
    enabled: bool | None = field("Turns speculation on.")
    algorithm: str | None = field("Who guesses.", enum=("EAGLE", "EAGLE3", "Medusa"))
    draft_model_path: str | None = field("Draft model, as SGLang names it.", min_length=1)
    num_draft_tokens: int = field("Tokens to guess at once.", 4, minimum=1)
    num_steps: int | None = field("Steps of guessing before a check.", minimum=1)
    eagle_top_k: int | None = field("Guesses to follow at each step.", minimum=1)
    accept_threshold_single: float | None = field(
        "Probability from which a single guess is taken.", minimum=0, maximum=1
    )
    accept_threshold_acc: float | None = field(
        "Accumulated probability from which guesses are taken.", minimum=0, maximum=1
    )


@attrs.frozen(kw_only=True)
class SGLangConfig(Wired):
    """Options of the SGLang runtime."""

    context_length: int | None = field("Context length in tokens.", minimum=128)
    quantization: str | None = field("Quantization method of the weights.", min_length=1)
    tensor_parallel_size: int | None = field("GPUs that share each layer; unset means all of the replica's.", minimum=1)
    data_parallel_size: int | None = field("Copies of the model within the process.", minimum=1)
    expert_parallel_size: int | None = field("GPUs that experts are spread over.", minimum=1)
    mem_fraction_static: float | None = field(
        "Share of GPU memory for weights and KV cache.", minimum=0.1, maximum=0.99, rules=_NOT_ZERO
    )
    max_running_requests: int | None = field("Most requests at the same time.", minimum=1)
    chunked_prefill_size: int | None = field("Most tokens of a prompt in one step.", minimum=512)
    kv_cache_dtype: str = field("Type of the KV cache.", "auto", enum=KV_DTYPES)
    kv_cache_custom_dtype: str | None = field("KV cache type that a fork knows; wins over kvCacheDtype.", min_length=1)
    attention_backend: str | None = field("Attention implementation.", enum=SGLANG_ATTENTION)
    enable_prefix_caching: bool | None = field("Reuse the KV cache of common prefixes.")
    chat_template: str | None = field("Chat template: a name or a path in the container.", min_length=1)
    reasoning_parser: str | None = field("How thinking is separated from the answer.", enum=("qwen3", "deepseek-r1"))
    tool_call_parser: str | None = field("How tool calls are separated from the answer.", enum=SGLANG_TOOL_PARSERS)
    skip_tokenizer_init: bool | None = field("Take and give token numbers, not texts.")
    trust_remote_code: bool | None = field("Run code that comes with the model.")
    log_level: str | None = field("What the engine logs.", enum=("debug", "info", "warning", "error"))
    lora_adapters: tuple[LoRAAdapter, ...] = field("Adapters to load at start; they win over loraModules by name.", ())
    lora_modules: tuple[str, ...] = field("Adapters to load at start: NAME=PATH.", (), items=SchemaFacts(min_length=1))
    lora_target_modules: tuple[str, ...] = field(
        "Layers that adapters may change.", (), items=SchemaFacts(min_length=1)
    )
    max_lora_rank: int | None = field("Highest rank of an adapter.", minimum=1)
    speculative: SGLangSpeculative | None = field("Speculative decoding.")
    hf_token_secret_ref: SecretKeySelector | None = field("Hugging Face token, given as HF_TOKEN.", atomic=True)


# -- TGI --------------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class TGIConfig(Wired):
    """Options of the Text Generation Inference runtime."""

    RULES: ClassVar = (
        Rule(
            "!has(self.maxInputLength) || !has(self.maxTotalTokens) || self.maxInputLength < self.maxTotalTokens",
            "maxInputLength must be less than maxTotalTokens, or no answer fits",
        ),
    )
    quantize: str | None = field("Quantization method.", enum=("bitsandbytes", "gptq", "awq", "eetq"))
    dtype: str | None = field("Type of weights and activations.", enum=("float16", "bfloat16"))
    max_input_length: int | None = field("Most tokens in a prompt.", minimum=1)
    max_total_tokens: int | None = field("Most tokens in a prompt and its answer.", minimum=1)
    hf_token_secret_ref: SecretKeySelector | None = field("Hugging Face token.", atomic=True)


# -- PersonaPlex ------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class PersonaPlexConfig(Wired):
    """Options of the PersonaPlex speech-to-speech runtime."""

    quantize_4bit: bool | None = field(
        "Load the weights in 4 bits; the image's server has to know --quantize-4bit, which NVIDIA's own does not.",
        name="quantize4Bit",
    )
    cpu_offload: bool | None = field("Keep part of the weights in host memory.")
    hf_token_secret_ref: SecretKeySelector | None = field("Hugging Face token, given as HF_TOKEN.", atomic=True)
