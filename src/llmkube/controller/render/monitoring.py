"""The PodMonitor of a service for a Prometheus operator, and its objective for Pyrra. Pure."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from llmkube.controller.render.labels import MODEL_LABEL, RUNTIME_LABEL, pod_selector, service_manifest
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.wire.names import SERVICE_LABEL, label_value, service_name
from llmkube.k8s.workloads import PodMonitor, ServiceLevelObjective
from llmkube.runtimes.container.container_plan import ContainerPlan

JOB: Final = "llmkube-inference"
"""The label `job` of everything that is scraped from engines."""

_NO_LABELS: Final[Mapping[str, str]] = MappingProxyType({})
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")


def _meta(label: str) -> str:
    return "__meta_kubernetes_pod_label_" + label.replace(".", "_").replace("/", "_").replace("-", "_")


_RELABELINGS: Final = (
    {"targetLabel": "job", "replacement": JOB},
    {"sourceLabels": [_meta(SERVICE_LABEL)], "targetLabel": "service"},
    {"sourceLabels": [_meta(MODEL_LABEL)], "targetLabel": "model"},
    {"sourceLabels": [_meta(RUNTIME_LABEL)], "targetLabel": "runtime"},
)


def pod_monitor(
    service: InferenceService, plan: ContainerPlan, more: Mapping[str, str] = _NO_LABELS
) -> dict[str, Any] | None:
    """Return the PodMonitor of a service; None for an engine that exports no metrics.

    A metric that the engine calls otherwise than the autoscaler knows it is renamed.

    Args:
        service: The service.
        plan: What its container is.
        more: Labels by which a Prometheus selects it.
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
    return service_manifest(PodMonitor.RESOURCE, service, plan.runtime, spec, more=more)


def objective(
    service: InferenceService, plan: ContainerPlan, more: Mapping[str, str] = _NO_LABELS
) -> dict[str, Any] | None:
    """Return the ServiceLevelObjective of a service; None when it has none, or none that its engine can be held to.

    `availability` counts the scrapes that found a pod up. `latency` counts answers by the histogram's buckets: a
    threshold that is no bucket's bound is one that Prometheus has no figures for.

    Args:
        service: The service.
        plan: What its container is.
        more: Labels by which a Prometheus selects the rules that Pyrra makes of it: those have its labels.
    """
    slo = service.spec.slo
    if slo is None or objective_obstacle(service, plan):
        return None
    place = f'job="{JOB}",namespace="{service.key.namespace}",service="{label_value(service.key.name)}"'
    if slo.indicator == "latency":
        bound = float(slo.latency_threshold or 0)
        metric = plan.latency_metric
        total, success = f"{metric}_count{{{place}}}", f'{metric}_bucket{{{place},le="{bound}"}}'
        indicator: dict[str, Any] = {"latency": {"success": {"metric": success}, "total": {"metric": total}}}
    else:
        indicator = {"bool_gauge": {"metric": f"up{{{place}}}"}}
    spec = {
        "target": slo.objective,
        "window": slo.window,
        "description": f"{slo.indicator} of InferenceService {service.key}",
        "indicator": indicator,
    }
    name = objective_name(service)
    return service_manifest(ServiceLevelObjective.RESOURCE, service, plan.runtime, spec, name=name, more=more)


def objective_name(service: InferenceService) -> str:
    """Return what a service's objective is called: as it says, else by its own name and the indicator."""
    slo = service.spec.slo
    return "" if slo is None else slo.name or f"{service_name(service.key.name)}-{slo.indicator}"


def objective_obstacle(service: InferenceService, plan: ContainerPlan) -> str:
    """Return the field because of which a service has no objective, and what to write instead; or nothing."""
    slo = service.spec.slo
    if slo is None:
        return ""
    if not plan.metrics_port_name:
        return f"spec.slo ({plan.runtime} exports no metrics: watch the endpoint with a blackbox exporter)"
    if slo.indicator == "latency" and not plan.latency_metric:
        return f"spec.slo.indicator ({plan.runtime} exports no latency: use indicator availability)"
    if not _NAME.fullmatch(objective_name(service)):
        return "spec.slo.name (not a name of an object: use lower-case letters, digits, - and .)"
    return ""
