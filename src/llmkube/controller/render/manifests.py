"""Render all objects of a service in pods, except the pod template. Pure.

Among them are a PodMonitor for the Prometheus operator and an objective for Pyrra. A service over several nodes is a
LeaderWorkerSet: one pod that serves requests, and one on each further node.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from llmkube.controller.render.drain import RetainedSettings, drain_seconds
from llmkube.controller.render.labels import (
    DIGEST,
    DRAIN_SECONDS,
    MODEL_LABEL,
    OUR_IMAGE,
    OUR_LABELS,
    PATCHED,
    RESTARTED,
    RUNTIME_LABEL,
    TEMPLATE,
    answering_selector,
    digest,
    owned_manifest,
    pod_selector,
    queue_labels,
    service_manifest,
    service_spec,
)
from llmkube.controller.render.pod import pod_template
from llmkube.controller.render.storage import Weights, draft_storage
from llmkube.controller.settings import WorkloadSettings
from llmkube.k8s.builtins import EndpointSlice, Service
from llmkube.k8s.codec import encode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.placement import Disruption, MultiNode, ScalingMetric
from llmkube.k8s.wire.conditions import find_condition
from llmkube.k8s.wire.names import (
    CONTROLLER_FIELD_MANAGER,
    MANAGED_BY_LABEL,
    SERVICE_LABEL,
    SERVICE_NAME_LABEL,
    label_value,
    service_name,
    with_digest,
)
from llmkube.k8s.workloads import (
    Deployment,
    HorizontalPodAutoscaler,
    HTTPRoute,
    LeaderWorkerSet,
    PodDisruptionBudget,
    PodMonitor,
    ServiceLevelObjective,
)
from llmkube.runtimes.container.builder import gateway_name
from llmkube.runtimes.container.container_plan import ContainerPlan

_ENDING: Final = "-group"
_MAX_GROUP_NAME: Final = 45
"""Limit of a group's name, since its pods and revisions append to it."""

_SERVING_FIELDS: Final = ("ports", "startupProbe", "livenessProbe", "readinessProbe", "lifecycle")
"""Fields of the serving container that the workers' containers lack."""


def group_name(service: str) -> str:
    """Return the name of a service's LeaderWorkerSet; its controller creates a Service of that name, so not ours."""
    name = service_name(service)
    if len(name) + len(_ENDING) <= _MAX_GROUP_NAME:
        return name + _ENDING
    return with_digest(name, service, _MAX_GROUP_NAME, ending=_ENDING)


def leader_plan(plan: ContainerPlan) -> ContainerPlan:
    """Return the plan of the pod that serves requests."""
    group = plan.group
    if group is None:
        return plan
    return attrs.evolve(plan, args=(*plan.args, *group.leader), env=(*group.leader_env, *plan.env))


def worker_plan(plan: ContainerPlan) -> ContainerPlan:
    """Return the plan of all other pods of a group; clients do not connect to them, so they have no key proxy."""
    group = plan.group
    assert group is not None, "checked by the caller"
    args = (*plan.args, *group.workers)
    return attrs.evolve(plan, args=args, env=(*group.worker_env, *plan.env), key_check=None)


def group_spec(
    service: InferenceService, leader: dict[str, Any], worker: dict[str, Any], *, replicas: int
) -> dict[str, Any]:
    """Return the spec of a LeaderWorkerSet.

    Args:
        service: The service.
        leader: Template of the pod that serves requests.
        worker: Template of the others, rendered from `worker_plan`.
        replicas: Number of groups; 0 or 1.
    """
    multi_node = service.spec.multi_node
    assert multi_node is not None, "checked by the caller"
    nodes = [member.node for member in multi_node.members]
    return {
        "replicas": replicas,
        "startupPolicy": "LeaderCreated",
        "rolloutStrategy": {
            "type": "RollingUpdate",
            "rollingUpdateConfiguration": {"maxUnavailable": 1, "maxSurge": 0},
        },
        "leaderWorkerTemplate": {
            "size": len(nodes),
            "restartPolicy": "RecreateGroupOnPodRestart",  # vLLM's processes wait forever for one that was restarted
            "leaderTemplate": _placed(service, multi_node, leader, nodes[:1]),
            "workerTemplate": _placed(service, multi_node, _without_serving_fields(worker), nodes[1:]),
        },
    }


def _without_serving_fields(template: Mapping[str, Any]) -> dict[str, Any]:
    engine, *_ = template["spec"]["containers"]
    retained = {name: value for name, value in engine.items() if name not in _SERVING_FIELDS}
    return {**template, "spec": {**template["spec"], "containers": [retained]}}


def _placed(
    service: InferenceService, multi_node: MultiNode, template: Mapping[str, Any], nodes: Sequence[str]
) -> dict[str, Any]:
    """Return a template whose pods run only on these nodes, one on each."""
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]} for node in nodes]
    apart = {"labelSelector": {"matchLabels": pod_selector(service)}, "topologyKey": "kubernetes.io/hostname"}
    spec = template["spec"]
    affinity = dict(spec.get("affinity") or {})
    others = dict(affinity.get("podAntiAffinity") or {})
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    others[required] = [*(others.get(required) or ()), apart]
    affinity |= {"nodeAffinity": {required: {"nodeSelectorTerms": terms}}, "podAntiAffinity": others}
    engine, *sidecars = spec["containers"]
    sets_fabric = any(member.fabric is not None for member in multi_node.members)
    network = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if sets_fabric else {}
    placed = {**spec, **network, "affinity": affinity, "containers": [_with_rdma(engine, multi_node), *sidecars]}
    return {**template, "spec": placed}


def _with_rdma(engine: Mapping[str, Any], multi_node: MultiNode) -> dict[str, Any]:
    if not multi_node.rdma_resource:
        return dict(engine)
    resources = dict(engine.get("resources") or {})
    resources["limits"] = {**(resources.get("limits") or {}), multi_node.rdma_resource: "1"}
    return {**engine, "resources": resources}


JOB: Final = "llmkube-inference"
"""Value of the label `job` on all metrics of engines."""

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")


def _meta(label: str) -> str:
    return "__meta_kubernetes_pod_label_" + label.replace(".", "_").replace("/", "_").replace("-", "_")


_RELABELINGS: Final = (
    {"targetLabel": "job", "replacement": JOB},
    {"sourceLabels": [_meta(SERVICE_LABEL)], "targetLabel": "service"},
    {"sourceLabels": [_meta(MODEL_LABEL)], "targetLabel": "model"},
    {"sourceLabels": [_meta(RUNTIME_LABEL)], "targetLabel": "runtime"},
    {"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"},
)


def pod_monitor(service: InferenceService, plan: ContainerPlan, labels: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the PodMonitor of a service; None for an engine that exports no metrics.

    It renames the metric of the autoscaler, if the engine exports that by another name.

    Args:
        service: The service.
        plan: The plan of its container.
        labels: Labels by which a Prometheus selects the PodMonitor.
    """
    if not plan.metrics_port_name:
        return None
    metric = plan.hpa_metric
    endpoint: dict[str, Any] = {
        "port": plan.metrics_port_name,
        "path": plan.metrics_path,
        "interval": "30s",
        "relabelings": list(_RELABELINGS),
    }
    if metric is not None and metric.exported_as and metric.exported_as != metric.name:
        endpoint["metricRelabelings"] = [
            {
                "sourceLabels": ["__name__"],
                "regex": metric.exported_as,
                "targetLabel": "__name__",
                "replacement": metric.name,
            }
        ]
    spec = {"selector": {"matchLabels": pod_selector(service)}, "podMetricsEndpoints": [endpoint]}
    return service_manifest(PodMonitor.RESOURCE, service, plan.runtime, spec, extra=labels)


def objective(service: InferenceService, plan: ContainerPlan, labels: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the ServiceLevelObjective of a service; None if it has none, or its engine lacks the metrics for it.

    `availability` is the share of scrapes that found a pod up. `latency` uses the histogram's buckets: the threshold
    has to be the upper bound of one, otherwise Prometheus has no data for it.

    Args:
        service: The service.
        plan: The plan of its container.
        labels: Labels by which a Prometheus selects the rules that Pyrra creates; they inherit these.
    """
    slo = service.spec.slo
    if slo is None or objective_obstacle(service, plan):
        return None
    selector = f'job="{JOB}",namespace="{service.key.namespace}",service="{label_value(service.key.name)}"'
    if slo.indicator == "latency":
        bound = float(slo.latency_threshold or 0)
        metric = plan.latency_metric
        total, success = f"{metric}_count{{{selector}}}", f'{metric}_bucket{{{selector},le="{bound}"}}'
        indicator: dict[str, Any] = {"latency": {"success": {"metric": success}, "total": {"metric": total}}}
    else:
        indicator = {"bool_gauge": {"metric": f"up{{{selector}}}"}}
    spec = {
        "target": slo.objective,
        "window": slo.window,
        "description": f"{slo.indicator} of InferenceService {service.key}",
        "indicator": indicator,
    }
    name = objective_name(service)
    return service_manifest(ServiceLevelObjective.RESOURCE, service, plan.runtime, spec, name=name, extra=labels)


def objective_name(service: InferenceService) -> str:
    """Return the name of a service's objective: `spec.slo.name`, or the service's name and the indicator."""
    slo = service.spec.slo
    return "" if slo is None else slo.name or f"{service_name(service.key.name)}-{slo.indicator}"


def objective_obstacle(service: InferenceService, plan: ContainerPlan) -> str:
    """Return the field that prevents an objective, with the reason and the fix; empty if nothing does."""
    slo = service.spec.slo
    if slo is None:
        return ""
    if not plan.metrics_port_name:
        return f"spec.slo ({plan.runtime} exports no metrics: watch the endpoint with a blackbox exporter)"
    if slo.indicator == "latency" and not plan.latency_metric:
        return f"spec.slo.indicator ({plan.runtime} exports no latency: use indicator availability)"
    if not _NAME.fullmatch(objective_name(service)):
        return "spec.slo.name (not a valid object name: use lower-case letters, digits, - and .)"
    return ""


PROGRESS_SECONDS: Final = 3600
"""Progress deadline of a rollout: large models load slowly."""


@attrs.frozen
class WantedPods:
    """Parameters of a service's pods beyond the plan of their container.

    Attributes:
        replicas: Number of pods; None if the manifest must not contain it.
        weights: Location of the weights of the Model and of its draft.
        starting: Some pods are not ready yet.
        restarted: Time of the last replacement of pods that had reached their maximum age; a new time replaces them.
    """

    replicas: int | None = 1
    weights: Weights = Weights()
    starting: bool = False
    restarted: str = ""


@attrs.frozen(eq=False, kw_only=True)
class Manifests:
    """Desired objects of a service; None where it should have none."""

    deployment: dict[str, Any]  # a LeaderWorkerSet if the service spans several nodes
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
    pods: WantedPods,
    retained: RetainedSettings | None = None,
) -> Manifests:
    """Return the desired objects of a service.

    Args:
        service: The service.
        plan: The plan of its container.
        settings: The operator's settings for pods.
        pods: Parameters of its pods.
        retained: Settings that its pods retain; None for the current ones.
    """
    return Manifests(
        deployment=deployment(service, plan, settings, pods, retained),
        kubernetes_service=kubernetes_service(service, plan),
        autoscaler=autoscaler(service, plan),
        budget=disruption_budget(service, plan, starting=pods.starting),
        monitor=pod_monitor(service, plan, settings.monitor_labels) if settings.pod_monitors else None,
        objective=objective(service, plan, settings.monitor_labels),
        route=route(service, plan),
    )


def deployment(
    service: InferenceService,
    plan: ContainerPlan,
    settings: WorkloadSettings,
    pods: WantedPods,
    retained: RetainedSettings | None = None,
) -> dict[str, Any]:
    """Return the Deployment or the LeaderWorkerSet of a service.

    Args:
        service: The service.
        plan: The plan of its container.
        settings: The operator's settings for pods.
        pods: Parameters of its pods.
        retained: Settings that its pods retain; None for the current ones.
    """
    retained = retained or RetainedSettings(settings.image, drain_seconds(service, plan))
    settings = attrs.evolve(settings, image=retained.image)
    # A pod with GPUs ends before its successor starts, since a cluster rarely has spare GPUs; others end afterwards.
    surge = {"maxSurge": 0, "maxUnavailable": 1} if plan.resources.on_gpu else {"maxSurge": 1, "maxUnavailable": 0}
    history = service.spec.revision_history_limit
    volumes = pods.weights.model, draft_storage(pods.weights)
    template = pod_template(service, leader_plan(plan), *volumes, settings, drain_seconds=retained.drain_seconds)
    if pods.restarted:
        template["metadata"].setdefault("annotations", {})[RESTARTED] = pods.restarted
    spec: dict[str, Any] = {
        **({"replicas": pods.replicas} if pods.replicas is not None else {}),
        "selector": {"matchLabels": pod_selector(service)},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": surge},
        "progressDeadlineSeconds": PROGRESS_SECONDS,
        **({"revisionHistoryLimit": history} if history is not None else {}),
        "template": template,
    }
    resource, name, digested = Deployment.RESOURCE, service.key.name, template
    if plan.group is not None:
        worker = pod_template(service, worker_plan(plan), *volumes, settings, drain_seconds=retained.drain_seconds)
        spec = group_spec(service, template, worker, replicas=pods.replicas or 0)
        resource, name, digested = LeaderWorkerSet.RESOURCE, group_name(name), spec["leaderWorkerTemplate"]
    manifest = service_manifest(resource, service, plan.runtime, spec, name=name, extra=queue_labels(service))
    manifest["metadata"]["annotations"][TEMPLATE] = digest(digested)
    manifest["metadata"]["annotations"] |= {OUR_IMAGE: retained.image, DRAIN_SECONDS: str(retained.drain_seconds)}
    if pods.restarted:
        manifest["metadata"]["annotations"][RESTARTED] = pods.restarted
    if pods.replicas is None:
        manifest["metadata"]["annotations"][PATCHED] = "true"
    return manifest


def kubernetes_service(service: InferenceService, plan: ContainerPlan) -> dict[str, Any]:
    """Return the Service of an InferenceService."""
    spec = service_spec(service.spec.endpoint, answering_selector(service, group=plan.group is not None))
    return service_manifest(Service.RESOURCE, service, plan.runtime, spec, name=service_name(service.key.name))


def without_endpoints(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest of a Service that selects no pod: those of its service get no new requests."""
    metadata, spec = manifest["metadata"], manifest["spec"]
    closed = {**spec, "selector": {**spec["selector"], "inference.llmkube.dev/closed": "true"}}
    annotations = {**metadata["annotations"], DIGEST: digest(closed)}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}, "spec": closed}


def front_door_names(service: str) -> dict[str, str]:
    """Return the names of the slices of a front door by address family; no slice of a host has such a name."""
    return {each: f"{service_name(service)}.{CONTROLLER_FIELD_MANAGER}.{each.lower()}" for each in ("IPv4", "IPv6")}


def front_door_slice(
    service: InferenceService, front_doors: Iterable[EndpointSlice], family: str
) -> dict[str, Any] | None:
    """Return the slice by which ready pods of front doors are the endpoints of a service; None if there are none."""
    slices = [each for each in front_doors if each.address_type == family]
    endpoints = [one for each in slices for one in each.endpoints if one.conditions.ready is not False]
    if not endpoints:
        return None
    name = service_name(service.key.name)
    labels = {**OUR_LABELS, SERVICE_NAME_LABEL: name, MANAGED_BY_LABEL: CONTROLLER_FIELD_MANAGER}
    body = {
        "addressType": family,
        "endpoints": [{"addresses": list(one.addresses), "conditions": {"ready": True}} for one in endpoints],
        "ports": [encode(port) for port in slices[0].ports],
    }
    return owned_manifest(EndpointSlice.RESOURCE, service, front_door_names(service.key.name)[family], labels, body)


_DEFAULT_TARGET: Final = "2"


def autoscaler(service: InferenceService, plan: ContainerPlan) -> dict[str, Any] | None:
    """Return the autoscaler of a service; None if it has none, is suspended, or has no metric to scale on.

    A suspended service has none, because the autoscaler's minimum of 1 would create the pods again. While there are 0
    pods until a request needs one, the autoscaler leaves them alone: Kubernetes does not scale from 0 by default.
    """
    scaling = service.spec.autoscaling
    metrics = scaling_metrics(service, plan)
    if scaling is None or not metrics or service.spec.suspend or not service.spec.replicas:
        return None
    spec = {
        "scaleTargetRef": {**Deployment.RESOURCE.type_meta, "name": service.key.name},
        "minReplicas": max(1, scaling.min_replicas),
        "maxReplicas": scaling.max_replicas,
        "metrics": metrics,
    }
    return service_manifest(HorizontalPodAutoscaler.RESOURCE, service, plan.runtime, spec)


def scaling_metrics(service: InferenceService, plan: ContainerPlan) -> list[dict[str, Any]]:
    """Return the metrics that a service is scaled on: those in its spec, or the default of its runtime."""
    scaling = service.spec.autoscaling
    if scaling is None:
        return []
    if scaling.metrics:
        return [_metric(one) for one in scaling.metrics]
    if plan.hpa_metric is None:
        return []
    return [_pods(plan.hpa_metric.name, plan.hpa_metric.target)]


def disruption_budget(service: InferenceService, plan: ContainerPlan, *, starting: bool) -> dict[str, Any] | None:
    """Return the disruption budget of a service; None for a single pod that is ready, unless `protectAlways` is set.

    Pods that are loading are protected by default, since an evicted pod would have to load again. Node autoscalers and
    `kubectl drain` respect the budget. An annotation on the pods would do the same, but adding one to the template
    replaces the very pods that it should protect.

    Args:
        service: The service.
        plan: The plan of its container.
        starting: Whether some replicas are still starting.
    """
    disruption = service.spec.disruption or Disruption()
    protected = disruption.protect_always or (disruption.protect_startup and starting)
    scaling = service.spec.autoscaling
    max_replicas = scaling.max_replicas if scaling else service.spec.replicas
    if not protected and max_replicas <= 1:
        return None
    spec = {
        "maxUnavailable": 0 if protected else 1,
        "selector": {"matchLabels": pod_selector(service)},
        # A pod that is not ready may be evicted, unless its start is what is protected.
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
"""Header with the `model` of a request, as set by body-based routing of the Gateway API's inference extension."""


def route(service: InferenceService, plan: ContainerPlan) -> dict[str, Any] | None:
    """Return the HTTPRoute of a service; None unless its spec enables one.

    It matches the model's name in a header, which the gateway (by reading bodies) or the client sets; and the path
    prefix `/NAMESPACE/NAME/`, which any gateway can match and strip.
    """
    gateway = service.spec.endpoint.gateway
    if gateway is None or not gateway.enabled or gateway.gateway_ref is None:
        return None
    parent = {"name": gateway.gateway_ref.name}
    if gateway.gateway_ref.namespace:
        parent["namespace"] = gateway.gateway_ref.namespace
    to = {
        "backendRefs": [{"name": service_name(service.key.name), "port": service.spec.endpoint.port}],
        "timeouts": {"request": "0s"},  # no timeout: the usual 15 s of proxies would cut off long responses
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
    """Whether a Gateway has accepted a route and resolved its references."""
    for parent in live.status.parents if live is not None else ():
        accepted, resolved = (find_condition(parent.conditions, kind) for kind in ("Accepted", "ResolvedRefs"))
        if accepted is not None and accepted.status == "True" and (resolved is None or resolved.status == "True"):
            return True
    return False
