"""Plan Ollama on a host: a front process of ours that loads one model in an Ollama, and answers like llama-server.

It uses the Ollama that the owner of the host runs, or starts one. Ollama reads weights in GGUF with llama.cpp's code,
so its memory is estimated by the same figures.
"""

from typing import Final

from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.runtimes.allowances import Allowances
from llmkube.runtimes.llama_fields import context_of, layers_of, mode_of, unused_context
from llmkube.runtimes.plan import LaunchPlan, Placeholder, PlanError
from llmkube.runtimes.process.exits import phase_reader, rules_of
from llmkube.runtimes.process.host_runtime import FRONT_QUERIES, HostRuntime, LogReader, Program, by_version
from llmkube.runtimes.process.memory_demand import demand_of
from llmkube.runtimes.process.plan_inputs import HONOURED_BY_THE_HOST, PlanInputs, front_arguments, refuse_unsupported
from llmkube.weights.ollama_model import SCHEME, OllamaModel
from llmkube.weights.source import parse_source

NAME: Final = "ollama"

_LAYERS: Final = "Model.spec.hardware.gpu.layers"
_HONOURED: Final = HONOURED_BY_THE_HOST | {"spec.aliases", "spec.mode", "spec.contextSize", _LAYERS}


phase: Final = phase_reader(
    ("Ollama loads the model", "Ollama is loading the model"),
    ("copying the weights", "copying the weights into Ollama's store"),
    ("hashing the weights", "hashing the weights"),
)


def check(isvc: InferenceService, model: Model, allowances: Allowances) -> None:
    """Reject what Ollama cannot do.

    Raises:
        PlanError: The invalid field, with a fix.
    """
    spec = isvc.spec
    if mode_of(spec) == "rerank":
        raise PlanError("ollama does not rerank; use llamacpp", field="spec.mode")
    refuse_unsupported(spec, NAME, "Ollama", instead="llamacpp")


def plan(inputs: PlanInputs) -> LaunchPlan:
    """Return the command line for this service."""
    spec, hardware = inputs.spec, inputs.model.spec.hardware
    on_gpu = hardware.accelerator != "cpu"
    size = ["--ctx-size", str(context_of(spec, inputs.header.context_length))]
    layers = ["--n-gpu-layers", str(layers_of(hardware.gpu) if on_gpu else 0)]
    argv = [
        *front_arguments(inputs, NAME, "--ollama", _library_source(inputs.model) or Placeholder.MODEL),
        *size,
        *(layers if not on_gpu or (hardware.gpu and hardware.gpu.layers is not None) else ()),
    ]
    return inputs.launch_plan(
        argv,
        runtime=NAME,
        env=(),
        demand=demand_of([*size, *layers], inputs.engine),
        honoured=_HONOURED,
        ignored=unused_context(spec, inputs.header.context_length),
    )


def _library_source(model: Model) -> str:
    """Return the source of a model in Ollama's library; "" for a file."""
    source = parse_source(model.spec.source)
    return source.redacted if isinstance(source, OllamaModel) else ""


RUNTIME: Final = HostRuntime(
    name=NAME,
    program=Program(
        command="ollama",
        setting="--ollama",
        remedy="install Ollama (https://ollama.com/download), or name its program with --ollama",
        describe=by_version(  # that of the running server, or else its own
            r"version is v?(\d[\w.+-]*)", "{program} is not Ollama, by its --version; set the path with --ollama"
        ),
        queries=(("{program}", "--version"),),
    ),
    check=check,
    plan=plan,
    queries=FRONT_QUERIES,
    log=LogReader(rules_of(NAME), phase=phase),
    memory_elsewhere=True,
    library=SCHEME,
    keys_checked_by="LLMKube's front end",
)
