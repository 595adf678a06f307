"""Jobs that fetch nothing: one reads a file's header, one removes what no Model names. Pure."""

from collections.abc import Sequence
from typing import Any, Final

from llmkube.controller.render.labels import MANAGED_BY, model_labels, owned
from llmkube.controller.render.storage import (
    CACHE_CLAIM,
    CACHE_FOLDER,
    SOURCE_FOLDER,
    job_name,
    job_spec,
    our_container,
    source_volume,
)
from llmkube.controller.settings import WorkloadSettings
from llmkube.k8s.crd.model import Model
from llmkube.k8s.wire.names import CONTROLLER_FIELD_MANAGER, SERVICE_LABEL
from llmkube.k8s.workloads import Job, PersistentVolumeClaim

PRUNE_JOB: Final = "llmkube-model-cache-prune"
"""Name of the Job that removes folders of a namespace's claim."""

PRUNED: Final = "inference.llmkube.dev/pruned"
"""Annotation of that Job: which folders, separated by commas."""

INSPECT_SECONDS: Final = 3600
"""How long a pod that reads a header may wait for its volume, which others may hold."""

PRUNE_SECONDS: Final = 600
"""How long removing may take: no fetch begins in the namespace meanwhile."""


def inspect_job(model: Model, path: str, services: Sequence[str], settings: WorkloadSettings) -> dict[str, Any]:
    """Return the Job that reads the header of a file that is there already.

    It runs on the node of a pod that serves the file: there the volume is, and it takes no volume away from anybody.
    The taints of such nodes say who may use their GPUs, and it uses none.

    Args:
        model: Whose file it is.
        path: Where the file is in a pod.
        services: The values of `SERVICE_LABEL` of pods that serve it.
        settings: How to run our image.
    """
    labels, volume = model_labels(model), source_volume(model)
    assert volume is not None, "the caller has looked"
    mount = {"name": volume["name"], "mountPath": SOURCE_FOLDER, "readOnly": True}
    beside = {
        "labelSelector": {"matchExpressions": [{"key": SERVICE_LABEL, "operator": "In", "values": list(services)}]},
        "topologyKey": "kubernetes.io/hostname",
    }
    pod = {
        "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [beside]}},
        "tolerations": [{"operator": "Exists", "effect": "NoSchedule"}],
        "containers": [our_container(settings, ["fetch", "--inspect", path], (), [mount])],
        "volumes": [volume],
    }
    spec = job_spec(labels, pod, settings, writes=False, backoffLimit=0, activeDeadlineSeconds=INSPECT_SECONDS)
    return owned(Job.RESOURCE, model, job_name(model), labels, {"spec": spec})


def prune_job(claim: PersistentVolumeClaim, keys: Sequence[str], settings: WorkloadSettings) -> dict[str, Any]:
    """Return the Job that removes these folders of a namespace's claim, and goes with it."""
    labels = {
        "app.kubernetes.io/name": "llmkube-fetch",
        MANAGED_BY: CONTROLLER_FIELD_MANAGER,
        "app.kubernetes.io/part-of": "llmkube",
    }
    args = ["fetch", "--to", CACHE_FOLDER, "--model-store", f"{CACHE_FOLDER}/.store"]
    args += [word for key in keys for word in ("--prune", key)]
    mounts = [{"name": "models", "mountPath": CACHE_FOLDER}]
    pod = {
        "containers": [our_container(settings, args, (), mounts)],
        "volumes": [{"name": "models", "persistentVolumeClaim": {"claimName": CACHE_CLAIM}}],
    }
    spec = job_spec(labels, pod, settings, backoffLimit=0, activeDeadlineSeconds=PRUNE_SECONDS)
    return owned(Job.RESOURCE, claim, PRUNE_JOB, labels, {"spec": spec}, annotations={PRUNED: ",".join(keys)})
