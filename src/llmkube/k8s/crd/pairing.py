"""The runtimes with the formats that they read and the hardware that they run on.

No schema can check a Model against a service. gguf requires llama.cpp, mlx an engine built on MLX, the other formats
vLLM, TGI and similar engines. A generic container is assumed to read all formats but mlx. gguf is also the default of
`spec.format`, so it may not be the user's choice: it is not checked for an engine that fetches its own weights.
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
GENERIC: Final = "generic"

_TENSORS: Final = ("safetensors", "pytorch", "custom")


@attrs.frozen
class RuntimeFacts:
    """The formats and the hardware of a runtime; `llmkube.runtimes` implements the runtime of the same name.

    Attributes:
        name: The value of `spec.runtime`.
        enum: Its position among the values in the schema; new ones are appended.
        pods: The formats that it reads in a pod; () if it does not run in pods.
        hosts: The formats that it reads on a host; () if agents do not run it.
        hardware: The accelerators that it runs on; () for all.
    """

    name: str
    enum: int
    pods: tuple[str, ...] = attrs.field(default=(), kw_only=True)
    hosts: tuple[str, ...] = attrs.field(default=(), kw_only=True)
    hardware: tuple[str, ...] = attrs.field(default=(), kw_only=True)

    @property
    def reads(self) -> tuple[str, ...]:
        """The formats that the runtime reads."""
        return self.pods or self.hosts

    def computes_on(self, accelerator: str) -> bool:
        """Return whether the runtime runs on this accelerator."""
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
        RuntimeFacts(GENERIC, 4, pods=(GGUF, *_TENSORS), hosts=("custom", GGUF, MLX, "safetensors", "pytorch")),
    )
}
"""All runtimes by name, in the order in which messages suggest them; a plugin's, not listed here, reads all formats."""

RUNTIME_NAMES: Final = tuple(sorted(RUNTIMES, key=lambda name: RUNTIMES[name].enum))
"""The values of `spec.runtime`."""

HOST_ENGINES: Final = tuple(name for name, facts in RUNTIMES.items() if facts.hosts)
"""The runtimes that agents run, in the order in which messages suggest them."""


def host_engines_for(model_format: str, accelerator: str) -> list[str]:
    """Return the runtimes that agents run with this format on this accelerator; not generic, which needs its owner."""
    rows = [(name, facts) for name, facts in RUNTIMES.items() if name != GENERIC]
    return [name for name, facts in rows if model_format in facts.hosts and facts.computes_on(accelerator)]


def resolve_runtime(runtime: str, model_format: str, accelerator: str, *, mlx_runtime: str = MLX_RUNTIME) -> str:
    """Return the runtime that serves a service: an MLX runtime instead of the default for mlx weights on metal.

    The API server writes the default runtime into every object, so `llamacpp` may not be the user's choice;
    `llama-server` always is, and is not replaced.

    Args:
        runtime: The service's `spec.runtime`.
        model_format: The Model's `spec.format`.
        accelerator: The Model's `spec.hardware.accelerator`.
        mlx_runtime: The host's default MLX runtime (`mlx_runtime_of`).
    """
    if (runtime, model_format, accelerator) == (DEFAULT_RUNTIME, MLX, METAL):
        return mlx_runtime
    return runtime


def mlx_runtime_of(*, has_omlx: bool) -> str:
    """Return a host's default MLX runtime: oMLX if installed, else mlx-lm."""
    return OMLX if has_omlx else MLX_RUNTIME


def pod_mismatch(runtime: str, model_format: str, accelerator: str, *, engine_fetches: bool = False) -> str:
    """Return why an engine in a pod cannot serve a Model of this format, with a fix; empty if it can.

    The cause is in the service's `spec.runtime` and `Model.spec.format`.

    Args:
        runtime: The service's `spec.runtime`.
        model_format: The Model's `spec.format`.
        accelerator: The Model's `spec.hardware.accelerator`.
        engine_fetches: The engine fetches the weights itself (tgi, personaplex, `skipModelInit`).
    """
    facts = RUNTIMES.get(runtime)
    readable = FORMATS if facts is None else facts.reads
    if model_format in readable or (model_format == GGUF and engine_fetches):
        return ""
    fitting = [name for name, facts in RUNTIMES.items() if model_format in facts.pods]
    other = _other_runtime(fitting or host_engines_for(model_format, accelerator))
    return f"{_format_problem(runtime, readable, model_format)}; use weights in that format{other}"


def host_mismatch(engine: str, model_format: str, accelerator: str) -> str:
    """Return why a host's engine cannot serve a Model of this format, with a fix; empty if it can.

    The fix names only runtimes of hosts: an agent starts no pods.

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
        return f"{problem}; use weights in that format{_other_runtime(fitting)}"
    served = [name for name in FORMATS if host_engines_for(name, accelerator)]
    return f"{problem}; use weights in {' or '.join(served)}, which an agent serves on {accelerator}"


def hardware_mismatch(engine: str, model_format: str, accelerator: str) -> str:
    """Return why a host's engine does not run on this accelerator, with a fix; empty if it does.

    The cause is in `Model.spec.hardware.accelerator`. The arguments are those of `host_mismatch`.
    """
    facts = RUNTIMES[engine]
    if facts.computes_on(accelerator):
        return ""
    other = _other_runtime(host_engines_for(model_format, accelerator))
    return f"{engine} runs on {' or '.join(facts.hardware)}, not {accelerator}; change the accelerator{other}"


def _other_runtime(fitting: Sequence[str]) -> str:
    return f", or set spec.runtime to {' or '.join(fitting)}" if fitting else ""


def _format_problem(engine: str, readable: tuple[str, ...], model_format: str) -> str:
    return f"{engine} reads {' or '.join(readable)}, not {model_format}"
