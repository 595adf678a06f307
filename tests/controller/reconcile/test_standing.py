"""What a controller does besides deriving statuses: it takes turns, looks after a namespace and tells what happened."""

import functools
import random

import httpx  # noqa: ASYNC127 (the project's settled choice)
import pytest
import trio
from structlog.testing import capture_logs

from controller.cluster import SETTLED, Faults, open_cluster, utcnow
from llmkube.controller.operator import run_controller
from llmkube.controller.reconcile.namespace import POLL_SECONDS, run_namespace_keeper
from llmkube.controller.settings import ControllerSettings
from llmkube.k8s.builtins import Event, Lease, Namespace
from llmkube.k8s.client import Client
from llmkube.k8s.errors import ForbiddenError, NotFoundError
from llmkube.k8s.lease import DURATION_SECONDS, HOLD_SECONDS, RENEW_SECONDS
from llmkube.k8s.resource import Key

CHAT = Key("ml", "chat")
LEADER = Key("llmkube-system", "llmkube-controller")


class Second:
    """Another controller on the same API server, with a network of its own."""

    def __init__(self, cluster):
        self.faults = Faults(cluster.faults._inner, cluster.faults.store)
        self.scope = trio.CancelScope()
        self.acting = trio.Event()

    async def run(self, settings):
        async with httpx.AsyncClient(transport=self.faults, base_url="http://apiserver") as http:
            with self.scope:
                async with trio.open_nursery() as nursery:
                    start = functools.partial(run_controller, utcnow=utcnow, rng=random.Random(9))
                    await nursery.start(start, Client(http), settings)
                    self.acting.set()


# -- one acts ----------------------------------------------------------------------------------------------------------


async def test_only_the_holder_of_the_lease_writes(autojump_clock):
    """Of two controllers one writes; when it leaves in good order the other goes on within a few seconds."""
    async with open_cluster(identity="one") as cluster, trio.open_nursery() as nursery:
        second = Second(cluster)
        nursery.start_soon(second.run, ControllerSettings(identity="two"))
        await cluster.bring_up()
        assert await cluster.where() == "Ready/InferenceReady"
        assert second.faults.writes == []
        assert (await cluster.client.get(Lease, LEADER)).spec.holder_identity.startswith("one_")
        cluster.controller_scope.cancel()
        await trio.sleep(RENEW_SECONDS + SETTLED)
        assert second.acting.is_set()
        writes = len(cluster.writes)
        await cluster.publish(ready=False)
        assert await cluster.where() == "Creating/Creating"
        assert len(cluster.writes) == writes
        assert second.faults.writes == ["chat"]
        nursery.cancel_scope.cancel()


async def test_a_controller_that_is_cut_off_stops_before_the_next_begins(autojump_clock):
    """A controller without a network gives up its turn; back on it, it waits, and never acts on old knowledge."""
    async with open_cluster(identity="one") as cluster, trio.open_nursery() as nursery:
        second = Second(cluster)
        nursery.start_soon(second.run, ControllerSettings(identity="two"))
        await cluster.bring_up()
        with capture_logs() as logs:
            await cluster.faults.cut()
            await trio.sleep(HOLD_SECONDS)
            assert [line for line in logs if line["event"] == "another controller may act now"]
            assert not second.acting.is_set()
            await trio.sleep(DURATION_SECONDS)
            assert second.acting.is_set()
        writes = len(cluster.writes)
        cluster.faults.down = False
        await cluster.renew()
        await cluster.publish(ready=False)
        await trio.sleep(60)
        assert len(cluster.writes) == writes
        second.scope.cancel()
        await trio.sleep(RENEW_SECONDS + SETTLED)
        await cluster.renew()
        assert await cluster.where() == "Creating/Creating"
        await cluster.publish()
        assert await cluster.where() == "Ready/InferenceReady"
        nursery.cancel_scope.cancel()


async def test_a_lone_controller_needs_no_lease(autojump_clock):
    """Without an identity there is no Lease of a leader."""
    async with open_cluster() as cluster:
        await cluster.bring_up()
        with pytest.raises(NotFoundError):
            await cluster.client.get(Lease, LEADER)


def test_controllers_of_different_namespaces_do_not_wait_for_each_other():
    """Each choice of namespaces has a Lease of its own."""
    assert ControllerSettings().leader_lease == LEADER
    assert ControllerSettings(namespace="ml").leader_lease == Key("llmkube-system", "llmkube-controller.ml")


# -- the namespace of the Leases ---------------------------------------------------------------------------------------


async def test_the_namespace_of_the_leases_is_made(autojump_clock):
    """On a cluster without it, the namespace is there soon, also when it is deleted later or the server was away."""
    async with open_cluster(lease_namespace="elsewhere", identity="one") as cluster:
        await trio.sleep(1)
        key = Key("", "elsewhere")
        assert await cluster.client.get(Namespace, key)
        await cluster.client.delete(Namespace, key)
        await cluster.faults.cut()
        await trio.sleep(POLL_SECONDS + 10)
        cluster.faults.down = False
        await trio.sleep(120)
        assert await cluster.client.get(Namespace, key)
        await cluster.client.get(Lease, Key("elsewhere", "llmkube-controller"))


async def test_a_controller_that_may_not_make_it_says_so_once(autojump_clock):
    """Forbidden is logged once in a day and ends nothing."""
    calls = []

    class Refusing:
        async def get(self, kind, key):
            await trio.lowlevel.checkpoint()
            calls.append(key)
            raise ForbiddenError("namespaces is forbidden", code=403)

    with capture_logs() as logs, trio.move_on_after(86_400):
        await run_namespace_keeper(Refusing(), "llmkube-system", random.Random(0))
    assert len(logs) == 1
    assert "forbidden" in logs[0]["error"]
    assert 140 < len(calls) <= 145


# -- events ------------------------------------------------------------------------------------------------------------


async def test_ready_and_failed_are_events(autojump_clock):
    """A service that becomes ready, or fails, has an Event with the reason; other phases have none."""
    async with open_cluster(identity="one") as cluster, trio.open_nursery() as nursery:
        nursery.start_soon(cluster.run_host)
        await cluster.bring_up()
        await cluster.publish(ready=False)
        await cluster.report_service("Loaded", "CrashLoopBackOff", message="exit code 1, token=abcdef")
        assert await cluster.where() == "Failed/CrashLoopBackOff"
        await cluster.publish()
        await cluster.report_service("Loaded", "Loaded")
        assert await cluster.where() == "Ready/InferenceReady"
        events = (await cluster.client.list(Event, namespace="ml")).items
        told = sorted((one.involved_object.kind, one.type, one.reason, one.message, one.count) for one in events)
        assert told == [
            ("InferenceService", "Normal", "InferenceReady", "1 of 1 replicas ready", 2),
            ("InferenceService", "Warning", "CrashLoopBackOff", "exit code 1, [redacted]", 1),
            ("Model", "Normal", "ModelReady", "a message", 1),
        ]
        service = await cluster.service()
        about = {one.involved_object.uid for one in events if one.involved_object.kind == "InferenceService"}
        assert about == {service.metadata.uid}
        assert {one.reporting_instance for one in events} == {"one"}
        nursery.cancel_scope.cancel()


async def test_a_restarted_controller_repeats_no_event(autojump_clock):
    """What was ready before is no news to the next controller."""
    async with open_cluster(identity="one") as cluster, trio.open_nursery() as nursery:
        nursery.start_soon(cluster.run_host)
        await cluster.bring_up()
        before = len((await cluster.client.list(Event)).raw)
        cluster.controller_scope.cancel()
        second = Second(cluster)
        nursery.start_soon(second.run, ControllerSettings(identity="two"))
        await trio.sleep(120)
        assert second.acting.is_set()
        assert len((await cluster.client.list(Event)).raw) == before
        nursery.cancel_scope.cancel()
