"""Which builder plans a service is a table lookup; a runtime that no host can run is refused by name."""

from typing import Final

from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.runtimes import llamacpp
from llmkube.runtimes.plan import EngineInfo, LaunchPlan, PlanError
from llmkube.weights.gguf import GGUFFacts
from llmkube.weights.store import WeightsFile

LLAMACPP_NAMES: Final = ("llamacpp", "llama-server")
"""Values of spec.runtime that mean llama.cpp's server on a host."""


def check(isvc: InferenceService, model: Model) -> None:
    """Refuse what the objects alone show to be impossible on a host, before anything is downloaded.

    Raises:
        PlanError: Its `field` is the path that stands in the way.
    """
    if isvc.spec.runtime not in LLAMACPP_NAMES:
        names = " or ".join(LLAMACPP_NAMES)
        raise PlanError(f"{isvc.spec.runtime} is not supported on a host yet: use {names}", field="spec.runtime")
    llamacpp.check(isvc, model)


def plan_for(
    isvc: InferenceService, model: Model, weights: WeightsFile, gguf: GGUFFacts, engine: EngineInfo, *, alias: str
) -> LaunchPlan:
    """Return what to run for this service.

    Args:
        isvc: The service.
        model: The Model that it refers to.
        weights: The Model's file on this host.
        gguf: What the file's header says.
        engine: The program that will run, as it describes itself.
        alias: The model id that the engine shall answer to.

    Raises:
        PlanError: As `check`, and when the engine lacks a flag of spec.extraArgs.
    """
    check(isvc, model)
    return llamacpp.plan(isvc, model, weights, gguf, engine, alias=alias)
