"""The models that a LoRA adapter in GGUF fits. Pure.

The rules are those of llama.cpp's loader of adapters (`llama_adapter_lora_init` in `src/llama-adapter.cpp`).
"""

from typing import Final

from llmkube.weights.formats.shape import GGUFFacts, ModelHeader, Shape

_PARTS: Final = (".lora_a", ".lora_b")


def adapter_problem(facts: ModelHeader, model: ModelHeader) -> str:
    """Return why a file cannot be applied to a model as an adapter, with a fix; "" if it can."""
    base, adapter = model.shape, facts.adapter if isinstance(facts, GGUFFacts) else None
    if base is None or not isinstance(model, GGUFFacts):
        return "adapters are for models in GGUF; remove it"
    if adapter is None or not isinstance(facts, GGUFFacts):
        return "it is a model, not a LoRA adapter; name an adapter in GGUF"
    if adapter.kind != "lora":
        return f"its adapter.type is {adapter.kind or 'missing'}; llama.cpp applies lora only"
    if facts.architecture != base.architecture:
        trained = f"it is an adapter for {facts.architecture}, and the model is {base.architecture}"
        return f"{trained}; use one that was trained for this model"
    sizes = {tensor.name: tensor.sizes for tensor in (*base.tensors, *adapter.tensors)}
    adapting = (each.name for each in adapter.tensors if not each.name.endswith("_norm.weight"))  # these are skipped
    problems = (_problem(each, sizes, base) for each in adapting)
    return next(filter(None, problems), "")


def _problem(tensor: str, sizes: dict[str, tuple[int, ...]], base: Shape) -> str:
    name = tensor[:-7]
    a, b = (sizes.get(name + part) for part in _PARTS)
    if a is None or b is None:
        return f"{tensor} is not one of two tensors for a matrix; convert it again (convert_lora_to_gguf.py)"
    matrix = sizes.get(name)
    if matrix is None:  # it may be in a file that was not read
        missing = f"it changes {name}, which the model does not have; use an adapter that was trained for it"
        return "" if base.missing_parts else missing
    if _fits(name, a, b, matrix):
        return ""
    shape = " x ".join(map(str, matrix))
    return f"it does not fit {name}, which is {shape}; use an adapter that was trained for this model"


def _fits(name: str, a: tuple[int, ...], b: tuple[int, ...], matrix: tuple[int, ...]) -> bool:
    if min(len(a), len(b), len(matrix)) < 2:
        return False
    if name == "token_embd.weight":  # its matrices are not transposed
        return matrix[:2] == (b[1], a[1])
    return matrix[:2] == (a[0], b[1]) and a[1] == b[0]
