"""All objects that a service in pods shall have. Pure."""

from typing import Any

import attrs

from llmkube.controller.render.monitoring import objective, pod_monitor
from llmkube.controller.render.routing import route
from llmkube.controller.render.scaling import autoscaler, disruption_budget
from llmkube.controller.render.storage import Storage
from llmkube.controller.render.workload import deployment, kubernetes_service
from llmkube.controller.settings import WorkloadSettings
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.runtimes.container.container_plan import ContainerPlan


@attrs.frozen(eq=False)
class Manifests:
    """The objects that a service shall have; None where it shall have none."""

    deployment: dict[str, Any]
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
    """
    return Manifests(
        deployment(service, plan, settings, replicas=replicas, storage=weights, draft=draft, restarted=restarted),
        kubernetes_service(service, plan),
        autoscaler(service, plan),
        disruption_budget(service, plan, starting=starting),
        pod_monitor(service, plan, settings.monitor_labels) if settings.pod_monitors else None,
        objective(service, plan, settings.monitor_labels),
        route(service, plan),
    )
