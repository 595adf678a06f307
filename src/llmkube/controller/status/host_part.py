"""How the replicas on hosts do that serve a service beside its pods, and how both do together. Pure.

Hosts report no condition of such a service: their slices, their claims and the Model for hosts say how they do.

| pods | hosts | phase | reason |
|---|---|---|---|
| Suspended | any | Suspended | Suspended |
| Ready or Stopped | Ready or Stopped, not both Stopped | Ready | InferenceReady |
| Stopped | Stopped | Stopped | ManuallyScaledToZero |
| any | any, and one replica of either answers | Progressing | of what is not there, the pods' first |
| any | any, and none answers | of what is not there, the pods' first | the same |
"""

from collections.abc import Sequence

import attrs

from llmkube.controller.settings import ControllerSettings
from llmkube.controller.status.service_status import Replicas, count_replicas, judge_service, refusal_beside_pods
from llmkube.k8s.builtins import EndpointSlice
from llmkube.k8s.crd.inferenceservice import InferenceService, InferenceServiceStatus
from llmkube.k8s.crd.model import Model
from llmkube.k8s.leases.live_hosts import LiveHosts
from llmkube.k8s.wire.conditions import Verdict
from llmkube.k8s.wire.reasons import Reason

_DONE = frozenset({"Ready", "Stopped"})


@attrs.frozen
class HostPart:
    """The replicas of a service on hosts, and the verdict on them."""

    replicas: Replicas
    verdict: Verdict


def judge_host_part(
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
    if model is not None and desired and (refusal := refusal_beside_pods(service, model)):
        return HostPart(replicas, Verdict("Failed", Reason.INVALID, refusal))
    return HostPart(replicas, judge_service(unreported, model, replicas, hosts, holders))


def unknown_host_part(service: InferenceService) -> HostPart:
    """Return what there is to say while the controller cannot list what hosts publish."""
    desired = 0 if service.spec.suspend else service.spec.replicas
    message = "the controller cannot list what hosts publish; see its /readyz"
    return HostPart(Replicas(desired, running=0, ready=0), Verdict("Pending", Reason.PENDING, message))


def both(pods: Replicas, part: HostPart | None) -> Replicas:
    """Return the replicas in pods and on hosts."""
    if part is None:
        return pods
    hosts = part.replicas
    return Replicas(pods.desired + hosts.desired, pods.running, pods.ready + hosts.ready)


def judge_both(pods: Verdict, counted: Replicas, part: HostPart | None) -> Verdict:
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
