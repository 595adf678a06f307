"""A service whose Model moves between hosts and pods has one Service, which both programs write."""

import pytest
import trio

from controller.cluster import AGENT, SETTLED
from controller.podcluster import open_pods
from llmkube.k8s.builtins import Service
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.resource import Key
from llmkube.k8s.workloads import Deployment
from llmkube.supervisor.service.status_manager import service_manifest


async def test_a_service_that_moves_to_a_host_leaves_nothing(autojump_clock):
    """When its Model requests metal, the pods' objects are deleted."""
    async with open_pods() as hands:
        await hands.bring_up()
        await hands.create_model(hardware={"accelerator": "metal"})
        assert await hands.where() == "Pending/NoHost"
        assert not await hands.exists(Deployment)
        assert not await hands.exists(Service)


CHAT = Key("ml", "chat")
METAL = {"accelerator": "metal"}


async def publish(hands):
    """Publish as an agent whose host serves the service."""
    service = await hands.client.get(InferenceService, CHAT)
    await hands.client.apply(Service, service_manifest(service), field_manager=AGENT)
    await trio.sleep(SETTLED)


async def ports_and_selector(hands):
    spec = (await hands.client.get(Service, CHAT)).spec
    return [port.port for port in spec.ports], dict(spec.selector).get("app")


@pytest.mark.parametrize("port", [8080, 80])
async def test_pods_are_reached_by_the_service_that_a_host_has_published(port, autojump_clock):
    """For any port, now and after an edit, the host's port does not stay next to it and have both refused."""
    async with open_pods() as hands:
        await hands.create_model(hardware=METAL)
        await hands.apply(endpoint={"port": port})
        await publish(hands)
        await hands.bring_up(endpoint={"port": port})
        assert await ports_and_selector(hands) == ([port], "chat")
        await hands.create_service(endpoint={"port": 9000})
        await hands.where()
        await hands.roll_out()
        assert await hands.where() == "Ready/InferenceReady"
        assert await ports_and_selector(hands) == ([9000], "chat")


async def test_an_agent_that_comes_back_late_blocks_no_edit(autojump_clock):
    """The port of a host that republishes before it knows that pods serve is removed with the next edit."""
    async with open_pods() as hands:
        await hands.bring_up()
        await publish(hands)
        await hands.apply(endpoint={"port": 9000})
        assert await ports_and_selector(hands) == ([9000], "chat")


async def test_a_host_that_was_quicker_keeps_its_published_endpoint(autojump_clock):
    """A controller that learns late of the move drops its part, the selector, and does not delete the Service."""
    async with open_pods() as hands:
        await hands.bring_up()
        await publish(hands)
        await hands.create_model(hardware=METAL)
        assert await hands.where() == "Pending/NoHost"
        assert await ports_and_selector(hands) == ([8080], None)
