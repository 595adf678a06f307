"""The numbers of the GGUF format, and what llama.cpp's model loader asks of every header. Facts, no code.

Sources: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, and ggml's own tables; a test compares them with the
installed engine's. Which keys a header has, and of which type, was found by asking the engine: of each key below, a
value of another type stops the loading of every architecture that it knows. Keys that only some architectures read are
not here: they would have to be known one architecture at a time.
"""

import struct
from collections.abc import Mapping
from typing import Final

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
MAX_DIMENSIONS: Final = 4
NAME_BYTES: Final = 64
"""A tensor's name is shorter than this; ggml keeps it in an array of this size."""
MAX_LAYERS: Final = 512
"""Engines keep what differs from layer to layer in arrays of this length."""
DEFAULT_ALIGNMENT: Final = 32
DATA_ALIGNMENT: Final = 32
"""Where tensors' data may begin in a mapped file, whatever the file says of its alignment: engines abort otherwise."""

UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64, FLOAT64 = range(13)

VALUE_NAMES: Final = ("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64")

LAYOUTS: Final[Mapping[int, struct.Struct]] = {
    kind: struct.Struct(f"<{layout}")
    for kind, layout in zip(
        (UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, UINT64, INT64, FLOAT64), "BbHhIif?Qqd", strict=True
    )
}
"""How each kind of value is written that has a width of its own."""

TENSOR_TYPES: Final[Mapping[int, tuple[str, int, int]]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
    42: ("Q2_0", 64, 18),
}
"""Name, elements per block and bytes per block of each tensor type; the numbers in between were given back."""

NEWEST_TENSOR_TYPE: Final = max(TENSOR_TYPES)
NEWER_TENSOR_TYPES: Final = range(NEWEST_TENSOR_TYPE + 1, 256)
"""Numbers that an engine newer than this table may know: one or two were added each year."""

FILE_TYPES: Final[Mapping[int, str]] = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4_MOE",
    39: "NVFP4",
    40: "Q1_0",
    41: "Q2_0",
}
"""What `general.file_type` means: the mix of tensor types, under the name that people use."""

GUESSED: Final = 1024
"""A flag in `general.file_type`: the converter guessed it."""

LOOKALIKES: Final = (
    (b"<", "it looks like a web page: was the download an error page?"),
    (b"version https://git-lfs", "it is a Git LFS pointer: run `git lfs pull` in its repository"),
    (b"PK\x03\x04", "it is a zip archive, perhaps a PyTorch checkpoint: convert it to GGUF"),
    (b"\x1f\x8b", "it is gzip-compressed: decompress it first"),
    (b"lmgg", "it is a GGML file from before GGUF: convert it again"),
    (b"tjgg", "it is a GGJT file from before GGUF: convert it again"),
    (b"fmgg", "it is a GGMF file from before GGUF: convert it again"),
    (b"{", "it looks like JSON"),
)
"""What people point at instead of a GGUF file, by its first bytes."""

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
