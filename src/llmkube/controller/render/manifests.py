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
    pod_selector,
    service_manifest,
)
from llmkube.controller.render.monitoring import objective, pod_monitor
from llmkube.controller.render.pod import pod_template
from llmkube.controller.render.storage import Storage, draft_storage
from llmkube.controller.settings import WorkloadSettings
from llmkube.k8s.builtins import Service
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.placement import Disruption, ScalingMetric
from llmkube.k8s.wire.conditions import find_condition
from llmkube.k8s.wire.names import service_name
from llmkube.k8s.workloads import Deployment, HorizontalPodAutoscaler, HTTPRoute, LeaderWorkerSet, PodDisruptionBudget
from llmkube.runtimes.container.builder import gateway_name
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
    manifest = service_manifest(resource, service, plan.runtime, spec, name=name)
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
    selector = answering_selector(service, group=plan.group is not None)
    spec = {"type": endpoint.type, "ports": [port], "selector": selector}
    return service_manifest(Service.RESOURCE, service, plan.runtime, spec, name=service_name(service.key.name))


_DEFAULT_TARGET: Final = "2"


def autoscaler(service: InferenceService, plan: ContainerPlan) -> dict[str, Any] | None:
    """Return the autoscaler of a service; None when it has none, is suspended, or nothing is there to scale on.

    A suspended service has no autoscaler, whose minimum is 1 and would bring the pods back.
    """
    scaling = service.spec.autoscaling
    metrics = scaling_metrics(service, plan)
    if scaling is None or not metrics or service.spec.suspend or not service.spec.replicas:
        return None
    target = {
        "apiVersion": Deployment.RESOURCE.api_version,
        "kind": Deployment.RESOURCE.kind,
        "name": service.key.name,
    }
    spec = {
        "scaleTargetRef": target,
        "minReplicas": scaling.min_replicas,
        "maxReplicas": scaling.max_replicas,
        "metrics": metrics,
    }
    return service_manifest(HorizontalPodAutoscaler.RESOURCE, service, plan.runtime, spec)


def scaling_metrics(service: InferenceService, plan: ContainerPlan) -> list[dict[str, Any]]:
    """Return what a service is scaled on: what the user names, else what its runtime counts."""
    scaling = service.spec.autoscaling
    if scaling is None:
        return []
    if scaling.metrics:
        return [_metric(one) for one in scaling.metrics]
    if plan.hpa_metric is None:
        return []
    return [_pods(plan.hpa_metric.name, plan.hpa_metric.target)]


def disruption_budget(service: InferenceService, plan: ContainerPlan, *, starting: bool) -> dict[str, Any] | None:
    """Return the budget of a service; None for a single pod that has loaded, unless it is protected always.

    What loads is protected unless the spec says otherwise: a pod that is moved meanwhile begins again.

    Node autoscalers and `kubectl drain` heed it. An annotation on the pods could say the same, but adding one to the
    template replaces the pods that it shall protect.

    Args:
        service: The service.
        plan: What its container is.
        starting: Not all of its replicas have answered yet, and they may still.
    """
    disruption = service.spec.disruption or Disruption()
    protected = disruption.protect_always or (disruption.protect_startup and starting)
    scaling = service.spec.autoscaling
    most = scaling.max_replicas if scaling else service.spec.replicas
    if not protected and most <= 1:
        return None
    spec = {
        "maxUnavailable": 0 if protected else 1,
        "selector": {"matchLabels": pod_selector(service)},
        # A pod that does not answer has nothing to lose, unless it is its start that is protected.
        "unhealthyPodEvictionPolicy": "IfHealthyBudget" if protected else "AlwaysAllow",
    }
    return service_manifest(PodDisruptionBudget.RESOURCE, service, plan.runtime, spec)


def _metric(metric: ScalingMetric) -> dict[str, Any]:
    if metric.type == "Pods":
        return _pods(metric.name, metric.target_average_value or _DEFAULT_TARGET)
    if metric.target_average_utilization is not None:
        target: dict[str, Any] = {"type": "Utilization", "averageUtilization": metric.target_average_utilization}
    else:
        target = {"type": "AverageValue", "averageValue": metric.target_average_value}
    return {"type": "Resource", "resource": {"name": metric.name, "target": target}}


def _pods(name: str, value: str) -> dict[str, Any]:
    return {
        "type": "Pods",
        "pods": {"metric": {"name": name}, "target": {"type": "AverageValue", "averageValue": value}},
    }


MODEL_HEADER: Final = "X-Gateway-Model-Name"
"""Where the body-based routing of the Gateway API's inference extension puts the `model` of a request."""


def route(service: InferenceService, plan: ContainerPlan) -> dict[str, Any] | None:
    """Return the HTTPRoute of a service; None unless it asks for one.

    A request comes by the name of its model, where the gateway looks into bodies or the client sets the header; and by
    the path `/NAMESPACE/NAME/` through any gateway, which takes that away.
    """
    gateway = service.spec.endpoint.gateway
    if gateway is None or not gateway.enabled or gateway.gateway_ref is None:
        return None
    parent = {"name": gateway.gateway_ref.name}
    if gateway.gateway_ref.namespace:
        parent["namespace"] = gateway.gateway_ref.namespace
    to = {
        "backendRefs": [{"name": service_name(service.key.name), "port": service.spec.endpoint.port}],
        "timeouts": {"request": "0s"},  # an answer is over when it is over; the usual 15 s of proxies cut it off
    }
    by_name = {"headers": [{"type": "Exact", "name": MODEL_HEADER, "value": gateway_name(service.spec)}]}
    by_path = {"path": {"type": "PathPrefix", "value": f"/{service.key.namespace}/{service.key.name}"}}
    strip = {"type": "URLRewrite", "urlRewrite": {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}}}
    spec = {
        "parentRefs": [parent],
        "rules": [{"matches": [by_name], **to}, {"matches": [by_path], "filters": [strip], **to}],
    }
    return service_manifest(HTTPRoute.RESOURCE, service, plan.runtime, spec)


def is_accepted(live: HTTPRoute | None) -> bool:
    """Whether a Gateway has taken a route, and found what it leads to."""
    for parent in live.status.parents if live is not None else ():
        taken, found = (find_condition(parent.conditions, kind) for kind in ("Accepted", "ResolvedRefs"))
        if taken is not None and taken.status == "True" and (found is None or found.status == "True"):
            return True
    return False
