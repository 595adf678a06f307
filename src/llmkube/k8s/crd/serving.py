"""How engines serve a model: the options of each runtime that are more than one flag."""

from typing import ClassVar, Final

import attrs

from llmkube.k8s.crd.meta import SecretKeySelector
from llmkube.k8s.fields import REQUIRED, Rule, Wire, field, received

CACHE_TYPES: Final = ("f16", "f32", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl")
KV_DTYPES: Final = ("auto", "fp8_e5m2", "fp8_e4m3")
VLLM_QUANTIZATIONS: Final = ("awq", "gptq", "squeezellm", "fp8", "nvfp4", "mxfp4", "compressed-tensors")
VLLM_ATTENTION: Final = (
    "FLASH_ATTN", "FLASHINFER", "XFORMERS", "flashinfer", "flash_attn", "xformers", "torch_sdpa"
)  # fmt: skip

_WITH_DRAFT: Final = ("draft", "draft-simple", "draft-eagle3", "draft-dflash", "draft-dspark")
_WITH_OPTIONAL_DRAFT: Final = ("draft-mtp",)
_WITHOUT_DRAFT: Final = (
    "none", "disabled", "mtp", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"
)  # fmt: skip
SPECULATION_TYPES: Final = (*_WITH_DRAFT, *_WITH_OPTIONAL_DRAFT, *_WITHOUT_DRAFT)

# -- llama.cpp --------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class RopeScaling:
    """Stretch a model's context beyond what it was trained for."""

    type: str = field("Method of stretching.", REQUIRED, enum=("linear", "yarn", "longrope"))
    factor: str | None = field("How far to stretch, as a decimal number.", pattern=r"^[0-9]+(\.[0-9]+)?$")
    original_context: int | None = field("Trained context in tokens, for yarn.", minimum=128)
    wire: Wire = received()


@attrs.frozen(kw_only=True)
class SpeculativeDecoding:
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
    draft_model: str | None = field("Draft file among the Model's files.", min_length=1, max_length=253)
    draft_model_ref: str | None = field("Name of a Model that holds the draft.", min_length=1, max_length=253)
    n_draft_max: int | None = field("Most tokens to guess at once.", minimum=1)
    p_min: float | None = field("Least probability at which guessing goes on.", minimum=0, maximum=1)
    wire: Wire = received()


# -- vLLM -------------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class VLLMSpeculative:
    """Speculative decoding in vLLM."""

    enabled: bool | None = field("Turns speculation on.")
    model: str | None = field("Draft model, as vLLM names it.")
    num_speculative_tokens: int = field("Tokens to guess at once.", 4, minimum=1, maximum=16)
    wire: Wire = received()


@attrs.frozen(kw_only=True)
class VLLMConfig:
    """Options of the vLLM runtime."""

    max_model_len: int | None = field("Context length in tokens.")
    dtype: str | None = field("Type of weights and activations.", enum=("auto", "float16", "bfloat16"))
    quantization: str | None = field("Quantization method of the weights.", enum=VLLM_QUANTIZATIONS)
    tensor_parallel_size: int | None = field("GPUs that share each layer; unset means all of the replica's.")
    gpu_memory_utilization: float | None = field("Share of GPU memory to take.", minimum=0.1, maximum=0.99)
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
    wire: Wire = received()


# -- TGI --------------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class TGIConfig:
    """Options of the Text Generation Inference runtime."""

    quantize: str | None = field("Quantization method.", enum=("bitsandbytes", "gptq", "awq", "eetq"))
    dtype: str | None = field("Type of weights and activations.", enum=("float16", "bfloat16"))
    max_input_length: int | None = field("Most tokens in a prompt.")
    max_total_tokens: int | None = field("Most tokens in a prompt and its answer.")
    hf_token_secret_ref: SecretKeySelector | None = field("Hugging Face token.", atomic=True)
    wire: Wire = received()


# -- PersonaPlex ------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class PersonaPlexConfig:
    """Options of the PersonaPlex speech-to-speech runtime."""

    quantize_4bit: bool | None = field("Load the weights in 4 bits.", name="quantize4Bit")
    cpu_offload: bool | None = field("Keep part of the weights in host memory.")
    hf_token_secret_ref: SecretKeySelector | None = field("Hugging Face token, given as HF_TOKEN.", atomic=True)
    wire: Wire = received()
