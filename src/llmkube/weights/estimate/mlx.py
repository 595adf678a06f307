"""MLX folders: the model is described by `config.json`, the sizes by the headers of its `.safetensors` files.

A safetensors file begins with the length of its header in eight bytes, little-endian, followed by the header in JSON
(https://huggingface.co/docs/safetensors). MLX engines store the cache in 16 bits and let it grow; the estimate is for
the whole context. Of their work buffers, only a lower bound is known.
"""

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from llmkube.weights.errors import FetchError, NotMLXError
from llmkube.weights.estimate.demand import Component, Demand, Estimate, Location
from llmkube.weights.estimate.layers import cache_bytes, cells, layers_of
from llmkube.weights.formats.shape import Shape, Tensor

MAX_HEADER_BYTES: Final = 64 << 20
MAX_CONFIG_BYTES: Final = 4 << 20
MAX_LAYERS: Final = 512
PROCESS_BYTES: Final = 1 << 30
"""Interpreter, libraries and the Metal heap of an MLX server: 1 to 2 GB in reports, at least this."""

PREFILL_TOKENS: Final = 2048
"""MLX engines read a prompt in steps of this many tokens."""

_NAMES: Final[Mapping[str, str]] = {
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "intermediate_size": "feed_forward_length",
    "kv_lora_rank": "attention.kv_lora_rank",
}


def is_mlx_folder(path: Path) -> bool:
    """Return whether this is a folder with a `config.json` and safetensors files."""
    return (path / "config.json").is_file() and any(path.glob("*.safetensors"))


def read_folder(path: Path) -> Shape:
    """Read the shape of a model in an MLX folder. Blocks on the disk.

    Raises:
        NotMLXError: The folder is not such a model.
        FetchError: It cannot be read.
    """
    try:
        config = _config(path)
        files = sorted(path.glob("*.safetensors"))
        tensors = tuple(tensor for file in files for tensor in _tensors(file))
        size_bytes = sum(file.stat().st_size for file in files)
    except OSError as exc:
        raise FetchError(f"{path} cannot be read: {exc.strerror or exc}") from exc
    if not tensors:
        raise NotMLXError(f"{path} has no safetensors file with a tensor")
    return _shape(path, config, tensors, size_bytes)


def cache_size(shape: Shape, demand: Demand) -> int:
    """Return the bytes of the KV cache when each slot has used its whole context."""
    context, slots = demand.context or shape.trained_context or 4096, max(1, demand.slots)
    cache = cells(context, 1, unified=True, ubatch=0, full_windows=False)
    return slots * sum(cache_bytes(layer, cache, "f16", "f16") for layer in layers_of(shape))


def estimate(shape: Shape, demand: Demand) -> Estimate:
    """Return what an MLX engine needs for this model, with the whole context in use in each slot."""
    context = demand.context or shape.trained_context or 4096
    widest = max(shape.number("feed_forward_length"), 4 * shape.embedding_size)
    work = 2 * (min(context, PREFILL_TOKENS) * 4 * widest + 2 * shape.vocabulary_size)
    return Estimate(
        components=(
            Component("weights", Location.DEVICE, sum(tensor.size_bytes for tensor in shape.tensors)),
            Component("KV cache", Location.DEVICE, cache_size(shape, demand)),
            Component("compute buffer", Location.DEVICE, work),
            Component("process", Location.HOST, PROCESS_BYTES),
        ),
        notes=("an MLX engine reserves no memory: its cache and its work buffers grow up to about this size",),
    )


def _config(path: Path) -> Mapping[str, Any]:
    file = path / "config.json"
    with file.open("rb") as stream:
        data = stream.read(MAX_CONFIG_BYTES + 1)
    try:
        config = json.loads(data) if len(data) <= MAX_CONFIG_BYTES else None
    except (ValueError, RecursionError) as exc:
        raise NotMLXError(f"{file} is not JSON: {exc}") from exc
    if not isinstance(config, dict):
        raise NotMLXError(f"{file} is not a JSON object of a reasonable size")
    text = config.get("text_config")
    return {**config, **text} if isinstance(text, dict) else config


def _tensors(file: Path) -> Iterator[Tensor]:
    with file.open("rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 0 < length <= MAX_HEADER_BYTES:
            raise NotMLXError(f"{file} is not a safetensors file: its header claims {length} bytes")
        data = stream.read(length)
    try:
        header = json.loads(data)
        for name, entry in header.items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                sizes = tuple(int(size) for size in reversed(entry["shape"]))
                yield Tensor(name, str(entry["dtype"]), sizes, max(0, int(end) - int(begin)))
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError, OverflowError) as exc:
        # OverflowError: JSON's 1e999 is infinite, not an integer
        raise NotMLXError(f"{file} has no valid safetensors header: {exc!r}") from exc


def _shape(path: Path, config: Mapping[str, Any], tensors: tuple[Tensor, ...], size_bytes: int) -> Shape:
    layers, width = _positive_int(config, "num_hidden_layers"), _positive_int(config, "hidden_size")
    if not 0 < layers <= MAX_LAYERS or not width:
        raise NotMLXError(f"{path / 'config.json'} has no num_hidden_layers (1 to {MAX_LAYERS}) or no hidden_size")
    numbers: dict[str, tuple[int, ...]] = {
        ours: (count,) for theirs, ours in _NAMES.items() if (count := _positive_int(config, theirs))
    }
    heads = numbers.setdefault("attention.head_count", (1,))
    numbers.setdefault("attention.head_count_kv", heads)
    if length := _positive_int(config, "head_dim"):
        numbers["attention.key_length"] = numbers["attention.value_length"] = (length,)
    if rank := _positive_int(config, "kv_lora_rank"):
        latent = rank + _positive_int(config, "qk_rope_head_dim")
        numbers |= {
            "attention.head_count_kv": (1,),
            "attention.key_length": (latent,),
            "attention.key_length_mla": (1,),
        }
    kinds, window = config.get("layer_types"), _positive_int(config, "sliding_window")
    if isinstance(kinds, list) and len(kinds) == layers:
        numbers["attention.recurrent_layers"] = tuple(int("linear" in str(kind)) for kind in kinds)
        numbers["attention.sliding_window_pattern"] = tuple(int("sliding" in str(kind)) for kind in kinds)
        numbers["attention.sliding_window"] = (window,)
    elif window and (period := _positive_int(config, "sliding_window_pattern")):
        numbers["attention.sliding_window_pattern"], numbers["attention.sliding_window"] = (period,), (window,)
    return Shape(
        architecture=f"mlx:{config.get('model_type') or 'unknown'}",
        tensors=tensors,
        numbers=numbers,
        layer_count=layers,
        embedding_size=width,
        vocabulary_size=_positive_int(config, "vocab_size"),
        trained_context=_positive_int(config, "max_position_embeddings"),
        size_bytes=size_bytes,
        format="mlx",
    )


def _positive_int(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
