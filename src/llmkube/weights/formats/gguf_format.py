"""The constants of the GGUF format, and the requirements of llama.cpp's model loader for every header.

Sources: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, and ggml's own tables; a test compares them with the
installed engine's. The keys and their types were found by trying the engine: for each key below, a value of another
type makes loading fail for every architecture that it knows. Keys that only some architectures read are not included.
"""

import struct
from collections.abc import Mapping
from typing import Final

from llmkube.base.package_data import read_table

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
MAX_DIMENSIONS: Final = 4
NAME_BYTES: Final = 64
"""A tensor's name is shorter than this; ggml stores it in an array of this size."""
MAX_LAYERS: Final = 512
"""Engines store per-layer values in arrays of this length."""
DEFAULT_ALIGNMENT: Final = 32
DATA_ALIGNMENT: Final = 32
"""The alignment of tensors' data in a mapped file, whatever the file declares: engines abort otherwise."""

UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64, FLOAT64 = range(13)

VALUE_NAMES: Final = ("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64")

LAYOUTS: Final[Mapping[int, struct.Struct]] = {
    kind: struct.Struct(f"<{layout}")
    for kind, layout in zip(
        (UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, UINT64, INT64, FLOAT64), "BbHhIif?Qqd", strict=True
    )
}
"""The layout of each kind of value with a fixed width."""

_TABLES: Final = read_table(__package__, "gguf_format")


def _kinds(table: str) -> Mapping[str, int]:
    return {key: VALUE_NAMES.index(kind) for key, kind in _TABLES[table].items()}


TENSOR_TYPES: Final[Mapping[int, tuple[str, int, int]]] = {
    int(number): (name, elements, size) for number, (name, elements, size) in _TABLES["tensor_types"].items()
}
"""Name, elements per block and bytes per block of each tensor type; the missing numbers were withdrawn."""

NEWEST_TENSOR_TYPE: Final = max(TENSOR_TYPES)
NEWER_TENSOR_TYPES: Final = range(NEWEST_TENSOR_TYPE + 1, 256)
"""Numbers that an engine newer than this table may know: one or two are added each year."""

FILE_TYPES: Final[Mapping[int, str]] = {int(number): name for number, name in _TABLES["file_types"].items()}
"""The values of `general.file_type`: mixes of tensor types, by their common names."""

GUESSED_FLAG: Final = 1024
"""A flag in `general.file_type`: the converter guessed the type."""

LOOKALIKES: Final = (
    (b"<", "it looks like a web page; was the download an error page?"),
    (b"version https://git-lfs", "it is a Git LFS pointer; run `git lfs pull` in its repository"),
    (b"PK\x03\x04", "it is a zip archive, perhaps a PyTorch checkpoint; convert it to GGUF"),
    (b"\x1f\x8b", "it is gzip-compressed; decompress it first"),
    (b"lmgg", "it is a GGML file: of whisper.cpp, which serves it, or of an old llama.cpp; convert that again"),
    (b"tjgg", "it is a GGJT file, older than GGUF; convert it again"),
    (b"fmgg", "it is a GGMF file, older than GGUF; convert it again"),
    (b"{", "it looks like JSON"),
)
"""Other files that users pass instead of a GGUF file, by their first bytes."""

ARCHITECTURE: Final = "general.architecture"
PROJECTOR: Final = "clip"
"""The architecture of a projector of pictures or sound into a model's vectors."""
TYPE: Final = "general.type"
ADAPTER_TYPE: Final = "adapter.type"
ADAPTER_ALPHA: Final = "adapter.lora.alpha"
BASE_NAME: Final = "general.base_model.0.name"
_OF_ADAPTERS: Final = (TYPE, ADAPTER_TYPE, ADAPTER_ALPHA, BASE_NAME)
TOKENIZER: Final = "tokenizer.ggml.model"
TOKENS: Final = "tokenizer.ggml.tokens"
NO_TOKENIZER: Final = frozenset(("none", "no_vocab"))
"""Values of `tokenizer.ggml.model` for which the other tokenizer keys are not read."""

GENERAL: Final = _kinds("general")
"""Optional keys and their types."""

OTHER_KINDS: Final[Mapping[str, str]] = {
    architecture: kind for kind, names in _TABLES["other_kinds"].items() for architecture in names.split()
}
"""Kinds of files of other programs, and the programs that can use them, by architecture."""

SPLIT_KEYS: Final = _kinds("split")
"""Keys that the first of several files has, and their types."""

TOKENIZER_KEYS: Final = _kinds("tokenizer")
"""Optional keys of a tokenizer and their types."""

TOKEN_ARRAYS: Final[Mapping[str, tuple[int, ...]]] = {
    key: tuple(map(VALUE_NAMES.index, kinds)) for key, kinds in _TABLES["tokens"].items()
}
"""Optional arrays with an element of one of these types for each token."""

REQUIRED: Final = ("context_length", "embedding_length", "block_count")
"""Keys below the architecture's name: required unsigned integers."""

PER_LAYER: Final = ("attention.head_count", "attention.head_count_kv", "feed_forward_length")
"""Optional keys below the architecture's name: an unsigned integer, or an array with one for each layer."""

ARCHITECTURE_KEYS: Final = _kinds("architecture")
"""Optional keys below the architecture's name (unless in `REQUIRED`) and their types."""

SIZING_KEYS: Final[tuple[str, ...]] = tuple(_TABLES["sizing"]["keys"])
"""Keys below the architecture's name that are read only for the memory estimate, of any type."""

PROJECTOR_KEYS: Final[tuple[str, ...]] = tuple(_TABLES["projector"]["keys"])
"""Keys below `clip.` that are read from a projector."""

PROJECTOR_WIDTHS: Final[Mapping[str, tuple[str, int]]] = _TABLES["projector"]["width"]
"""The tensor of a projector, by its kind, and the dimension that is the length of its vectors."""

RETAINED_KEYS: Final = frozenset(
    key.encode()
    for key in (
        *(*GENERAL, *SPLIT_KEYS, *TOKENIZER_KEYS, *TOKEN_ARRAYS, TOKENS, *_OF_ADAPTERS),
        *("general.license", "general.alignment"),
    )
)
"""Keys whose values the header reader retains."""

RETAINED_ARCHITECTURE_KEYS: Final = frozenset(
    key.encode() for key in (*ARCHITECTURE_KEYS, *PER_LAYER, *SIZING_KEYS, *PROJECTOR_KEYS)
)
"""The same below the architecture's name, which may come after them in the file."""
