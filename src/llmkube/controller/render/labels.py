"""Labels, annotations and owners of the controller's objects, and the spec of its Services."""

import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from llmkube.base import json_text
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.placement import EndpointSpec
from llmkube.k8s.resource import Object, Resource, controller_reference
from llmkube.k8s.wire.names import CONTROLLER_FIELD_MANAGER, QUEUE_LABEL, SERVICE_LABEL, label_value
from llmkube.runtimes.container.container_plan import PORT_NAME
from llmkube.runtimes.container.group import WORKER_INDEX

MANAGED_BY: Final = "app.kubernetes.io/managed-by"
"""Label by which the controller selects the objects that it has created."""

MODEL_LABEL: Final = "inference.llmkube.dev/model"
RUNTIME_LABEL: Final = "inference.llmkube.dev/runtime"

ROUTER_LABEL: Final = "inference.llmkube.dev/model-router"
"""Label with the name of a ModelRouter on its objects and pods."""

DIGEST: Final = "inference.llmkube.dev/applied"
"""Annotation with the hash of the manifest; nothing else reveals that a new manifest omits a field."""

TEMPLATE: Final = "inference.llmkube.dev/template"
"""Annotation of a Deployment with the hash of its pod template: an edit that changes it may be deferred."""

RESTARTED: Final = "inference.llmkube.dev/restarted-at"
"""Annotation with the time at which pods were replaced because of their age, on the pods and their Deployment."""

OUR_IMAGE: Final = "inference.llmkube.dev/llmkube-image"
"""Annotation of a Deployment with the image of our containers in its pods; a new image alone replaces no pods."""

DRAIN_SECONDS: Final = "inference.llmkube.dev/drain-seconds"
"""Annotation of a Deployment with the drain limit of its pods, in seconds; a new limit alone replaces no pods."""

PATCHED: Final = "inference.llmkube.dev/replicas-patched"
"""Annotation of a Deployment whose manifest does not contain the number of pods: another write sets it."""

OUR_LABELS: Final[Mapping[str, str]] = MappingProxyType(
    {MANAGED_BY: CONTROLLER_FIELD_MANAGER, "app.kubernetes.io/part-of": "llmkube"}
)
"""Labels of every object that the controller creates."""

FETCH_LABELS: Final[Mapping[str, str]] = MappingProxyType({"app.kubernetes.io/name": "llmkube-fetch", **OUR_LABELS})
"""Labels of every Job that fetches, inspects or removes weights."""

OURS: Final = f"{MANAGED_BY}={CONTROLLER_FIELD_MANAGER}"
"""Label selector of the objects that the controller has created."""


def service_labels(service: InferenceService, runtime: str) -> dict[str, str]:
    """Return the labels of a service's objects and pods; users' policies may select by any of these."""
    return {
        **pod_selector(service),
        **OUR_LABELS,
        MODEL_LABEL: label_value(service.spec.model_ref),
        RUNTIME_LABEL: runtime,
    }


def queue_labels(service: InferenceService) -> dict[str, str]:
    """Return the label of the queue of Kueue that admits a service's pods; empty if there is none."""
    queue = service.metadata.labels.get(QUEUE_LABEL) or service.spec.pod_labels.get(QUEUE_LABEL)
    return {QUEUE_LABEL: queue} if queue else {}


def answering_selector(service: InferenceService, *, group: bool) -> dict[str, str]:
    """Return the selector of the pods of a service that serve requests: in a group over several nodes, the first."""
    return {**pod_selector(service), **({WORKER_INDEX: "0"} if group else {})}


def pod_selector(service: InferenceService) -> dict[str, str]:
    """Return the selector of a service's pods: independent of its spec, since a selector is immutable."""
    name = label_value(service.key.name)
    return {"app": name, SERVICE_LABEL: name}


def model_labels(model: Model) -> dict[str, str]:
    """Return the labels of a Model's Jobs."""
    return {**FETCH_LABELS, MODEL_LABEL: label_value(model.key.name)}


def owned_manifest(
    resource: Resource,
    owner: Object,
    name: str,
    labels: Mapping[str, str],
    body: Mapping[str, Any],
    *,
    annotations: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return a manifest with an owner reference, and an annotation with its own digest."""
    manifest = {
        **resource.type_meta,
        "metadata": {
            "name": name,
            "namespace": owner.key.namespace,
            "labels": dict(labels),
            "annotations": dict(annotations),
            "ownerReferences": [controller_reference(owner)],
        },
        **body,
    }
    manifest["metadata"]["annotations"][DIGEST] = digest(manifest)
    return manifest


def service_manifest(
    resource: Resource,
    service: InferenceService,
    runtime: str,
    spec: Mapping[str, Any],
    *,
    name: str = "",
    extra: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the manifest of an object of a service.

    Args:
        resource: The kind of the object.
        service: The owner.
        runtime: The runtime that serves.
        spec: The object's spec.
        name: The service's name by default.
        extra: Further labels; the service's take precedence.
    """
    labels = {**extra, **service_labels(service, runtime)}
    return owned_manifest(resource, service, name or service.key.name, labels, {"spec": spec})


def service_spec(endpoint: EndpointSpec, selector: Mapping[str, str]) -> dict[str, Any]:
    """Return the spec of a Service; it refers to the container's port by name."""
    port: dict[str, Any] = {"name": "http", "port": endpoint.port, "targetPort": PORT_NAME, "protocol": "TCP"}
    if endpoint.node_port is not None and endpoint.type != "ClusterIP":
        port["nodePort"] = endpoint.node_port
    return {"type": endpoint.type, "ports": [port], "selector": dict(selector)}


def digest(manifest: Mapping[str, Any]) -> str:
    """Return the first 16 hex digits of a manifest's SHA-256."""
    return hashlib.sha256(json_text.dumps(manifest, sort_keys=True)).hexdigest()[:16]
