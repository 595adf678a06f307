"""What an Ollama says of a model that it keeps (`POST /api/show` with `verbose`), as the facts of its file. Pure.

The file itself may belong to another user, and is not read. Facts: `server/routes.go` and `fs/ggml` of
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
"""Which version the file has is not said; it makes no difference to who does not read it."""


@attrs.frozen
class StoredModel:
    """A model in an Ollama's store.

    Attributes:
        path: Its file there.
        sha256: The digest that the file is called by.
        facts: What its header says.
    """

    path: Path
    sha256: str
    facts: GGUFFacts


def read_show(name: str, data: Mapping[str, Any], size_bytes: int) -> StoredModel:
    """Return what an answer says of a model.

    Args:
        name: The model's, for messages.
        data: The answer.
        size_bytes: Of all its files, as Ollama lists them; what no tensor accounts for counts as weights (a projector).

    Raises:
        NotGGUFError: It runs elsewhere, is of another format, or what decides its memory is not said.
    """
    found = _FROM.search(str(data.get("modelfile", "")))
    if found is None or data.get("remote_host"):
        raise NotGGUFError(
            f"Ollama keeps no file of weights in GGUF for {name}: a host serves models that run on it, in GGUF alone"
        )
    info, tensors = data.get("model_info"), data.get("tensors")
    if not isinstance(info, Mapping) or not isinstance(tensors, list) or not tensors:
        raise NotGGUFError(
            f"Ollama does not say what {name} consists of, so its memory cannot be promised: upgrade Ollama"
        )
    return StoredModel(Path(found[1]), found[2], _facts(name, info, tensors, size_bytes))


def _facts(name: str, info: Mapping[str, Any], tensors: list[Any], size_bytes: int) -> GGUFFacts:
    architecture = info.get(fmt.ARCHITECTURE)
    if not isinstance(architecture, str) or not architecture:
        raise NotGGUFError(f"Ollama names no {fmt.ARCHITECTURE} of {name}, so its memory cannot be promised")
    keys = (*fmt.ARCHITECTURE_KEYS, *fmt.PER_LAYER, *fmt.SIZING_KEYS)
    numbers = {key: found for key in keys if (found := _numbers(info.get(f"{architecture}.{key}")))}
    missing = [key for key in fmt.REQUIRED if not numbers.get(key)]
    if missing or not 0 < numbers["block_count"][0] <= fmt.MAX_LAYERS or len(tensors) > MAX_TENSORS:
        problem = f"no {architecture}.{missing[0]}" if missing else "sizes that no engine takes"
        raise NotGGUFError(f"Ollama tells {problem} of {name}, so its memory cannot be promised")
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
    heads, kv_heads = (numbers.get(f"attention.{key}", ()) for key in ("head_count", "head_count_kv"))
    file_type = next(iter(_numbers(info.get("general.file_type"))), None)
    license_name = info.get("general.license")
    return GGUFFacts.of(
        shape,
        heads,
        kv_heads,
        file_version=_GGUF_VERSION,
        license=license_name if isinstance(license_name, str) else None,
        quantization=quantization(file_type, None),
    )


def _numbers(value: object) -> tuple[int, ...]:
    """Return whole numbers or yes and no, one or several; nothing of anything else."""
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(each, int | float) and math.isfinite(each) and each == int(each) for each in values):
        return ()
    return tuple(map(int, values))


def _tensor(name: str, data: object) -> Tensor:
    found = data if isinstance(data, Mapping) else {}
    sizes, kind = found.get("shape"), str(found.get("type", "")).upper()
    if not isinstance(sizes, list) or not all(isinstance(each, int) and each > 0 for each in sizes):
        raise NotGGUFError(f"Ollama tells a tensor of {name} without its sizes, so its memory cannot be promised")
    elements, block_bytes = _BLOCKS.get(kind, (1, 0))
    return Tensor(str(found.get("name", "")), kind, tuple(sizes), math.prod(sizes) // elements * block_bytes)
