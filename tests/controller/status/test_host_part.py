"""Pods and hosts that serve one name are evaluated together: any that answers is enough, and a missing one is named."""

import attrs
import pytest

from controller.objects import NOW, STUDIO
from controller.podobjects import cluster_model, pod_service
from llmkube.controller.settings import ControllerSettings
from llmkube.controller.status.service_status import (
    HostPart,
    Replicas,
    assess_host_part,
    combined_verdict,
    derive_service_status,
    total_replicas,
    unknown_host_part,
)
from llmkube.k8s.leases.live_hosts import LiveHosts
from llmkube.k8s.wire.conditions import Verdict

READY, STOPPED = Verdict("Ready", "InferenceReady", "1 of 1"), Verdict("Stopped", "ManuallyScaledToZero", "none")
LOADING, BROKEN = Verdict("Creating", "Creating", "loads"), Verdict("Failed", "ImagePullBackOff", "no image")
SUSPENDED = Verdict("Suspended", "Suspended", "spec.suspend is true")


def count(verdict):
    return {"Ready": (1, 1), "Stopped": (0, 0), "Suspended": (0, 0)}.get(verdict.phase, (1, 0))


@pytest.mark.parametrize(
    ("pods", "hosts", "phase", "reason", "where"),
    [
        (READY, READY, "Ready", "InferenceReady", "on hosts"),
        (STOPPED, READY, "Ready", "InferenceReady", "on hosts"),
        (READY, STOPPED, "Ready", "InferenceReady", "on hosts"),
        (STOPPED, STOPPED, "Stopped", "ManuallyScaledToZero", ""),
        (READY, LOADING, "Progressing", "Creating", "hosts: loads"),
        (LOADING, READY, "Progressing", "Creating", "pods: loads"),
        (BROKEN, READY, "Progressing", "ImagePullBackOff", "pods: no image"),
        (BROKEN, LOADING, "Failed", "ImagePullBackOff", "pods: no image"),
        (STOPPED, BROKEN, "Failed", "ImagePullBackOff", "hosts: no image"),
        (SUSPENDED, SUSPENDED, "Suspended", "Suspended", ""),
    ],
)
def test_the_table_of_both(pods, hosts, phase, reason, where):
    """Each row of the module's table; a service that answers is never called Failed, Creating or Stopped."""
    (wanted, ready), (further, answering) = count(pods), count(hosts)
    part = HostPart(Replicas(further, answering, answering), hosts)
    counted = total_replicas(Replicas(wanted, wanted, ready), part)
    verdict = combined_verdict(pods, counted, part)
    assert (verdict.phase, verdict.reason) == (phase, reason)
    assert where in verdict.message
    assert counted.ready == ready + answering


def test_a_service_without_hosts_is_evaluated_by_its_pods():
    """Its status is unchanged, word for word."""
    assert combined_verdict(BROKEN, total_replicas(Replicas(1, 1, 0), None), None) == BROKEN


def test_an_earlier_condition_of_hosts_is_ignored():
    """A condition that an agent has left is ignored for a service that pods serve now."""
    loaded = {"type": "Loaded", "status": "True", "reason": "Loaded", "lastTransitionTime": "2025-06-01T00:00:00Z"}
    service = pod_service(hosts={"modelRef": "mac"})
    service = attrs.evolve(service, status=attrs.evolve(service.status, conditions=(loaded,))).on_hosts
    part = assess_host_part(service, None, [], LiveHosts({}), holders=(), settings=ControllerSettings())
    assert (part.replicas.ready, part.verdict.reason) == (0, "ModelNotFound")
    assert '"mac"' in part.verdict.message


def test_a_model_for_pods_is_refused_by_name():
    """The message has the field, the Model, its value, and the fix."""
    service = pod_service(hosts={"modelRef": "phi"}).on_hosts
    part = assess_host_part(service, cluster_model(), [], LiveHosts({}), holders=(), settings=ControllerSettings())
    assert (part.verdict.phase, part.verdict.reason) == ("Failed", "Invalid")
    for word in ("spec.hosts.modelRef", '"phi"', "cuda", "metal"):
        assert word in part.verdict.message


@pytest.mark.parametrize(
    ("runtime", "mac", "words"),
    [
        ("vllm", {}, "spec.hosts: agents do not run spec.runtime vllm: set llamacpp, "),
        ("llama-server", {"format": "mlx"}, "spec.hosts: Model.spec.format: llama-server reads gguf, not mlx"),
    ],
)
@pytest.mark.parametrize("hosts", [LiveHosts({}), STUDIO])
def test_a_refusal_of_hosts_is_named(runtime, mac, words, hosts):
    """Field, value and fix, with and without a live host; nothing is reported if no host part is wanted."""
    service = pod_service(runtime=runtime, hosts={"modelRef": "mac"}).on_hosts
    model = cluster_model("builtin://demo", name="mac", **{"hardware": {"accelerator": "metal"}, **mac})
    part = assess_host_part(service, model, [], hosts, holders=(), settings=ControllerSettings())
    assert (part.verdict.phase, part.verdict.reason) == ("Failed", "Invalid")
    assert words in part.verdict.message
    alone = derive_service_status(service, model, [], STUDIO, ControllerSettings(), now=NOW)
    assert words in alone["conditions"][0]["message"]
    none = pod_service(runtime=runtime, hosts={"modelRef": "mac", "replicas": 0}).on_hosts
    part = assess_host_part(none, model, [], hosts, holders=(), settings=ControllerSettings())
    assert part.verdict.phase == "Stopped"


def test_hosts_that_cannot_be_listed_are_unknown():
    """The controller reports unknown, and waits."""
    part = unknown_host_part(pod_service(hosts={"modelRef": "mac", "replicas": 3}).on_hosts)
    assert (part.replicas.desired, part.verdict.phase) == (3, "Pending")
    assert "/readyz" in part.verdict.message
