"""What a Prometheus operator is told about a service's pods. Pure."""

from typing import Any

from llmkube.controller.render.marks import MODEL_LABEL, RUNTIME_LABEL, owned, selector, service_labels
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.names import SERVICE_LABEL
from llmkube.k8s.workloads import PodMonitor
from llmkube.runtimes.container import ContainerPlan

_LABELS = (("service", SERVICE_LABEL), ("model", MODEL_LABEL), ("runtime", RUNTIME_LABEL))


def pod_monitor(service: InferenceService, plan: ContainerPlan) -> dict[str, Any] | None:
    """Return the PodMonitor of a service; None for an engine that tells no metrics.

    A metric that the engine calls otherwise than the autoscaler knows it is renamed.
    """
    if not plan.metrics_port_name:
        return None
    metric = plan.hpa_metric
    endpoint: dict[str, Any] = {
        "port": plan.metrics_port_name,
        "path": plan.metrics_path,
        "interval": "30s",
        "relabelings": [
            {"targetLabel": "job", "replacement": "llmkube-inference"},
            *({"sourceLabels": [_meta(label)], "targetLabel": name} for name, label in _LABELS),
        ],
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
    spec = {"selector": {"matchLabels": selector(service)}, "podMetricsEndpoints": [endpoint]}
    labels = service_labels(service, model=service.spec.model_ref, runtime=plan.runtime)
    return owned(PodMonitor.RESOURCE, service, service.key.name, labels, {"spec": spec})


def _meta(label: str) -> str:
    return "__meta_kubernetes_pod_label_" + label.replace(".", "_").replace("/", "_").replace("-", "_")
