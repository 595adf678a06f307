"""Jobs that fetch weights, read a file's header, or remove folders that no Model names. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from llmkube.controller.render.labels import FETCH_LABELS, model_labels, owned_manifest
from llmkube.controller.render.model_sources import CACHE_FOLDER, SOURCE_FOLDER, job_name, refreshes_on_change
from llmkube.controller.render.storage import (
    CACHE_CLAIM,
    FETCH,
    fetch_container,
    fetch_volumes,
    llmkube_container,
    source_volume,
    writing_group,
)
from llmkube.controller.settings import WorkloadSettings
from llmkube.k8s.crd.model import Model
from llmkube.k8s.wire.names import SERVICE_LABEL
from llmkube.k8s.workloads import Job, PersistentVolumeClaim

PRUNE_JOB: Final = "llmkube-model-cache-prune"
"""Name of the Job that removes folders of a namespace's claim."""

PRUNED: Final = "inference.llmkube.dev/pruned"
"""Annotation of that Job with the folders to remove, separated by commas."""

INSPECT_SECONDS: Final = 3600
"""Deadline of a Job that reads a header; its pod may have to wait for a volume that other pods use."""

PRUNE_SECONDS: Final = 600
"""Deadline of a Job that removes folders; no fetch starts in the namespace meanwhile."""

BAD_REQUEST_CODES: Final = (2, 3)
"""Exit codes of `llmkube fetch` after which a retry would fail again."""

JOB_TTL_SECONDS: Final = 86_400
"""Retention of a finished Job; a failed one is then recreated."""

PROGRESS_PORT: Final = 8082
"""Port on which the pod of a fetch reports its progress."""

_BACKOFF_LIMIT: Final = 4


def fetch_job(model: Model, settings: WorkloadSettings) -> dict[str, Any]:
    """Return the Job that fetches a Model's weights into the namespace's claim."""
    labels = model_labels(model)
    tolerations = [dict(one) for one in model.spec.prefetch_tolerations]
    more = ["--versions"] if refreshes_on_change(model.spec) else []
    container = fetch_container(model, settings, *more, f"--progress-port={PROGRESS_PORT}")
    claim = {"name": "models", "persistentVolumeClaim": {"claimName": CACHE_CLAIM}}
    pod = {
        **({"tolerations": tolerations} if tolerations else {}),
        "containers": [container],
        "volumes": [claim, *fetch_volumes(settings)],
    }
    spec = job_spec(labels, pod, settings, backoffLimit=_BACKOFF_LIMIT)
    return owned_manifest(Job.RESOURCE, model, job_name(model), labels, {"spec": spec})


def inspect_job(model: Model, path: str, services: Sequence[str], settings: WorkloadSettings) -> dict[str, Any]:
    """Return the Job that reads the header of an existing file.

    It runs on the node of a pod that serves the file: the volume is already attached there, so no other pod loses it.
    It tolerates all taints, because taints reserve GPUs on such nodes and it uses none.

    Args:
        model: The Model of the file.
        path: Path of the file in the pod.
        services: Values of `SERVICE_LABEL` of pods that serve it.
        settings: Settings of our image.
    """
    labels, volume = model_labels(model), source_volume(model)
    assert volume is not None, "checked by the caller"
    mount = {"name": volume["name"], "mountPath": SOURCE_FOLDER, "readOnly": True}
    affinity_term = {
        "labelSelector": {"matchExpressions": [{"key": SERVICE_LABEL, "operator": "In", "values": list(services)}]},
        "topologyKey": "kubernetes.io/hostname",
    }
    pod = {
        "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [affinity_term]}},
        "tolerations": [{"operator": "Exists", "effect": "NoSchedule"}],
        "containers": [llmkube_container(settings, ["fetch", "--inspect", path], (), [mount])],
        "volumes": [volume],
    }
    spec = job_spec(labels, pod, settings, writes=False, backoffLimit=0, activeDeadlineSeconds=INSPECT_SECONDS)
    return owned_manifest(Job.RESOURCE, model, job_name(model), labels, {"spec": spec})


def prune_job(claim: PersistentVolumeClaim, keys: Sequence[str], settings: WorkloadSettings) -> dict[str, Any]:
    """Return the Job that removes folders of a namespace's claim; the claim owns it."""
    args = ["fetch", "--to", CACHE_FOLDER, "--model-store", f"{CACHE_FOLDER}/.store"]
    args += [word for key in keys for word in ("--prune", key)]
    mounts = [{"name": "models", "mountPath": CACHE_FOLDER}]
    pod = {
        "containers": [llmkube_container(settings, args, (), mounts)],
        "volumes": [{"name": "models", "persistentVolumeClaim": {"claimName": CACHE_CLAIM}}],
    }
    spec = job_spec(FETCH_LABELS, pod, settings, backoffLimit=0, activeDeadlineSeconds=PRUNE_SECONDS)
    named = {PRUNED: ",".join(keys)}
    return owned_manifest(Job.RESOURCE, claim, PRUNE_JOB, FETCH_LABELS, {"spec": spec}, annotations=named)


def job_spec(
    labels: Mapping[str, str], pod: Mapping[str, Any], settings: WorkloadSettings, *, writes: bool = True, **more: Any
) -> dict[str, Any]:
    """Return the spec of a Job.

    Args:
        labels: Labels of its pod.
        pod: Containers, volumes, and scheduling fields of the pod's spec.
        settings: Settings of our image.
        writes: Whether it writes to its volume.
        more: Further fields of the Job's spec.
    """
    secrets = [{"name": name} for name in settings.image_pull_secrets]
    group = writing_group(settings) if writes else {}
    rules = [  # an invalid request is not retried, and a drained node does not use up a retry
        {
            "action": "FailJob",
            "onExitCodes": {"containerName": FETCH, "operator": "In", "values": list(BAD_REQUEST_CODES)},
        },
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]
    pod_spec = {
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
        "template": {"metadata": {"labels": dict(labels)}, "spec": pod_spec},
    }
