"""How the pods of a service get at the weights: volumes, mounts, and what runs before the engine. Pure.

| source | who brings the weights | where the engine finds them |
|---|---|---|
| `http(s)://`, `hf://`, `org/repo`, `s3://`, `builtin://` | a Job, into the namespace's claim | `/models/<key>/` |
| the same, with `modelCache` of the service | an init container, into a volume of the pod's own | `/models/<key>/` |
| the same, with `--cache-mode perService` | an init container, into a claim of the service | `/models/<key>/` |
| `pvc://CLAIM/PATH` | a user, before | `/model-source/PATH` |
| `oci://IMAGE` | the kubelet, as a volume (Kubernetes 1.35) | `/model-source/` and the Model's first file |
| `file://PATH`, an absolute path | a user, on every node; only below `host_paths` | `/model-source/NAME` |
"""

import hashlib
import posixpath
from collections.abc import Mapping
from typing import Any, Final

import attrs

from llmkube.controller.render.fetch_container import fetch_container, fetch_volumes
from llmkube.controller.render.model_sources import CACHE_FOLDER, SOURCE_FOLDER, claim_path, source_of
from llmkube.controller.settings import WorkloadSettings
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import controller_reference
from llmkube.k8s.wire.names import CONTROLLER_FIELD_MANAGER
from llmkube.k8s.workloads import PersistentVolumeClaim
from llmkube.weights.source import (
    ImageSource,
    LocalFile,
    VolumeSource,
)

CACHE_CLAIM: Final = "llmkube-model-cache"
"""The claim that all Models of a namespace share."""

_SERVICE_CLAIM: Final = "-model-cache"
_MAX_NAME: Final = 253

DRAFT_FOLDER: Final = "/draft-source"
"""Where a draft lies that is on another volume than the model."""


@attrs.frozen
class Storage:
    """What a pod needs to have its weights: the engine's file, its folder, volumes, mounts, and what runs before."""

    path: str = ""
    folder: str = ""
    volumes: tuple[dict[str, Any], ...] = ()
    mounts: tuple[dict[str, Any], ...] = ()
    init_containers: tuple[dict[str, Any], ...] = ()


def cache_claim(namespace: str, settings: WorkloadSettings) -> dict[str, Any]:
    """Return the claim of a namespace; it has no owner, so that weights outlive the Models that brought them."""
    return _claim({"name": CACHE_CLAIM, "namespace": namespace}, settings)


def service_claim(service: InferenceService, settings: WorkloadSettings) -> dict[str, Any]:
    """Return the claim of a service, which goes with it; of the name that the Go implementation gives it."""
    name = service_claim_name(service.key.name)
    owners = [controller_reference(service)]
    return _claim({"name": name, "namespace": service.key.namespace, "ownerReferences": owners}, settings)


def service_claim_name(service: str) -> str:
    """Return the name of the claim that is a service's own."""
    name = f"{service}{_SERVICE_CLAIM}"
    if len(name) <= _MAX_NAME:
        return name
    digest = hashlib.sha256(service.encode()).hexdigest()[:16]
    return f"{service[: _MAX_NAME - len(digest) - 1 - len(_SERVICE_CLAIM)].rstrip('-.')}-{digest}{_SERVICE_CLAIM}"


def serving_storage(service: InferenceService, model: Model, path: str, settings: WorkloadSettings) -> Storage:
    """Return what a service's pods need to find the weights at `path`, which the Model's status or source names."""
    volume = source_volume(model)
    if volume is not None:
        return _mounted(path, volume, SOURCE_FOLDER)
    if not fetches_itself(service, settings):
        # Read-only for the container, not for the volume: a Job on the same node may be writing to it.
        claim = {"claimName": CACHE_CLAIM}
        return _mounted(path, {"name": "models", "persistentVolumeClaim": claim}, CACHE_FOLDER)
    return Storage(
        path=path,
        folder=posixpath.dirname(path),
        volumes=(_own_volume(service), *fetch_volumes(settings)),
        mounts=({"name": "models", "mountPath": CACHE_FOLDER, "readOnly": True},),
        init_containers=(fetch_container(model, settings),),
    )


def draft_storage(storage: Storage, draft: Storage) -> Storage:
    """Return a draft's storage with a name and a place of its own, where it would take those of another volume."""
    taken = {volume["name"] for volume in storage.volumes if volume not in draft.volumes}
    if not taken.intersection(volume["name"] for volume in draft.volumes):
        return draft

    def moved(path: str) -> str:
        return f"{DRAFT_FOLDER}{path.removeprefix(SOURCE_FOLDER)}"

    [volume], [mount] = draft.volumes, draft.mounts
    name = f"{volume['name']}-draft"
    return attrs.evolve(
        draft,
        path=moved(draft.path),
        folder=moved(draft.folder),
        volumes=({**volume, "name": name},),
        mounts=({**mount, "name": name, "mountPath": DRAFT_FOLDER},),
    )


def source_volume(model: Model) -> dict[str, Any] | None:
    """Return the volume on which a Model's weights are already; None for what has to be fetched."""
    source = source_of(model.spec)
    if isinstance(source, VolumeSource):
        claim = {"claimName": claim_path(source).claim, "readOnly": True}
        return {"name": "model-source", "persistentVolumeClaim": claim}
    if isinstance(source, ImageSource):  # a tag may come to mean another image: the kubelet asks at each start
        image = {"reference": source.image, "pullPolicy": "IfNotPresent" if ":" in source.reference else "Always"}
        return {"name": "model-source", "image": image}
    if isinstance(source, LocalFile):
        # The folder and not the file: the parts of a split model lie side by side.
        return {"name": "model-source", "hostPath": {"path": posixpath.dirname(source.path), "type": "Directory"}}
    return None


def fetches_itself(service: InferenceService, settings: WorkloadSettings) -> bool:
    """Whether a service's pods fetch the weights into a volume of their own, and not the Model's Job."""
    return settings.cache_per_service or names_own_cache(service)


def names_own_cache(service: InferenceService) -> bool:
    """Whether a service says where its own weights are kept, whatever the operator says of all services."""
    cache = service.spec.model_cache
    return cache is not None and (cache.persistence == "Ephemeral" or bool(cache.claim_name))


def _claim(metadata: Mapping[str, Any], settings: WorkloadSettings) -> dict[str, Any]:
    storage_class = {"storageClassName": settings.cache_storage_class} if settings.cache_storage_class else {}
    return {
        "apiVersion": PersistentVolumeClaim.RESOURCE.api_version,
        "kind": PersistentVolumeClaim.RESOURCE.kind,
        "metadata": {
            **metadata,
            "labels": {
                "app.kubernetes.io/name": "llmkube-model-cache",
                "app.kubernetes.io/managed-by": CONTROLLER_FIELD_MANAGER,
                "app.kubernetes.io/part-of": "llmkube",
            },
        },
        "spec": {
            "accessModes": [settings.cache_access_mode],
            "resources": {"requests": {"storage": settings.cache_size}},
            **storage_class,
        },
    }


def _own_volume(service: InferenceService) -> dict[str, Any]:
    cache = service.spec.model_cache
    if not names_own_cache(service):
        return {"name": "models", "persistentVolumeClaim": {"claimName": service_claim_name(service.key.name)}}
    if cache is not None and cache.claim_name:
        return {"name": "models", "persistentVolumeClaim": {"claimName": cache.claim_name}}
    limit = service.spec.resources.ephemeral_storage
    return {"name": "models", "emptyDir": {"sizeLimit": limit} if limit else {}}


def _mounted(path: str, volume: dict[str, Any], folder: str) -> Storage:
    mount = {"name": volume["name"], "mountPath": folder, "readOnly": True}
    return Storage(path=path, folder=posixpath.dirname(path), volumes=(volume,), mounts=(mount,))
