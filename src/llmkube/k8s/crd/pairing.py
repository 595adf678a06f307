"""Which engine reads which format: what a Model and a service have to agree on, and no schema of one can say.

gguf goes with llama.cpp, mlx with the engines built on MLX, the rest with vLLM, TGI and their like. A generic
container reads what it reads; only mlx is nothing for it. gguf is also the default of `spec.format`, so the user may
not have chosen it: an engine that brings its own weights is not held to it.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from llmkube.k8s.crd.model import FORMATS

GGUF: Final = "gguf"
MLX: Final = "mlx"
METAL: Final = "metal"
DEFAULT_RUNTIME: Final = "llamacpp"
MLX_RUNTIME: Final = "mlx-lm"
OMLX: Final = "omlx"

_TENSORS: Final = ("safetensors", "pytorch", "custom")

READS: Final[Mapping[str, tuple[str, ...]]] = {
    DEFAULT_RUNTIME: (GGUF,),
    "llamacpp-router": (GGUF,),
    "llama-server": (GGUF,),
    OMLX: (MLX,),
    MLX_RUNTIME: (MLX, "safetensors"),
    "vllm-metal": (MLX, "safetensors"),
    "ollama": (GGUF, "safetensors", "custom"),
    "vllm": _TENSORS,
    "tgi": _TENSORS,
    "sglang": _TENSORS,
    "triton": _TENSORS,
    "personaplex": _TENSORS,
    "generic": (GGUF, *_TENSORS),
}
"""By runtime: the formats that may be handed to it. A runtime that is not listed (a plug-in's) reads them all."""


HOST_ENGINES: Final = ("llamacpp", "llama-server", "mlx-lm", OMLX, "vllm-metal", "ollama")
"""What agents run today, in the order in which they are proposed."""

_COMPUTES_ON: Final[Mapping[str, tuple[str, ...]]] = {
    OMLX: (METAL,),
    "vllm-metal": (METAL,),
    MLX_RUNTIME: (METAL, "cpu"),
}
"""By engine that hosts alone run: its hardware. The others compute on all."""


def host_engines_for(model_format: str, accelerator: str) -> list[str]:
    """Return what agents run with weights of this format on this hardware."""
    return [
        name
        for name in HOST_ENGINES
        if model_format in _read_on_hosts(name) and accelerator in _COMPUTES_ON.get(name, (accelerator,))
    ]


def _read_on_hosts(engine: str) -> tuple[str, ...]:
    """Of Ollama's formats a host gives it files in gguf alone."""
    return (GGUF,) if engine == "ollama" else READS[engine]


def resolve_runtime(runtime: str, model_format: str, accelerator: str, *, mlx_runtime: str = MLX_RUNTIME) -> str:
    """Return the engine that a service gets: the default one, on metal and with mlx weights, is built on MLX.

    The API server writes the default runtime into every object, so `llamacpp` may not be the user's choice;
    `llama-server` is, and stays.

    Args:
        runtime: The service's `spec.runtime`.
        model_format: The Model's `spec.format`.
        accelerator: The Model's `spec.hardware.accelerator`.
        mlx_runtime: Which of the engines built on MLX the host takes by default (`mlx_runtime_of`).
    """
    if (runtime, model_format, accelerator) == (DEFAULT_RUNTIME, MLX, METAL):
        return mlx_runtime
    return runtime


def mlx_runtime_of(*, has_omlx: bool) -> str:
    """Return the engine built on MLX that a host takes where none is named: oMLX where it is there, else mlx-lm."""
    return OMLX if has_omlx else MLX_RUNTIME


def pod_mismatch(runtime: str, model_format: str, accelerator: str, *, brings_weights: bool = False) -> str:
    """Return why an engine in a pod cannot serve a Model of this format, with the way out; empty when it can.

    The fields to blame are the service's `spec.runtime` and `Model.spec.format`.

    Args:
        runtime: The service's `spec.runtime`.
        model_format: The Model's `spec.format`.
        accelerator: The Model's `spec.hardware.accelerator`.
        brings_weights: The engine fetches for itself (tgi, personaplex, `skipModelInit`), and is handed no file.
    """
    readable = READS.get(runtime, FORMATS)
    if model_format in readable or (model_format == GGUF and brings_weights):
        return ""
    fitting = [name for name, formats in READS.items() if model_format in formats and name not in _COMPUTES_ON]
    other = _other_runtime(fitting or host_engines_for(model_format, accelerator))
    return f"{_unread(runtime, readable, model_format)}: set that format{other}"


def host_mismatch(engine: str, model_format: str, accelerator: str) -> str:
    """Return why a host's engine cannot serve a Model of this format, with the way out; empty when it can.

    The way out is one that a host has: an agent starts no pods.

    Args:
        engine: One of `HOST_ENGINES`.
        model_format: The Model's `spec.format`.
        accelerator: The Model's `spec.hardware.accelerator`.
    """
    readable = _read_on_hosts(engine)
    if model_format in readable:
        return ""
    said, fitting = _unread(engine, readable, model_format), host_engines_for(model_format, accelerator)
    if fitting:
        return f"{said}: set that format{_other_runtime(fitting)}"
    served = [name for name in FORMATS if host_engines_for(name, accelerator)]
    return f"{said}: name weights in {' or '.join(served)}, which an agent serves on {accelerator}"


def hardware_mismatch(engine: str, model_format: str, accelerator: str) -> str:
    """Return why a host's engine does not compute on this hardware, with the way out; empty when it does.

    The field to blame is `Model.spec.hardware.accelerator`. The arguments are those of `host_mismatch`.
    """
    hardware = _COMPUTES_ON.get(engine, (accelerator,))
    if accelerator in hardware:
        return ""
    other = _other_runtime(host_engines_for(model_format, accelerator))
    return f"{engine} computes on {' or '.join(hardware)}, not {accelerator}: set that{other}"


def _other_runtime(fitting: Sequence[str]) -> str:
    return f", or spec.runtime to {' or '.join(fitting)}" if fitting else ""


def _unread(engine: str, readable: tuple[str, ...], model_format: str) -> str:
    return f"{engine} reads {' or '.join(readable)}, not {model_format}"
