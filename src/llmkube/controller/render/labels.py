"""What every object of ours carries: who made it, for whom, and from what."""

import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from llmkube.base import json_text
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Object, Resource, controller_reference
from llmkube.k8s.wire.names import CONTROLLER_FIELD_MANAGER, SERVICE_LABEL, label_value
from llmkube.runtimes.container.group import WORKER_INDEX

MANAGED_BY: Final = "app.kubernetes.io/managed-by"
"""Label by which the controller finds what it has made, and nothing else."""

MODEL_LABEL: Final = "inference.llmkube.dev/model"
RUNTIME_LABEL: Final = "inference.llmkube.dev/runtime"

ROUTER_LABEL: Final = "inference.llmkube.dev/model-router"
"""Label with the name of a ModelRouter on its objects and pods."""

DIGEST: Final = "inference.llmkube.dev/applied"
"""Annotation with the hash of the manifest: a field that is left out of a new one shows by nothing else."""

TEMPLATE: Final = "inference.llmkube.dev/template"
"""Annotation of a Deployment with the hash of its pods' template: an edit that changes it may have to wait."""

RESTARTED: Final = "inference.llmkube.dev/restarted-at"
"""Annotation of pods that were replaced for their age, and of their Deployment: when."""

OUR_IMAGE: Final = "inference.llmkube.dev/llmkube-image"
"""Annotation of a Deployment with the image of our own containers in its pods: another one alone replaces no pod."""

DRAIN_SECONDS: Final = "inference.llmkube.dev/drain-seconds"
"""Annotation of a Deployment with how long requests to its pods may take once they have to end; the same holds."""

FETCH_LABELS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "app.kubernetes.io/name": "llmkube-fetch",
        MANAGED_BY: CONTROLLER_FIELD_MANAGER,
        "app.kubernetes.io/part-of": "llmkube",
    }
)
"""Labels of every Job that looks after weights."""

OURS: Final = f"{MANAGED_BY}={CONTROLLER_FIELD_MANAGER}"
"""Label selector of what the controller has made."""


def service_labels(service: InferenceService, runtime: str) -> dict[str, str]:
    """Return the labels of a service's objects and pods; users' policies may select by any of them."""
    return {
        **pod_selector(service),
        MANAGED_BY: CONTROLLER_FIELD_MANAGER,
        "app.kubernetes.io/part-of": "llmkube",
        MODEL_LABEL: label_value(service.spec.model_ref),
        RUNTIME_LABEL: runtime,
    }


def answering_selector(service: InferenceService, *, group: bool) -> dict[str, str]:
    """Return what selects the pods of a service that answer: of a group over several nodes the first alone."""
    return {**pod_selector(service), **({WORKER_INDEX: "0"} if group else {})}


def pod_selector(service: InferenceService) -> dict[str, str]:
    """Return what selects a service's pods: nothing that an edit of its spec changes, for a selector never can."""
    name = label_value(service.key.name)
    return {"app": name, SERVICE_LABEL: name}


def model_labels(model: Model) -> dict[str, str]:
    """Return the labels of what fetches a Model."""
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
    """Return a manifest that is deleted with its owner, stamped with the digest of all that it says."""
    manifest = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
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
    more: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the manifest of an object of a service, of its name unless another is given.

    Args:
        resource: The kind of the object.
        service: Whose it is.
        runtime: The engine that serves.
        spec: The object's spec.
        name: What it is called, if not as the service is.
        more: Labels besides the service's, which win.
    """
    labels = {**more, **service_labels(service, runtime)}
    return owned_manifest(resource, service, name or service.key.name, labels, {"spec": spec})


def digest(manifest: Mapping[str, Any]) -> str:
    """Return the head of the SHA-256 of a manifest, in hex."""
    return hashlib.sha256(json_text.dumps(manifest, sort_keys=True)).hexdigest()[:16]
