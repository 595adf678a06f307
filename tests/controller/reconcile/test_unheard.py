"""An object that is gone, or another one by now, makes no work for as long as nothing has been heard of that."""

import pytest
import trio

from controller.cluster import SETTLED
from controller.podcluster import open_pods
from llmkube.controller.writes.owned_objects import OwnedObjects
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.k8s.workloads import Deployment, Job

UNHEARD_SECONDS = 30.0


async def replaced_unheard(hands, owner, child, *, again=True):
    """Delete an object, and make it again, while no watch tells; return how often its child was made meanwhile."""
    faults = hands.cluster.faults
    name = {Model: "phi", InferenceService: "chat"}[owner]
    made = []

    def count(call):
        if call.resource == child.RESOURCE.plural and "create" in call.verbs:
            made.append(call)
            if len(made) > 20:  # else it would go on for ever without any time passing
                faults.delays[call.name] = 1.0

    faults.unheard.add(owner.RESOURCE.plural)
    faults.notice = count
    await hands.client.patch(owner, Key("ml", name), {"metadata": {"finalizers": None}})
    await hands.client.delete(owner, Key("ml", name), propagation="Background")
    if again:
        await (hands.create_model() if owner is Model else hands.create_service())
    await trio.sleep(UNHEARD_SECONDS)
    faults.notice = None
    faults.unheard.clear()
    await trio.sleep(UNHEARD_SECONDS)
    return len(made)


@pytest.mark.parametrize("again", [True, False])
async def test_a_service_that_was_ready_makes_no_pods_for_nobody(again, autojump_clock):
    """What the collector takes stays away until its owner's end is heard of; then a successor gets pods of its own."""
    async with open_pods() as hands:
        await hands.bring_up()
        assert await replaced_unheard(hands, InferenceService, Deployment, again=again) == 0
        assert await hands.exists(Deployment) is again


async def make_service(hands):
    """A service that is being made: nothing new can be said of it for now."""
    await hands.create_model()
    await hands.create_service()
    await trio.sleep(SETTLED)
    await hands.finish_job()
    await trio.sleep(SETTLED)


async def test_a_service_that_was_being_made_makes_no_pods_for_nobody(autojump_clock):
    """The same holds where its status has nothing new to say, so that no refused status tells that it is gone."""
    async with open_pods() as hands:
        await make_service(hands)
        assert await replaced_unheard(hands, InferenceService, Deployment) == 0
        assert await hands.where() == "Creating/Creating"


async def test_a_model_that_is_fetched_is_not_fetched_for_nobody(autojump_clock):
    """The same holds for the Job of a Model."""
    async with open_pods() as hands:
        await hands.create_model()
        await hands.create_service()
        await trio.sleep(SETTLED)
        assert await replaced_unheard(hands, Model, Job) == 0
        await hands.finish_job()
        assert await hands.model_where() == "Ready/ModelReady"


async def test_without_a_look_at_the_owner_controller_and_collector_take_turns(autojump_clock, monkeypatch):
    """A controller that makes again whatever has vanished is noticed."""

    async def believe(*_):
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(OwnedObjects, "_confirm_owner", believe)
    async with open_pods() as hands:
        await make_service(hands)
        assert await replaced_unheard(hands, InferenceService, Deployment) > 20
