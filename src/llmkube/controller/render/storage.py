"""Volumes, mounts and init containers through which a service's pods get the weights. Pure.

| source | weights are supplied by | the engine finds them in |
|---|---|---|
| `http(s)://`, `hf://`, `org/repo`, `s3://`, `builtin://` | a Job, into the namespace's claim | `/models/<key>/` |
| the same, with the service's `modelCache` | an init container, into a volume of the pod | `/models/<key>/` |
| the same, with `--cache-mode perService` | an init container, into a claim of the service | `/models/<key>/` |
| `pvc://CLAIM/PATH` | the user, in advance | `/model-source/PATH` |
| `oci://IMAGE` | the kubelet, as a volume (Kubernetes 1.35) | `/model-source/` and the Model's first file |
| `file://PATH`, an absolute path | the user, on every node; only below `host_paths` | `/model-source/NAME` |

The container that runs `llmkube fetch` is the only one of a Job, or an init container of the engine's pod.
"""

import posixpath
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from llmkube.controller.render.labels import OUR_LABELS
from llmkube.controller.render.model_sources import (
    CACHE_FOLDER,
    SOURCE_FOLDER,
    cache_key,
    claim_path,
    extra_files,
    predecessors_key,
    refreshes_on_change,
    source_of,
)
from llmkube.controller.settings import WorkloadSettings
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import controller_reference
from llmkube.k8s.wire.names import MAX_NAME, shortened
from llmkube.k8s.workloads import PersistentVolumeClaim
from llmkube.runtimes.container.container_plan import literal
from llmkube.weights.download.buckets import VARIABLES
from llmkube.weights.source import ImageSource, LocalFile, VolumeSource

FETCH: Final = "fetch"
"""Name of the container that runs `llmkube fetch`."""

IMAGE_USER: Final = 65532
"""The user of our own image."""

_CA_FOLDER: Final = "/etc/llmkube/ca"
CA_VARIABLE: Final[dict[str, Any]] = {"name": "SSL_CERT_FILE", "value": f"{_CA_FOLDER}/ca.crt"}
CA_MOUNT: Final[dict[str, Any]] = {"name": "ca", "mountPath": _CA_FOLDER}
"""The variable and the mount of the certificates in the volume `ca`, which LLMKube's programs trust additionally."""

_SCRATCH: Final = "/tmp"  # noqa: S108 (a volume of the pod's own)


def writing_group(settings: WorkloadSettings) -> dict[str, Any]:
    """Return the fields of a pod's security context that let our image write to a volume."""
    if settings.fs_group is None:
        return {}
    # Without this policy the kubelet visits every file of the volume at each start.
    return {"fsGroup": settings.fs_group, "fsGroupChangePolicy": "OnRootMismatch"}


def fetch_container(model: Model, settings: WorkloadSettings, *more: str) -> dict[str, Any]:
    """Return the container that runs `llmkube fetch`; it needs the volumes `models`, `scratch` and perhaps `ca`.

    The source is passed in the environment: a URL may contain a password, and a command line is public.
    """
    spec = model.spec
    args = ["fetch", "--to", f"{CACHE_FOLDER}/{cache_key(spec)}", "--model-store", f"{CACHE_FOLDER}/.store"]
    args += [word for name in spec.files[:1] for word in ("--file", name)]
    args += [word for name in extra_files(spec) for word in ("--beside", name)]
    args += ["--adopt", f"{CACHE_FOLDER}/{predecessors_key(spec)}"]
    args += ["--sha256", spec.sha256.lower()] if spec.sha256 else []
    args += [word for word in ("--fresh" if refreshes_on_change(spec) else "", *more) if word]
    args += ["--hub-endpoint", settings.hub_endpoint] if settings.hub_endpoint else []
    args += [word for network in settings.private_sources for word in ("--allow-private-sources", network)]
    env: list[dict[str, Any]] = [{"name": "LLMKUBE_SOURCE", "value": literal(spec.source)}]
    env.append({"name": "HOME", "value": _SCRATCH})
    env += proxy_variables(settings)
    if spec.source_secret_ref:
        # Single entries and not the whole Secret, which may contain more.
        for name in VARIABLES if spec.source.startswith("s3://") else ("HF_TOKEN",):
            reference = {"name": spec.source_secret_ref.name, "key": name, "optional": True}
            env.append({"name": name, "valueFrom": {"secretKeyRef": reference}})
    mounts = [{"name": "models", "mountPath": CACHE_FOLDER}, {"name": "scratch", "mountPath": _SCRATCH}]
    if settings.ca_config_map:
        env.append({**CA_VARIABLE})
        mounts.append({**CA_MOUNT})
    return llmkube_container(settings, args, env, mounts)


def proxy_variables(settings: WorkloadSettings) -> list[dict[str, Any]]:
    """Return the variables with the proxies of a container that connects to servers outside."""
    return [{"name": name, "value": literal(value)} for name, value in settings.proxies.items()]


def llmkube_container(
    settings: WorkloadSettings,
    args: Sequence[str],
    env: Sequence[Mapping[str, Any]],
    mounts: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return a container that runs `llmkube` with least privileges."""
    return {
        "name": FETCH,
        "image": settings.image,
        "command": ["llmkube"],
        "args": [literal(arg) for arg in args],
        **({"env": list(env)} if env else {}),
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
        "volumeMounts": list(mounts),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
        },
    }


def fetch_volumes(settings: WorkloadSettings) -> tuple[dict[str, Any], ...]:
    """Return the volumes that the container needs besides `models`."""
    certificates = [{"name": "ca", "configMap": {"name": settings.ca_config_map}}] if settings.ca_config_map else []
    return ({"name": "scratch", "emptyDir": {}}, *certificates)


CACHE_CLAIM: Final = "llmkube-model-cache"
"""Name of the claim that all Models of a namespace share."""

_SERVICE_CLAIM: Final = "-model-cache"

DRAFT_FOLDER: Final = "/draft-source"
"""Folder of a draft that is on a different volume than the model."""


@attrs.frozen
class Storage:
    """Storage of a pod's weights: the engine's file, its folder, volumes, mounts and init containers."""

    path: str = ""
    folder: str = ""
    volumes: tuple[dict[str, Any], ...] = ()
    mounts: tuple[dict[str, Any], ...] = ()
    init_containers: tuple[dict[str, Any], ...] = ()


@attrs.frozen
class Weights:
    """Storage of the weights of a service's Model and its draft."""

    model: Storage = Storage()
    draft: Storage = Storage()


def cache_claim(namespace: str, settings: WorkloadSettings) -> dict[str, Any]:
    """Return the claim of a namespace; it has no owner, so that weights outlive their Models."""
    return _claim({"name": CACHE_CLAIM, "namespace": namespace}, settings)


def service_claim(service: InferenceService, settings: WorkloadSettings) -> dict[str, Any]:
    """Return the claim of a service, which owns it; its name is the same as in the Go implementation."""
    name = service_claim_name(service.key.name)
    owners = [controller_reference(service)]
    return _claim({"name": name, "namespace": service.key.namespace, "ownerReferences": owners}, settings)


def service_claim_name(service: str) -> str:
    """Return the name of a service's own PersistentVolumeClaim."""
    return shortened(service, MAX_NAME, ending=_SERVICE_CLAIM, digits=16)


def serving_storage(service: InferenceService, model: Model, path: str, settings: WorkloadSettings) -> Storage:
    """Return the storage for weights at `path`, which the Model's status or source names."""
    volume = source_volume(model)
    if volume is not None:
        return _mounted(path, volume, SOURCE_FOLDER)
    if not pods_fetch(service, settings):
        # The mount is read-only but the volume is not: a Job on the same node may be writing to it.
        claim = {"claimName": CACHE_CLAIM}
        return _mounted(path, {"name": "models", "persistentVolumeClaim": claim}, CACHE_FOLDER)
    return Storage(
        path=path,
        folder=posixpath.dirname(path),
        volumes=(_own_volume(service), *fetch_volumes(settings)),
        mounts=({"name": "models", "mountPath": CACHE_FOLDER, "readOnly": True},),
        init_containers=(fetch_container(model, settings),),
    )


def draft_storage(weights: Weights) -> Storage:
    """Return a draft's storage, with another volume name and folder if they would collide with the model's."""
    draft = weights.draft
    taken = {volume["name"] for volume in weights.model.volumes if volume not in draft.volumes}
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
    """Return the volume that already holds a Model's weights; None if they have to be fetched."""
    source = source_of(model.spec)
    if isinstance(source, VolumeSource):
        claim = {"claimName": claim_path(source)[0], "readOnly": True}
        return {"name": "model-source", "persistentVolumeClaim": claim}
    if isinstance(source, ImageSource):  # a tag may be moved to another image: the kubelet checks at each start
        image = {"reference": source.image, "pullPolicy": "IfNotPresent" if ":" in source.reference else "Always"}
        return {"name": "model-source", "image": image}
    if isinstance(source, LocalFile):
        # The folder and not the file, for the other parts of a split model.
        return {"name": "model-source", "hostPath": {"path": posixpath.dirname(source.path), "type": "Directory"}}
    return None


def pods_fetch(service: InferenceService, settings: WorkloadSettings) -> bool:
    """Whether a service's pods fetch the weights into their own volume, instead of the Model's Job."""
    return settings.cache_per_service or names_own_cache(service)


def names_own_cache(service: InferenceService) -> bool:
    """Whether a service's spec names the volume of its weights, which overrides the operator's setting."""
    cache = service.spec.model_cache
    return cache is not None and (cache.persistence == "Ephemeral" or bool(cache.claim_name))


def _claim(metadata: Mapping[str, Any], settings: WorkloadSettings) -> dict[str, Any]:
    storage_class = {"storageClassName": settings.cache_storage_class} if settings.cache_storage_class else {}
    return {
        **PersistentVolumeClaim.RESOURCE.type_meta,
        "metadata": {**metadata, "labels": {"app.kubernetes.io/name": "llmkube-model-cache", **OUR_LABELS}},
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
