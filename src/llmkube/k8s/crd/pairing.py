"""Which engine reads which format: what a Model and a service have to agree on, and no schema of one can say.

gguf goes with llama.cpp, mlx with the engines built on MLX, the rest with vLLM, TGI and their like. A generic
container reads what it reads; only mlx is nothing for it. gguf is also the default of `spec.format`, so the user may
not have chosen it: an engine that brings its own weights is not held to it.
"""

from collections.abc import Mapping
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

_ON_HOSTS_ALONE: Final = frozenset({OMLX, MLX_RUNTIME, "vllm-metal"})
"""Runtimes that are no way out for pods, nor for other hardware than they compute on."""

_ON_METAL_ALONE: Final = frozenset({OMLX, "vllm-metal"})


def host_engines_for(model_format: str, accelerator: str) -> list[str]:
    """Return what agents run with weights of this format on this hardware.

    Of Ollama's formats a host gives it files in gguf alone.
    """
    fitting = [name for name in HOST_ENGINES if model_format in (READS[name] if name != "ollama" else (GGUF,))]
    return [name for name in fitting if accelerator == METAL or name not in _ON_METAL_ALONE]


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


def mismatch(runtime: str, model_format: str, accelerator: str, *, brings_weights: bool = False) -> str:
    """Return why an engine cannot serve a Model of this format, with the way out; empty when it can.

    The fields to blame are the service's `spec.runtime` and `Model.spec.format`.

    Args:
        runtime: The service's `spec.runtime`.
        model_format: The Model's `spec.format`.
        accelerator: The Model's `spec.hardware.accelerator`.
        brings_weights: The engine fetches for itself (tgi, personaplex, `skipModelInit`), and is handed no file.
    """
    engine = resolve_runtime(runtime, model_format, accelerator)
    readable = READS.get(engine, FORMATS)
    if model_format in readable or (model_format == GGUF and brings_weights):
        return ""
    fitting = [name for name, formats in READS.items() if model_format in formats]
    others = " or ".join([name for name in fitting if name not in _ON_HOSTS_ALONE] or [MLX_RUNTIME])
    said = f"{engine} reads {' or '.join(readable)}, not {model_format}"
    if accelerator == METAL:  # pods reach no Mac's GPU, and an agent runs these engines alone
        fitting = host_engines_for(model_format, accelerator)
        if not fitting:
            return f"{said}: an agent on a Mac serves gguf, mlx and safetensors: name weights of one of them"
        others = " or ".join(fitting)
    return f"{said}: set that format, or spec.runtime to {others}"
