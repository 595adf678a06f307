"""A service's pod: its runtime's container plan, its Model's storage, and what the user asks of both. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from llmkube.controller.render.fetch_container import writing_group
from llmkube.controller.render.labels import service_labels
from llmkube.controller.render.storage import Storage
from llmkube.controller.settings import WorkloadSettings
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.runtimes.container.container_plan import PORT_NAME, ContainerPlan, MountPaths

CACHE_FOLDER: Final = "/cache"
"""A folder that the engine may write to; it is gone with the pod."""

GRACE_SECONDS: Final = 60
"""From TERM to KILL: answers in flight get this long."""

_ENGINE_CONTEXT: Final = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
_POD_CONTEXT: Final = {"seccompProfile": {"type": "RuntimeDefault"}}


def pod_template(
    service: InferenceService, plan: ContainerPlan, storage: Storage, draft: Storage, settings: WorkloadSettings
) -> dict[str, Any]:
    """Return the template of a service's pods.

    Args:
        service: The service.
        plan: What its container is.
        storage: Where its weights are; empty when the engine brings them.
        draft: The same of its draft model.
        settings: What the operator says about pods.
    """
    spec = service.spec
    labels = service_labels(service, model=spec.model_ref, runtime=plan.runtime)
    metadata: dict[str, Any] = {"labels": {**spec.pod_labels, **labels}}
    if spec.pod_annotations:
        metadata["annotations"] = dict(spec.pod_annotations)
    volumes, mounts = _volumes(service, plan, storage, draft)
    pod: dict[str, Any] = {
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "automountServiceAccountToken": False,
        # Variables for every Service of a namespace collide with those of engines (VLLM_PORT is one of vLLM's own).
        "enableServiceLinks": False,
        "securityContext": _pod_context(service, storage, settings),
        "containers": [_engine(service, plan, storage, draft, mounts)],
    }
    init = [*storage.init_containers, *({**one, "name": f"{one['name']}-draft"} for one in draft.init_containers)]
    optional: Mapping[str, Any] = {
        "initContainers": init,
        "volumes": volumes,
        "imagePullSecrets": _pull_secrets(service, init, settings),
        "nodeSelector": {**(settings.shared_gpu_selector if plan.resources.shared else {}), **spec.node_selector},
        "tolerations": [*_gpu_tolerations(plan), *(dict(one) for one in spec.tolerations)],
        "affinity": dict(spec.affinity or {}),
        "topologySpreadConstraints": [dict(one) for one in spec.topology_spread_constraints],
        "runtimeClassName": spec.runtime_class_name,
        "priorityClassName": priority_class(service, settings),
        "resourceClaims": [dict(one) for one in plan.resources.claims],
    }
    return {"metadata": metadata, "spec": pod | {name: value for name, value in optional.items() if value}}


def priority_class(service: InferenceService, settings: WorkloadSettings) -> str:
    """Return the PriorityClass of a service's pods: the one it names, else that of its priority, else none."""
    if service.spec.priority_class_name:
        return service.spec.priority_class_name
    return f"{settings.priority_class_prefix}{service.spec.priority}" if settings.priority_class_prefix else ""


def _engine(
    service: InferenceService, plan: ContainerPlan, storage: Storage, draft: Storage, mounts: list[dict[str, Any]]
) -> dict[str, Any]:
    places = MountPaths(model=storage.path, folder=storage.folder, draft=draft.path, cache=CACHE_FOLDER)
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
        "livenessProbe": plan.probes.liveness.manifest(),
        "readinessProbe": plan.probes.readiness.manifest(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": dict(service.spec.security_context or _ENGINE_CONTEXT),
    }
    after = plan.render_hook(places)
    optional: Mapping[str, Any] = {
        "command": plan.render_words(plan.command, places),
        "args": plan.render_words(plan.args, places),
        "env": plan.render_env(places),
        "resources": resources,
        "volumeMounts": mounts,
        "lifecycle": {"postStart": {"exec": {"command": after}}} if after else {},
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
        mounts.append({"name": "shared-memory", "mountPath": "/dev/shm"})  # noqa: S108 (the place that engines expect)
    volumes += [dict(one) for one in service.spec.extra_volumes]
    mounts += [dict(one) for one in service.spec.extra_volume_mounts]
    return volumes, mounts


def _pod_context(service: InferenceService, storage: Storage, settings: WorkloadSettings) -> dict[str, Any]:
    if service.spec.pod_security_context is not None:
        return dict(service.spec.pod_security_context)
    return {**_POD_CONTEXT, **(writing_group(settings) if storage.init_containers else {})}


def _pull_secrets(
    service: InferenceService, init: list[dict[str, Any]], settings: WorkloadSettings
) -> list[dict[str, str]]:
    names = [one.name for one in service.spec.image_pull_secrets]
    ours = settings.image_pull_secrets if init else ()
    return [{"name": name} for name in dict.fromkeys((*names, *ours))]


def _gpu_tolerations(plan: ContainerPlan) -> list[dict[str, str]]:
    return [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in plan.resources.toleration_keys]
