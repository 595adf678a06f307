"""A kind that the API server will not list affects only its users, and the controller reports it with the reason."""

import functools
import random

import pytest
import trio
from prometheus_client import generate_latest

from controller.cluster import SETTLED, utcnow
from controller.podcluster import open_pods
from controller.podobjects import SETTINGS
from llmkube.controller.health import HOSTS_WAIT, NOTHING_WORKS, ControllerHealth, WatchedKind
from llmkube.controller.operator import run_controller
from llmkube.controller.settings import ControllerSettings
from llmkube.k8s.errors import ForbiddenError, TransportError
from llmkube.k8s.informer import Informer
from llmkube.k8s.reflector import Cache
from llmkube.k8s.workloads import Deployment, HorizontalPodAutoscaler, Job


class Restarted:
    """A controller that restarts, without the right to read some resources."""

    def __init__(self, hands, *unread):
        self.hands, self.health = hands, ControllerHealth()
        hands.cluster.controller_scope.cancel()
        hands.cluster.faults.unread = set(unread)

    async def run(self, nursery):
        settings = ControllerSettings(workloads=SETTINGS)
        start = functools.partial(run_controller, utcnow=utcnow, rng=random.Random(3), health=self.health)
        await nursery.start(start, self.hands.cluster.network, settings)
        await trio.sleep(SETTLED)


@pytest.mark.parametrize(
    ("resource", "kind", "cost"),
    [
        ("modelrouters", "ModelRouters", "their status is not updated"),
        ("endpointslices", "EndpointSlices of hosts", HOSTS_WAIT),
        ("horizontalpodautoscalers", "HorizontalPodAutoscalers", "spec.autoscaling has no effect"),
        ("poddisruptionbudgets", "PodDisruptionBudgets", "spec.disruption has no effect"),
    ],
)
async def test_objects_without_the_kind_continue(autojump_clock, resource, kind, cost):
    """A Model is fetched, its pods are created, and /readyz and the metric name the kind, the reason and the effect."""
    async with open_pods() as hands, trio.open_nursery() as nursery:
        again = Restarted(hands, resource)
        await again.run(nursery)
        await hands.bring_up()
        assert (await hands.cluster.where()).startswith("Ready/")
        is_ready, words = again.health.ready()
        assert is_ready
        assert f"cannot list {kind}: {cost} ({resource} is forbidden)" in words
        nursery.cancel_scope.cancel()


async def test_objects_of_the_kind_are_created_once_it_can_be_listed(autojump_clock):
    """Without Jobs a Model of a host gets its status, one of pods no Job; with them it is fetched and reported."""
    async with open_pods() as hands, trio.open_nursery() as nursery:
        again = Restarted(hands, "jobs")
        await again.run(nursery)
        await hands.cluster.create_model("onmac", "metal")
        await hands.start()
        assert (await hands.cluster.model("onmac")).status.phase
        assert await hands.names(Job) == []
        assert "cannot list Jobs: no weights are fetched" in again.health.ready()[1]
        hands.cluster.faults.unread.clear()
        await trio.sleep(60)
        await hands.end_job()
        assert await hands.names(Deployment) == ["chat"]
        assert again.health.ready() == (True, "acting")
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("resource", ["gpuquotas", "modelpools"])
async def test_no_pods_start_before_quotas_and_pools_are_known(autojump_clock, resource):
    """A controller that may not list them starts no service; where the API server has no such kind, it does."""
    async with open_pods() as hands, trio.open_nursery() as nursery:
        await Restarted(hands, resource).run(nursery)
        await hands.start()
        await hands.end_job()
        assert await hands.names(Deployment) == []
        hands.cluster.faults.unread_code = 404
        await trio.sleep(60)
        assert await hands.names(Deployment) == ["chat"]
        nursery.cancel_scope.cancel()


async def test_a_field_that_needs_the_kind_is_reported_without_effect(autojump_clock):
    """The status of a service names spec.autoscaling while autoscalers cannot be listed, and has one afterwards."""
    async with open_pods() as hands, trio.open_nursery() as nursery:
        await Restarted(hands, "horizontalpodautoscalers").run(nursery)
        await hands.bring_up(autoscaling={"maxReplicas": 4})
        service = await hands.cluster.service()
        [honoured] = [one for one in service.status.conditions if one.type == "SpecHonoured"]
        assert "spec.autoscaling (the controller cannot list HorizontalPodAutoscalers" in honoured.message
        hands.cluster.faults.unread.clear()
        await trio.sleep(60)
        assert await hands.names(HorizontalPodAutoscaler) == ["chat"]
        nursery.cancel_scope.cancel()


async def test_pods_stay_while_the_place_of_a_service_is_unknown(autojump_clock):
    """A service with a deleted Model keeps its Deployment and its status while Deployments cannot be listed."""
    async with open_pods() as hands, trio.open_nursery() as nursery:
        await hands.bring_up()
        before = await hands.cluster.service()
        again = Restarted(hands, "deployments")
        await hands.client.delete(type(await hands.cluster.model()), (await hands.cluster.model()).key)
        await again.run(nursery)
        assert await hands.names(Deployment) == ["chat"]
        assert (await hands.cluster.service()).status == before.status
        nursery.cancel_scope.cancel()


async def test_a_controller_that_does_nothing_is_not_ready(autojump_clock):
    """Without InferenceServices /readyz fails."""
    async with open_pods() as hands, trio.open_nursery() as nursery:
        again = Restarted(hands, "inferenceservices")
        await again.run(nursery)
        is_ready, words = again.health.ready()
        assert not is_ready
        assert NOTHING_WORKS in words
        nursery.cancel_scope.cancel()


def test_a_known_kind_that_cannot_be_listed_any_more_is_stale():
    """A kind that was listed before only gets stale, and a server that does not answer refuses nothing."""
    cache = Cache()
    kind = WatchedKind("Models", NOTHING_WORKS, cache)
    health = ControllerHealth((kind,), acting=True)
    assert health.ready() == (True, "acting")
    cache.record_list_error(TransportError("connection refused"))
    assert not cache.answered.is_set()
    cache.record_list_error(ForbiddenError("no", code=403))
    assert cache.answered.is_set()
    assert health.ready() == (False, f"acting; cannot list Models: {NOTHING_WORKS} (no)")
    cache.synced.set()
    assert health.ready() == (True, "acting; cannot list Models: changes to them are not seen (no)")


async def test_the_metric_names_the_kind(autojump_clock):
    """`llmkube_controller_kind_unlisted` is 1 for the kind that cannot be listed, and 0 for the others."""
    async with open_pods() as hands:
        assert 'llmkube_controller_kind_unlisted{kind="Jobs"} 0.0' in generate_latest(hands.cluster.registry).decode()
    cache = Cache()
    cache.record_list_error(ForbiddenError("no", code=403))
    [family] = ControllerHealth((WatchedKind("Jobs", "x", cache),)).collect()
    assert [(one.labels["kind"], one.value) for one in family.samples] == [("Jobs", 1)]


@pytest.mark.soak
async def test_mutant_without_the_gate_is_noticed(autojump_clock, monkeypatch):
    """A controller that takes an unlisted kind for an empty one writes the status that it must not change."""
    monkeypatch.setattr(Informer, "is_known", True)
    with pytest.RaisesGroup(AssertionError, flatten_subgroups=True):
        await test_pods_stay_while_the_place_of_a_service_is_unknown(autojump_clock)
