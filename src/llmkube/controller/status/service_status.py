"""Derive the status of an InferenceService on hosts from its Model, its slices and the hosts' reports. Pure.

The first matching row applies; `ready` is the number of healthy engines on live hosts:

| observed | phase | reason |
|---|---|---|
| `spec.suspend` | Suspended | Suspended |
| the Model does not exist | Pending | ModelNotFound |
| 0 replicas desired, none is ready | Stopped | ManuallyScaledToZero |
| 0 replicas desired, some are still ready | Progressing | Creating |
| ready ≥ desired | Ready | InferenceReady |
| 0 < ready < desired, with too few hosts | Progressing | NoHost |
| 0 < ready < desired | Progressing | Creating |
| no live host serves the accelerator | Pending | NoHost |
| every host that claims it is gone, or the last one has released it | Pending | NotClaimed |
| it has `spec.hosts`, and hosts cannot run it | Failed | Invalid |
| its host reports a failure (`service_health.host_failure`) | Failed | the reason of that condition |
| its host loads it when a request needs it | Idle | Idle |
| the Model's file is being fetched | Pending | Fetching |
| the host will retry the fetch | Pending | FetchFailed, … |
| no host has claimed it or reports on it | Pending | NotClaimed |
| the Model's file does not exist yet | Pending | Pending |
| otherwise | Creating | Creating |

`Available` is independent of the phase: it is True exactly while a desired replica is ready, or the service is Idle.

If hosts serve a service in addition to its pods, they report no conditions: the state of that part follows from their
slices, their claims and the Model for hosts. Both combined:

| pods | hosts | phase | reason |
|---|---|---|---|
| Suspended | any | Suspended | Suspended |
| Ready or Stopped | Ready or Stopped, not both Stopped | Ready | InferenceReady |
| Stopped | Stopped | Stopped | ManuallyScaledToZero |
| any | any, at least one replica is ready | Progressing | of the unready part, pods first |
| any | any, no replica is ready | of the unready part, pods first | the same |
"""

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from llmkube.controller.settings import ControllerSettings
from llmkube.controller.status.model_status import accelerator_of, assess_model, no_host_message
from llmkube.k8s.builtins import EndpointSlice
from llmkube.k8s.crd.inferenceservice import InferenceService, InferenceServiceSpec, InferenceServiceStatus
from llmkube.k8s.crd.meta import Condition
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.pairing import DEFAULT_RUNTIME, HOST_ENGINES, resolve_runtime
from llmkube.k8s.leases.live_hosts import LiveHosts
from llmkube.k8s.wire.conditions import (
    ACCEPTED,
    AVAILABLE,
    DEGRADED,
    FETCHED,
    LOADED,
    PROGRESSING,
    PUBLISHED,
    SUSPENDED,
    Statement,
    Verdict,
    current,
    find_condition,
    settle,
)
from llmkube.k8s.wire.names import HOST_LABEL, LOADED_LABEL, SERVICE_PORT, endpoint_url, service_name
from llmkube.k8s.wire.reasons import Reason
from llmkube.k8s.wire.service_health import host_failure
from llmkube.runtimes.container.builder import PATHS
from llmkube.runtimes.llama_fields import mode_of
from llmkube.runtimes.plan import PlanError
from llmkube.runtimes.process.host_runtimes import host_runtime_of

PRIORITY_WEIGHTS: Final[Mapping[str, int]] = {
    "critical": 1_000_000,
    "high": 100_000,
    "normal": 10_000,
    "low": 1_000,
    "batch": 100,
}
"""Weight of each `spec.priority` in `status.effectivePriority` and in the order of evictions."""

WAITING_FOR_GPU: Final = "WaitingForGPU"  # the phase
_MOVING: Final = frozenset({"Pending", "Creating", "Progressing", WAITING_FOR_GPU})
_OCCUPYING_REASONS: Final = frozenset({Reason.LOADING, Reason.NOT_ANSWERING, Reason.STOPPING})
_MODE_FLAGS: Final[Mapping[str, str]] = {
    "--embedding": "embedding",
    "--embeddings": "embedding",
    "--reranking": "rerank",
    "--rerank": "rerank",
}


@attrs.frozen
class Replicas:
    """Numbers of desired replicas, of those that run, and of those that are ready."""

    desired: int
    running: int
    ready: int


def count_replicas(
    service: InferenceService, model: Model | None, slices: Iterable[EndpointSlice], hosts: LiveHosts
) -> Replicas:
    """Count engines by the slices of live hosts.

    A host that publishes no address (one machine behind its own gateway) has no slices. Then its `Loaded` condition is
    used, as long as a live host could serve the service, unless the host reports that it failed to publish an address.
    """
    desired = 0 if service.spec.suspend else service.spec.replicas
    slices = tuple(slices)
    if slices:
        endpoints = [
            endpoint
            for endpoint_slice in slices
            if hosts.is_alive(endpoint_slice.metadata.labels.get(HOST_LABEL, ""))
            if endpoint_slice.metadata.labels.get(LOADED_LABEL) != "false"  # its endpoint only holds requests
            for endpoint in endpoint_slice.endpoints
            if endpoint.addresses
        ]
        ready = sum(endpoint.conditions.ready is not False for endpoint in endpoints)  # None means ready
        return Replicas(desired, running=len(endpoints), ready=ready)
    loaded = find_condition(service.status.conditions, LOADED)
    if loaded is None or not (hosts.serving(accelerator_of(model)) if model else hosts.accelerators):
        return Replicas(desired, running=0, ready=0)
    runs = loaded.status == "True"
    is_published = find_condition(service.status.conditions, PUBLISHED, "False") is None
    ready = int(runs and is_published)
    return Replicas(desired, running=int(runs or loaded.reason in _OCCUPYING_REASONS), ready=ready)


def assess_service(
    service: InferenceService, model: Model | None, replicas: Replicas, hosts: LiveHosts, holders: Sequence[str] = ()
) -> Verdict:
    """Return a service's phase and reason by the first table above."""
    desired, ready = replicas.desired, replicas.ready
    if service.spec.suspend:
        return suspended_verdict(ready)
    if model is None:
        return missing_model_verdict(service)
    if not desired:
        return stopped_verdict(ready)
    if ready >= desired:
        return Verdict("Ready", Reason.INFERENCE_READY, f"{ready} of {desired} replicas ready")
    serving = len(hosts.serving(accelerator_of(model)))
    if ready:
        if serving < desired:
            return Verdict("Progressing", Reason.NO_HOST, _too_few_hosts(desired, ready, serving))
        return Verdict("Progressing", Reason.CREATING, f"{ready} of {desired} replicas ready")
    if not serving:
        return Verdict("Pending", Reason.NO_HOST, no_host_message(accelerator_of(model), hosts))
    return _assess_start(service, model, hosts, holders)


def suspended_verdict(ready: int) -> Verdict:
    """Return the verdict on a service with `spec.suspend`."""
    still = f"; {ready} still ready" if ready else ""
    return Verdict("Suspended", Reason.SUSPENDED, f"spec.suspend is true{still}")


def stopped_verdict(ready: int) -> Verdict:
    """Return the verdict on a service with 0 desired replicas."""
    if ready:
        return Verdict("Progressing", Reason.CREATING, f"stopping: {ready} still ready")
    return Verdict("Stopped", Reason.MANUALLY_SCALED_TO_ZERO, "spec.replicas is 0")


def missing_model_verdict(service: InferenceService) -> Verdict:
    """Return the verdict on a service whose Model does not exist."""
    return Verdict("Pending", Reason.MODEL_NOT_FOUND, f'Model "{service.spec.model_ref}" not found in this namespace')


def weight_of(service: InferenceService) -> int:
    """Return the weight of a service's priority; that of `normal` if it is unknown."""
    return PRIORITY_WEIGHTS.get(service.spec.priority, PRIORITY_WEIGHTS["normal"])


def phase_statements(
    service: InferenceService, verdict: Verdict, replicas: Replicas, degraded: Statement
) -> list[Statement]:
    """Return the conditions that every service always has: one that is omitted would keep its old value."""
    phase, reason, message = verdict.phase, verdict.reason, verdict.message
    idle = phase == "Idle"
    available = (replicas.ready > 0 and replicas.desired > 0) or idle
    unavailable = Reason.NO_READY_REPLICAS if phase in {"Creating", "Progressing"} else reason
    on = service.spec.suspend
    suspended_for = Reason.SUSPENDED if on else Reason.NOT_SUSPENDED
    return [
        Statement(AVAILABLE, available, Reason.INFERENCE_READY if available and not idle else unavailable, message),
        Statement(PROGRESSING, phase in _MOVING, reason, message),
        degraded,
        Statement(SUSPENDED, on, suspended_for, f"spec.suspend is {str(on).lower()}"),
    ]


def derive_service_status(
    service: InferenceService,
    model: Model | None,
    slices: Sequence[EndpointSlice],
    hosts: LiveHosts,
    settings: ControllerSettings,
    *,
    holders: Sequence[str] = (),
    now: datetime.datetime,
) -> dict[str, Any]:
    """Return the status fields of an InferenceService on hosts that the controller owns, except `lastUpdated`.

    Args:
        service: The service as observed, with its host's conditions.
        model: The Model that it refers to; None if that does not exist.
        slices: All slices of the service, also of hosts that are gone.
        hosts: The hosts that are alive.
        settings: Settings for the endpoint's address.
        holders: Hosts that claim one of its replicas, alive or gone.
        now: Transition time of conditions that change.
    """
    replicas = count_replicas(service, model, slices, hosts)
    verdict = assess_service(service, model, replicas, hosts, holders)
    statements = _statements(service, verdict, replicas)
    generation = service.metadata.generation
    return {
        "phase": verdict.phase,
        "replicas": replicas.running,
        "readyReplicas": replicas.ready,
        "desiredReplicas": replicas.desired,
        "endpoint": _endpoint(service, settings),
        "modelReady": model is not None and assess_model(model, hosts).phase == "Ready",
        "mode": resolve_mode(service.spec),
        **({"runtime": runtime} if (runtime := _runtime(service, model)) else {}),
        "effectivePriority": weight_of(service),
        "conditions": settle(statements, service.status.conditions, generation=generation, now=now),
    }


def _runtime(service: InferenceService, model: Model | None) -> str:
    """Return the agent's runtime, or else the requested one; empty if the host may choose an MLX engine."""
    if service.status.engine is not None:
        return service.status.engine.runtime
    requested = service.spec.runtime
    if model is None:
        return requested
    taken = resolve_runtime(requested, model.spec.format, model.spec.hardware.accelerator)
    return requested if taken == requested else ""


def resolve_mode(spec: InferenceServiceSpec) -> str:
    """Return a service's mode: from its spec, or else from its engine's flags, or else the default of the runtime."""
    if spec.mode:
        return spec.mode
    modes = (_MODE_FLAGS.get(flag.partition("=")[0]) for flag in (*spec.args, *spec.extra_args))
    return next(filter(None, modes), None) or mode_of(spec)


def host_refusal(service: InferenceService, model: Model) -> str:
    """Return why no host can serve the replicas of `spec.hosts`, with a fix; empty if one can.

    Agents themselves report nothing on a service that pods serve as well.

    Args:
        service: The service in its form for hosts (`InferenceService.on_hosts`).
        model: The Model for hosts.
    """
    runtime = service.spec.runtime
    if runtime not in HOST_ENGINES:
        return f"spec.hosts: agents do not run spec.runtime {runtime}: set {DEFAULT_RUNTIME}, or remove spec.hosts"
    try:
        host_runtime_of(service, model)
    except PlanError as error:
        return f"spec.hosts: {error}"
    return ""


def _assess_start(service: InferenceService, model: Model, hosts: LiveHosts, holders: Sequence[str]) -> Verdict:
    """Return why nothing is ready although a host could serve it."""
    claimed = [host for host in holders if hosts.is_alive(host)]
    if not claimed and (lost := _lost_host_message(service, holders)):
        return Verdict("Pending", Reason.NOT_CLAIMED, lost)
    if service.spec.hosts is not None and (refusal := host_refusal(service, model)):
        return Verdict("Failed", Reason.INVALID, refusal)
    if (failure := host_failure(service, model)) is not None:
        return Verdict("Failed", failure.reason, failure.message)
    if (idle := _idle_condition(service, model)) is not None:
        return Verdict("Idle", Reason.IDLE, idle.message)
    file = assess_model(model, hosts)
    if file.phase in {"Downloading", "Copying"}:
        return Verdict("Pending", Reason.FETCHING, file.message)
    if file.phase == "Failed":  # the host retries it without an edit; otherwise host_failure would have returned it
        return Verdict("Pending", file.reason, file.message)
    # A report on an older spec is enough: a host that serves the service will see the new one.
    has_report = any(find_condition(service.status.conditions, kind) for kind in (ACCEPTED, LOADED))
    if not has_report and not claimed:
        candidates = ", ".join(sorted(hosts.serving(accelerator_of(model))))
        return Verdict("Pending", Reason.NOT_CLAIMED, f"no machine serves it yet; machines that can: {candidates}")
    if file.phase != "Ready":
        return Verdict("Pending", file.reason, file.message)
    loaded = current(service.status.conditions, LOADED, service.metadata.generation)
    message = loaded.message if loaded else ""
    return Verdict("Creating", Reason.CREATING, message or "waiting for the engine to start")


def _idle_condition(service: InferenceService, model: Model) -> Condition | None:
    """Return the condition of an agent that can load the newest spec when a request needs it; None if none has it."""
    loaded = find_condition(service.status.conditions, LOADED)  # an edit changes nothing in it
    accepted = current(service.status.conditions, ACCEPTED, service.metadata.generation)
    fetched = current(model.status.conditions, FETCHED, model.metadata.generation)
    planned = all(each is not None and each.status == "True" for each in (accepted, fetched))
    return loaded if planned and loaded is not None and loaded.reason == Reason.IDLE else None


def _lost_host_message(service: InferenceService, holders: Sequence[str]) -> str:
    """Return how a service lost its last host, whose reports are no longer valid; empty if it did not."""
    if holders:
        return f"{', '.join(holders)} is gone, and no other machine serves this service yet"
    loaded = find_condition(service.status.conditions, LOADED)
    released = loaded is not None and loaded.reason == Reason.RELEASED
    return f"{loaded.message}, and no other machine serves it" if loaded and released else ""


def _statements(service: InferenceService, verdict: Verdict, replicas: Replicas) -> list[Statement]:
    refused = current(service.status.conditions, ACCEPTED, service.metadata.generation, "False")
    if refused is not None:
        # An invalid edit does not affect the running engine, so the phase may well be Ready.
        degraded = Statement(DEGRADED, True, refused.reason, refused.message)
    else:
        degraded = Statement(DEGRADED, verdict.phase == "Failed", verdict.reason, verdict.message)
    return phase_statements(service, verdict, replicas, degraded)


def _endpoint(service: InferenceService, settings: ControllerSettings) -> str:
    path = service.spec.endpoint.path
    if path == PATHS["chat"]:  # the schema's default, which does not depend on the mode
        path = PATHS[resolve_mode(service.spec)]
    if settings.gateway_url:
        return f"{settings.gateway_url.rstrip('/')}{path}"
    name, namespace = service_name(service.key.name), service.key.namespace
    return endpoint_url(name, namespace, port=SERVICE_PORT, path=path, cluster_domain=settings.cluster_domain)


def _too_few_hosts(desired: int, ready: int, serving: int) -> str:
    return f"{ready} of {desired} replicas ready: a host runs one process per service, and {serving} can serve this one"


_DONE = frozenset({"Ready", "Stopped"})


@attrs.frozen
class HostPart:
    """Replicas of a service on hosts, and the verdict on them."""

    replicas: Replicas
    verdict: Verdict


def assess_host_part(
    service: InferenceService,
    model: Model | None,
    slices: Sequence[EndpointSlice],
    hosts: LiveHosts,
    *,
    holders: Sequence[str],
    settings: ControllerSettings,
) -> HostPart:
    """Return the state of the replicas on hosts of a service that pods serve as well.

    Args:
        service: The service in its form for hosts (`InferenceService.on_hosts`).
        model: The Model for hosts; None if that does not exist.
        slices: Slices that hosts have published for the service.
        hosts: The hosts that are alive.
        holders: Hosts that claim one of its replicas, alive or gone.
        settings: Settings with the accelerators that hosts serve.
    """
    unreported = attrs.evolve(service, status=InferenceServiceStatus())
    desired = 0 if service.spec.suspend else service.spec.replicas
    replicas = count_replicas(unreported, model, slices, hosts) if slices else Replicas(desired, running=0, ready=0)
    if model is not None and not settings.is_for_hosts(model):
        served = " or ".join(sorted(settings.host_accelerators))
        message = (
            f'spec.hosts.modelRef: Model "{model.key.name}" requires {model.spec.hardware.accelerator}, which pods '
            f"serve; name a Model with hardware.accelerator {served}"
        )
        return HostPart(replicas, Verdict("Failed", Reason.INVALID, message))
    if model is not None and desired and (refusal := host_refusal(service, model)):
        return HostPart(replicas, Verdict("Failed", Reason.INVALID, refusal))
    return HostPart(replicas, assess_service(unreported, model, replicas, hosts, holders))


def unknown_host_part(service: InferenceService) -> HostPart:
    """Return the state of the replicas on hosts while the controller cannot list what hosts publish."""
    desired = 0 if service.spec.suspend else service.spec.replicas
    message = "the controller cannot list what hosts publish; see its /readyz"
    return HostPart(Replicas(desired, running=0, ready=0), Verdict("Pending", Reason.PENDING, message))


def total_replicas(pods: Replicas, part: HostPart | None) -> Replicas:
    """Return the replicas in pods and on hosts together."""
    if part is None:
        return pods
    hosts = part.replicas
    return Replicas(pods.desired + hosts.desired, pods.running, pods.ready + hosts.ready)


def combined_verdict(pods: Verdict, counted: Replicas, part: HostPart | None) -> Verdict:
    """Return the phase and reason of a service that pods and hosts serve, by the second table above.

    Args:
        pods: Verdict on its pods.
        counted: Its replicas in pods and on hosts.
        part: The replicas on hosts; None if there are none.
    """
    if part is None or pods.phase == "Suspended":
        return pods
    if pods.phase in _DONE and part.verdict.phase in _DONE:
        if not counted.desired:
            return pods
        message = f"{counted.ready} of {counted.desired} replicas ready, {part.replicas.ready} of them on hosts"
        return Verdict("Ready", Reason.INFERENCE_READY, message)
    missing, where = (part.verdict, "hosts") if pods.phase in _DONE else (pods, "pods")
    phase = "Progressing" if counted.ready else missing.phase
    message = f"{counted.ready} of {counted.desired} replicas ready; {where}: {missing.message}"
    return Verdict(phase, missing.reason, message)
