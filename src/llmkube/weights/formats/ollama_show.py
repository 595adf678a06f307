"""Parse Ollama's description of a stored model (`POST /api/show` with `verbose`) into the facts of its file. Pure.

The file itself may belong to another user and is not read. Facts: `server/routes.go` and `fs/ggml` of
https://github.com/ollama/ollama, 0.17.4: `model_info` has the keys of the header, `tensors` each tensor with its sizes
in the header's order, and `modelfile` a FROM line with the path of each file, the model's first.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from llmkube.weights.errors import NotGGUFError
from llmkube.weights.formats import gguf_format as fmt
from llmkube.weights.formats.gguf import quantization
from llmkube.weights.formats.gguf_reader import MAX_TENSORS
from llmkube.weights.formats.shape import GGUFFacts, Shape, Tensor

_FROM: Final = re.compile(r"^FROM\s+(\S.*?sha256[-:]([0-9a-f]{64}))\s*$", re.MULTILINE)
_BLOCKS: Final = {name: (elements, size_bytes) for name, elements, size_bytes in fmt.TENSOR_TYPES.values()}
_GGUF_VERSION: Final = 3
"""The response does not have the file's version; it does not matter, since the file is not read."""


@attrs.frozen
class StoredModel:
    """A model in an Ollama's store.

    Attributes:
        path: Its file.
        sha256: The digest in the file's name.
        facts: The facts of its header.
    """

    path: Path
    sha256: str
    facts: GGUFFacts


def read_show(name: str, data: Mapping[str, Any], size_bytes: int) -> StoredModel:
    """Return the model that a response describes.

    Args:
        name: The name of the model, for messages.
        data: The response.
        size_bytes: The size of all its files, as Ollama lists them; bytes outside of tensors are added as weights (a
            projector).

    Raises:
        NotGGUFError: The model runs elsewhere, is in another format, or lacks the data that determines its memory.
    """
    found = _FROM.search(str(data.get("modelfile", "")))
    if found is None or data.get("remote_host"):
        raise NotGGUFError(
            f"Ollama has no GGUF file for {name}; a host serves only models in GGUF that run on the host itself"
        )
    info, tensors = data.get("model_info"), data.get("tensors")
    if not isinstance(info, Mapping) or not isinstance(tensors, list) or not tensors:
        raise NotGGUFError(
            f"Ollama does not list the tensors of {name}, so its memory cannot be estimated; upgrade Ollama"
        )
    return StoredModel(Path(found[1]), found[2], _facts(name, info, tensors, size_bytes))


def _facts(name: str, info: Mapping[str, Any], tensors: list[Any], size_bytes: int) -> GGUFFacts:
    architecture = info.get(fmt.ARCHITECTURE)
    if not isinstance(architecture, str) or not architecture:
        raise NotGGUFError(f"Ollama reports no {fmt.ARCHITECTURE} for {name}, so its memory cannot be estimated")
    keys = (*fmt.ARCHITECTURE_KEYS, *fmt.PER_LAYER, *fmt.SIZING_KEYS)
    numbers = {key: found for key in keys if (found := _numbers(info.get(f"{architecture}.{key}")))}
    missing = [key for key in fmt.REQUIRED if not numbers.get(key)]
    if missing or not 0 < numbers["block_count"][0] <= fmt.MAX_LAYERS or len(tensors) > MAX_TENSORS:
        problem = f"no {architecture}.{missing[0]}" if missing else "sizes that no engine supports"
        raise NotGGUFError(f"Ollama reports {problem} for {name}, so its memory cannot be estimated")
    parsed = tuple(_tensor(name, each) for each in tensors)
    tensor_bytes = sum(each.size_bytes for each in parsed)
    tokens = info.get(fmt.TOKENS)
    shape = Shape.of_header(
        architecture,
        parsed,
        numbers,
        len(tokens) if isinstance(tokens, list) else 0,
        size_bytes=max(size_bytes, tensor_bytes),
        unread_bytes=max(0, size_bytes - tensor_bytes),
    )
    file_type = next(iter(_numbers(info.get("general.file_type"))), None)
    license_name = info.get("general.license")
    return GGUFFacts.of(
        shape,
        file_version=_GGUF_VERSION,
        license=license_name if isinstance(license_name, str) else None,
        quantization=quantization(file_type, None),
    )


def _numbers(value: object) -> tuple[int, ...]:
    """Return integers or booleans, one or several; () for anything else."""
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(each, int | float) and math.isfinite(each) and each == int(each) for each in values):
        return ()
    return tuple(map(int, values))


def _tensor(name: str, data: object) -> Tensor:
    found = data if isinstance(data, Mapping) else {}
    sizes, kind = found.get("shape"), str(found.get("type", "")).upper()
    if not isinstance(sizes, list) or not all(isinstance(each, int) and each > 0 for each in sizes):
        raise NotGGUFError(f"Ollama reports a tensor of {name} without its sizes, so its memory cannot be estimated")
    elements, block_bytes = _BLOCKS.get(kind, (1, 0))
    return Tensor(str(found.get("name", "")), kind, tuple(sizes), math.prod(sizes) // elements * block_bytes)
