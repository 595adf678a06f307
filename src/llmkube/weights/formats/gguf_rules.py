"""What llama.cpp's model loader asks of every architecture's header: which keys, and of which type.

Found by asking the engine: of each key below, a value of another type stops the loading of every architecture that it
knows. Keys that only some architectures read are not here: they would have to be known one architecture at a time.
"""

from collections.abc import Mapping
from typing import Final

from llmkube.weights.formats.gguf_format import BOOL, FLOAT32, INT32, STRING, UINT16, UINT32

ARCHITECTURE: Final = "general.architecture"
TOKENIZER: Final = "tokenizer.ggml.model"
TOKENS: Final = "tokenizer.ggml.tokens"
NO_TOKENIZER: Final = frozenset(("none", "no_vocab"))
"""Values of `tokenizer.ggml.model` for which the rest of the tokenizer's keys is not read."""

GENERAL: Final[Mapping[str, int]] = {
    ARCHITECTURE: STRING,
    "general.name": STRING,
    "general.file_type": UINT32,
    "split.count": UINT16,
    TOKENIZER: STRING,
    "tokenizer.ggml.pre": STRING,
    "tokenizer.ggml.token_type_count": UINT32,
}
"""Keys that are absent or of this type."""

OF_SPLIT: Final[Mapping[str, int]] = {"split.no": UINT16, "split.tensors.count": INT32}
"""Keys that the first of several files has, of this type."""

OF_TOKENIZER: Final[Mapping[str, int]] = {
    f"tokenizer.ggml.{name}": kind
    for kind, names in {
        UINT32: (
            *(f"{token}_token_id" for token in ("bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "mask")),
            *(f"fim_{part}_token_id" for part in ("pre", "suf", "mid", "pad", "rep", "sep")),
            *(f"{part}_token_id" for part in ("prefix", "suffix", "middle")),
        ),
        BOOL: ("add_bos_token", "add_eos_token", "add_sep_token", "add_space_prefix", "remove_extra_whitespaces"),
    }.items()
    for name in names
}
"""Keys that are absent or of this type where there is a tokenizer."""

OF_TOKENS: Final[Mapping[str, tuple[int, ...]]] = {
    "tokenizer.ggml.scores": (FLOAT32, INT32),
    "tokenizer.ggml.token_type": (INT32,),
}
"""Arrays that are absent or have an element of one of these types for each token."""

REQUIRED: Final = ("context_length", "embedding_length", "block_count")
"""Below the architecture's name: unsigned numbers that must be there."""

PER_LAYER: Final = ("attention.head_count", "attention.head_count_kv", "feed_forward_length")
"""Below the architecture's name: absent, one unsigned number, or an array with one for each layer."""

OF_ARCHITECTURE: Final[Mapping[str, int]] = {
    **dict.fromkeys(REQUIRED, UINT32),
    "attention.key_length": UINT32,
    "attention.value_length": UINT32,
    "attention.causal": BOOL,
    "embedding_length_out": UINT32,
    "expert_count": UINT32,
    "expert_group_count": UINT32,
    "expert_used_count": UINT32,
    "pooling_type": UINT32,
    "rope.dimension_count": UINT32,
    "rope.freq_base": FLOAT32,
    "rope.scale_linear": FLOAT32,
    "rope.scaling.factor": FLOAT32,
    "rope.scaling.finetuned": BOOL,
    "rope.scaling.type": STRING,
    "vocab_size": UINT32,
}
"""Below the architecture's name: absent (unless required) or of this type."""

FOR_SIZING: Final = (
    *(
        f"attention.{name}"
        for name in (
            "indexer.key_length",
            "key_length_mla",
            "key_length_swa",
            "kv_lora_rank",
            "recurrent_layers",
            "shared_kv_layers",
            "sliding_window",
            "sliding_window_pattern",
            "value_length_swa",
        )
    ),
    *(f"ssm.{name}" for name in ("conv_kernel", "group_count", "inner_size", "state_size", "time_step_rank")),
    "embedding_length_per_layer_input",
    "full_attention_interval",
    "kda.head_dim",
    "nextn_predict_layers",
    "shortconv.l_cache",
    "token_shift_count",
    "wkv.head_size",
)
"""Below the architecture's name: read for the estimate of memory only, and of whatever type."""

KEPT: Final = frozenset(
    key.encode()
    for key in (*GENERAL, *OF_SPLIT, *OF_TOKENIZER, *OF_TOKENS, TOKENS, "general.license", "general.alignment")
)
"""Keys whose values a reader of headers keeps."""

KEPT_OF_ARCHITECTURE: Final = frozenset(key.encode() for key in (*OF_ARCHITECTURE, *PER_LAYER, *FOR_SIZING))
"""The same, below the architecture's name, which may come later in the file than they do."""
