import datetime
import random

import attrs
import pytest
import trio

from cli.cli_objects import condition, model, service
from cli.memory_cluster import NOW, open_cluster_client
from llmkube.cli.commands.services.readiness import SETTLE_SECONDS, STALE_SECONDS, Arrival, Failure, stand_of
from llmkube.cli.commands.tools.files import demo_manifests
from llmkube.cli.commands.tools.server_side_apply import Applier
from llmkube.cli.informer import open_follow
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key

DEMO = Key("default", "demo")
ACCEPTED = condition("Accepted", True, "Accepted")
LOADED = condition("Loaded", True, "Loaded")
FETCHED = condition("Fetched", True, "Fetched")
NEWEST = condition("UpToDate", True, "UpToDate")
REPLACING = condition("UpToDate", False, "Replacing", "loading")
NOT_REPLACED = condition("UpToDate", False, "CrashLoopBackOff", "serves on: exit code 1\nerror: no memory")


@pytest.mark.parametrize(
    ("found", "its_model", "done", "failure"),
    [
        (service(), None, 0, "ModelNotFound"),
        (service(), model(), 0, ""),
        (service("chat", condition("Accepted", False, "Invalid", "spec.x")), model(), 0, "Invalid"),
        (service(), model("chat", condition("Fetched", False, "FileNotFound")), 0, "FileNotFound"),
        (service(), model("chat", condition("Fetched", False, "FetchFailed")), 0, ""),
        (service("chat", condition("Available", False, "NoHost")), model(), 0, "NoHost"),
        (service(), model("chat", FETCHED), 1, ""),
        (service("chat", ACCEPTED, condition("Loaded", False, "Loading")), model("chat", FETCHED), 1, ""),
        (service("chat", ACCEPTED, condition("Loaded", False, "Restarting")), model("chat", FETCHED), 1, ""),
        (service("chat", ACCEPTED, condition("Loaded", False, "CrashLoopBackOff")), model("chat", FETCHED), 1, "Crash"),
        (service("chat", LOADED, phase="Ready"), model("chat", FETCHED), 1, ""),
        (service("chat", ACCEPTED, LOADED, phase="Creating"), model("chat", FETCHED), 2, ""),
        (service("chat", ACCEPTED, LOADED, phase="Ready"), model("chat", FETCHED), 3, ""),
        (service("chat", ACCEPTED, LOADED, NEWEST, phase="Ready"), model("chat", FETCHED), 3, ""),
        (service("chat", ACCEPTED, LOADED, REPLACING, phase="Ready"), model("chat", FETCHED), 1, ""),
        (service("chat", ACCEPTED, LOADED, NOT_REPLACED, phase="Ready"), model("chat", FETCHED), 1, "Crash"),
    ],
)
def test_where_a_service_stands(found, its_model, done, failure):
    """Each state of the conditions is so many steps done, and a failure exactly when waiting is no plan."""
    stand = stand_of(found, its_model, NOW)
    assert stand.done == done
    assert (stand.failure.reason if stand.failure else "").startswith(failure)
    assert bool(stand.failure) == bool(failure)


def test_nothing_wanted_is_reached_when_it_is_stopped():
    """A deployment with --replicas 0 has arrived when the service is Stopped."""
    found = service(phase="Stopped")
    found = attrs.evolve(found, spec=attrs.evolve(found.spec, replicas=0))
    assert stand_of(found, model(), NOW).done == 3


class Steps:
    """A display that remembers."""

    def __init__(self):
        self.said = []

    def going_on(self, step, detail):
        self.said.append(f"{step}: {detail}")

    def done(self, step, detail, seconds):
        self.said.append(f"{step} done")


class World:
    def __init__(self, client, followed):
        self.client = client
        self.followed = followed
        self.steps = Steps()

    async def wait(self, *, changed=False, fresh=("Model", "InferenceService")):
        self.arrival = Arrival(self.followed, DEMO, changed, fresh, self.steps, lambda: NOW)
        return await self.arrival.wait()

    async def say(self, kind, *conditions, **status):
        keys = ("type", "status", "reason", "message", "lastTransitionTime")
        listed = [dict(zip(keys, (*each, "2026-01-01T00:00:00Z"), strict=True)) for each in conditions]
        manifest = {"metadata": {"name": "demo", "namespace": "default"}, "status": {"conditions": listed, **status}}
        await self.client.apply(kind, manifest, field_manager="test", subresource="status")

    async def become_ready(self):
        await self.say(Model, ("Fetched", "True", "Fetched", ""))
        told = (("Accepted", "True", "Accepted", ""), ("Loaded", "True", "Loaded", ""))
        await self.say(InferenceService, *told, phase="Ready")


@pytest.fixture
async def world():
    async with open_cluster_client() as client:
        await Applier(client).apply_all(demo_manifests(), lambda _: None)
        async with open_follow(client, random.Random(7)) as followed:
            yield World(client, followed)


async def test_every_step_is_shown(autojump_clock, world):
    """A new service's steps come in order, with the fetch's progress between them, and the wait ends at Ready."""
    async with trio.open_nursery() as nursery:

        async def wait():
            assert await world.wait() is None

        nursery.start_soon(wait)
        await trio.sleep(1)
        await world.say(Model, ("Fetched", "False", "Fetching", "downloading: 42 %"))
        await trio.sleep(1)
        await world.become_ready()
    told = list(dict.fromkeys(world.steps.said))
    assert told == ["fetch: waiting for an agent", "fetch: downloading: 42 %", *told[2:]]
    assert [each for each in told if each.endswith("done")] == ["fetch done", "load done", "ready done"]


async def test_a_new_services_failure_ends_at_once(autojump_clock, world):
    """What is wrong with something that was just created is told without delay, in the agent's words."""
    await world.say(Model, ("Fetched", "False", "DigestMismatch", "it has abc"))
    began = trio.current_time()
    assert await world.wait() == Failure("DigestMismatch", "it has abc", "Model")
    assert trio.current_time() == began


async def test_a_failure_of_what_was_left_alone_has_to_stand(autojump_clock, world):
    """When only the service was changed, what the Model's file failed with before is given time to go away."""
    await world.say(Model, ("Fetched", "False", "DigestMismatch", "it has abc"))
    began = trio.current_time()
    assert (await world.wait(fresh=("InferenceService",))).reason == "DigestMismatch"
    assert trio.current_time() - began >= STALE_SECONDS


async def test_an_old_failure_has_to_stand(autojump_clock, world):
    """A failure that was there before the change is given time to go away, and believed if it does not."""
    await world.say(Model, ("Fetched", "False", "DigestMismatch", "it has abc"))
    began = trio.current_time()
    assert (await world.wait(changed=True, fresh=())).reason == "DigestMismatch"
    assert STALE_SECONDS <= trio.current_time() - began <= 2 * STALE_SECONDS


async def test_an_old_failure_can_go_away(autojump_clock, world):
    """What failed before the change and works after it is Ready, and not failed."""
    await world.say(Model, ("Fetched", "False", "DigestMismatch", "it has abc"))
    async with trio.open_nursery() as nursery:

        async def wait():
            assert await world.wait(changed=True, fresh=()) is None

        nursery.start_soon(wait)
        await trio.sleep(STALE_SECONDS / 2)
        await world.become_ready()


async def test_a_missing_host_is_given_time(autojump_clock, world):
    """No host for a new service may mean that its agent is just starting; after some seconds it is the failure."""
    await world.say(InferenceService, ("Available", "False", "NoHost", "no live host serves accelerator cpu"))
    began = trio.current_time()
    assert (await world.wait()).reason == "NoHost"
    assert trio.current_time() - began >= STALE_SECONDS
    assert "fetch: no live host serves accelerator cpu" in world.steps.said


async def test_after_a_change_ready_has_to_hold(autojump_clock, world):
    """The old engine's last moment of readiness is not taken for the new one's."""
    await world.become_ready()
    async with trio.open_nursery() as nursery:
        ended = []

        async def wait():
            assert await world.wait(changed=True, fresh=()) is None
            ended.append(trio.current_time())

        began = trio.current_time()
        nursery.start_soon(wait)
        await trio.sleep(SETTLE_SECONDS / 2)
        told = (("Accepted", "True", "Accepted", ""), ("Loaded", "False", "Stopping", "the endpoint is withdrawn"))
        await world.say(InferenceService, *told, phase="Ready")
        await trio.sleep(5)
        assert not ended
        await world.become_ready()
    assert ended[0] - began >= 5 + SETTLE_SECONDS


async def test_what_was_ready_all_along_takes_no_steps(autojump_clock, world):
    """Deploying the same again prints no steps and does not wait."""
    await world.become_ready()
    await trio.sleep(1)  # what was acknowledged is on its way
    began = trio.current_time()
    assert await world.wait(fresh=()) is None
    assert (trio.current_time(), world.steps.said) == (began, [])


async def test_a_deleted_service_ends_the_wait(autojump_clock, world):
    """Somebody else's delete is told, and not waited out."""
    async with trio.open_nursery() as nursery:

        async def wait():
            assert (await world.wait()).reason == "Deleted"

        nursery.start_soon(wait)
        await trio.sleep(1)
        await world.client.delete(InferenceService, DEMO)


def test_the_time_of_a_retry_is_shown():
    """A fetch that is tried again says when."""
    again = condition("Fetched", False, "FetchFailed", "refused; next attempt at 2026-01-01T00:00:09Z")
    assert "in 9.00 s" in stand_of(service(), model("chat", again), NOW + datetime.timedelta(0)).detail
