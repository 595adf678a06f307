"""A controller that was started by hand uses the existing PriorityClasses, and reports a missing one."""

import attrs
import pytest
import trio
from prometheus_client import CollectorRegistry

from controller.cluster import SETTLED
from controller.podcluster import open_pods
from controller.podobjects import SETTINGS
from llmkube.controller.settings import ControllerSettings
from llmkube.k8s.builtins import PriorityClass
from llmkube.k8s.resource import Key
from llmkube.k8s.workloads import Deployment

BARE = attrs.evolve(SETTINGS, priority_class_prefix=None)
SAFE, OUTRANKING = "llmkube-service-high", "llmkube-high"


async def install(hands, *names):
    for name in names:
        manifest = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
        await hands.client.apply(PriorityClass, {**manifest, "value": 0}, field_manager="admin")
    await trio.sleep(SETTLED)


async def rank(hands):
    return (await hands.json(Deployment))["spec"]["template"]["spec"].get("priorityClassName")


async def message_of(hands):
    [honoured] = [one for one in (await hands.cluster.service()).status.conditions if one.type == "SpecHonoured"]
    return honoured.message if honoured.status == "False" else ""


@pytest.mark.parametrize(
    ("there", "named"),
    [((SAFE, OUTRANKING), SAFE), ((OUTRANKING,), OUTRANKING), (("llmkube-low",), None), ((), None)],
)
async def test_pods_get_the_class_that_is_there(autojump_clock, there, named):
    """Of two, the one that displaces no ordinary pods; without one the service reports the missing class."""
    async with open_pods(workloads=BARE) as hands:
        await install(hands, *there)
        await hands.bring_up(priority="high")
        assert await rank(hands) == named
        assert ("PriorityClass llmkube-service-high" in await message_of(hands)) is (named is None)


async def test_a_class_is_used_when_installed_and_dropped_when_deleted(autojump_clock):
    """The chart's classes may be installed after the controller, and uninstalled: pods could not be created."""
    async with open_pods(workloads=BARE) as hands:
        await hands.bring_up(priority="high")
        assert await rank(hands) is None
        await install(hands, SAFE)
        assert await rank(hands) == SAFE
        assert "spec.priority" not in await message_of(hands)
        await hands.client.delete(PriorityClass, Key("", SAFE))
        await trio.sleep(SETTLED)
        assert await rank(hands) is None


async def test_pods_keep_their_class_while_classes_are_unknown(autojump_clock):
    """A successor that may not list them replaces no pods, and its health reports that it cannot list them."""
    async with open_pods(workloads=BARE) as hands, trio.open_nursery() as nursery:
        cluster = hands.cluster
        await install(hands, SAFE)
        await hands.bring_up(priority="high")
        before = await hands.json(Deployment)
        cluster.controller_scope.cancel()
        cluster.faults.unread.add("priorityclasses")
        cluster.controller_scope, cluster.registry = trio.CancelScope(), CollectorRegistry()
        await nursery.start(cluster.run_controller, ControllerSettings(workloads=BARE))
        await hands.apply(priority="high", replicas=2)
        after = await hands.json(Deployment)
        assert after["spec"]["replicas"] == 2
        assert after["spec"]["template"] == before["spec"]["template"]
        lacks = {"kind": "PriorityClasses"}
        assert cluster.registry.get_sample_value("llmkube_controller_kind_unlisted", lacks) == 1
        nursery.cancel_scope.cancel()


async def test_an_operator_s_setting_is_used_unchanged(autojump_clock):
    """An empty prefix names no class although there is one, and the service reports that its priority has no effect."""
    async with open_pods(workloads=attrs.evolve(SETTINGS, priority_class_prefix="")) as hands:
        await install(hands, SAFE)
        await hands.bring_up(priority="high")
        assert await rank(hands) is None
        assert "the controller sets no PriorityClass" in await message_of(hands)


async def test_a_controller_of_one_namespace_does_not_list_them(autojump_clock):
    """It has no right to, and reports the missing flag; it is still ready."""
    async with open_pods(workloads=BARE, namespace="ml") as hands:
        await install(hands, SAFE)
        await hands.bring_up(priority="high")
        assert "--priority-class-prefix" in await message_of(hands)
        asked = [call.resource for call in hands.cluster.faults.calls]
        assert "priorityclasses" not in asked
