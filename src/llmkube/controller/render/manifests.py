"""All objects that a service in pods shall have; its Deployment and its Service are made here. Pure."""

from typing import Any, Final

import attrs

from llmkube.controller.render.drain import Kept, drain_seconds
from llmkube.controller.render.group import group_name, group_spec, leader_plan, worker_plan
from llmkube.controller.render.labels import (
    DRAIN_SECONDS,
    OUR_IMAGE,
    RESTARTED,
    TEMPLATE,
    answering_selector,
    digest,
    owned_manifest,
    pod_selector,
    service_labels,
)
from llmkube.controller.render.monitoring import objective, pod_monitor
from llmkube.controller.render.pod import pod_template
from llmkube.controller.render.routing import route
from llmkube.controller.render.scaling import autoscaler, disruption_budget
from llmkube.controller.render.storage import Storage, draft_storage
from llmkube.controller.settings import WorkloadSettings
from llmkube.k8s.builtins import Service
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.extensions import LeaderWorkerSet
from llmkube.k8s.wire.names import service_name
from llmkube.k8s.workloads import Deployment
from llmkube.runtimes.container.container_plan import PORT_NAME, ContainerPlan

PROGRESS_SECONDS: Final = 3600
"""How long a rollout may stand still before the Deployment says so: large models load slowly."""

_NO_STORAGE: Final = Storage()


@attrs.frozen(eq=False, kw_only=True)
class Manifests:
    """The objects that a service shall have; None where it shall have none."""

    deployment: dict[str, Any]  # a LeaderWorkerSet, where several nodes serve it together
    kubernetes_service: dict[str, Any]
    autoscaler: dict[str, Any] | None
    budget: dict[str, Any] | None
    monitor: dict[str, Any] | None
    objective: dict[str, Any] | None
    route: dict[str, Any] | None


def render_manifests(
    service: InferenceService,
    plan: ContainerPlan,
    settings: WorkloadSettings,
    *,
    weights: Storage,
    draft: Storage,
    replicas: int,
    starting: bool,
    restarted: str,
    kept: Kept | None = None,
) -> Manifests:
    """Return the objects of a service.

    Args:
        service: The service.
        plan: What its container is.
        settings: What the operator says about pods.
        weights: Where its weights are.
        draft: The same of its draft model.
        replicas: How many pods.
        starting: Not all of its replicas have answered yet.
        restarted: When its pods were last replaced for their age; another moment replaces them.
        kept: What its pods keep of ours.
    """
    pods = deployment(
        service, plan, settings, replicas=replicas, storage=weights, draft=draft, restarted=restarted, kept=kept
    )
    return Manifests(
        deployment=pods,
        kubernetes_service=kubernetes_service(service, plan),
        autoscaler=autoscaler(service, plan),
        budget=disruption_budget(service, plan, starting=starting),
        monitor=pod_monitor(service, plan, settings.monitor_labels) if settings.pod_monitors else None,
        objective=objective(service, plan, settings.monitor_labels),
        route=route(service, plan),
    )


def deployment(
    service: InferenceService,
    plan: ContainerPlan,
    settings: WorkloadSettings,
    *,
    replicas: int,
    storage: Storage = _NO_STORAGE,
    draft: Storage = _NO_STORAGE,
    restarted: str = "",
    kept: Kept | None = None,
) -> dict[str, Any]:
    """Return the Deployment of a service.

    Pods with GPUs are replaced one by one in their places: a cluster rarely has GPUs to spare for a second one. All
    others are replaced after their successors are ready.

    Args:
        service: The service.
        plan: What its container is.
        settings: What the operator says about pods.
        replicas: How many.
        storage: Where its weights are.
        draft: The same of its draft model.
        restarted: When its pods were last replaced for their age; another moment replaces them.
        kept: What its pods keep of ours; None: they get today's.
    """
    kept = kept or Kept(settings.image, drain_seconds(service, plan))
    settings = attrs.evolve(settings, image=kept.image)
    surge = {"maxSurge": 0, "maxUnavailable": 1} if plan.resources.on_gpu else {"maxSurge": 1, "maxUnavailable": 0}
    history = service.spec.revision_history_limit
    volumes = storage, draft_storage(storage, draft)
    template = pod_template(service, leader_plan(plan), *volumes, settings, drain_seconds=kept.drain_seconds)
    if restarted:
        template["metadata"].setdefault("annotations", {})[RESTARTED] = restarted
    spec: dict[str, Any] = {
        "replicas": replicas,
        "selector": {"matchLabels": pod_selector(service)},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": surge},
        "progressDeadlineSeconds": PROGRESS_SECONDS,
        **({"revisionHistoryLimit": history} if history is not None else {}),
        "template": template,
    }
    resource, name, made_of = Deployment.RESOURCE, service.key.name, template
    if plan.group is not None:
        worker = pod_template(service, worker_plan(plan), *volumes, settings, drain_seconds=kept.drain_seconds)
        spec = group_spec(service, template, worker, replicas=replicas)
        resource, name, made_of = LeaderWorkerSet.RESOURCE, group_name(name), spec["leaderWorkerTemplate"]
    labels = service_labels(service, model=service.spec.model_ref, runtime=plan.runtime)
    manifest = owned_manifest(resource, service, name, labels, {"spec": spec})
    manifest["metadata"]["annotations"][TEMPLATE] = digest(made_of)
    manifest["metadata"]["annotations"] |= {OUR_IMAGE: kept.image, DRAIN_SECONDS: str(kept.drain_seconds)}
    if restarted:
        manifest["metadata"]["annotations"][RESTARTED] = restarted
    return manifest


def kubernetes_service(service: InferenceService, plan: ContainerPlan) -> dict[str, Any]:
    """Return the Service of an InferenceService; it finds the container's port by its name, whatever the number."""
    endpoint = service.spec.endpoint
    port: dict[str, Any] = {"name": "http", "port": endpoint.port, "targetPort": PORT_NAME, "protocol": "TCP"}
    if endpoint.node_port is not None and endpoint.type != "ClusterIP":
        port["nodePort"] = endpoint.node_port
    labels = service_labels(service, model=service.spec.model_ref, runtime=plan.runtime)
    selector = answering_selector(service, group=plan.group is not None)
    spec = {"type": endpoint.type, "ports": [port], "selector": selector}
    return owned_manifest(Service.RESOURCE, service, service_name(service.key.name), labels, {"spec": spec})
