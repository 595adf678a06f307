"""Decide how many pods a service has, and which program writes that number. Pure.

| service | pods | written by |
|---|---|---|
| suspended, or `replicas: 0` | 0 | the controller, in the manifest of the Deployment |
| no autoscaling, always loaded | `replicas` | the controller, in the manifest |
| autoscaling | from 1 up | the autoscaler; the controller only to leave 0 |
| on request, at 0 | 0; `replicas`, or 1 with autoscaling, once a front door needs it | the controller, by a patch |
| on request, above 0 | 0 once it is idle; with autoscaling only from 1 | the controller, by a patch |

A number that the manifest does not contain is never changed by an apply. Patches have the resourceVersion that the
decision is based on: of an autoscaler's write and ours, one is refused and decided again.
"""

from typing import Final

from llmkube.base.units import parse_duration
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.placement import ALWAYS, ON_REQUEST, Activation
from llmkube.k8s.workloads import Workload
from llmkube.runtimes.container.container_plan import ContainerPlan

IDLE_SECONDS: Final = 600.0
"""Time without requests after which pods are stopped, unless `spec.activation.idleTimeout` sets another one."""


def goes_to_zero(service: InferenceService) -> bool:
    """Return whether the pods of a service exist only while requests need them."""
    spec = service.spec
    needs_none = spec.autoscaling is None or not spec.autoscaling.min_replicas
    return _is_on_request(service) and needs_none and spec.hosts is None and spec.multi_node is None


def is_patched(service: InferenceService) -> bool:
    """Return whether the manifest of a service's Deployment omits `replicas`."""
    spec = service.spec
    is_stopped = spec.suspend or not spec.replicas
    return not is_stopped and (goes_to_zero(service) or (spec.autoscaling is not None and spec.multi_node is None))


def desired_replicas(service: InferenceService, live: Workload | None) -> int:
    """Return the desired number of pods, as long as neither requests nor idleness change it."""
    return next_replicas(service, live.spec.replicas if live is not None else None, wanted=False, idle_seconds=0.0)


def next_replicas(service: InferenceService, replicas: int | None, *, wanted: bool, idle_seconds: float) -> int:
    """Return the number of pods that a service should have now, by the table above.

    Args:
        service: The service.
        replicas: The present number in the spec of its Deployment; None if there is none.
        wanted: Whether a front door needs it.
        idle_seconds: Time for which its engines have had no request.
    """
    spec, scaling = service.spec, service.spec.autoscaling
    if spec.suspend or not spec.replicas:
        return 0
    if goes_to_zero(service):
        if not replicas:
            return (1 if scaling is not None else spec.replicas) if wanted else 0
        if not wanted and idle_seconds >= idle_timeout(service) and (scaling is None or replicas == 1):
            return 0
        return spec.replicas if scaling is None else replicas
    if scaling is None:
        return spec.replicas
    return replicas or max(spec.replicas, scaling.min_replicas)


def idle_timeout(service: InferenceService) -> float:
    """Return the time without requests, in seconds, after which the pods of a service are stopped."""
    given = service.spec.activation.idle_timeout
    return parse_duration(given) if given is not None else IDLE_SECONDS


def activation_obstacle(service: InferenceService, plan: ContainerPlan | None) -> str:
    """Return the field of `spec.activation` without effect on pods, with the reason; empty if all have an effect."""
    spec, given = service.spec, service.spec.activation
    if goes_to_zero(service):
        unknown = plan is not None and not plan.busy_metrics
        return f"spec.activation.idleTimeout ({plan.runtime} has no metric for requests)" if plan and unknown else ""
    if not _is_on_request(service):
        has_effect = given in (Activation(), Activation(mode=ALWAYS), Activation(mode=ON_REQUEST, pin=True))
        return "" if has_effect else "spec.activation (pods are always loaded: set mode OnRequest, without pin)"
    if spec.hosts is not None:
        return ""  # hosts honour it
    why = "a group over several nodes is always loaded"
    if spec.multi_node is None and spec.autoscaling is not None:
        why = f"autoscaling.minReplicas is {spec.autoscaling.min_replicas}: set 0"
    return f"spec.activation.mode ({why})"


def _is_on_request(service: InferenceService) -> bool:
    return service.spec.activation.mode == ON_REQUEST and not service.spec.activation.pin
