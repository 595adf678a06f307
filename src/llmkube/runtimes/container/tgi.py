"""Text Generation Inference in a pod. Facts: its launcher's arguments, 3.3 (https://huggingface.co/docs)."""

from typing import Final

from llmkube.k8s.crd.serving import TGIConfig
from llmkube.runtimes.container.builder import DEFAULT_PATH, ContainerBuilder, Runtime, fetches_always
from llmkube.runtimes.container.container_plan import ContainerPlan, Probes, ScalingMetric

PORT: Final = 8080
"""The image's default is 80, which a container without capabilities may not be allowed to open."""

_PATH: Final = "spec.tgiConfig"
_OWNED: Final = {"--model-id": "the Model's spec.source", "--port": "spec.containerPort", "-p": "spec.containerPort"}
_FLAGS: Final = {
    "quantize": "--quantize",
    "dtype": "--dtype",
    "max_input_length": "--max-input-length",
    "max_total_tokens": "--max-total-tokens",
}


def plan(builder: ContainerBuilder) -> ContainerPlan:
    """Return the container that serves one model with TGI, which always fetches the model itself."""
    builder.refuse(_OWNED)
    config = builder.spec.tgi_config or TGIConfig()
    line = builder.line
    # the image sets this variable, which has precedence over HF_HOME
    builder.add_model("--model-id", cache_variable="HUGGINGFACE_HUB_CACHE")
    port = builder.port(PORT)
    builder.add_listener("--hostname", "--port", port)
    line.add_block(config, _PATH, _FLAGS)
    if builder.resources.gpu_count > 1:
        line.default("--num-shard", value=builder.resources.gpu_count)
    # two names: huggingface_hub reads the first, the launcher of older images only the second
    builder.add_token(config.hf_token_secret_ref, f"{_PATH}.hfTokenSecretRef", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
    return builder.finish(
        container_name="tgi",
        port=port,
        probes=Probes.http("/health"),
        endpoint_path=DEFAULT_PATH,  # TGI has no embeddings
        hpa_metric=ScalingMetric("tgi:queue_size", exported_as="tgi_queue_size"),
        latency_metric="tgi_request_duration",
        busy_metrics=("tgi_queue_size", "tgi_batch_current_size"),
        shared_memory=builder.resources.gpu_count > 1,
    )


_IMAGE: Final = "ghcr.io/huggingface/text-generation-inference:3.3.7"
RUNTIME: Final = Runtime(name="tgi", plan=plan, fetches=fetches_always, images={"": _IMAGE, "cuda": _IMAGE})
