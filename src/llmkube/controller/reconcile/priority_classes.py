"""Which PriorityClass stands for a service's priority: the operator's word, else one of the chart's that is there."""

from llmkube.controller.reconcile.context import PodContext
from llmkube.controller.settings import PRIORITY_CLASS_PREFIXES
from llmkube.k8s.codec import encode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.extensions import Workload
from llmkube.k8s.resource import Key

_DEFAULT_PRIORITY = "normal"


def find_prefix(context: PodContext, service: InferenceService, live: Workload | None) -> str:
    """Return what stands before a service's priority in the name of its pods' PriorityClass; empty for none.

    While it is not known which classes there are, pods that run keep theirs: to leave it out would replace them.
    """
    given = context.workloads.priority_class_prefix
    if given is not None:
        return given
    classes, priority = context.pods.priority_classes, service.spec.priority
    if classes.is_known:
        there = (prefix for prefix in PRIORITY_CLASS_PREFIXES if classes.get(Key("", f"{prefix}{priority}")))
        return next(there, "")
    spec = encode(live)["spec"] if live is not None else {}
    template = spec.get("template") or spec.get("leaderWorkerTemplate", {}).get("leaderTemplate", {})
    kept = template.get("spec", {}).get("priorityClassName", "")
    return next((prefix for prefix in PRIORITY_CLASS_PREFIXES if kept == f"{prefix}{priority}"), "")


def priority_obstacle(context: PodContext, service: InferenceService, live: Workload | None) -> str:
    """Return why a priority that a service asks for gives its pods no rank; empty when it does, or asks for none."""
    spec = service.spec
    if spec.priority == _DEFAULT_PRIORITY or spec.priority_class_name or find_prefix(context, service, live):
        return ""
    if context.workloads.priority_class_prefix is not None:
        why = "the controller gives pods no PriorityClass: priorityClasses.enabled of the chart is false"
    elif context.settings.namespace is not None:
        why = "a controller of one namespace sees no PriorityClasses: --priority-class-prefix names them"
    elif not context.pods.priority_classes.is_known:
        why = "the controller cannot list PriorityClasses; its /readyz says why"
    else:
        names = " or ".join(f"{prefix}{spec.priority}" for prefix in PRIORITY_CLASS_PREFIXES)
        why = f"there is no PriorityClass {names}: its pods rank like any other"
    return f"spec.priority ({why})"
