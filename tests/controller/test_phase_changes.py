"""A new phase is an Event, once."""

import trio

from controller.cluster import open_cluster
from controller.second_controller import Second
from llmkube.controller.settings import ControllerSettings
from llmkube.k8s.builtins import Event


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
        reported = sorted((one.involved_object.kind, one.type, one.reason, one.message, one.count) for one in events)
        assert reported == [
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
    """A service that was ready before is no change for the next controller."""
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
