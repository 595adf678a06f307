"""Determine where each tensor goes: to the device, to the host as in the file, or to the host repacked.

llama.cpp puts the last layers and the output on the device and always keeps the token embedding on the host, whatever
`--n-gpu-layers` is. On the host, weights of some types are repacked for the CPU (the buffer `CPU_REPACK`). A mapped
file is in memory from the first to the last tensor that is used directly from it, with everything in between (measured,
and what llama.cpp reports as `CPU_Mapped`).
"""

import functools
import math
import re
from collections.abc import Mapping
from typing import Final

import attrs

from llmkube.weights.estimate.demand import Demand
from llmkube.weights.formats.gguf_format import DEFAULT_ALIGNMENT
from llmkube.weights.formats.shape import Shape, Tensor

EXPERTS: Final = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
"""The names of expert weights, as llama.cpp matches them for `--cpu-moe`."""

_X86: Final = frozenset(("Q4_0", "Q4_K", "IQ4_NL", "MXFP4"))
_ARM: Final = frozenset(("Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "IQ4_NL", "MXFP4"))
_REPACKED: Final[Mapping[str, frozenset[str]]] = {"x86_64": _X86, "AMD64": _X86, "arm64": _ARM, "aarch64": _ARM}
"""Types that ggml repacks: with AVX2 (measured), and with NEON's dot products (from its sources)."""

_REPACK_ROWS: Final = 8
_HOST_TENSORS: Final = ("token_embd", "token_types", "position_embd", "per_layer_token_embd")
_MAX_PATTERN_LENGTH: Final = 256
_MAX_REPEATS: Final = 8
_MAX_MATCH_COST: Final = 100_000_000
"""Maximum matching steps of a pattern over all tensors, about a second; a pattern that needs more is ignored."""


@attrs.frozen
class Weights:
    """Bytes of weights.

    Attributes:
        device_bytes: In the device's buffers.
        host_bytes: On the host, laid out as in the file.
        repacked_bytes: On the host, repacked.
    """

    device_bytes: int
    host_bytes: int
    repacked_bytes: int


@functools.lru_cache(maxsize=4)
def place_weights(shape: Shape, demand: Demand) -> Weights:
    """Sum up the tensors by location; blocks for multi-token prediction are not loaded unless it is used."""
    device_layers, uses_mtp = demand.device_layers, "draft-mtp" in demand.speculation
    layer_limit = shape.layer_count if uses_mtp else shape.layer_count - shape.number("nextn_predict_layers")
    first = max(0, shape.layer_count + 1 - device_layers) if device_layers else shape.layer_count + 1
    types = _REPACKED.get(demand.machine, frozenset()) if demand.repack else frozenset()
    patterns = _compiled(demand.overrides, shape.tensors)
    tied = all(tensor.name != "output.weight" for tensor in shape.tensors)
    device = plain = repacked = position = end = 0
    start: int | None = None
    for tensor in shape.tensors:
        size, name = tensor.size_bytes, tensor.name
        position += size + -size % DEFAULT_ALIGNMENT
        block, _ = tensor.place
        if block >= layer_limit:
            continue
        if name == "token_embd.weight" and tied:  # the output is a copy of it
            if device_layers:
                device += size
            elif tensor.type in types and _can_repack(tensor):
                repacked += size
        if _on_device(name, block, first, shape.layer_count, patterns):
            device += size
        elif tensor.type in types and _is_multiplied(tensor) and _can_repack(tensor):
            repacked += size
        else:
            plain += size
            end = position
            start = position - size if start is None else start
    if demand.mmap and not device_layers:
        plain = max(plain, end - (start or 0))
    return Weights(device, plain, repacked)


def place_adapters(shape: Shape, demand: Demand) -> tuple[int, int]:
    """Return the bytes of the LoRA adapters on the device and on the host: each part is next to its matrix."""
    first = max(0, shape.layer_count + 1 - demand.device_layers) if demand.device_layers else shape.layer_count + 1
    patterns = _compiled(demand.overrides, shape.tensors)
    sizes = [0, 0]
    for tensor in demand.adapters:
        block, _ = tensor.place
        on_device = _on_device(tensor.name, block, first, shape.layer_count, patterns)
        sizes[0 if on_device else 1] += tensor.size_bytes + -tensor.size_bytes % DEFAULT_ALIGNMENT
    return sizes[0], sizes[1]


def _on_device(
    name: str, block: int, first: int, layer_count: int, patterns: tuple[tuple[re.Pattern[str], bool], ...]
) -> bool:
    for pattern, on_device in patterns:
        if pattern.search(name):
            return on_device
    if block >= 0:
        return block >= first
    return first <= layer_count and not name.startswith(_HOST_TENSORS)


def _compiled(
    overrides: tuple[tuple[str, str], ...], tensors: tuple[Tensor, ...]
) -> tuple[tuple[re.Pattern[str], bool], ...]:
    """Return the patterns, each with whether its buffer is on the device; the CPU's buffers are named CPU.

    Patterns that are invalid in Python, or would take too long to match, are ignored.
    """
    found = []
    for pattern, buffer in overrides:
        try:
            if len(pattern) <= _MAX_PATTERN_LENGTH and _match_cost(pattern, tensors) <= _MAX_MATCH_COST:
                found.append((re.compile(pattern), not buffer.startswith("CPU")))
        except re.error:
            continue
    return tuple(found)


def _match_cost(pattern: str, tensors: tuple[Tensor, ...]) -> float:
    choices, repeats = _choices(pattern)
    if choices > _MAX_MATCH_COST or repeats > _MAX_REPEATS:
        return math.inf
    positions: int = sum(len(tensor.name) ** (repeats + 1) for tensor in tensors)
    return choices * positions / math.factorial(repeats + 1)


def _choices(pattern: str) -> tuple[float, int]:
    """Return the number of paths through a pattern's alternatives, and the number of its unbounded repeats.

    Python tries all of them before it reports no match. A repeated group has no bound: `(a+)+b`.
    """
    choices, repeats, before = 1.0, 0, ""
    open_groups = [1]
    for word in re.findall(r"\\.|\[\^?\]?(?:\\.|[^]\\])*\]|\(\?|.", pattern, re.DOTALL):
        if word[0] == "(":
            open_groups.append(1)
        elif word == ")" and len(open_groups) > 1:
            choices *= open_groups.pop()
        elif word == "|":
            open_groups[-1] += 1
        elif word == "?":
            choices *= 2
        elif word in {"*", "+", "{"}:
            repeats += 1
            choices = math.inf if before == ")" else choices
        before = word
    return choices * open_groups[0], repeats


def _is_multiplied(tensor: Tensor) -> bool:
    """Return whether a tensor is a matrix that tokens are multiplied with: only those are repacked."""
    name, dimensions = tensor.name, len(tensor.sizes)
    if name.startswith(_HOST_TENSORS) or "conv1d" in name or not name.endswith(".weight"):
        return False
    return dimensions == 2 or (dimensions == 3 and "_exps." in name)  # a matrix, or one for each expert


def _can_repack(tensor: Tensor) -> bool:
    return len(tensor.sizes) > 1 and tensor.sizes[1] % _REPACK_ROWS == 0
