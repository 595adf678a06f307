"""Plan `mlx_lm.server`: one folder of MLX weights or safetensors, served with the Python of the host's owner.

The server checks no keys, answers web pages of every origin, and loads any model, adapter or draft that a request names
(mlx_lm 0.32.2, `server.py`). `programs/mlx_entry.py` wraps it, in the same Python: it checks keys from a file, serves
one model, and counts the requests in flight. With an incompatible build it exits at once, without serving.
"""

import re
from typing import Final

from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.runtimes.allowances import Allowances
from llmkube.runtimes.arguments import flag_words
from llmkube.runtimes.plan import LaunchPlan, Placeholder, PlanError
from llmkube.runtimes.process.environment import plan_environment
from llmkube.runtimes.process.exits import rules_of
from llmkube.runtimes.process.host_runtime import (
    EngineQueries,
    HostRuntime,
    LogReader,
    Program,
    ProgramError,
    by_version,
)
from llmkube.runtimes.process.plan_inputs import HONOURED_BY_THE_HOST, PlanInputs, refuse_beyond_chat
from llmkube.weights.estimate.demand import ALL_LAYERS, Demand

NAME: Final = "mlx-lm"
PROMPT_CACHES: Final = 2
"""KV caches that are kept for later prompts; the server's own default is ten, of any size (mlx-lm issue 883)."""

_HONOURED: Final = HONOURED_BY_THE_HOST | {"spec.parallelSlots", "spec.contextSize", "spec.mode"}
_OFFLINE: Final = (("HF_HUB_OFFLINE", "1"), ("TRANSFORMERS_OFFLINE", "1"))
"""The folder is complete: a download would be for something else."""


def check(isvc: InferenceService, model: Model, allowances: Allowances) -> None:
    """Reject what the server does not support.

    Raises:
        PlanError: The invalid field, with a fix.
    """
    refuse_beyond_chat(isvc.spec, NAME)
    if isvc.spec.aliases:
        raise PlanError("aliases are not supported with mlx-lm; remove them", field="spec.aliases")
    plan_environment(isvc.spec.env, allowances)


def plan(inputs: PlanInputs) -> LaunchPlan:
    """Return the command line for this service."""
    spec = inputs.spec
    slots = max(1, spec.parallel_slots)
    demand = Demand(
        context=inputs.context,
        slots=slots + PROMPT_CACHES,
        device_layers=ALL_LAYERS if inputs.model.spec.hardware.accelerator == "metal" else 0,
        cache_ram_bytes=0,
    )
    argv: list[str] = [
        Placeholder.PROGRAM,
        Placeholder.WRAPPER,
        *(("--llmkube-keys", Placeholder.KEYS) if inputs.takes_keys else ()),
        *flag_words(
            {
                "--llmkube-alias": inputs.alias,
                "--model": Placeholder.MODEL,
                "--host": Placeholder.HOST,
                "--port": Placeholder.PORT,
                "--allowed-origins": "http://localhost",
                "--decode-concurrency": str(slots),
                "--prompt-concurrency": "1",
                "--prompt-cache-size": str(PROMPT_CACHES),
            }
        ),
    ]
    return inputs.launch_plan(
        argv,
        runtime=NAME,
        env=(*_OFFLINE, *plan_environment(spec.env, inputs.allowances)),
        demand=demand,
        honoured=_HONOURED,
    )


def interpreter_of(head: str) -> str:
    """Return the Python in the first lines of a script that pip, pipx, uv or Homebrew installed.

    Raises:
        ProgramError: They name none.
    """
    found = _SHEBANG.match(head)
    if found is None:
        raise ProgramError("its first lines name no Python; set the path of pip's script with --mlx-server")
    return found["quoted"] or found["plain"]


_SHEBANG: Final = re.compile(
    # the second form is pip's for paths that are long or contain spaces
    r"#!(?:(?P<plain>/\S*python[\w.]*)[ \t]*(?:-\S+)?\n|/bin/sh\n'''exec' \"?(?P<quoted>/[^\"\n]*?python[\w.]*)\"? )"
)


RUNTIME: Final = HostRuntime(
    name=NAME,
    program=Program(
        command="mlx_lm.server",
        setting="--mlx-server",
        remedy="install it with pip install mlx-lm, and name it with --mlx-server",
        describe=by_version(
            r"(?:^|\s)(\d+(?:\.\w+)+)\s*\Z",
            "the mlx_lm of {program} does not report its version; reinstall it (pip install mlx-lm)",
        ),
        queries=(("{program}", "-c", "from mlx_lm import __version__; print(__version__)"),),
        find_interpreter=interpreter_of,
    ),
    check=check,
    plan=plan,
    queries=EngineQueries(
        metrics_path="/metrics",
        metric=re.compile(rb"^llmkube:(\w+) ([0-9]+)$", re.MULTILINE),
        work=frozenset({"requests_processing"}),
        progress=("tokens_predicted_total",),
        names_path="/v1/models",
    ),
    log=LogReader(rules_of(NAME)),
    keys_checked_by="LLMKube's front end",
)
