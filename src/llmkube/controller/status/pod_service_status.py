"""Derive the status of a service in pods from its Model, its Deployment and its pods. Pure.

The first matching row applies; `ready` is the number of ready pods, of any generation:

| observed | phase | reason |
|---|---|---|
| `spec.suspend` | Suspended | Suspended |
| the Model does not exist, nothing is ready | Pending | ModelNotFound |
| the spec cannot be run in pods, nothing is ready | Failed | Invalid, NotAllowed |
| an object of that name has another owner, nothing is ready | Failed; Pending if it is being deleted | NameTaken |
| 0 pods until a request needs them, and the Model is Ready | Idle | Idle |
| a GPUQuota allows no more pods | Pending, or Progressing | QuotaExceeded |
| other members of its ModelPool have the GPUs that requests need | Pending | WaitingForPool |
| a GPUQuota never allows them | Failed; Progressing while others are ready | QuotaRefused |
| 0 replicas desired | Stopped, or Progressing while something is still ready | ManuallyScaledToZero, Creating |
| ready ≥ desired, all pods are of the newest template, and the Model is Ready | Ready | InferenceReady |
| the Model is not Ready, and no pod waits for it | Failed or Pending; Progressing while old pods are ready | its |
| the Model does not exist, and old pods are ready | Progressing | ModelNotFound |
| a pod finds no GPU | WaitingForGPU | WaitingForGPU |
| pods cannot run, for a lasting reason | Failed; Progressing while others are ready | ImagePullBackOff, … |
| pods cannot be created | Failed; Progressing while others are ready | PodSecurity, ReplicaFailure |
| pods are not running yet, for a transient reason | Creating, or Progressing | Unschedulable, … |
| the rollout is stuck | Failed; Progressing while others are ready | ProgressDeadlineExceeded, ReplicaSetCreateError |
| some pods are ready | Progressing | Creating |
| otherwise | Creating | Creating |

An invalid edit does not affect running pods: the phase is theirs, and `Accepted` and `Degraded` report the error.
`Available` is independent of the phase: it is True exactly while a desired replica is ready.
"""

import datetime
import re
from typing import Any, Final

import attrs

from llmkube.controller.render.labels import RUNTIME_LABEL, pod_selector
from llmkube.controller.render.manifests import is_accepted
from llmkube.controller.settings import ControllerSettings
from llmkube.controller.status.gpu_quota import Denial
from llmkube.controller.status.pods import shortage_message, trouble_of
from llmkube.controller.status.scale import desired_replicas, goes_to_zero
from llmkube.controller.status.service_status import (
    WAITING_FOR_GPU,
    HostPart,
    Replicas,
    combined_verdict,
    missing_model_verdict,
    phase_statements,
    resolve_mode,
    stopped_verdict,
    suspended_verdict,
    total_replicas,
    weight_of,
)
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.meta import Condition
from llmkube.k8s.wire.conditions import ACCEPTED, DEGRADED, SPEC_HONOURED, Statement, Verdict, find_condition, settle
from llmkube.k8s.wire.names import endpoint_url, service_name
from llmkube.k8s.wire.reasons import Reason
from llmkube.k8s.workloads import HTTPRoute, Pod, Workload
from llmkube.runtimes.container.builder import gateway_name
from llmkube.runtimes.container.container_plan import ContainerPlan

ROLLOUT_DEFERRED: Final = "RolloutDeferred"

_IDLE: Final = (
    "no pod runs until a request needs one: requests at the front door wait for it, those at the Service are refused "
    "unless the chart's gateway.endpointsAtZero makes the front door its endpoints"
)
_SCHEDULING: Final = frozenset(
    {
        *(Reason.UNSCHEDULABLE, Reason.QUOTA_EXCEEDED, Reason.QUOTA_REFUSED),
        *(Reason.WAITING_FOR_QUOTA, Reason.WAITING_FOR_POOL),
    }
)
"""Reasons for pods that are not created or not scheduled."""

_POD_SECURITY: Final = re.compile(r'violates PodSecurity "([a-z]+):[^"]*": (.*)', re.DOTALL)
"""The API server's message when a namespace's Pod Security standard forbids a pod."""


@attrs.frozen(kw_only=True)
class ServiceFacts:
    """Everything that a service's status is derived from.

    Attributes:
        model: Verdict on its Model; None if the Model does not exist.
        plan: Plan of its container; None if there can be none for the spec, or the Model does not exist.
        refusal: Reason why pods cannot be planned, as a message; empty if they can.
        refusal_reason: The same as a condition's reason: `Invalid`, or `NotAllowed` if an operator could allow it.
        obstacle: Reason why an object could not be written; empty if there is none.
        transient: The obstacle is transient, such as an object of a deleted service of the same name.
        unmet: Fields without effect, each with the reason, besides those of the plan.
        denial: Why a quota does not allow the pods of the spec; None if it does.
        deferred: Reason why the replacement of its pods is deferred; empty if it is not.
        deployment: Its Deployment; None if there is none that it owns.
        route: Its HTTPRoute; None if there is none that it owns.
        hosts: Its replicas on hosts; None if pods alone serve it.
    """

    model: Verdict | None = None
    plan: ContainerPlan | None = None
    refusal: str = ""
    refusal_reason: str = Reason.INVALID
    obstacle: str = ""
    transient: bool = False
    unmet: tuple[str, ...] = ()
    denial: Denial | None = None
    deferred: str = ""
    deployment: Workload | None = None
    route: HTTPRoute | None = None
    pods: tuple[Pod, ...] = ()
    hosts: HostPart | None = None

    @property
    def no_gpu(self) -> str:
        """The scheduler's message if a pod finds no GPU; empty otherwise."""
        return shortage_message(self.pods, self.plan.resources.gpu_resource) if self.plan else ""


def count_pods(service: InferenceService, deployment: Workload | None) -> Replicas:
    """Return the numbers of pods from the Deployment's status."""
    desired = desired_replicas(service, deployment)
    if deployment is None:
        return Replicas(desired, running=0, ready=0)
    return Replicas(desired, deployment.status.replicas, deployment.status.ready_replicas)


def assess_pods(service: InferenceService, facts: ServiceFacts) -> Verdict:
    """Return a service's phase and reason by the table above."""
    replicas = count_pods(service, facts.deployment)
    desired, ready = replicas.desired, replicas.ready
    if service.spec.suspend:
        return suspended_verdict(ready)
    if not ready:
        if facts.model is None:
            return missing_model_verdict(service)
        if facts.refusal:
            return Verdict("Failed", facts.refusal_reason, facts.refusal)
        if facts.obstacle:
            return Verdict("Pending" if facts.transient else "Failed", Reason.NAME_TAKEN, facts.obstacle)
    if facts.denial is not None:
        refused = "Failed" if facts.denial.reason == Reason.QUOTA_REFUSED else "Pending"
        return Verdict("Progressing" if ready else refused, facts.denial.reason, facts.denial.message)
    model = facts.model or missing_model_verdict(service)
    if not desired and goes_to_zero(service) and service.spec.replicas and not ready:
        is_loadable = model.phase == "Ready"
        return Verdict("Idle", Reason.IDLE, _IDLE) if is_loadable else _assess_start(facts, model, desired, ready)
    if not desired:
        return stopped_verdict(ready)
    if ready >= desired and model.phase == "Ready" and _is_rolled_out(facts):
        return Verdict("Ready", Reason.INFERENCE_READY, f"{ready} of {desired} replicas ready")
    return _assess_start(facts, model, desired, ready)


def derive_pod_status(
    service: InferenceService,
    facts: ServiceFacts,
    settings: ControllerSettings,
    *,
    verdict: Verdict,
    position: int = 0,
    now: datetime.datetime,
) -> dict[str, Any]:
    """Return the status of a service in pods, except `lastUpdated`.

    Args:
        service: The service as observed.
        facts: Everything else that the status is derived from.
        settings: Settings for the endpoint's address.
        verdict: The result of `assess_pods`.
        position: Position in the GPU queue, from 1; 0 if it does not wait.
        now: Transition time of conditions that change.
    """
    replicas = count_pods(service, facts.deployment)
    queued = verdict.phase == WAITING_FOR_GPU and position > 0
    if queued:
        verdict = attrs.evolve(verdict, message=f"position {position} in the queue; {verdict.message}")
    counted = total_replicas(replicas, facts.hosts)
    overall = combined_verdict(verdict, counted, facts.hosts)
    failed = "Failed" in (verdict.phase, facts.hosts.verdict.phase if facts.hosts is not None else "")
    statements = _statements(service, facts, overall, counted, failed=failed)
    return {
        "phase": overall.phase,
        "replicas": replicas.running,
        "selector": ",".join(f"{name}={value}" for name, value in pod_selector(service).items()),
        "readyReplicas": counted.ready,
        "desiredReplicas": counted.desired,
        "endpoint": _endpoint(service, facts.plan, settings),
        "modelReady": facts.model is not None and facts.model.phase == "Ready",
        "mode": resolve_mode(service.spec),
        "runtime": _runtime(service, facts),
        "effectivePriority": weight_of(service),
        **({"queuePosition": position} if queued else {}),
        **_scheduling(facts, verdict),
        **_gateway(service, facts),
        "conditions": settle(statements, service.status.conditions, generation=service.metadata.generation, now=now),
    }


def _runtime(service: InferenceService, facts: ServiceFacts) -> str:
    """Return the Deployment's runtime, even after a refused edit; without one, the planned or requested runtime."""
    if facts.deployment is not None and (runs := facts.deployment.metadata.labels.get(RUNTIME_LABEL)):
        return runs
    return facts.plan.runtime if facts.plan is not None else service.spec.runtime


def wanted_gpus(plan: ContainerPlan) -> str:
    """Return the GPUs that a replica needs, such as `nvidia.com/gpu: 2`."""
    return f"{plan.resources.gpu_resource}: {plan.resources.gpu_count}"


def _is_rolled_out(facts: ServiceFacts) -> bool:
    """Whether every pod is of the newest template."""
    deployment = facts.deployment
    if deployment is None:
        return False
    status = deployment.status
    return (
        status.observed_generation >= deployment.metadata.generation
        and status.updated_replicas >= deployment.spec.replicas
        and status.replicas <= status.updated_replicas
    )


def _assess_start(facts: ServiceFacts, model: Verdict, desired: int, ready: int) -> Verdict:
    """Return why not all replicas are ready."""
    counted = f"{ready} of {desired} replicas ready"
    going = "Progressing" if ready else "Creating"
    broken = "Progressing" if ready else "Failed"
    if model.phase != "Ready" and not (model.reason == Reason.PVC_NOT_BOUND and facts.pods):
        phase = broken if model.phase == "Failed" else ("Progressing" if ready else "Pending")
        return Verdict(phase, model.reason, model.message)
    no_gpu = facts.no_gpu
    if no_gpu and facts.plan is not None:
        return Verdict(
            WAITING_FOR_GPU, Reason.WAITING_FOR_GPU, f"waits for {wanted_gpus(facts.plan)}; scheduler: {no_gpu}"
        )
    trouble = trouble_of(facts.pods)
    if trouble is not None and not trouble.transient:
        return Verdict(broken, trouble.reason, trouble.message)
    conditions = facts.deployment.status.conditions if facts.deployment else ()
    refused = find_condition(conditions, "ReplicaFailure", "True")
    if refused is not None:
        return _refused_pods(broken, refused.message or refused.reason)
    if trouble is not None:
        return Verdict(going, trouble.reason, trouble.message)
    stuck = _standstill(facts.deployment)
    if stuck is not None:
        return Verdict(broken, stuck.reason, stuck.message or stuck.reason)
    return Verdict(going, Reason.CREATING, counted if ready else "waiting for pods to become ready")


def _refused_pods(phase: str, refusal: str) -> Verdict:
    """Return why a ReplicaSet cannot create pods; for a Pod Security standard, with a fix."""
    found = _POD_SECURITY.search(refusal)
    if found is None:
        return Verdict(phase, Reason.REPLICA_FAILURE, refusal)
    level, violations = found.groups()
    fix = (
        "use an image that runs without root, and set its user in spec.podSecurityContext.runAsUser"
        if "runAsNonRoot" in violations
        else "remove these fields"
    )
    message = (
        f'the namespace enforces the Pod Security standard "{level}", which these pods do not meet: {violations}. '
        f"To serve it here, {fix}; otherwise serve it in another namespace"
    )
    return Verdict(phase, Reason.POD_SECURITY, message)


def _standstill(deployment: Workload | None) -> Condition | None:
    """Return why a rollout is stuck: no ReplicaSet could be created, or the progress deadline was exceeded."""
    if deployment is None or deployment.status.observed_generation < deployment.metadata.generation:
        return None
    return find_condition(deployment.status.conditions, "Progressing", "False")


def _statements(
    service: InferenceService, facts: ServiceFacts, verdict: Verdict, replicas: Replicas, *, failed: bool
) -> list[Statement]:
    reason, message = verdict.reason, verdict.message
    wrong = facts.refusal or ("" if facts.transient else facts.obstacle)
    wrong_reason = facts.refusal_reason if facts.refusal else Reason.NAME_TAKEN
    ignored = (*facts.plan.not_honoured, *facts.unmet) if facts.plan else ()
    degraded = Statement(DEGRADED, bool(wrong) or failed, wrong_reason if wrong else reason, wrong or message)
    return [
        *phase_statements(service, verdict, replicas, degraded),
        Statement(ACCEPTED, not wrong, wrong_reason if wrong else Reason.ACCEPTED, wrong or "the spec can be served"),
        _honoured(facts, ignored),
        *_rollout(service, facts),
    ]


def _honoured(facts: ServiceFacts, ignored: tuple[str, ...]) -> Statement:
    if facts.plan is None:
        message = "unknown until the spec can be run in pods"
        return Statement(SPEC_HONOURED, False, Reason.NOT_PLANNED, message)
    if ignored:
        message = f"no effect on pods: {', '.join(ignored)}"
        return Statement(SPEC_HONOURED, False, Reason.FIELDS_IGNORED, message)
    return Statement(SPEC_HONOURED, True, Reason.HONOURED, "every field that is set has an effect")


def _rollout(service: InferenceService, facts: ServiceFacts) -> list[Statement]:
    if service.spec.rollout_policy is None and service.spec.max_pod_lifetime_seconds is None:
        return []
    reason, message = (
        (Reason.PODS_BUSY, facts.deferred)
        if facts.deferred
        else (Reason.NOTHING_WAITS, "no pod is waiting to be replaced")
    )
    return [Statement(ROLLOUT_DEFERRED, bool(facts.deferred), reason, message)]


def _scheduling(facts: ServiceFacts, verdict: Verdict) -> dict[str, Any]:
    if verdict.phase == WAITING_FOR_GPU and facts.plan is not None:
        status = {"schedulingStatus": Reason.INSUFFICIENT_GPU.value, "waitingFor": wanted_gpus(facts.plan)}
    elif verdict.reason in _SCHEDULING:
        status = {"schedulingStatus": str(verdict.reason)}
    else:
        return {}
    return {**status, "schedulingMessage": verdict.message}


def _gateway(service: InferenceService, facts: ServiceFacts) -> dict[str, Any]:
    gateway = service.spec.endpoint.gateway
    if gateway is None or not gateway.enabled:
        return {}
    return {"gateway": {"modelName": gateway_name(service.spec), "routeReady": is_accepted(facts.route)}}


def _endpoint(service: InferenceService, plan: ContainerPlan | None, settings: ControllerSettings) -> str:
    endpoint, key = service.spec.endpoint, service.key
    path = (plan.endpoint_path if plan else "") or endpoint.path
    url = endpoint_url(
        service_name(key.name), key.namespace, port=endpoint.port, path=path, cluster_domain=settings.cluster_domain
    )
    return url.replace("http://", f"{plan.scheme}://", 1) if plan else url
