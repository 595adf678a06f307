"""Plans of a service's pods: its container, and the location of the weights once its Models are ready.

They depend on cached objects alone, and are retained in the service's record until one of those changes.
"""

from typing import Final

import attrs

from llmkube.controller.informers import drafts_of
from llmkube.controller.reconcile.context import PodContext, WorkloadPlan
from llmkube.controller.render.pod_policy import refusal_message, service_refusals
from llmkube.controller.render.storage import Storage, Weights, pods_fetch, serving_storage
from llmkube.controller.settings import PRIORITY_CLASS_PREFIXES
from llmkube.controller.status.job_result import is_mounted
from llmkube.controller.status.pod_service_status import ServiceFacts
from llmkube.controller.status.supply import Supply, Usage, choose_supply, is_remembered, weights_path, without_effect
from llmkube.k8s.codec import encode
from llmkube.k8s.crd.inferenceservice import InferenceService, InferenceServiceSpec
from llmkube.k8s.crd.model import Model
from llmkube.k8s.fields import rendered_paths
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.conditions import AVAILABLE, DEGRADED, PROGRESSING, Verdict, current
from llmkube.k8s.wire.reasons import Reason
from llmkube.k8s.workloads import Workload
from llmkube.runtimes.container.container_plan import ContainerPlan
from llmkube.runtimes.plan import PlanError
from llmkube.runtimes.registry import container_plan_for
from llmkube.weights.errors import WeightsError

RENDERED: Final = tuple(rendered_paths(InferenceServiceSpec, "spec"))
"""Paths of a service's fields that take effect in the controller's objects, not in the container's plan."""


_NO_GROUPS: Final = (
    "spec.multiNode needs LeaderWorkerSets, which this cluster does not serve to the controller: install "
    "https://lws.sigs.k8s.io, or remove spec.multiNode and use a node with enough GPUs"
)


def plan_workload(context: PodContext, service: InferenceService, model: Model | None) -> WorkloadPlan:
    """Return the plan of a service's pods, with the reason if there can be none yet; an empty one without a Model."""
    if model is None:
        return WorkloadPlan(ServiceFacts())
    drafts = tuple(context.informers.models.get(Key(service.key.namespace, name)) for name in drafts_of(service))
    groups = context.pods.groups.is_known
    inputs = (service.metadata.uid, service.metadata.generation, model, drafts, groups)
    return context.records[service.key].workload.get(inputs, lambda: _plan_workload(context, service, model))


def plan_container(context: PodContext, service: InferenceService, model: Model) -> ContainerPlan | PlanError:
    """Return the container of a service, or an error; planned again when a spec or the header changes."""
    mine, its = service.metadata, model.metadata
    inputs = (mine.uid, mine.generation, its.uid, its.generation, model.status.gguf)
    return context.records[service.key].container.get(inputs, lambda: _plan_container(context, service, model))


def weights_usage(context: PodContext, service: InferenceService, model: Model) -> Usage:
    """Return how a service uses a Model's weights; a service that cannot be planned is assumed to need the file."""
    own = pods_fetch(service, context.workloads)
    if service.spec.model_ref != model.key.name:  # a draft, which is always a file
        return Usage(pods_fetch=own)
    plan = plan_container(context, service, model)
    return Usage(engine_fetches=isinstance(plan, ContainerPlan) and not plan.needs_model_init, pods_fetch=own)


def has_to_fetch(context: PodContext, service: InferenceService, plan: ContainerPlan) -> bool:
    """Whether a service's pods would fetch anything into a volume of their own."""
    if not plan.uses_weights and not plan.needs_model_init:
        return False
    names = filter(None, (service.spec.model_ref, plan.draft_model))
    models = (context.informers.models.get(Key(service.key.namespace, name)) for name in names)
    return not all(model is not None and is_mounted(model) for model in models)


def _plan_container(context: PodContext, service: InferenceService, model: Model) -> ContainerPlan | PlanError:
    if model.status.gguf is not None and is_mounted(model):
        # The header of a mounted file is read only once pods are running, and must not replace them.
        model = attrs.evolve(model, status=attrs.evolve(model.status, gguf=None))
    try:
        settings = context.workloads
        return container_plan_for(
            service, model, images=settings.images, gpu_resources=settings.gpu_resources, rendered=RENDERED
        )
    except PlanError as error:
        return error.with_traceback(None)  # the error is retained, and its frames would hold these objects


def _plan_workload(context: PodContext, service: InferenceService, model: Model) -> WorkloadPlan:
    plan = plan_container(context, service, model)
    if isinstance(plan, PlanError):
        return WorkloadPlan(ServiceFacts(model=_model_verdict(model), refusal=str(plan)))
    if plan.group is not None and not context.pods.groups.is_known:
        return WorkloadPlan(ServiceFacts(model=_model_verdict(model), plan=plan, refusal=_NO_GROUPS))
    if refusals := service_refusals(service.spec, context.workloads):
        statement = refusal_message(refusals)
        return WorkloadPlan(
            ServiceFacts(model=_model_verdict(model), plan=plan, refusal=statement, refusal_reason=Reason.NOT_ALLOWED)
        )
    supply = _supply_of(context, service, model)
    ignored = without_effect(model, supply, plan.not_honoured)
    if ignored != plan.not_honoured:
        plan = attrs.evolve(plan, not_honoured=ignored)
    facts = ServiceFacts(plan=plan)
    try:
        verdict, weights = _find_weights(context, service, model, plan, supply)
        draft_verdict, draft = Verdict("Ready", Reason.MODEL_READY, ""), Storage()
        if plan.draft_model:
            draft_verdict, draft = _find_draft(context, service, plan)
    except (WeightsError, PlanError) as error:
        return WorkloadPlan(attrs.evolve(facts, model=_model_verdict(model), refusal=str(error)))
    missing = [one for one in (verdict, draft_verdict) if one.phase != "Ready"]
    blocking = [one for one in missing if one.reason != Reason.PVC_NOT_BOUND]
    worst, *_ = *blocking, *missing, verdict
    return WorkloadPlan(attrs.evolve(facts, model=worst), None if blocking else Weights(weights, draft))


def _supply_of(context: PodContext, service: InferenceService, model: Model) -> Supply:
    return choose_supply(model, [weights_usage(context, service, model)], context.workloads)


def _find_weights(
    context: PodContext, service: InferenceService, model: Model, plan: ContainerPlan, supply: Supply
) -> tuple[Verdict, Storage]:
    """Return whether a service has to wait for a Model, and where its pods find the weights.

    Raises:
        WeightsError: The Model's source is invalid.
        PlanError: The engine needs the name of a file, or a volume, that this source does not provide.
    """
    if not plan.uses_weights and not plan.needs_model_init:
        return Verdict("Ready", Reason.RUNTIME_RESOLVED, ""), Storage()
    verdict = _model_verdict(model)
    if supply.by == "pods":
        verdict = Verdict("Ready", Reason.WORKLOAD_RESOLVED, "")
    elif supply.by == "job" and verdict.phase == "Ready" and not is_remembered(model):
        verdict = Verdict("Pending", Reason.PENDING, "waiting for the Job that fetches it")
    if verdict.phase != "Ready" and verdict.reason != Reason.PVC_NOT_BOUND:  # a claim may be bound with the first pod
        return verdict, Storage()
    path = weights_path(model, supply)
    mode = context.workloads.cache_access_mode
    if plan.group is not None and supply.by == "job" and mode != "ReadWriteMany":
        raise PlanError(
            f"{model.spec.source} is fetched onto the namespace's volume, which is {mode}: "
            "pods on several nodes need workloads.cache.accessMode ReadWriteMany, or a repository that vLLM fetches",
            field="Model.spec.source",
        )
    if path:
        return verdict, serving_storage(service, model, path, context.workloads)
    if plan.uses_weights:
        raise PlanError(
            f"{model.spec.source} names no single file, and {plan.runtime} needs one: name it in "
            "Model.spec.files, or set skipModelInit for an engine that fetches for itself",
            field="Model.spec.source",
        )
    return verdict, Storage()


def _find_draft(context: PodContext, service: InferenceService, plan: ContainerPlan) -> tuple[Verdict, Storage]:
    model = context.informers.models.get(Key(service.key.namespace, plan.draft_model))
    if model is None:
        missing = f'draft Model "{plan.draft_model}" not found in this namespace'
        return Verdict("Pending", Reason.MODEL_NOT_FOUND, missing), Storage()
    return _find_weights(context, service, model, plan, _supply_of(context, service, model))


def _model_verdict(model: Model) -> Verdict:
    """Return the verdict in the Model's own status about its newest spec."""
    generation = model.metadata.generation
    kinds = {"Ready": AVAILABLE, "Failed": DEGRADED}
    statement = current(model.status.conditions, kinds.get(model.status.phase, PROGRESSING), generation)
    if statement is None:
        return Verdict("Pending", Reason.PENDING, "waiting for the Model's status")
    if statement.reason == Reason.NO_RESULT or model.status.phase not in kinds:
        return Verdict("Pending", statement.reason, statement.message)
    return Verdict(model.status.phase, statement.reason, statement.message)


_DEFAULT_PRIORITY = "normal"


def find_prefix(context: PodContext, service: InferenceService, live: Workload | None) -> str:
    """Return the prefix that turns a service's priority into its pods' PriorityClass name; empty if they have none.

    Until PriorityClasses have been listed, running pods keep theirs: another one would replace them.
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
    """Return why a service's priority has no effect on its pods; empty if it has, or if none is set."""
    spec = service.spec
    if spec.priority == _DEFAULT_PRIORITY or spec.priority_class_name or find_prefix(context, service, live):
        return ""
    if context.workloads.priority_class_prefix is not None:
        why = "the controller sets no PriorityClass: priorityClasses.enabled of the chart is false"
    elif context.settings.namespace is not None:
        why = "a controller of one namespace cannot list PriorityClasses: set --priority-class-prefix"
    elif not context.pods.priority_classes.is_known:
        why = "the controller cannot list PriorityClasses; see its /readyz"
    else:
        names = " or ".join(f"{prefix}{spec.priority}" for prefix in PRIORITY_CLASS_PREFIXES)
        why = f"PriorityClass {names} not found: its pods have the default priority"
    return f"spec.priority ({why})"
