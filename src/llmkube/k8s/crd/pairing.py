"""The runtimes, and which of them reads which format: what a Model and a service have to agree on.

No schema of one of the two can say it. gguf goes with llama.cpp, mlx with the engines built on MLX, the rest with vLLM,
TGI and their like. A generic container reads what it reads; only mlx is nothing for it. gguf is also the default of
`spec.format`, so the user may not have chosen it: an engine that brings its own weights is not held to it.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from llmkube.k8s.crd.model import FORMATS

GGUF: Final = "gguf"
MLX: Final = "mlx"
METAL: Final = "metal"
DEFAULT_RUNTIME: Final = "llamacpp"
MLX_RUNTIME: Final = "mlx-lm"
OMLX: Final = "omlx"

_TENSORS: Final = ("safetensors", "pytorch", "custom")


@attrs.frozen
class RuntimeFacts:
    """What objects have to know of a runtime; what it does are rows of the same name in `llmkube.runtimes`.

    Attributes:
        name: The value of `spec.runtime`.
        enum: Its place among the values in the schema, to which a new one is added as the last.
        pods: The formats that it is handed in a pod; () of one that pods do not run.
        hosts: Those that it is handed on a host; () of one that agents do not run.
        hardware: What it computes on; () of one that computes on all.
    """

    name: str
    enum: int
    pods: tuple[str, ...] = attrs.field(default=(), kw_only=True)
    hosts: tuple[str, ...] = attrs.field(default=(), kw_only=True)
    hardware: tuple[str, ...] = attrs.field(default=(), kw_only=True)

    @property
    def reads(self) -> tuple[str, ...]:
        """All formats that it reads."""
        return self.pods or self.hosts

    def computes_on(self, accelerator: str) -> bool:
        """Whether it runs on this hardware."""
        return not self.hardware or accelerator in self.hardware


RUNTIMES: Final[Mapping[str, RuntimeFacts]] = {
    facts.name: facts
    for facts in (
        RuntimeFacts(DEFAULT_RUNTIME, 0, pods=(GGUF,), hosts=(GGUF,)),
        RuntimeFacts("llamacpp-router", 7, pods=(GGUF,)),
        RuntimeFacts("llama-server", 8, pods=(GGUF,), hosts=(GGUF,)),
        RuntimeFacts(MLX_RUNTIME, 11, hosts=(MLX, "safetensors"), hardware=(METAL, "cpu")),
        RuntimeFacts(OMLX, 9, hosts=(MLX,), hardware=(METAL,)),
        RuntimeFacts("vllm-metal", 12, hosts=(MLX, "safetensors"), hardware=(METAL,)),
        RuntimeFacts("ollama", 10, pods=(GGUF, "safetensors", "custom"), hosts=(GGUF,)),
        RuntimeFacts("vllm", 1, pods=_TENSORS),
        RuntimeFacts("tgi", 2, pods=_TENSORS),
        RuntimeFacts("sglang", 5, pods=_TENSORS),
        RuntimeFacts("triton", 6, pods=_TENSORS),
        RuntimeFacts("personaplex", 3, pods=_TENSORS),
        RuntimeFacts("generic", 4, pods=(GGUF, *_TENSORS)),
    )
}
"""All runtimes by name, in the order in which they are proposed; one that is not listed (a plug-in's) reads all."""

RUNTIME_NAMES: Final = tuple(sorted(RUNTIMES, key=lambda name: RUNTIMES[name].enum))
"""The values of `spec.runtime`."""

HOST_ENGINES: Final = tuple(name for name, facts in RUNTIMES.items() if facts.hosts)
"""What agents run today, in the order in which they are proposed."""


def host_engines_for(model_format: str, accelerator: str) -> list[str]:
    """Return what agents run with weights of this format on this hardware."""
    rows = RUNTIMES.items()
    return [name for name, facts in rows if model_format in facts.hosts and facts.computes_on(accelerator)]


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
    facts = RUNTIMES.get(runtime)
    readable = FORMATS if facts is None else facts.reads
    if model_format in readable or (model_format == GGUF and brings_weights):
        return ""
    fitting = [name for name, facts in RUNTIMES.items() if model_format in facts.pods]
    other = _other_runtime(fitting or host_engines_for(model_format, accelerator))
    return f"{_format_problem(runtime, readable, model_format)}: set that format{other}"


def host_mismatch(engine: str, model_format: str, accelerator: str) -> str:
    """Return why a host's engine cannot serve a Model of this format, with the way out; empty when it can.

    The way out is one that a host has: an agent starts no pods.

    Args:
        engine: One of `HOST_ENGINES`.
        model_format: The Model's `spec.format`.
        accelerator: The Model's `spec.hardware.accelerator`.
    """
    readable = RUNTIMES[engine].hosts
    if model_format in readable:
        return ""
    problem, fitting = _format_problem(engine, readable, model_format), host_engines_for(model_format, accelerator)
    if fitting:
        return f"{problem}: set that format{_other_runtime(fitting)}"
    served = [name for name in FORMATS if host_engines_for(name, accelerator)]
    return f"{problem}: name weights in {' or '.join(served)}, which an agent serves on {accelerator}"


def hardware_mismatch(engine: str, model_format: str, accelerator: str) -> str:
    """Return why a host's engine does not compute on this hardware, with the way out; empty when it does.

    The field to blame is `Model.spec.hardware.accelerator`. The arguments are those of `host_mismatch`.
    """
    facts = RUNTIMES[engine]
    if facts.computes_on(accelerator):
        return ""
    other = _other_runtime(host_engines_for(model_format, accelerator))
    return f"{engine} computes on {' or '.join(facts.hardware)}, not {accelerator}: set that{other}"


def _other_runtime(fitting: Sequence[str]) -> str:
    return f", or spec.runtime to {' or '.join(fitting)}" if fitting else ""


def _format_problem(engine: str, readable: tuple[str, ...], model_format: str) -> str:
    return f"{engine} reads {' or '.join(readable)}, not {model_format}"
