"""The table of the runtimes that hosts run, and the way from a service to its row."""

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
from llmkube.runtimes.process import llamacpp, mlx_lm, ollama, omlx, vllm_metal
from llmkube.runtimes.process.host_runtime import NO_LOG_READER, NO_QUERIES, EngineQueries, HostRuntime, LogReader
from llmkube.weights.ollama_model import REMEDY

HOST_RUNTIMES: Final[Mapping[str, HostRuntime]] = {
    runtime.name: runtime
    for runtime in (llamacpp.SERVER, mlx_lm.RUNTIME, omlx.RUNTIME, vllm_metal.RUNTIME, ollama.RUNTIME)
}

_NAMED: Final = {name: runtime for runtime in HOST_RUNTIMES.values() for name in (runtime.name, *runtime.other_names)}


def host_runtime_of(isvc: InferenceService, model: Model, mlx_runtime: str = MLX_RUNTIME) -> HostRuntime:
    """Return the runtime that serves this service on a host.

    Args:
        isvc: The service.
        model: The Model that it refers to.
        mlx_runtime: Which of the engines built on MLX the host takes where none is named.

    Raises:
        PlanError: No host runs what is asked for, or it cannot read the weights; `field` says where.
    """
    asked, hardware, weights = isvc.spec.runtime, model.spec.hardware.accelerator, model.spec.format
    named = resolve_runtime(asked, weights, hardware, mlx_runtime=mlx_runtime)
    runtime = _NAMED.get(named)
    if isvc.spec.multi_node is not None:
        raise PlanError("a host serves a model alone: leave it out, or serve it by pods (vllm)", field="spec.multiNode")
    refuse_library(named, model)
    if runtime is None:
        raise PlanError(f"{named} is not supported on a host yet: {_advice(weights, hardware)}", field="spec.runtime")
    if problem := hardware_mismatch(named, weights, hardware):
        raise PlanError(problem, field="Model.spec.hardware.accelerator")
    if problem := host_mismatch(named, weights, hardware):
        raise PlanError(problem, field="Model.spec.format")
    return runtime


def refuse_library(runtime: str, model: Model, *, draft: bool = False) -> None:
    """Refuse a Model whose weights are in another program's library than that of the engine.

    The way out is all that has to be changed: what reads another format, or files, is none for a library.

    Args:
        runtime: The name of the engine.
        model: What it is given.
        draft: Whether that is the draft model of speculative decoding; hints for it do not name another engine.

    Raises:
        PlanError: They are.
    """
    scheme, separator, _ = model.spec.source.partition("://")
    owners = [each.name for each in HOST_RUNTIMES.values() if separator and each.library == scheme]
    if not owners:
        return
    source, weights = model.spec.source, model.spec.format
    if runtime not in owners:
        further = "" if weights == GGUF else f" and Model.spec.format to {GGUF}"
        other = "" if draft else f"set spec.runtime to {' or '.join(owners)}{further}, or "
        raise PlanError(f"{runtime} is given a file, and {source} is none: {other}{REMEDY}", field="Model.spec.source")
    if weights != GGUF:
        raise PlanError(f"{source} is in {GGUF}, not {weights}: set {GGUF}", field="Model.spec.format")


def _advice(weights: str, hardware: str) -> str:
    """Name what a host runs: what reads these weights, else what reads the usual ones."""
    fitting = host_engines_for(weights, hardware)
    if fitting:
        return f"use {' or '.join(fitting)}"
    return f"use weights in gguf and {' or '.join(_names(DEFAULT_RUNTIME))}"


def _names(name: str) -> tuple[str, ...]:
    runtime = HOST_RUNTIMES[name]
    return (runtime.name, *runtime.other_names)


def queries_of(runtime: str) -> EngineQueries:
    """Return what an engine of a plan is asked: nothing, where a newer agent has left one of an unknown runtime."""
    known = HOST_RUNTIMES.get(runtime)
    return known.queries if known is not None else NO_QUERIES


def holds_elsewhere(runtime: str) -> bool:
    """Return whether another process than a plan's engine may hold its model."""
    known = HOST_RUNTIMES.get(runtime)
    return known is not None and known.memory_elsewhere


def log_reader_of(runtime: str) -> LogReader:
    """Return what the lines of a plan's engine mean: nothing is known of an unknown runtime's."""
    known = HOST_RUNTIMES.get(runtime)
    return known.log if known is not None else NO_LOG_READER
