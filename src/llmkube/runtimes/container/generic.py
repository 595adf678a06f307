"""A custom container: the service provides image, arguments and probes; LLMKube the weights, GPUs and a Service."""

from typing import Final

from llmkube.runtimes.container.builder import SOURCE, ContainerBuilder, Runtime, is_mounted
from llmkube.runtimes.container.container_plan import ContainerPlan, Probes, Variable
from llmkube.runtimes.plan import PlanError

PORT: Final = 8080
MODEL_PATH: Final = "MODEL_PATH"
"""Variable with the path of the weights; in `spec.args` Kubernetes replaces `$(MODEL_PATH)` with its value."""


def plan(builder: ContainerBuilder) -> ContainerPlan:
    """Return the container as the service describes it.

    Raises:
        PlanError: It names an engine of a host, and hosts do not serve it.
    """
    builder.refuse({})
    if builder.spec.engine is not None:
        if builder.spec.hosts is None:
            message = "names an engine in a host's config.toml, but pods serve this service"
            raise PlanError(f"{message}; remove it and name an image, or add spec.hosts", field="spec.engine")
        builder.honour("spec.engine.name", "spec.engine.options")
    builder.line.argv += builder.spec.args
    builder.honour("spec.args", SOURCE)
    if not builder.fetches or is_mounted(builder.source):
        builder.env.append(Variable(MODEL_PATH, builder.weights()))
    return builder.finish(
        container_name="inference-server", port=builder.port(PORT), probes=Probes.tcp(), metrics_port_name=""
    )


RUNTIME: Final = Runtime(name="generic", plan=plan, asks_keys=False)
