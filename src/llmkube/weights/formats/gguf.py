"""Read the facts of a GGUF file from its header, safely for any file.

`gguf_reader` reads the bytes by llama.cpp's rules; this module turns the values into facts, by the rules that its model
loader applies to every architecture (`gguf_format`). An engine may still refuse a file that passes, if

* its version does not know the architecture, or the architecture requires additional hyperparameters;
* a tensor is missing, superfluous, or of a different shape than the hyperparameters imply;
* the tokenizer's kind is unknown, or its tokens, merges and special tokens are inconsistent;
* a tensor has a type that is newer than our table (`GGUFFacts.newer_tensor_types`).
"""

import os
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import attrs

from llmkube.base.trusted_paths import open_file
from llmkube.weights.errors import FetchError, NotGGUFError, WeightsError
from llmkube.weights.formats import gguf_format as fmt
from llmkube.weights.formats.gguf_reader import MAX_TENSORS, Header, HeaderReader, Value
from llmkube.weights.formats.shape import AdapterFacts, GGUFFacts, ModelHeader, Shape, vocabulary_of

_PART: Final = re.compile(r"(?P<name>.+)-00001-of-(?P<count>[0-9]{5})\.gguf")
MAX_PARTS: Final = 256
"""Maximum number of files of one model that are read; the largest models in use have under a hundred."""

_SCALAR_KINDS: Final = (fmt.UINT16, fmt.UINT32, fmt.INT32)
_PER_LAYER: Final = (fmt.UINT32, fmt.INT32, fmt.BOOL)
_INTEGER_KINDS: Final = fmt.LAYOUTS.keys() - {fmt.FLOAT32, fmt.FLOAT64}

OpenFile = Callable[[Path], int]
"""Returns a descriptor of a file for reading, which the caller closes."""

PIECE_BYTES: Final = 256 << 10
"""The size of the pieces in which a local file is read."""


def read_header(path: Path, opener: Callable[[Path], int] = open_file) -> GGUFFacts:
    """Read the facts, within a second and with little memory, whatever the file is. Blocks on the disk.

    The other files of a split model are read from the same folder, only for `shape`; missing or invalid ones are
    skipped.

    Args:
        path: The file.
        opener: Opens it, and the other files of a split model.

    Raises:
        WeightsError: Raised by `opener` for the first file.
        NotGGUFError: The file is not a complete model in little-endian GGUF, version 2 or 3.
        FetchError: The file cannot be read now.
    """
    facts = facts_of(read_file(path, opener))
    if facts.split_count == 1 or facts.shape is None:
        return facts
    return attrs.evolve(facts, shape=_with_parts(path, facts.shape, facts.split_count, opener))


def read_file(path: Path, opener: Callable[[Path], int] = open_file) -> HeaderReader:
    """Return the reader of a file's header, which was read completely; blocks on the disk.

    Raises:
        WeightsError: Raised by `opener`.
        NotGGUFError: It is not a GGUF file.
        FetchError: It cannot be read now.
    """
    try:
        descriptor = opener(path)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise NotGGUFError(f"{path} is not a regular file")
            reader = HeaderReader(str(path), found.st_size)
            while (piece := reader.next_range) is not None:
                reader.feed(os.pread(descriptor, max(piece.length, PIECE_BYTES), piece.offset))
        finally:
            os.close(descriptor)
    except OSError as exc:
        raise FetchError(f"{path} cannot be read: {exc.strerror or exc}") from exc
    return reader


def _with_parts(path: Path, shape: Shape, count: int, opener: Callable[[Path], int]) -> Shape:
    named = _PART.fullmatch(path.name)
    if named is None or int(named["count"]) != count or count > MAX_PARTS:
        return shape
    for number in range(2, count + 1):
        try:
            header = read_file(path.with_name(f"{named['name']}-{number:05}-of-{count:05}.gguf"), opener).header
        except (WeightsError, FetchError):
            continue
        if header is not None and len(shape.tensors) + header.tensor_count <= MAX_TENSORS:
            shape = attrs.evolve(
                shape,
                tensors=shape.tensors + header.tensors,
                size_bytes=shape.size_bytes + (header.size_bytes or header.needed_bytes),
                missing_parts=shape.missing_parts - 1,
            )
    return attrs.evolve(shape, vocabulary_size=vocabulary_of(shape.tensors) or shape.vocabulary_size)


def facts_of(reader: HeaderReader) -> GGUFFacts:
    """Return the facts of a header that was read completely.

    Raises:
        NotGGUFError: The model loader of engines would refuse it, whatever the architecture.
    """
    header = reader.header
    assert header is not None, "the reader has been fed until `next_range` is None"
    values = HeaderValues(reader, header)
    values.check(fmt.GENERAL)
    parts = _split_count(values)
    architecture = values.text(fmt.ARCHITECTURE)
    if not architecture:
        raise reader.refuse("it has no general.architecture, which engines require")
    if architecture == fmt.PROJECTOR:
        raise reader.refuse(
            "it is a vision or audio projector, not a model; use the model that it belongs to, and name this file in "
            "the Model's spec.mmproj (llmkube deploy --mmproj)"
        )
    if kind := fmt.OTHER_KINDS.get(architecture):
        raise reader.refuse(f"its architecture is {architecture}: it is {kind}")
    if values.text(fmt.TYPE) == "adapter":
        return _adapter_facts(values, architecture)
    values.check({f"{architecture}.{name}": kind for name, kind in fmt.ARCHITECTURE_KEYS.items()})
    _, _, layer_count = (values.required(f"{architecture}.{name}") for name in fmt.REQUIRED)
    if not 0 < layer_count <= fmt.MAX_LAYERS:
        raise reader.refuse(f"it claims {layer_count} layers; engines support 1 to {fmt.MAX_LAYERS}")
    for name in fmt.PER_LAYER:
        values.check_per_layer(f"{architecture}.{name}", layer_count)
    _check_tokenizer(values)
    if header.tensor_count == 0 and parts == 1:
        raise reader.refuse("it has no tensors: it is a vocabulary or an unfinished conversion, not a model")
    newer = tuple(sorted(kind for kind in header.tensor_bytes if kind in fmt.NEWER_TENSOR_TYPES))
    heaviest = max(header.tensor_bytes, key=header.tensor_bytes.__getitem__, default=None)
    return GGUFFacts.of(
        _shape(values, architecture, parts),
        file_version=header.version,
        name=values.text("general.name"),
        license=values.text("general.license"),
        # Without the types of all tensors the mix is not known, whatever the header says.
        quantization=None if newer else quantization(values.number("general.file_type"), heaviest),
        split_count=parts,
        newer_tensor_types=newer,
    )


def _adapter_facts(values: "HeaderValues", architecture: str) -> GGUFFacts:
    header, alpha = values.header, values.get(fmt.ADAPTER_ALPHA)
    rank = max((each.sizes[-1] for each in header.tensors if each.name.endswith(".lora_a")), default=0)
    known = alpha is not None and alpha.kind == fmt.FLOAT32 and alpha.count is None and alpha.data
    kind, base = values.text(fmt.ADAPTER_TYPE) or "", values.text(fmt.BASE_NAME) or ""
    strength = fmt.LAYOUTS[fmt.FLOAT32].unpack(known)[0] if known else None
    size = header.needed_bytes if header.size_bytes is None else header.size_bytes
    adapter = AdapterFacts(kind, rank, strength, base, header.tensors)
    name, terms = values.text("general.name"), values.text("general.license")
    return GGUFFacts(architecture, header.version, header.tensor_count, size, name, terms, adapter=adapter)


def require_model(facts: ModelHeader, name: str) -> None:
    """Refuse a file that is no model.

    Raises:
        NotGGUFError: It is an adapter.
    """
    if isinstance(facts, GGUFFacts) and facts.adapter is not None:
        adds = "add it to the adapters of a service of that model, with spec.adapters or `llmkube deploy --lora`"
        raise NotGGUFError(f"{name} is a LoRA adapter for {facts.architecture}, not a model; {adds}")


def _shape(values: "HeaderValues", architecture: str, parts: int) -> Shape:
    """Return the shape for sizing; its keys are not checked, and those of an unexpected type are ignored."""
    header = values.header
    keys = (*fmt.ARCHITECTURE_KEYS, *fmt.PER_LAYER, *fmt.SIZING_KEYS)
    numbers = {key: found for key in keys if (found := values.numbers(f"{architecture}.{key}"))}
    tokens = values.get(fmt.TOKENS)
    read_bytes = sum(each.size_bytes for each in header.tensors)
    data_bytes = 0 if header.size_bytes is None else header.size_bytes - header.data_offset
    return Shape.of_header(
        architecture,
        header.tensors,
        numbers,
        tokens.count if tokens and tokens.count else 0,
        size_bytes=header.needed_bytes if header.size_bytes is None else header.size_bytes,
        unread_bytes=max(0, data_bytes - read_bytes) if any(not each.size_bytes for each in header.tensors) else 0,
        missing_parts=parts - 1,
    )


@attrs.frozen
class HeaderValues:
    """The retained values, read as the model loader does; a value of a different type than in the rules is refused."""

    reader: HeaderReader
    header: Header

    def get(self, key: str) -> Value | None:
        """Return a value; None if absent."""
        return self.header.values.get(key.encode())

    def check(self, kinds: Mapping[str, int]) -> None:
        """Refuse each of these keys that is present with another type."""
        for key, kind in kinds.items():
            value = self.get(key)
            if value is not None and (value.kind != kind or value.count is not None):
                raise self.reader.refuse(f"{key} is of type {value.title}, not {fmt.VALUE_NAMES[kind]}")

    def text(self, key: str) -> str | None:
        """Return a string, cut at the first NUL as engines do; None if absent or empty."""
        value = self.get(key)
        if value is None or value.kind != fmt.STRING or value.count is not None or value.data is None:
            return None
        return value.data.partition(b"\0")[0].decode("utf-8", "replace") or None

    def number(self, key: str) -> int | None:
        """Return an integer; None if absent."""
        value = self.get(key)
        if value is None or value.data is None or value.count is not None or value.kind not in _SCALAR_KINDS:
            return None
        return int.from_bytes(value.data, "little", signed=value.kind == fmt.INT32)

    def numbers(self, key: str) -> tuple[int, ...]:
        """Return one or several integers or booleans; () if absent."""
        value = self.get(key)
        if value is None or value.data is None or value.kind not in _INTEGER_KINDS:
            return ()
        return tuple(int(number) for (number,) in fmt.LAYOUTS[value.kind].iter_unpack(value.data))

    def required(self, key: str) -> int:
        """Return an integer; refuse the file if it is absent."""
        number = self.number(key)
        if number is None:
            raise self.reader.refuse(
                f"it has no {key}, which every language model has: it may be another kind of model"
            )
        return number

    def check_per_layer(self, key: str, layer_count: int) -> None:
        """Refuse a key that is present and is neither one number for all layers nor one for each."""
        value = self.get(key)
        if value is not None and value.count is None:
            self.check({key: fmt.UINT32})
        elif value is not None and (value.count != layer_count or value.kind not in _PER_LAYER or value.data is None):
            raise self.reader.refuse(f"{key} is an {value.title}; {layer_count} layers need a u32 each")


def _check_tokenizer(values: HeaderValues) -> None:
    """Refuse a header without a usable tokenizer."""
    refuse = values.reader.refuse
    if values.get(fmt.TOKENIZER) is None:
        raise refuse(f"it has no {fmt.TOKENIZER}, so engines cannot convert text to tokens")
    if values.text(fmt.TOKENIZER) in fmt.NO_TOKENIZER:
        return
    values.check(fmt.TOKENIZER_KEYS)
    tokens = values.get(fmt.TOKENS)
    if tokens is None or tokens.kind != fmt.STRING or tokens.count is None:
        raise refuse(
            f"it has no {fmt.TOKENS}" if tokens is None else f"{fmt.TOKENS} is of type {tokens.title}, not a vocabulary"
        )
    for key, kinds in fmt.TOKEN_ARRAYS.items():
        value = values.get(key)
        if value is not None and (value.kind not in kinds or value.count is None or value.count < tokens.count):
            expected = fmt.VALUE_NAMES[kinds[0]]
            raise refuse(f"{key} is of type {value.title}; each of {tokens.count} tokens needs one {expected}")


def _split_count(values: HeaderValues) -> int:
    """Return the number of files of the model; engines are given the first, from which they find the others."""
    parts = values.number("split.count") or 1
    if parts > 1:
        values.check(fmt.SPLIT_KEYS)
        part, _ = (values.required(key) for key in fmt.SPLIT_KEYS)
        if part:
            raise values.reader.refuse(f"it is part {part + 1} of {parts} of a split model; use the first part")
    return parts


def quantization(file_type: int | None, heaviest: int | None) -> str | None:
    """Return the common name (`Q4_K_M`): from the header, else of the type with most of the bytes."""
    if file_type is not None and (name := fmt.FILE_TYPES.get(file_type & ~fmt.GUESSED_FLAG)):
        return name
    return None if heaviest is None or heaviest not in fmt.TENSOR_TYPES else fmt.TENSOR_TYPES[heaviest][0]


_SAME_KEYS: Final = (fmt.TOKENIZER, "tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token")
_MAX_DIFFERENCE: Final = 128
_FIRST_COMPARED: Final = 5


def vocabulary_difference(model: tuple[Path, OpenFile], draft: tuple[Path, OpenFile]) -> str:
    """Return why llama.cpp would not use a draft model, by the rules in its `speculative.cpp`; "" if it would.

    Args:
        model: The model's file, and the function that opens it.
        draft: The draft model's.

    Raises:
        FetchError: One cannot be read.
        WeightsError: Raised by one of the functions.
    """
    (one, words), (other, drafted) = (_vocabulary(*each) for each in (model, draft))
    for key in _SAME_KEYS:
        if (wanted := one.get(key)) and (found := other.get(key)) and found.data != wanted.data:
            return f"its {key} is different"
    sizes = [value.count or 0 for each in (one, other) if (value := each.get(fmt.TOKENS))]
    if sizes and max(sizes) - min(sizes) > _MAX_DIFFERENCE:
        return f"it has {sizes[-1]} tokens, and the model {sizes[0]}"
    compared = min(len(words), len(drafted))  # each token has its length before it, so that no other text is equal
    return "" if words[:compared] == drafted[:compared] else "its tokens are different"


def _vocabulary(path: Path, opener: OpenFile) -> tuple[HeaderValues, bytes]:
    """Return the values of a header, and the bytes of its tokens that engines compare."""
    reader = read_file(path, opener)
    assert reader.header is not None, "it was read completely"
    place = reader.string_arrays.get(fmt.TOKENS.encode(), range(0))
    try:
        with os.fdopen(opener(path), "rb") as file:
            data = os.pread(file.fileno(), len(place), place.start)
    except OSError as exc:
        raise FetchError(f"{path} cannot be read: {exc.strerror or exc}") from exc
    cursor, length_of = 0, fmt.LAYOUTS[fmt.UINT64].unpack_from
    for _ in range(_FIRST_COMPARED if len(place) else 0):
        cursor += 8 + length_of(data, cursor)[0]
    return HeaderValues(reader, reader.header), data[cursor:]
