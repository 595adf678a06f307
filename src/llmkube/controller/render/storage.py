"""Where weights lie in a pod, how they get there, and under which name. Pure.

| source | who brings the weights | where the engine finds them |
|---|---|---|
| `http(s)://`, `hf://`, `org/repo`, `s3://`, `builtin://` | a Job, into the namespace's claim | `/models/<key>/` |
| the same, with `modelCache` of the service | an init container, into a volume of the pod's own | `/models/<key>/` |
| `pvc://CLAIM/PATH` | whoever filled the claim | `/model-source/PATH` |
| `file://PATH`, an absolute path | whoever put it on the node; only below `host_paths` | `/model-source/NAME` |

The key is taken over everything that decides which bytes come: an edited source is another folder, and what runs goes
on with the old one until it is replaced.
"""

import hashlib
import json
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from llmkube.controller.render.labels import model_labels, owned
from llmkube.controller.settings import WorkloadSettings
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model, ModelSpec
from llmkube.k8s.wire.names import CONTROLLER_FIELD_MANAGER, MAX_LABEL
from llmkube.k8s.workloads import Job, PersistentVolumeClaim
from llmkube.runtimes.container.container_plan import literal
from llmkube.weights.download.buckets import VARIABLES
from llmkube.weights.errors import SourceError, WeightsError
from llmkube.weights.source import (
    BucketFile,
    HubRepository,
    LocalFile,
    Source,
    VolumeSource,
    parse_source,
    part_names,
    pick,
)

CACHE_CLAIM: Final = "llmkube-model-cache"
"""The claim that all Models of a namespace share."""

CACHE_FOLDER: Final = "/models"
SOURCE_FOLDER: Final = "/model-source"
DRAFT_FOLDER: Final = "/draft-source"
"""Where a draft lies that is on another volume than the model."""

FETCH: Final = "fetch"
"""Name of the container that runs `llmkube fetch`."""

BAD_REQUEST_CODES: Final = (2, 3)
"""Exit codes of `llmkube fetch` after which another try would only fail again."""

JOB_TTL_SECONDS: Final = 86_400
"""How long a Job stays to be looked at; a failed one is tried again after that."""

ON_CHANGE: Final = "OnChange"
"""The `refreshPolicy` of a Model whose source is looked at again."""

PROGRESS_PORT: Final = 8082
"""Where the pod of a fetch tells how far it is."""

_BACKOFF_LIMIT: Final = 4
_KEY_CHARS: Final = 16
_CA_FOLDER: Final = "/etc/llmkube/ca"
_SCRATCH: Final = "/tmp"  # noqa: S108 (a volume of the pod's own)


@attrs.frozen
class Storage:
    """What a pod needs to have its weights: the engine's file, its folder, volumes, mounts, and what runs before."""

    path: str = ""
    folder: str = ""
    volumes: tuple[dict[str, Any], ...] = ()
    mounts: tuple[dict[str, Any], ...] = ()
    init_containers: tuple[dict[str, Any], ...] = ()


@attrs.frozen
class Claimed:
    """Weights on a claim that somebody else has filled."""

    claim: str
    path: str


def cache_key(spec: ModelSpec) -> str:
    """Return the folder of a Model's weights: another one for every source, set of files or digest.

    On which server a bucket is, its Secret tells: two buckets of one name are told apart by that. Below the folder of
    a source that is followed, each version has one of its own.
    """
    facts = [spec.source, list(spec.files), spec.mmproj, (spec.sha256 or "").lower()]
    if spec.source_secret_ref and spec.source.startswith("s3://"):
        facts.append(spec.source_secret_ref.name)
    if follows(spec):
        facts.append(ON_CHANGE)
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:_KEY_CHARS]


def source_of(spec: ModelSpec) -> Source:
    """Return what a Model names, files picked.

    Raises:
        WeightsError: It names nothing that can be understood.
    """
    return pick_primary(parse_source(spec.source), spec.files)


def pick_primary(source: Source, files: tuple[str, ...]) -> Source:
    """Return the source of the engine's own file; further files are fetched beside it.

    Raises:
        WeightsError: The source has no such file.
    """
    return pick(source, files[:1])


def claimed(source: VolumeSource) -> Claimed:
    """Read `pvc://CLAIM/PATH`.

    Raises:
        SourceError: It names no path on a claim, or one that leads out of it.
    """
    claim, _, path = source.text.partition("://")[2].partition("/")
    if not claim or not path or any(step in ("", ".", "..") for step in path.rstrip("/").split("/")):
        raise SourceError(f"{source.text!r} names no path on a claim; write pvc://CLAIM/PATH")
    return Claimed(claim, path.rstrip("/"))


def published_name(source: Source) -> str:
    """Return the name of the first file in the folder, or nothing if only fetching can tell how many parts there are.

    Parts keep the names by which llama.cpp finds them from the first one.
    """
    if isinstance(source, HubRepository | LocalFile | VolumeSource):
        return ""
    if isinstance(source, BucketFile) and (not source.path or source.path.endswith("/")):
        return ""
    parts = getattr(source, "parts", ("",))
    count = len(parts)
    return "model.gguf" if count == 1 else part_names(f"model-00001-of-{count:05d}.gguf")[0]


def extra_files(spec: ModelSpec) -> tuple[str, ...]:
    """Return what is fetched beside the first file; the parts of a split model come with their first."""
    named = dict.fromkeys((*spec.files[1:], *((spec.mmproj,) if spec.mmproj else ())))
    try:
        together = part_names(spec.files[0]) if spec.files else ()
    except WeightsError:
        together = ()
    return tuple(name for name in named if name not in together)


def job_name(model: Model) -> str:
    """Return the name of the Job that fetches this Model's weights, another one for every key."""
    name = model.key.name
    room = MAX_LABEL - _KEY_CHARS - 1
    if len(name) > room:
        digest = hashlib.sha256(name.encode()).hexdigest()[:6]
        name = f"{name[: room - 7].rstrip('-.')}-{digest}"
    return f"{name}-{cache_key(model.spec)}"


def cache_claim(namespace: str, settings: WorkloadSettings) -> dict[str, Any]:
    """Return the claim of a namespace; nobody owns it, so that weights outlive the Models that brought them."""
    storage_class = {"storageClassName": settings.cache_storage_class} if settings.cache_storage_class else {}
    return {
        "apiVersion": PersistentVolumeClaim.RESOURCE.api_version,
        "kind": PersistentVolumeClaim.RESOURCE.kind,
        "metadata": {
            "name": CACHE_CLAIM,
            "namespace": namespace,
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


def fetch_job(model: Model, settings: WorkloadSettings) -> dict[str, Any]:
    """Return the Job that fetches a Model's weights into the namespace's claim."""
    labels = model_labels(model)
    tolerations = [dict(one) for one in model.spec.prefetch_tolerations]
    more = ["--versions"] if follows(model.spec) else []
    container = fetch_container(model, settings, *more, f"--progress-port={PROGRESS_PORT}")
    claim = {"name": "models", "persistentVolumeClaim": {"claimName": CACHE_CLAIM}}
    pod = {
        **({"tolerations": tolerations} if tolerations else {}),
        "containers": [container],
        "volumes": [claim, *_fetch_volumes(settings)],
    }
    spec = job_spec(labels, pod, settings, backoffLimit=_BACKOFF_LIMIT)
    return owned(Job.RESOURCE, model, job_name(model), labels, {"spec": spec})


def job_spec(
    labels: Mapping[str, str], pod: Mapping[str, Any], settings: WorkloadSettings, *, writes: bool = True, **more: Any
) -> dict[str, Any]:
    """Return the spec of a Job of ours.

    What is wrong with what it was asked for stays wrong; what a drained node interrupts is not its fault.

    Args:
        labels: Of its pod.
        pod: Containers, volumes, and where to run.
        settings: How to pull our image.
        writes: Whether it writes to its volume.
        more: Fields of the spec.
    """
    secrets = [{"name": name} for name in settings.image_pull_secrets]
    group = writing_group(settings) if writes else {}
    rules = [
        {
            "action": "FailJob",
            "onExitCodes": {"containerName": FETCH, "operator": "In", "values": list(BAD_REQUEST_CODES)},
        },
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]
    whole = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}, **group},
        **({"imagePullSecrets": secrets} if secrets else {}),
        **pod,
    }
    return {
        **more,
        "ttlSecondsAfterFinished": JOB_TTL_SECONDS,
        "podFailurePolicy": {"rules": rules},
        "template": {"metadata": {"labels": dict(labels)}, "spec": whole},
    }


def writing_group(settings: WorkloadSettings) -> dict[str, Any]:
    """Return the part of a pod's security context by which our image may write to a volume."""
    if settings.fs_group is None:
        return {}
    # Without the policy the kubelet walks over all of a volume's files at each start.
    return {"fsGroup": settings.fs_group, "fsGroupChangePolicy": "OnRootMismatch"}


def follows(spec: ModelSpec) -> bool:
    """Whether a source is looked at again once it has been fetched."""
    return spec.refresh_policy == ON_CHANGE


def fetch_container(model: Model, settings: WorkloadSettings, *more: str) -> dict[str, Any]:
    """Return the container that runs `llmkube fetch`; it needs the volumes `models`, `scratch` and perhaps `ca`.

    The source is in its environment: a URL may hold a password, and a command line is everybody's to read.
    """
    spec = model.spec
    args = ["fetch", "--to", f"{CACHE_FOLDER}/{cache_key(spec)}", "--model-store", f"{CACHE_FOLDER}/.store"]
    args += [word for name in spec.files[:1] for word in ("--file", name)]
    args += [word for name in extra_files(spec) for word in ("--beside", name)]
    args += ["--sha256", spec.sha256.lower()] if spec.sha256 else []
    args += [word for word in ("--fresh" if follows(spec) else "", *more) if word]
    args += ["--hub-endpoint", settings.hub_endpoint] if settings.hub_endpoint else []
    args += [word for network in settings.private_sources for word in ("--allow-private-sources", network)]
    env: list[dict[str, Any]] = [{"name": "LLMKUBE_SOURCE", "value": literal(spec.source)}]
    env.append({"name": "HOME", "value": _SCRATCH})
    if spec.source_secret_ref:
        # By name, and not the whole Secret: what else is in it is none of the container's business.
        for name in VARIABLES if spec.source.startswith("s3://") else ("HF_TOKEN",):
            reference = {"name": spec.source_secret_ref.name, "key": name, "optional": True}
            env.append({"name": name, "valueFrom": {"secretKeyRef": reference}})
    mounts = [{"name": "models", "mountPath": CACHE_FOLDER}, {"name": "scratch", "mountPath": _SCRATCH}]
    if settings.ca_config_map:
        env.append({"name": "SSL_CERT_FILE", "value": f"{_CA_FOLDER}/ca.crt"})
        mounts.append({"name": "ca", "mountPath": _CA_FOLDER})
    return our_container(settings, args, env, mounts)


def our_container(
    settings: WorkloadSettings,
    args: Sequence[str],
    env: Sequence[Mapping[str, Any]],
    mounts: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return a container that runs `llmkube`, with nothing but what it is given."""
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


def serving_storage(service: InferenceService, model: Model, path: str, settings: WorkloadSettings) -> Storage:
    """Return what a service's pods need to find the weights at `path`, which the Model's status or source tells."""
    volume = source_volume(model)
    if volume is not None:
        return _mounted(path, volume, SOURCE_FOLDER)
    if not fetches_itself(service):
        # Read-only for the container, not for the volume: a Job on the same node may be writing to it.
        claim = {"claimName": CACHE_CLAIM}
        return _mounted(path, {"name": "models", "persistentVolumeClaim": claim}, CACHE_FOLDER)
    return Storage(
        path=path,
        folder=posixpath.dirname(path),
        volumes=(_own_volume(service), *_fetch_volumes(settings)),
        mounts=({"name": "models", "mountPath": CACHE_FOLDER, "readOnly": True},),
        init_containers=(fetch_container(model, settings),),
    )


def beside(storage: Storage, draft: Storage) -> Storage:
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
        claim = {"claimName": claimed(source).claim, "readOnly": True}
        return {"name": "model-source", "persistentVolumeClaim": claim}
    if isinstance(source, LocalFile):
        # The folder and not the file: the parts of a split model lie side by side.
        return {"name": "model-source", "hostPath": {"path": posixpath.dirname(source.path), "type": "Directory"}}
    return None


def fetches_itself(service: InferenceService) -> bool:
    """Whether a service's pods fetch the weights into a volume of their own, and not the Model's Job."""
    cache = service.spec.model_cache
    return cache is not None and (cache.persistence == "Ephemeral" or bool(cache.claim_name))


def _own_volume(service: InferenceService) -> dict[str, Any]:
    cache = service.spec.model_cache
    if cache is not None and cache.claim_name:
        return {"name": "models", "persistentVolumeClaim": {"claimName": cache.claim_name}}
    limit = service.spec.resources.ephemeral_storage
    return {"name": "models", "emptyDir": {"sizeLimit": limit} if limit else {}}


def _mounted(path: str, volume: dict[str, Any], folder: str) -> Storage:
    mount = {"name": volume["name"], "mountPath": folder, "readOnly": True}
    return Storage(path=path, folder=posixpath.dirname(path), volumes=(volume,), mounts=(mount,))


def _fetch_volumes(settings: WorkloadSettings) -> tuple[dict[str, Any], ...]:
    scratch: dict[str, Any] = {"name": "scratch", "emptyDir": {}}
    if not settings.ca_config_map:
        return (scratch,)
    return (scratch, {"name": "ca", "configMap": {"name": settings.ca_config_map}})
