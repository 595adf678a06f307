"""PersonaPlex, NVIDIA's speech-to-speech model, in a pod: a WebSocket server that fetches its model itself.

Facts: `moshi.server` of https://github.com/NVIDIA/personaplex. There is no public image: the service names one. It
listens on all addresses, regardless of `--host`. Only images of forks know `--quantize-4bit`.
"""

from typing import Final

from llmkube.k8s.crd.serving import PersonaPlexConfig
from llmkube.runtimes.container.builder import SOURCE, ContainerBuilder, Runtime, fetches_always
from llmkube.runtimes.container.container_plan import ContainerPlan, Probes, Variable
from llmkube.runtimes.plan import Placeholder, PlanError
from llmkube.weights.source import DEFAULT_REVISION

PORT: Final = 8998
COMMAND: Final = ("python", "-m", "moshi.server")
ENDPOINT_PATH: Final = "/api/chat"

_PATH: Final = "spec.personaPlexConfig"
_OWNED: Final = {"--port": "spec.containerPort", "--hf-repo": "the Model's spec.source"}
_FLAGS: Final = {"quantize_4bit": "--quantize-4bit", "cpu_offload": "--cpu-offload"}


def plan(builder: ContainerBuilder) -> ContainerPlan:
    """Return the container; it serves https, with its own certificate: browsers allow a microphone only there."""
    builder.refuse(_OWNED)
    config = builder.spec.persona_plex_config or PersonaPlexConfig()
    line = builder.line
    port = builder.port(PORT)
    builder.add_listener("--host", "--port", port)
    line.default("--ssl", value=Placeholder.CACHE)
    repository = builder.repository()
    if repository is not None:
        if repository.revision != DEFAULT_REVISION:
            raise PlanError(f"PersonaPlex fetches only {DEFAULT_REVISION}; remove @{repository.revision}", field=SOURCE)
        line.argv += ["--hf-repo", repository.name]
    line.add_block(config, _PATH, _FLAGS)
    builder.env.append(Variable("NO_TORCH_COMPILE", "1"))
    builder.add_token(config.hf_token_secret_ref, f"{_PATH}.hfTokenSecretRef")
    return builder.finish(
        container_name="personaplex",
        port=port,
        command=COMMAND,
        probes=Probes.tcp(),  # it serves WebSockets, and has no health endpoint
        scheme="https",
        endpoint_path=ENDPOINT_PATH,
        metrics_port_name="",
    )


RUNTIME: Final = Runtime(name="personaplex", plan=plan, fetches=fetches_always, asks_keys=False)
