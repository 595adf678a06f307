"""How many pods there are, and how many may go at a time: autoscaler and disruption budget. Pure."""

from typing import Any, Final

from llmkube.controller.render.labels import owned_manifest, pod_selector, service_labels
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.placement import ScalingMetric
from llmkube.k8s.crd.rollout import Disruption
from llmkube.k8s.workloads import Deployment, HorizontalPodAutoscaler, PodDisruptionBudget
from llmkube.runtimes.container.container_plan import ContainerPlan

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
    labels = service_labels(service, model=service.spec.model_ref, runtime=plan.runtime)
    return owned_manifest(HorizontalPodAutoscaler.RESOURCE, service, service.key.name, labels, {"spec": spec})


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
    labels = service_labels(service, model=service.spec.model_ref, runtime=plan.runtime)
    return owned_manifest(PodDisruptionBudget.RESOURCE, service, service.key.name, labels, {"spec": spec})


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
