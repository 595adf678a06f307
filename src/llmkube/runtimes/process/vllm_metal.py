"""Plan `vllm serve` with the vllm-metal plug-in: vLLM on a Mac, for MLX weights and safetensors.

vLLM checks keys only below /v1 (`--api-key`), and other paths compute as well. So it listens on the loopback address
without a key, and the agent's proxy checks keys; a local user who finds the port has access. By default vLLM takes a
share of the whole GPU (`--gpu-memory-utilization`), regardless of others, so the plan sets the size of its cache.
"""

import re
from typing import Final

from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.runtimes.allowances import Allowances
from llmkube.runtimes.arguments import flag_words
from llmkube.runtimes.plan import LaunchPlan, Placeholder
from llmkube.runtimes.process.environment import plan_environment
from llmkube.runtimes.process.exits import rules_of
from llmkube.runtimes.process.host_runtime import EngineQueries, HostRuntime, LogReader, Program, by_version
from llmkube.runtimes.process.plan_inputs import HONOURED_BY_THE_HOST, PlanInputs, refuse_beyond_chat
from llmkube.weights.estimate.demand import ALL_LAYERS, Demand
from llmkube.weights.estimate.mlx import cache_size

NAME: Final = "vllm-metal"

_HONOURED: Final = HONOURED_BY_THE_HOST | {"spec.parallelSlots", "spec.contextSize", "spec.aliases", "spec.mode"}
_ENV: Final = (("HF_HUB_OFFLINE", "1"), ("TRANSFORMERS_OFFLINE", "1"), ("VLLM_NO_USAGE_STATS", "1"))
"""The folder is complete, and no usage statistics are sent."""


def check(isvc: InferenceService, model: Model, allowances: Allowances) -> None:
    """Reject what vllm-metal cannot serve.

    Raises:
        PlanError: The invalid field, with a fix.
    """
    refuse_beyond_chat(isvc.spec, NAME, " here")
    plan_environment(isvc.spec.env, allowances)


def plan(inputs: PlanInputs) -> LaunchPlan:
    """Return the command line for this service."""
    spec = inputs.spec
    slots = max(1, spec.parallel_slots)
    demand = Demand(context=inputs.context, slots=slots, device_layers=ALL_LAYERS, cache_ram_bytes=0)
    argv: list[str] = [
        Placeholder.PROGRAM,
        "serve",
        Placeholder.MODEL,
        "--served-model-name",
        inputs.alias,
        *(name for name in spec.aliases if name != inputs.alias),
        *flag_words(
            {
                "--host": Placeholder.HOST,
                "--port": Placeholder.PORT,
                "--max-model-len": str(inputs.context),
                "--max-num-seqs": str(slots),
                "--allowed-origins": '["http://localhost"]',
            }
        ),
        "--disable-uvicorn-access-log",
    ]
    if inputs.header.shape is not None:
        argv += ["--kv-cache-memory-bytes", str(cache_size(inputs.header.shape, demand))]
    return inputs.launch_plan(
        argv,
        runtime=NAME,
        env=(*_ENV, *plan_environment(spec.env, inputs.allowances)),
        demand=demand,
        honoured=_HONOURED,
    )


RUNTIME: Final = HostRuntime(
    name=NAME,
    program=Program(
        command="vllm",
        setting="--vllm-metal",
        remedy="install vllm-metal, and name its vllm with --vllm-metal",
        describe=by_version(  # the output ends with the version, after possible warnings
            r"(?:^|\s)(\d+(?:\.\w+)+(?:\+[\w.]+)?)\s*\Z", "it does not report its version; reinstall vllm-metal"
        ),
        queries=(("{program}", "--version"),),
    ),
    check=check,
    plan=plan,
    queries=EngineQueries(
        metrics_path="/metrics",
        metric=re.compile(rb"^vllm:(\w+)(?:\{[^}]*\})?\s+([0-9.eE+]+)", re.MULTILINE),
        work=frozenset({"num_requests_running", "num_requests_waiting"}),
        progress=("prompt_tokens_total", "generation_tokens_total"),
        names_path="/v1/models",
    ),
    log=LogReader(rules_of(NAME)),
    keys_checked_by="the agent's proxy",
)
