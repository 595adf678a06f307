"""A GGUF header says what a model needs, and reading it must be safe on any file that a user points at.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Only the keys that LLMKube uses are kept;
vocabularies are stepped over, never stored; every count and length is checked against the file before it is believed.
"""

import os
import stat
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Final

import attrs
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType, LlamaFileType

from llmkube.weights.errors import FetchError, NotGGUFError

MAX_HEADER_BYTES: Final = 256 << 20
"""No header is longer: the largest vocabularies in use take about 20 MiB."""
MAX_KEYS: Final = 1 << 16
MAX_TENSORS: Final = 1 << 18
MAX_WALKED_STRINGS: Final = 1 << 20
"""Strings in arrays are stepped over one by one; the largest vocabularies with their merges hold under a million."""
MAX_KEPT_BYTES: Final = 1 << 16
"""The longest string or array that is kept; also what the format allows for a key."""

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_MAX_DIMENSIONS: Final = 4
_MAX_NUMBER: Final = 1 << 48
_GUESSED: Final = 1024  # a flag in general.file_type: the converter guessed it

# The width of each fixed-size value in bytes, and how to read those that count something
_WIDTHS: Final[Mapping[int, int]] = {
    GGUFValueType.UINT8: 1,
    GGUFValueType.INT8: 1,
    GGUFValueType.BOOL: 1,
    GGUFValueType.UINT16: 2,
    GGUFValueType.INT16: 2,
    GGUFValueType.UINT32: 4,
    GGUFValueType.INT32: 4,
    GGUFValueType.FLOAT32: 4,
    GGUFValueType.UINT64: 8,
    GGUFValueType.INT64: 8,
    GGUFValueType.FLOAT64: 8,
}
_UNSIGNED: Final = frozenset((GGUFValueType.UINT8, GGUFValueType.UINT16, GGUFValueType.UINT32, GGUFValueType.UINT64))
_SIGNED: Final = frozenset((GGUFValueType.INT8, GGUFValueType.INT16, GGUFValueType.INT32, GGUFValueType.INT64))

_ARCHITECTURE: Final = "general.architecture"
_WANTED: Final = frozenset(
    (
        _ARCHITECTURE,
        "general.name",
        "general.license",
        "general.file_type",
        "general.alignment",
        "split.no",
        "split.count",
    )
)
_WANTED_OF_ARCHITECTURE: Final = frozenset(  # below the architecture's name, which may come later in the file
    (
        "context_length",
        "block_count",
        "embedding_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "pooling_type",
    )
)

# What people point at instead of a GGUF file, by its first bytes
_LOOKALIKES: Final = (
    (b"<", "it looks like a web page: was the download an error page?"),
    (b"version https://git-lfs", "it is a Git LFS pointer: run `git lfs pull` in its repository"),
    (b"PK\x03\x04", "it is a zip archive, perhaps a PyTorch checkpoint: convert it to GGUF"),
    (b"\x1f\x8b", "it is gzip-compressed: decompress it first"),
    (b"lmgg", "it is a GGML file from before GGUF: convert it again"),
    (b"tjgg", "it is a GGJT file from before GGUF: convert it again"),
    (b"fmgg", "it is a GGMF file from before GGUF: convert it again"),
    (b"{", "it looks like JSON"),
)


@attrs.frozen
class GGUFFacts:
    """What a GGUF header says about its model; None where it says nothing.

    Models whose layers differ give a number of key-value heads for each layer: `head_count_kv` is then the largest of
    them, and `head_count_kv_per_layer` has them all. `size_bytes` is the size of this file alone, also when the model
    is split into `split_count` files. `pooling_type` says how an embedding model joins its tokens' vectors, in
    llama.cpp's numbers: 0 is not at all.
    """

    architecture: str
    file_version: int
    tensor_count: int
    size_bytes: int
    name: str | None = None
    license: str | None = None
    quantization: str | None = None
    context_length: int | None = None
    layer_count: int | None = None
    embedding_size: int | None = None
    head_count: int | None = None
    head_count_kv: int | None = None
    head_count_kv_per_layer: tuple[int, ...] = ()
    key_length: int | None = None
    value_length: int | None = None
    pooling_type: int | None = None
    split_count: int = 1


def read_header(path: Path) -> GGUFFacts:
    """Read the facts, in about a second at worst and little memory whatever the file is. Blocks on the disk.

    Raises:
        NotGGUFError: The file is not a complete little-endian GGUF of version 2 or 3 that holds a model.
        FetchError: The file cannot be read now.
    """
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise NotGGUFError(f"{path} is not a regular file")
        # O_NONBLOCK: should a named pipe have taken its place meanwhile, opening it must not wait for a writer
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            return _read(_Cursor(path, file, found.st_size))
    except OSError as exc:
        raise FetchError(f"cannot read {path}: {exc.strerror or exc}") from exc


class _Cursor:
    """A place in the file that goes neither past its end nor past the longest header."""

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self.size = size
        self.position = 0
        self._path = path
        self._file = file
        self._walked = 0

    def refuse(self, why: str) -> NotGGUFError:
        return NotGGUFError(f"{self._path} is not a usable GGUF file: {why}")

    def peek(self, count: int) -> bytes:
        data = self._file.read(count)
        self._file.seek(self.position)
        return data

    def take(self, count: int, what: str) -> bytes:
        self._advance(count, what)
        data = self._file.read(count)
        if len(data) < count:
            raise self.refuse(f"it shrank while {what} was read")
        return data

    def skip(self, count: int, what: str) -> None:
        self._advance(count, what)
        self._file.seek(count, os.SEEK_CUR)  # stays within the buffer where it can

    def number(self, width: int, what: str) -> int:
        return int.from_bytes(self.take(width, what), "little")

    def text(self, what: str) -> str:
        length = self.number(8, what)
        if length > MAX_KEPT_BYTES:
            raise self.refuse(f"{what} claims to be {length} bytes long")
        return self.take(length, what).decode("utf-8", "replace")

    def skip_strings(self, count: int, what: str) -> None:
        self._walked += count
        if self._walked > MAX_WALKED_STRINGS:
            raise self.refuse(f"{what} claims {count} strings, more than any vocabulary has")
        for _ in range(count):
            self.skip(self.number(8, what), what)

    def _advance(self, count: int, what: str) -> None:
        self.position += count
        if self.position > self.size:
            raise self.refuse(f"{what} goes beyond the end of the file (is the download complete?)")
        if self.position > MAX_HEADER_BYTES:
            raise self.refuse(f"its header is longer than {MAX_HEADER_BYTES >> 20} MiB, at {what}")


@attrs.frozen
class _Values:
    """The values that were kept, by key; asks for a type that the key does not have are refused."""

    cursor: _Cursor
    by_key: dict[str, str | tuple[int, ...]] = attrs.Factory(dict)

    def text(self, key: str) -> str | None:
        value = self.by_key.get(key)
        if value is not None and not isinstance(value, str):
            raise self.cursor.refuse(f"{key} is not a string")
        return value or None

    def numbers(self, key: str) -> tuple[int, ...]:
        value = self.by_key.get(key, ())
        if isinstance(value, str) or any(not 0 <= number < _MAX_NUMBER for number in value):
            raise self.cursor.refuse(f"{key} is not a count")
        return value

    def number(self, key: str) -> int | None:
        value = self.numbers(key)
        if len(value) > 1:
            raise self.cursor.refuse(f"{key} has {len(value)} numbers where one is expected")
        return value[0] if value else None


def _read(cursor: _Cursor) -> GGUFFacts:
    version = _read_version(cursor)
    tensor_count = cursor.number(8, "the number of tensors")
    key_count = cursor.number(8, "the number of keys")
    if tensor_count > MAX_TENSORS or key_count > MAX_KEYS:
        raise cursor.refuse(f"it claims {tensor_count} tensors and {key_count} keys")
    values = _read_values(cursor, key_count)
    part, parts = values.number("split.no") or 0, values.number("split.count") or 1
    if part:
        raise cursor.refuse(f"it is part {part + 1} of {parts} of a split model: name the first part")
    architecture = values.text(_ARCHITECTURE)
    if architecture is None:
        raise cursor.refuse(f"it has no {_ARCHITECTURE}, so no engine can know what it is")
    heaviest = _check_tensors(cursor, tensor_count, values.number("general.alignment"))
    kv_heads = values.numbers(f"{architecture}.attention.head_count_kv")
    return GGUFFacts(
        architecture=architecture,
        file_version=version,
        tensor_count=tensor_count,
        size_bytes=cursor.size,
        name=values.text("general.name"),
        license=values.text("general.license"),
        quantization=_quantization(values.number("general.file_type"), heaviest),
        context_length=values.number(f"{architecture}.context_length"),
        layer_count=values.number(f"{architecture}.block_count"),
        embedding_size=values.number(f"{architecture}.embedding_length"),
        head_count=max(values.numbers(f"{architecture}.attention.head_count"), default=None),
        head_count_kv=max(kv_heads, default=None),
        head_count_kv_per_layer=kv_heads if len(kv_heads) > 1 else (),
        key_length=values.number(f"{architecture}.attention.key_length"),
        value_length=values.number(f"{architecture}.attention.value_length"),
        pooling_type=values.number(f"{architecture}.pooling_type"),
        split_count=parts,
    )


def _read_version(cursor: _Cursor) -> int:
    start = cursor.peek(24)
    if not start:
        raise cursor.refuse("it is empty")
    if not start.startswith(_MAGIC):
        guess = next((guess for prefix, guess in _LOOKALIKES if start.startswith(prefix)), None)
        raise cursor.refuse(guess or f"it starts with {start[:4]!r} instead of {_MAGIC!r}")
    cursor.skip(4, "its first word")
    version = cursor.number(4, "its version")
    if version & 0xFFFF == 0:
        raise cursor.refuse("it is big-endian: convert it for little-endian machines")
    if version not in _VERSIONS:
        raise cursor.refuse(f"it has format version {version}; engines read versions {_VERSIONS}")
    return version


def _read_values(cursor: _Cursor, key_count: int) -> _Values:
    values = _Values(cursor)
    for _ in range(key_count):
        key = cursor.text("a key")
        if key not in _WANTED and key.partition(".")[2] not in _WANTED_OF_ARCHITECTURE:
            _skip_value(cursor, key)
        elif key in values.by_key:
            raise cursor.refuse(f"it has {key} twice")
        else:
            values.by_key[key] = _read_value(cursor, key)
    return values


def _read_value(cursor: _Cursor, key: str) -> str | tuple[int, ...]:
    kind, count = cursor.number(4, key), 1
    if kind == GGUFValueType.STRING:
        return cursor.text(key)
    if kind == GGUFValueType.ARRAY:
        kind, count = cursor.number(4, key), cursor.number(8, key)
    if kind not in _UNSIGNED and kind not in _SIGNED:
        raise cursor.refuse(f"{key} has the unexpected type {kind}")
    width = _WIDTHS[kind]
    if count * width > MAX_KEPT_BYTES:
        raise cursor.refuse(f"{key} claims {count} numbers")
    data = cursor.take(count * width, key)
    return tuple(
        int.from_bytes(data[at : at + width], "little", signed=kind in _SIGNED) for at in range(0, len(data), width)
    )


def _skip_value(cursor: _Cursor, key: str) -> None:
    kind, count = cursor.number(4, key), 1
    if kind == GGUFValueType.ARRAY:
        kind, count = cursor.number(4, key), cursor.number(8, key)
    if kind == GGUFValueType.STRING:
        cursor.skip_strings(count, key)
    elif kind in _WIDTHS:
        cursor.skip(count * _WIDTHS[kind], key)
    else:  # an array in an array is legal on paper, but no engine reads one
        raise cursor.refuse(f"{key} has the unexpected type {kind}")


def _check_tensors(cursor: _Cursor, tensor_count: int, alignment: int | None) -> int | None:
    """Return the type that holds most bytes, once the file is seen to hold every tensor's data."""
    what = "the list of tensors"
    alignment = 32 if alignment is None else alignment
    if alignment == 0 or alignment & (alignment - 1):
        raise cursor.refuse(f"general.alignment is {alignment}, not a power of two")
    data_bytes = 0
    by_type: Counter[int] = Counter()
    for _ in range(tensor_count):
        cursor.skip(cursor.number(8, what), what)  # its name
        dimensions = cursor.number(4, what)
        if dimensions > _MAX_DIMENSIONS:
            raise cursor.refuse(f"a tensor claims {dimensions} dimensions")
        elements = 1
        for _ in range(dimensions):
            elements *= cursor.number(8, what)
        kind = cursor.number(4, what)
        offset = cursor.number(8, what)
        # a type newer than our table has an unknown size: the engine will judge it
        block_elements, block_bytes = _QUANT_SIZES.get(kind, (1, 0))
        tensor_bytes = elements // block_elements * block_bytes
        by_type[kind] += tensor_bytes
        data_bytes = max(data_bytes, offset + tensor_bytes)
    needed = -(-cursor.position // alignment) * alignment + data_bytes
    if data_bytes and needed > cursor.size:
        raise cursor.refuse(f"its tensors need {needed} bytes but it has {cursor.size} (is the download complete?)")
    return max(by_type, key=by_type.__getitem__, default=None)


_QUANT_SIZES: Final[Mapping[int, tuple[int, int]]] = {int(kind): sizes for kind, sizes in GGML_QUANT_SIZES.items()}
_FILE_TYPES: Final[Mapping[int, str]] = {
    int(kind): kind.name.removeprefix("ALL_").removeprefix("MOSTLY_") for kind in LlamaFileType
}
_TENSOR_TYPES: Final[Mapping[int, str]] = {int(kind): kind.name for kind in GGMLQuantizationType}


def _quantization(file_type: int | None, heaviest: int | None) -> str | None:
    """Return the name that people use (`Q4_K_M`): from the header, else the type that holds most of the bytes."""
    if file_type is not None and (name := _FILE_TYPES.get(file_type & ~_GUESSED)):
        return name
    return None if heaviest is None else _TENSOR_TYPES.get(heaviest)
