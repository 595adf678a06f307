"""The runtime `echo`, as a plug-in of LLMKube."""

from typing import Final

import attrs

from llmkube.k8s.fields import WireForm, field, received
from llmkube.runtimes.container.container_plan import ContainerPlan, Probes, ScalingMetric
from llmkube.runtimes.container.builder import ContainerBuilder, Runtime

PORT: Final = 9000


@attrs.frozen(kw_only=True)
class EchoConfig:
    """Options of the echo runtime."""

    prefix: str | None = field("Prefix of every answer.", min_length=1)
    repeat: int = field("Number of repetitions of the question.", 1, minimum=1, maximum=10)
    shout: bool | None = field("Whether answers are in capitals.")
    wire: WireForm = received()


def plan(builder: ContainerBuilder) -> ContainerPlan:
    """Return the container that echoes."""
    builder.refuse({"--model": "the Model's spec.source", "--port": "spec.containerPort"})
    builder.line.argv += ["--model", builder.weights()]
    port = builder.port(PORT)
    builder.add_listener("--host", "--port", port)
    if builder.config is not None:
        flags = {"prefix": "--prefix", "repeat": "--repeat", "shout": "--shout"}
        builder.line.add_block(builder.config, "spec.echoConfig", flags)
    if builder.spec.context_size is not None:
        builder.line.add("spec.contextSize", "--longest", builder.spec.context_size)
    return builder.finish(
        container_name="echo",
        image="registry.example.com/llmkube-echo:0.1.0",
        port=port,
        command=("python3", "-m", "llmkube_echo.server"),
        probes=Probes.http("/health"),
        hpa_metric=ScalingMetric("echo:requests_running"),
        model_id=builder.name,
    )


RUNTIME: Final = Runtime(name="echo", plan=plan, reads=("gguf", "custom"), config=EchoConfig, config_key="echoConfig")
