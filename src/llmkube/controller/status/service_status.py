"""An InferenceService's phase, counts, endpoint and conditions, from its Model, its slices and what hosts report. Pure.

The first row that fits wins; `ready` counts engines that answer on hosts that are alive:

| what is known | phase | reason |
|---|---|---|
| `spec.suspend` | Suspended | Suspended |
| the Model does not exist | Pending | ModelNotFound |
| nothing is wanted, nothing is ready | Stopped | ManuallyScaledToZero |
| nothing is wanted, something is still ready | Progressing | Creating |
| ready ≥ desired | Ready | InferenceReady |
| 0 < ready < desired, with too few hosts | Progressing | NoHost |
| 0 < ready < desired | Progressing | Creating |
| no live host serves the accelerator | Pending | NoHost |
| every host that claims it is gone, or its last one has let it go | Pending | NotClaimed |
| it has `spec.hosts`, and hosts do not run what it asks for | Failed | Invalid |
| its host says why it fails (`service_health.host_failure`) | Failed | the reason of that condition |
| the Model's file is on its way | Pending | Fetching |
| the host will try the fetch again by itself | Pending | FetchFailed, … |
| no host has claimed it, and none says anything of it | Pending | NotClaimed |
| the Model's file is not there yet | Pending | Pending |
| else | Creating | Creating |

`Available` is a fact of its own: it holds exactly while something answers, whatever the phase says about the rest.

Where hosts serve a service beside its pods, they report no condition of it: their slices, their claims and the Model
for hosts say how they do. Both together:

| pods | hosts | phase | reason |
|---|---|---|---|
| Suspended | any | Suspended | Suspended |
| Ready or Stopped | Ready or Stopped, not both Stopped | Ready | InferenceReady |
| Stopped | Stopped | Stopped | ManuallyScaledToZero |
| any | any, and one replica of either answers | Progressing | of what is not there, the pods' first |
| any | any, and none answers | of what is not there, the pods' first | the same |
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
from llmkube.k8s.wire.names import HOST_LABEL, SERVICE_PORT, endpoint_url, service_name
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
"""What each tier of `spec.priority` weighs in `status.effectivePriority` and in the order of evictions."""

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
    """How many are wanted, how many processes there are, and how many of those answer."""

    desired: int
    running: int
    ready: int


def count_replicas(
    service: InferenceService, model: Model | None, slices: Iterable[EndpointSlice], hosts: LiveHosts
) -> Replicas:
    """Count engines by what hosts publish; a slice of a host that is gone counts for nothing.

    A host that publishes no address (one machine behind its own gateway) has no slice at all; then its `Loaded`
    condition is believed for as long as a live host could serve the service, unless it says that it should publish one
    and cannot.
    """
    desired = 0 if service.spec.suspend else service.spec.replicas
    slices = tuple(slices)
    if slices:
        endpoints = [
            endpoint
            for endpoint_slice in slices
            if hosts.is_alive(endpoint_slice.metadata.labels.get(HOST_LABEL, ""))
            for endpoint in endpoint_slice.endpoints
            if endpoint.addresses
        ]
        ready = sum(endpoint.conditions.ready is not False for endpoint in endpoints)  # None reads as ready
        return Replicas(desired, running=len(endpoints), ready=ready)
    loaded = find_condition(service.status.conditions, LOADED)
    if loaded is None or not _has_live_host(model, hosts):
        return Replicas(desired, running=0, ready=0)
    runs = loaded.status == "True"
    ready = int(runs and _unpublished(service) is None)
    return Replicas(desired, running=int(runs or loaded.reason in _OCCUPYING_REASONS), ready=ready)


def assess_service(
    service: InferenceService, model: Model | None, replicas: Replicas, hosts: LiveHosts, holders: Sequence[str] = ()
) -> Verdict:
    """Decide a service's phase; the table above, from top to bottom."""
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
    """Return the verdict on a service of which no replica is wanted."""
    if ready:
        return Verdict("Progressing", Reason.CREATING, f"stopping: {ready} still ready")
    return Verdict("Stopped", Reason.MANUALLY_SCALED_TO_ZERO, "spec.replicas is 0")


def missing_model_verdict(service: InferenceService) -> Verdict:
    """Return the verdict on a service whose Model is not there."""
    return Verdict("Pending", Reason.MODEL_NOT_FOUND, f'there is no Model "{service.spec.model_ref}" in this namespace')


def weight_of(service: InferenceService) -> int:
    """Return what a service's priority weighs; one that is not known is normal."""
    return PRIORITY_WEIGHTS.get(service.spec.priority, PRIORITY_WEIGHTS["normal"])


def phase_statements(
    service: InferenceService, verdict: Verdict, replicas: Replicas, degraded: Statement
) -> list[Statement]:
    """Return the conditions of every service, always: one that is left out could not say that it no longer holds."""
    phase, reason, message = verdict.phase, verdict.reason, verdict.message
    available = replicas.ready > 0 and replicas.desired > 0
    unavailable = Reason.NO_READY_REPLICAS if phase in {"Creating", "Progressing"} else reason
    on = service.spec.suspend
    suspended_for = Reason.SUSPENDED if on else Reason.NOT_SUSPENDED
    return [
        Statement(AVAILABLE, available, Reason.INFERENCE_READY if available else unavailable, message),
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
    """Return the part of an InferenceService's status that the controller owns, except `lastUpdated`.

    Args:
        service: The service as observed, with its host's conditions.
        model: The Model that it refers to, or None when there is none.
        slices: All slices of this service, of hosts alive or dead.
        hosts: The hosts that are alive.
        settings: For the endpoint's address.
        holders: The hosts that claim one of its replicas, alive or dead.
        now: The time of a condition that flips here.
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
    """Return what serves, by its agent, else what is asked for; "" where the host chooses an engine built on MLX."""
    if service.status.engine is not None:
        return service.status.engine.runtime
    requested = service.spec.runtime
    if model is None:
        return requested
    taken = resolve_runtime(requested, model.spec.format, model.spec.hardware.accelerator)
    return requested if taken == requested else ""


def resolve_mode(spec: InferenceServiceSpec) -> str:
    """What kind of requests a service answers: as it says, else by its engine's flags, else as the engine is run."""
    if spec.mode:
        return spec.mode
    modes = (_MODE_FLAGS.get(flag.partition("=")[0]) for flag in (*spec.args, *spec.extra_args))
    return next(filter(None, modes), None) or mode_of(spec)


def host_refusal(service: InferenceService, model: Model) -> str:
    """Return why no host can serve the replicas of `spec.hosts`, with the way out; "" when one can.

    Agents say nothing of a service that pods serve, too.

    Args:
        service: The service as hosts are to serve it (`InferenceService.on_hosts`).
        model: The Model for hosts.
    """
    runtime = service.spec.runtime
    if runtime not in HOST_ENGINES:
        return f"spec.hosts: hosts do not run spec.runtime {runtime}: set {DEFAULT_RUNTIME}, or leave spec.hosts out"
    try:
        host_runtime_of(service, model)
    except PlanError as error:
        return f"spec.hosts: {error}"
    return ""


def _assess_start(service: InferenceService, model: Model, hosts: LiveHosts, holders: Sequence[str]) -> Verdict:
    """Say why nothing is ready although a host could serve it."""
    claimed = [host for host in holders if hosts.is_alive(host)]
    if not claimed and (lost := _lost_host_message(service, holders)):
        return Verdict("Pending", Reason.NOT_CLAIMED, lost)
    if service.spec.hosts is not None and (refusal := host_refusal(service, model)):
        return Verdict("Failed", Reason.INVALID, refusal)
    if (failure := host_failure(service, model)) is not None:
        return Verdict("Failed", failure.reason, failure.message)
    file = assess_model(model, hosts)
    if file.phase in {"Downloading", "Copying"}:
        return Verdict("Pending", Reason.FETCHING, file.message)
    if file.phase == "Failed":  # and fetched again without an edit, else it were the host's failure
        return Verdict("Pending", file.reason, file.message)
    # Also about an older spec: a host that looks after the service will see the new one.
    has_report = any(find_condition(service.status.conditions, kind) for kind in (ACCEPTED, LOADED))
    if not has_report and not claimed:
        candidates = ", ".join(sorted(hosts.serving(accelerator_of(model))))
        return Verdict(
            "Pending", Reason.NOT_CLAIMED, f"no host has claimed it yet; hosts that serve its accelerator: {candidates}"
        )
    if file.phase != "Ready":
        return Verdict("Pending", file.reason, file.message)
    loaded = current(service.status.conditions, LOADED, service.metadata.generation)
    message = loaded.message if loaded else ""
    return Verdict("Creating", Reason.CREATING, message or "waiting for a host to start the engine")


def _lost_host_message(service: InferenceService, holders: Sequence[str]) -> str:
    """Say how a service has lost its last host; whatever that one has said of it is not true any more."""
    if holders:
        return f"host {', '.join(holders)} is gone, and no other host has claimed this service yet"
    loaded = find_condition(service.status.conditions, LOADED)
    released = loaded is not None and loaded.reason == Reason.RELEASED
    return f"{loaded.message}, and no other host has claimed it" if loaded and released else ""


def _statements(service: InferenceService, verdict: Verdict, replicas: Replicas) -> list[Statement]:
    accepted = current(service.status.conditions, ACCEPTED, service.metadata.generation)
    if accepted is not None and accepted.status == "False":
        # A bad edit leaves the running engine alone, so the phase may well be Ready.
        degraded = Statement(DEGRADED, True, accepted.reason, accepted.message)
    else:
        degraded = Statement(DEGRADED, verdict.phase == "Failed", verdict.reason, verdict.message)
    return phase_statements(service, verdict, replicas, degraded)


def _endpoint(service: InferenceService, settings: ControllerSettings) -> str:
    path = service.spec.endpoint.path
    if path == PATHS["chat"]:  # the schema's default, which knows nothing of modes
        path = PATHS[resolve_mode(service.spec)]
    if settings.gateway_url:
        return f"{settings.gateway_url.rstrip('/')}{path}"
    name, namespace = service_name(service.key.name), service.key.namespace
    return endpoint_url(name, namespace, port=SERVICE_PORT, path=path, cluster_domain=settings.cluster_domain)


def _unpublished(service: InferenceService) -> Condition | None:
    """Return why it cannot be reached, if its host says so."""
    published = find_condition(service.status.conditions, PUBLISHED)
    return published if published is not None and published.status == "False" else None


def _has_live_host(model: Model | None, hosts: LiveHosts) -> bool:
    return bool(hosts.serving(accelerator_of(model)) if model else hosts.accelerators)


def _too_few_hosts(desired: int, ready: int, serving: int) -> str:
    return f"{ready} of {desired} replicas ready: a host runs one process per service, and {serving} can serve this one"


_DONE = frozenset({"Ready", "Stopped"})


@attrs.frozen
class HostPart:
    """The replicas of a service on hosts, and the verdict on them."""

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
    """Decide how the hosts do that serve a service beside its pods.

    Args:
        service: The service as hosts are to serve it (`InferenceService.on_hosts`).
        model: The Model for hosts, or None when there is none.
        slices: What hosts have published of the service.
        hosts: The hosts that are alive.
        holders: The hosts that claim one of its replicas, alive or dead.
        settings: Says what hosts serve.
    """
    unreported = attrs.evolve(service, status=InferenceServiceStatus())
    desired = 0 if service.spec.suspend else service.spec.replicas
    replicas = count_replicas(unreported, model, slices, hosts) if slices else Replicas(desired, running=0, ready=0)
    if model is not None and not settings.is_for_hosts(model):
        served = " or ".join(sorted(settings.host_accelerators))
        message = (
            f'spec.hosts.modelRef: Model "{model.key.name}" asks for {model.spec.hardware.accelerator}, which pods '
            f"serve; name a Model with hardware.accelerator {served}"
        )
        return HostPart(replicas, Verdict("Failed", Reason.INVALID, message))
    if model is not None and desired and (refusal := host_refusal(service, model)):
        return HostPart(replicas, Verdict("Failed", Reason.INVALID, refusal))
    return HostPart(replicas, assess_service(unreported, model, replicas, hosts, holders))


def unknown_host_part(service: InferenceService) -> HostPart:
    """Return what there is to say while the controller cannot list what hosts publish."""
    desired = 0 if service.spec.suspend else service.spec.replicas
    message = "the controller cannot list what hosts publish; see its /readyz"
    return HostPart(Replicas(desired, running=0, ready=0), Verdict("Pending", Reason.PENDING, message))


def total_replicas(pods: Replicas, part: HostPart | None) -> Replicas:
    """Return the replicas in pods and on hosts."""
    if part is None:
        return pods
    hosts = part.replicas
    return Replicas(pods.desired + hosts.desired, pods.running, pods.ready + hosts.ready)


def combined_verdict(pods: Verdict, counted: Replicas, part: HostPart | None) -> Verdict:
    """Decide the phase of a service that pods and hosts serve; the table above.

    Args:
        pods: The verdict on its pods.
        counted: Its replicas in pods and on hosts.
        part: Those on hosts; None for a service that has none.
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
