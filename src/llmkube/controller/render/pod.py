"""Render a service's pod from its container plan, its Model's storage and the user's settings. Pure."""

import posixpath
from collections.abc import Mapping
from typing import Any, Final

from llmkube.controller.render.drain import END_SECONDS, drain_containers, key_containers, key_volumes, with_pre_stop
from llmkube.controller.render.labels import queue_labels, service_labels
from llmkube.controller.render.storage import IMAGE_USER, Storage, writing_group
from llmkube.controller.settings import WorkloadSettings
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.runtimes.container.container_plan import PORT_NAME, ContainerPlan, MountPaths

CACHE_FOLDER: Final = "/cache"
"""Folder that the engine may write to; it is deleted with the pod."""

ENGINE_USER: Final = IMAGE_USER
"""The user of engines in images that run as any user."""

DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"
"""Annotation with the container whose logs kubectl shows by default."""

_SCRATCH: Final = "engine-scratch"
_SCRATCH_FOLDER: Final = "/tmp"  # noqa: S108 (a volume of the pod's own)
_DROPPED: Final = {"drop": ["ALL"]}
_USER_FIELDS: Final = ("runAsUser", "runAsGroup", "runAsNonRoot")


def pod_template(
    service: InferenceService,
    plan: ContainerPlan,
    storage: Storage,
    draft: Storage,
    settings: WorkloadSettings,
    *,
    drain_seconds: int,
) -> dict[str, Any]:
    """Return the template of a service's pods.

    Args:
        service: The service.
        plan: The plan of its container.
        storage: Location of its weights; empty if the engine fetches them.
        draft: Location of its draft model's weights.
        settings: The operator's settings for pods.
        drain_seconds: Time limit for requests in flight once a pod is deleted.
    """
    spec = service.spec
    labels = service_labels(service, plan.runtime)
    metadata: dict[str, Any] = {"labels": {**spec.pod_labels, **queue_labels(service), **labels}}
    volumes, mounts = _volumes(service, plan, storage, draft)
    engine = with_pre_stop(_engine(service, plan, storage, draft, mounts), plan, settings)
    sidecars = [
        *key_containers(service, plan, engine, settings, drain_seconds),
        *drain_containers(service, plan, settings, drain_seconds),
    ]
    annotations = {**({DEFAULT_CONTAINER: plan.container_name} if sidecars else {}), **spec.pod_annotations}
    if annotations:
        metadata["annotations"] = annotations
    pod: dict[str, Any] = {
        "terminationGracePeriodSeconds": drain_seconds + END_SECONDS,
        "automountServiceAccountToken": False,
        # The variables for Services collide with those of engines: VLLM_PORT is vLLM's own.
        "enableServiceLinks": False,
        "securityContext": _pod_context(service, plan, storage, settings),
        "containers": [engine, *sidecars],
    }
    init = [*storage.init_containers, *({**one, "name": f"{one['name']}-draft"} for one in draft.init_containers)]
    tolerated = [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in plan.resources.toleration_keys]
    optional: Mapping[str, Any] = {
        "initContainers": init,
        "volumes": volumes,
        "imagePullSecrets": _pull_secrets(service, [*init, *sidecars], settings),
        "nodeSelector": {**(settings.shared_gpu_selector if plan.resources.shared else {}), **spec.node_selector},
        "tolerations": [*tolerated, *(dict(one) for one in spec.tolerations)],
        "affinity": dict(spec.affinity or {}),
        "topologySpreadConstraints": [dict(one) for one in spec.topology_spread_constraints],
        "runtimeClassName": spec.runtime_class_name,
        "priorityClassName": priority_class(service, settings),
        "resourceClaims": [dict(one) for one in plan.resources.claims],
    }
    return {"metadata": metadata, "spec": pod | {name: value for name, value in optional.items() if value}}


def priority_class(service: InferenceService, settings: WorkloadSettings) -> str:
    """Return the PriorityClass of a service's pods: the one in its spec, or that of its priority; empty for none."""
    if service.spec.priority_class_name:
        return service.spec.priority_class_name
    return f"{settings.priority_class_prefix}{service.spec.priority}" if settings.priority_class_prefix else ""


def _engine(
    service: InferenceService, plan: ContainerPlan, storage: Storage, draft: Storage, mounts: list[dict[str, Any]]
) -> dict[str, Any]:
    paths = MountPaths(model=storage.path, folder=storage.folder, draft=draft.path, cache=CACHE_FOLDER)
    resources: dict[str, Any] = {
        name: dict(amounts)
        for name, amounts in (("requests", plan.resources.requests), ("limits", plan.resources.limits))
        if amounts
    }
    if plan.resources.claims:
        resources["claims"] = [{"name": claim["name"]} for claim in plan.resources.claims]
    numbers = ((PORT_NAME, plan.port), *plan.extra_ports)
    ports = [{"name": name, "containerPort": number, "protocol": "TCP"} for name, number in numbers]
    container: dict[str, Any] = {
        "name": plan.container_name,
        "image": plan.image,
        "ports": ports,
        "startupProbe": plan.probes.startup.manifest(),
        # an engine that fails its liveness probe gets no time to drain
        "livenessProbe": {"terminationGracePeriodSeconds": END_SECONDS, **plan.probes.liveness.manifest()},
        "readinessProbe": plan.probes.readiness.manifest(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": _engine_context(service, plan),
    }
    hook = plan.render_hook(paths)
    optional: Mapping[str, Any] = {
        "command": plan.render_words(plan.command, paths),
        "args": plan.render_words(plan.args, paths),
        "env": [*_home(plan), *plan.render_env(paths)],
        "resources": resources,
        "volumeMounts": mounts,
        "lifecycle": {"postStart": {"exec": {"command": hook}}} if hook else {},
    }
    return container | {name: value for name, value in optional.items() if value}


def _volumes(
    service: InferenceService, plan: ContainerPlan, storage: Storage, draft: Storage
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    volumes = [*storage.volumes, *(one for one in draft.volumes if one not in storage.volumes)]
    mounts = [*storage.mounts, *(one for one in draft.mounts if one not in storage.mounts)]
    if plan.uses_cache:
        volumes.append({"name": "cache", "emptyDir": {}})
        mounts.append({"name": "cache", "mountPath": CACHE_FOLDER})
    if plan.shared_memory:
        volumes.append({"name": "shared-memory", "emptyDir": {"medium": "Memory"}})
        mounts.append({"name": "shared-memory", "mountPath": "/dev/shm"})  # noqa: S108 (where engines expect it)
    if plan.any_user and not _mounts_scratch(service):
        volumes.append({"name": _SCRATCH, "emptyDir": {}})
        mounts.append({"name": _SCRATCH, "mountPath": _SCRATCH_FOLDER})
    volumes += key_volumes(plan)
    volumes += [dict(one) for one in service.spec.extra_volumes]
    mounts += [dict(one) for one in service.spec.extra_volume_mounts]
    return volumes, mounts


def _pod_context(
    service: InferenceService, plan: ContainerPlan, storage: Storage, settings: WorkloadSettings
) -> dict[str, Any]:
    """Return the pod's security context: the user's fields, and our defaults for the others."""
    theirs, container = service.spec.pod_security_context or {}, service.spec.security_context or {}
    ours: dict[str, Any] = {"seccompProfile": {"type": "RuntimeDefault"}}
    if storage.init_containers:
        ours |= writing_group(settings)
    if plan.any_user and not any(name in context for context in (theirs, container) for name in _USER_FIELDS):
        ours["runAsNonRoot"] = True
        if settings.fs_group is not None:  # otherwise the cluster assigns users to each namespace (OpenShift)
            ours |= {"runAsUser": ENGINE_USER, "runAsGroup": ENGINE_USER}
    return {**ours, **theirs}


def _engine_context(service: InferenceService, plan: ContainerPlan) -> dict[str, Any]:
    """Return the engine's security context: the user's fields, and our defaults for the others."""
    theirs = service.spec.security_context or {}
    capabilities = theirs.get("capabilities") or {}
    ours: dict[str, Any] = {"allowPrivilegeEscalation": False, "capabilities": _DROPPED}
    if theirs.get("privileged") or "CAP_SYS_ADMIN" in (capabilities.get("add") or ()):
        ours = {}  # the API server rejects these together with allowPrivilegeEscalation: false
    elif capabilities:
        theirs = {**theirs, "capabilities": {**_DROPPED, **capabilities}}
    if plan.any_user:
        ours["readOnlyRootFilesystem"] = True
    return {**ours, **theirs}


def _home(plan: ContainerPlan) -> list[dict[str, Any]]:
    """Return the variable HOME that sends caches of drivers and compilers to a folder that any user may write to."""
    named = any(variable.name == "HOME" for variable in plan.env)
    return [{"name": "HOME", "value": _SCRATCH_FOLDER}] if plan.any_user and not named else []


def _mounts_scratch(service: InferenceService) -> bool:
    return any(posixpath.normpath(one["mountPath"]) == _SCRATCH_FOLDER for one in service.spec.extra_volume_mounts)


def _pull_secrets(
    service: InferenceService, ours: list[dict[str, Any]], settings: WorkloadSettings
) -> list[dict[str, str]]:
    names = [one.name for one in service.spec.image_pull_secrets]
    further = settings.image_pull_secrets if ours else ()
    return [{"name": name} for name in dict.fromkeys((*names, *further))]
