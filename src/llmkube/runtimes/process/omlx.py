"""Plan oMLX on a host: a front process of ours that loads one model in an oMLX, and answers like llama-server.

It uses the oMLX that the owner of the host runs if that has the model's folder, and otherwise starts one.
"""

import re
from collections.abc import Sequence
from typing import Final

from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.pairing import OMLX
from llmkube.runtimes.allowances import Allowances
from llmkube.runtimes.llama_fields import mode_of
from llmkube.runtimes.plan import EngineInfo, LaunchPlan, PlanError
from llmkube.runtimes.process.exits import phase_reader, rules_of
from llmkube.runtimes.process.host_runtime import FRONT_QUERIES, HostRuntime, LogReader, Program, ProgramError
from llmkube.runtimes.process.plan_inputs import HONOURED_BY_THE_HOST, PlanInputs, front_arguments, refuse_unsupported
from llmkube.weights.estimate.demand import ALL_LAYERS, Demand

NAME: Final = OMLX

CACHES: Final = 2
"""KV caches: that of the request, and that of the last one, whose buffers MLX retains for a while."""

_HONOURED: Final = HONOURED_BY_THE_HOST | {"spec.aliases", "spec.mode", "spec.contextSize"}

_VERSION: Final = re.compile(r"\bv?(\d+(?:\.\w+)+)")


def check(isvc: InferenceService, model: Model, allowances: Allowances) -> None:
    """Reject what oMLX cannot do.

    Raises:
        PlanError: The invalid field, with a fix.
    """
    spec = isvc.spec
    if mode_of(spec) == "rerank":
        raise PlanError("omlx does not rerank here; use llamacpp with weights in gguf", field="spec.mode")
    refuse_unsupported(spec, NAME, "oMLX", instead="mlx-lm")


def plan(inputs: PlanInputs) -> LaunchPlan:
    """Return the command line for this service."""
    argv = [*front_arguments(inputs, NAME, "--omlx"), "--ctx-size", str(inputs.context)]
    demand = Demand(context=inputs.context, slots=CACHES, device_layers=ALL_LAYERS, cache_ram_bytes=0)
    return inputs.launch_plan(argv, runtime=NAME, env=(), demand=demand, honoured=_HONOURED)


def describe(program: str, outputs: Sequence[str]) -> EngineInfo:
    """Return the description of oMLX's program, from its `--help` and its `--version`.

    Raises:
        ProgramError: It is another program.
    """
    help_text, version = outputs
    found = _VERSION.search(version)
    if "omlx" not in help_text.lower() or "serve" not in help_text or found is None:
        raise ProgramError(f"{program} is not oMLX, by its --help and --version; set the path with --omlx-bin")
    return EngineInfo(program, found[1], frozenset())


RUNTIME: Final = HostRuntime(
    name=NAME,
    program=Program(
        command="omlx",
        setting="--omlx-bin",
        remedy="install oMLX's command (brew install omlx, from its tap jundot/omlx), or name it with --omlx-bin",
        describe=describe,
    ),
    check=check,
    plan=plan,
    queries=FRONT_QUERIES,
    log=LogReader(rules_of(NAME), phase=phase_reader(("oMLX loads the model", "oMLX is loading the model"))),
    memory_elsewhere=True,
    keys_checked_by="LLMKube's front end",
)
