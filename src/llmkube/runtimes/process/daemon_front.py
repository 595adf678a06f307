"""What services on a shared daemon have in common: what they refuse, and how the process before the daemon is started.

What runs as that process the host says (`EngineInfo.front`).
"""

from typing import Final

from llmkube.k8s.crd.inferenceservice import InferenceServiceSpec
from llmkube.runtimes.llama_fields import mode_of
from llmkube.runtimes.plan import Placeholder, PlanError, front_words
from llmkube.runtimes.process.plan_inputs import PlanInputs

UNLOAD_LEFT: Final = "--unload-left"
"""Added to the command line of a service: nothing is served, and what an engine of it has left that was killed is
unloaded. Exits with 0 when nothing of that is loaded any more."""


def refuse_further(spec: InferenceServiceSpec, runtime: str, daemon: str, instead: str) -> None:
    """Refuse what no daemon takes for one of its models.

    Args:
        spec: Of the service.
        runtime: Its runtime.
        daemon: What people call the daemon.
        instead: The runtime to use for a service with variables.

    Raises:
        PlanError: The field that stands in the way, and what to do about it.
    """
    if spec.extra_args:
        raise PlanError(f"{runtime} takes no further arguments: leave it out, or use llamacpp", field="spec.extraArgs")
    if spec.speculative_decoding is not None:
        words = f"{runtime} takes no draft model: leave it out, or use llamacpp"
        raise PlanError(words, field="spec.speculativeDecoding")
    if spec.env:
        words = f"the environment of {daemon} is its owner's: leave it out, or use {instead}"
        raise PlanError(words, field="spec.env")


def front_arguments(inputs: PlanInputs, runtime: str, program_flag: str, model: str = Placeholder.MODEL) -> list[str]:
    """Return the command line of a service, but for what the daemon's own model needs.

    Args:
        inputs: What is known of the service.
        runtime: Its runtime.
        program_flag: The flag that names the daemon's program.
        model: The model's file or folder, or its name in the daemon's library.
    """
    return [
        *front_words(runtime),
        program_flag,
        Placeholder.PROGRAM,
        "--model",
        model,
        "--service",
        f"{inputs.isvc.metadata.namespace}/{inputs.isvc.metadata.name}",
        "--host",
        Placeholder.HOST,
        "--port",
        Placeholder.PORT,
        "--alias",
        inputs.alias,
        *(("--api-key-file", Placeholder.KEYS) if inputs.takes_keys else ()),
        *(("--embedding",) if mode_of(inputs.spec) == "embedding" else ()),
    ]
