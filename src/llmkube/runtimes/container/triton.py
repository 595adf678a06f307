"""NVIDIA's Triton Inference Server in a pod, for a model repository: a folder with a subfolder for each model.

Facts: `tritonserver --help` of 25.10 and the server's guide. It reads buckets itself (`s3://`).
"""

from typing import Final

from llmkube.k8s.crd.inferenceservice import InferenceServiceSpec
from llmkube.k8s.crd.meta import SecretKeySelector
from llmkube.k8s.crd.model import ModelSpec
from llmkube.runtimes.container.builder import SOURCE, ContainerBuilder, Runtime, fetches_if_told, parsed_source
from llmkube.runtimes.container.container_plan import ContainerPlan, Probes, ScalingMetric, Variable, literal
from llmkube.runtimes.plan import PlanError
from llmkube.weights.source import BucketFile, WebFile

PORT: Final = 8000
GRPC_PORT: Final = 8001
METRICS_PORT: Final = 8002

_METRIC: Final = "nv_inference_pending_request_count"
_OWNED: Final = {
    "--model-repository": "the Model's spec.source",
    "--model-store": "the Model's spec.source",
    "--http-port": "spec.containerPort",
    "--grpc-port": f"LLMKube, which uses {GRPC_PORT}",
    "--metrics-port": f"LLMKube, which uses {METRICS_PORT}",
}
_AWS_KEYS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION")


def plan(builder: ContainerBuilder) -> ContainerPlan:
    """Return the container that serves a model repository."""
    builder.refuse(_OWNED)
    port = builder.port(PORT)
    if port in (GRPC_PORT, METRICS_PORT):
        raise PlanError(f"Triton uses {port} itself; choose another port", field="spec.containerPort")
    line, source = builder.line, builder.source
    if isinstance(source, WebFile):
        advice = "name a pvc:// volume, an s3:// bucket or a Hugging Face repository"
        raise PlanError(f"Triton serves a folder of models, not one file; {advice}", field=SOURCE)
    if builder.fetches and isinstance(source, BucketFile):
        line.argv += ["--model-repository", literal(source.identity)]
        builder.honour(SOURCE)
        _add_credentials(builder)
    else:
        line.argv += ["--model-repository", builder.weights()]
    if builder.spec.bind_address:
        line.add("spec.bindAddress", "--http-address", builder.spec.bind_address)
    line.argv += ["--http-port", str(port), "--grpc-port", str(GRPC_PORT), "--metrics-port", str(METRICS_PORT)]
    return builder.finish(
        container_name="triton",
        port=port,
        extra_ports=(("grpc", GRPC_PORT), ("metrics", METRICS_PORT)),
        command=("tritonserver",),
        probes=Probes.http("/v2/health/ready", alive="/v2/health/live"),
        endpoint_path="/v2",
        hpa_metric=ScalingMetric(_METRIC),
        metrics_port_name="metrics",
        shared_memory=True,  # the backends of a model communicate through it, even on one GPU
    )


def _add_credentials(builder: ContainerBuilder) -> None:
    if (ref := builder.model.spec.source_secret_ref) is not None:
        keys = (SecretKeySelector(name=ref.name, key=key, optional=True) for key in _AWS_KEYS)
        builder.env += [Variable.from_secret(key.key, key) for key in keys]
        builder.honour("Model.spec.sourceSecretRef.name")


def _fetches(spec: InferenceServiceSpec, model: ModelSpec) -> bool:
    return fetches_if_told(spec, model) or isinstance(parsed_source(model.source), BucketFile)


_IMAGE: Final = "nvcr.io/nvidia/tritonserver:25.10-py3"
RUNTIME: Final = Runtime(
    name="triton", plan=plan, fetches=_fetches, asks_keys=False, images={"": _IMAGE, "cuda": _IMAGE}
)
