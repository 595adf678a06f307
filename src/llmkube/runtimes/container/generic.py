"""Any container: the service brings image, arguments and probes, LLMKube the weights, GPUs, Service and life cycle."""

from typing import Final

from llmkube.runtimes.container.builder import Draft, Runtime
from llmkube.runtimes.container.container_plan import ContainerPlan, Probes, Variable
from llmkube.runtimes.container.weights_source import SOURCE, is_mounted

PORT: Final = 8080
MODEL_PATH: Final = "MODEL_PATH"
"""The variable that says where the weights lie; in `spec.args` Kubernetes replaces `$(MODEL_PATH)` by it."""


def plan(draft: Draft) -> ContainerPlan:
    """Return the container as the service describes it."""
    draft.refuse({})
    draft.line.argv += draft.spec.args
    draft.honour("spec.args", SOURCE)
    if not draft.fetches or is_mounted(draft.source):
        draft.env.append(Variable(MODEL_PATH, draft.weights()))
    return draft.finish(
        container_name="inference-server",
        port=draft.port(PORT),
        probes=Probes.tcp(),
        metrics_port_name="",
    )


RUNTIME: Final = Runtime(name="generic", plan=plan)
