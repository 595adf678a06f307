"""LoRA adapters in GGUF: their facts, and the model that they fit. Pure.

The rules are those of llama.cpp's loader of adapters (`llama_adapter_lora_init` in `src/llama-adapter.cpp`).
"""

from collections.abc import Iterable, Iterator
from typing import Final

import attrs

from llmkube.weights.formats.shape import GGUFFacts, Shape, Tensor

_PARTS: Final = (".lora_a", ".lora_b")
_EMBEDDING: Final = "token_embd.weight"
_IGNORED: Final = "_norm.weight"
"""End of the names of tensors that llama.cpp skips in an adapter."""


@attrs.frozen
class AdapterTensor:
    """A matrix of a model, and the sizes of the two that an adapter has for it, each from the length of its rows."""

    name: str
    sizes: tuple[tuple[int, ...], tuple[int, ...]]
    size_bytes: tuple[int, int]


def adapted_tensors(tensors: Iterable[Tensor]) -> Iterator[AdapterTensor | str]:
    """Yield the matrices that an adapter changes, or what is wrong with one."""
    found: dict[str, dict[str, Tensor]] = {}
    for tensor in tensors:
        name, part = tensor.name[:-7], tensor.name[-7:]
        if part in _PARTS:
            found.setdefault(name, {})[part] = tensor
        elif not tensor.name.endswith(_IGNORED):
            yield f"it has the tensor {tensor.name}, which is not one of an adapter"
    for name, parts in found.items():
        if len(parts) < len(_PARTS):
            yield f"it has only one of the two tensors for {name}"
        else:
            a, b = (parts[each] for each in _PARTS)
            yield AdapterTensor(name, (a.sizes, b.sizes), (a.size_bytes, b.size_bytes))


def adapter_problem(facts: GGUFFacts, base: Shape) -> str:
    """Return why a file cannot be applied to a model as an adapter, with a fix; "" if it can."""
    adapter = facts.adapter
    if adapter is None:
        return f"it is a model ({facts.architecture}), not a LoRA adapter; name an adapter in GGUF"
    if adapter.kind != "lora":
        return f"its adapter.type is {adapter.kind or 'missing'}; llama.cpp applies lora only"
    if facts.architecture != base.architecture:
        trained = f"it is an adapter for {facts.architecture}, and the model is {base.architecture}"
        return f"{trained}; use one that was trained for this model"
    sizes = {tensor.name: tensor.sizes for tensor in base.tensors}
    for each in adapted_tensors(adapter.tensors):
        if isinstance(each, str):
            return f"{each}; convert it again (convert_lora_to_gguf.py)"
        if each.name not in sizes and base.missing_parts:
            continue  # it may be in a file that was not read
        if each.name not in sizes:
            return f"it changes {each.name}, which the model does not have; use an adapter that was trained for it"
        if not _fits(each, sizes[each.name]):
            shape = " x ".join(map(str, sizes[each.name]))
            return f"it does not fit {each.name}, which is {shape}; use an adapter that was trained for this model"
    return ""


def _fits(adapted: AdapterTensor, sizes: tuple[int, ...]) -> bool:
    a, b = adapted.sizes
    if min(len(a), len(b), len(sizes)) < 2:
        return False
    if adapted.name == _EMBEDDING:  # its matrices are not transposed
        return (sizes[0], sizes[1]) == (b[1], a[1])
    return (sizes[0], sizes[1]) == (a[0], b[1]) and a[1] == b[0]
