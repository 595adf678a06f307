"""Objects of a cluster as an API server would return them, with only the facts that a test is about."""

from collections.abc import Mapping
from typing import Any

from llmkube.controller.render.labels import MANAGED_BY
from llmkube.controller.settings import WorkloadSettings
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.wire.names import CONTROLLER_FIELD_MANAGER
from llmkube.k8s.workloads import Deployment, Job, Pod
from llmkube.runtimes.container.container_plan import ContainerPlan, Probes, Resources, ScalingMetric
from llmkube.runtimes.plan import Placeholder

IMAGE = "example.org/llmkube:test"
SETTINGS = WorkloadSettings(image=IMAGE)
SHA = "ab" * 32
HUB_FILE = "hf://org/repo/model-Q4_K_M.gguf"
FETCHED = (
    '{"path":"model.gguf","sizeBytes":4831838208,"sha256":"' + SHA + '","files":["model.gguf"],'
    '"gguf":{"architecture":"llama","quantization":"Q4_K_M","contextLength":131072}}'
)


def cluster_model(
    source: str = HUB_FILE, *, status: Mapping[str, Any] | None = None, name: str = "phi", **spec: Any
) -> Model:
    body = {"source": source, "hardware": {"accelerator": "cuda"}, **spec}
    tag = {"name": name, "namespace": "ml", "uid": "m-1", "resourceVersion": "5", "generation": 1}
    return decode(Model, {"metadata": tag, "spec": body, "status": dict(status or {})})


def pod_service(name: str = "chat", *, uid: str = "s-1", **spec: Any) -> InferenceService:
    tag = {
        "name": name,
        "namespace": "ml",
        "uid": uid,
        "resourceVersion": "7",
        "generation": 1,
        "creationTimestamp": "2025-06-01T11:00:00Z",
    }
    return decode(InferenceService, {"metadata": tag, "spec": {"modelRef": "phi", **spec}})


def plan(**facts: Any) -> ContainerPlan:
    usual: dict[str, Any] = {
        "runtime": "llamacpp",
        "container_name": "llama-server",
        "image": "example.org/llama.cpp:server",
        "port": 8080,
        "args": ("--model", Placeholder.MODEL, "--port", "8080"),
        "probes": Probes.http("/health"),
        "endpoint_path": "/v1/chat/completions",
        "hpa_metric": ScalingMetric("llamacpp:requests_processing"),
        "metrics_port_name": "http",
    }
    return ContainerPlan(**{**usual, **facts})


def gpu_plan(count: int = 1, **facts: Any) -> ContainerPlan:
    resource = "nvidia.com/gpu"
    wanted = Resources(
        gpu_count=count,
        gpu_resource=resource,
        toleration_keys=(resource,),
        requests=(("cpu", "2"), ("memory", "16Gi")),
        limits=((resource, str(count)),),
    )
    return plan(resources=wanted, **facts)


def deployment_of(
    replicas: int = 1, *, ready: int = 0, updated: int | None = None, observed: int = 1, **status: Any
) -> Deployment:
    updated = replicas if updated is None else updated
    tag = {
        "name": "chat",
        "namespace": "ml",
        "uid": "d-1",
        "resourceVersion": "9",
        "generation": 1,
        "labels": {MANAGED_BY: CONTROLLER_FIELD_MANAGER},
        "ownerReferences": [
            {"apiVersion": "x/v1", "kind": "InferenceService", "name": "chat", "uid": "s-1", "controller": True}
        ],
    }
    counts = {
        "replicas": replicas,
        "updatedReplicas": updated,
        "readyReplicas": ready,
        "observedGeneration": observed,
        **status,
    }
    return decode(Deployment, {"metadata": tag, "spec": {"replicas": replicas}, "status": counts})


def pod(*, name: str = "chat-1", phase: str = "Pending", deleted: bool = False, port: int = 8080, **status: Any) -> Pod:
    tag: dict[str, Any] = {"name": name, "namespace": "ml", "creationTimestamp": "2025-06-01T11:00:00Z"}
    if deleted:
        tag["deletionTimestamp"] = "2025-06-01T11:00:00Z"
    engine = {"name": "llama-server", "ports": [{"name": "http", "containerPort": port}]}
    return decode(Pod, {"metadata": tag, "spec": {"containers": [engine]}, "status": {"phase": phase, **status}})


def unscheduled(message: str = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.", **facts: Any) -> Pod:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return pod(conditions=[condition], **facts)


def waiting(reason: str, message: str = "", *, last: Mapping[str, Any] | None = None, **facts: Any) -> Pod:
    status: dict[str, Any] = {
        "name": "llama-server",
        "restartCount": 3,
        "state": {"waiting": {"reason": reason, "message": message}},
    }
    if last is not None:
        status["lastState"] = {"terminated": dict(last)}
    return pod(containerStatuses=[status], **facts)


def fetch_pod(code: int | None = 0, message: str = FETCHED, *, reason: str = "", name: str = "fetch-1") -> Pod:
    """A pod of a download Job; None means that it still runs."""
    reason = reason or ("Error" if code else "Completed")
    ended = {"terminated": {"exitCode": code, "message": message, "reason": reason}}
    state = {"running": {}} if code is None else ended
    phase = "Running" if code is None else ("Failed" if code else "Succeeded")
    return pod(name=name, phase=phase, containerStatuses=[{"name": "fetch", "state": state}])


def job_of(*held: str, reason: str = "BackoffLimitExceeded") -> Job:
    state = {"status": "True", "reason": reason, "message": "it was tried 5 times"}
    conditions = [{"type": kind, **state} for kind in held]
    tag = {"name": "phi-0", "namespace": "ml", "uid": "j-1", "resourceVersion": "9"}
    return decode(Job, {"metadata": tag, "status": {"conditions": conditions}})
