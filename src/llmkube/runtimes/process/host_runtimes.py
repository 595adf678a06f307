"""The table of the runtimes that hosts run, and the lookup of a service's row."""

from collections.abc import Mapping
from typing import Final

from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.pairing import (
    DEFAULT_RUNTIME,
    GGUF,
    MLX_RUNTIME,
    hardware_mismatch,
    host_engines_for,
    host_mismatch,
    resolve_runtime,
)
from llmkube.runtimes.plan import PlanError
from llmkube.runtimes.process import generic, llamacpp, mlx_lm, ollama, omlx, vllm_metal
from llmkube.runtimes.process.host_runtime import EngineQueries, HostRuntime, LogReader
from llmkube.weights.ollama_model import REMEDY

HOST_RUNTIMES: Final[Mapping[str, HostRuntime]] = {
    runtime.name: runtime
    for runtime in (llamacpp.SERVER, mlx_lm.RUNTIME, omlx.RUNTIME, vllm_metal.RUNTIME, ollama.RUNTIME, generic.RUNTIME)
}

_NAMED: Final = {name: runtime for runtime in HOST_RUNTIMES.values() for name in (runtime.name, *runtime.other_names)}


def host_runtime_of(isvc: InferenceService, model: Model, mlx_runtime: str = MLX_RUNTIME) -> HostRuntime:
    """Return the runtime that serves this service on a host.

    Args:
        isvc: The service.
        model: The Model that it refers to.
        mlx_runtime: The MLX engine that the host uses by default.

    Raises:
        PlanError: No host supports the runtime, or it cannot read the weights; `field` is the invalid field.
    """
    requested, hardware, weights = isvc.spec.runtime, model.spec.hardware.accelerator, model.spec.format
    named = resolve_runtime(requested, weights, hardware, mlx_runtime=mlx_runtime)
    runtime = _NAMED.get(named)
    if isvc.spec.multi_node is not None:
        advice = "remove it, or serve the model in pods (vllm)"
        raise PlanError(f"a model cannot span several machines here; {advice}", field="spec.multiNode")
    refuse_library(named, model)
    if runtime is None:
        problem = f"{named} is not supported as a local process yet"
        raise PlanError(f"{problem}; {_advice(weights, hardware)}", field="spec.runtime")
    if problem := hardware_mismatch(named, weights, hardware):
        raise PlanError(problem, field="Model.spec.hardware.accelerator")
    if problem := host_mismatch(named, weights, hardware):
        raise PlanError(problem, field="Model.spec.format")
    return runtime


def engine_key_of(isvc: InferenceService, model: Model, mlx_runtime: str = MLX_RUNTIME) -> str:
    """Return `LaunchPlan.engine_key` of a service's plan; raises as `host_runtime_of`."""
    runtime = host_runtime_of(isvc, model, mlx_runtime).name
    return f"{runtime}/{isvc.spec.engine.name}" if runtime == generic.NAME and isvc.spec.engine else runtime


def refuse_library(runtime: str, model: Model, *, draft: bool = False) -> None:
    """Reject a Model whose weights are in the library of a program other than the engine.

    The message names everything that has to change, the format included: libraries have GGUF only.

    Args:
        runtime: The name of the engine.
        model: The Model that it is given.
        draft: Whether that is the draft model of speculative decoding; its message does not suggest another engine.

    Raises:
        PlanError: The engine cannot read the library.
    """
    scheme, separator, _ = model.spec.source.partition("://")
    owners = [each.name for each in HOST_RUNTIMES.values() if separator and each.library == scheme]
    if not owners:
        return
    source, weights = model.spec.source, model.spec.format
    if runtime not in owners:
        further = "" if weights == GGUF else f" and Model.spec.format to {GGUF}"
        other = "" if draft else f"set spec.runtime to {' or '.join(owners)}{further}, or "
        raise PlanError(f"{runtime} needs a file, but {source} is not one; {other}{REMEDY}", field="Model.spec.source")
    if weights != GGUF:
        raise PlanError(f"{source} is in {GGUF}, not {weights}; set {GGUF}", field="Model.spec.format")


def _advice(weights: str, hardware: str) -> str:
    """Return the advice to use a runtime that reads these weights, or else the default runtime with its weights."""
    fitting = host_engines_for(weights, hardware)
    if fitting:
        return f"use {' or '.join(fitting)}"
    return f"use weights in gguf and {' or '.join(_names(DEFAULT_RUNTIME))}"


def _names(name: str) -> tuple[str, ...]:
    runtime = HOST_RUNTIMES[name]
    return (runtime.name, *runtime.other_names)


def queries_of(runtime: str) -> EngineQueries:
    """Return the queries for the engines of a runtime; none for an unknown one, which a newer agent may have left."""
    return known.queries if (known := HOST_RUNTIMES.get(runtime)) else EngineQueries()


def holds_elsewhere(runtime: str) -> bool:
    """Return whether a process other than the engine may hold the model."""
    return runtime in HOST_RUNTIMES and HOST_RUNTIMES[runtime].memory_elsewhere


def log_reader_of(runtime: str) -> LogReader:
    """Return the log reader for the engines of a runtime; one that recognizes nothing for an unknown runtime."""
    return known.log if (known := HOST_RUNTIMES.get(runtime)) else LogReader()
