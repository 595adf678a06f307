"""API keys from Secrets, in simulated time: missing, there, rotated, and through the end of an agent."""

import base64

import pytest
import trio

from llmkube.base.errors import UserError
from llmkube.k8s.builtins import Secret
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.errors import ForbiddenError
from llmkube.supervisor.client_keys import ClientKeys
from sim.world import agent_settings, open_world

REF = {"name": "chat-keys"}


async def put(world, text):
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "chat-keys", "namespace": "default"}}
    data = {"api-key": base64.b64encode(text.encode()).decode()}
    await world.client.apply(Secret, body | {"data": data}, field_manager="user")


async def reason(world, kind="Loaded"):
    return (await world.condition(kind) or ("", ""))[1]


async def keys_of(world):
    await trio.lowlevel.checkpoint()
    return [child.api_keys[1:] for child in world.machine.live("chat")]


@pytest.mark.parametrize("insecure", [False, True])
async def test_a_service_waits_for_its_secret_and_is_published_without_a_proxy(autojump_clock, insecure):
    """Without the Secret nothing runs, and the condition says how to make it; with it, clients reach the engine."""
    async with open_world(settings=agent_settings(insecure_lan=insecure)) as world:
        await world.apply(apiKeySecretRef=REF)
        await world.until(reason, "APIKeysUnavailable", world, seconds=30)
        assert "create secret generic chat-keys --from-literal=api-key=" in (await world.condition())[2]
        assert not world.machine.spawned
        await put(world, "first\nsecond\n")
        await world.until(world.phase, "Ready", seconds=120)
        (child,) = world.machine.live("chat")
        assert child.api_keys[1:] == ("first", "second")
        assert child.api_keys[0]
        assert child.address[1] == child.port
        assert "--no-slots" in child.argv
        assert not {"first", "second"} & set(child.argv)


async def test_rotated_keys_are_taken_and_lost_ones_leave_the_engine(autojump_clock):
    """A minute after the Secret has changed, an engine has the new keys; when it is gone, what runs goes on."""
    async with open_world() as world:
        await put(world, "old")
        await world.apply(apiKeySecretRef=REF)
        await world.until(world.phase, "Ready", seconds=30)
        await put(world, "new\nold")
        await world.until(keys_of, [("new", "old")], world, seconds=120)
        await world.until(world.phase, "Ready", seconds=60)
        await put(world, "bad key")
        await world.until(reason, "APIKeysUnavailable", world, "UpToDate", seconds=120)
        assert await keys_of(world) == [("new", "old")]
        await put(world, "new")
        await world.until(keys_of, [("new",)], world, seconds=120)
        await world.until(reason, "UpToDate", world, "UpToDate", seconds=60)
        assert len(world.machine.spawned) == 3


async def test_the_next_agent_knows_which_keys_an_engine_has(autojump_clock):
    """After kill -9 the engine is adopted; without an API server it is started again with its keys."""
    async with open_world() as world:
        await put(world, "one")
        await world.apply(apiKeySecretRef=REF)
        await world.until(world.phase, "Ready", seconds=30)
        await world.kill_agent()
        await world.start_agent()
        await trio.sleep(120)
        assert len(world.machine.spawned) == 1
        await world.kill_agent()
        await put(world, "two")
        await world.start_agent()
        await world.until(keys_of, [("two",)], world, seconds=120)
        await world.kill_agent()
        world.faults.down = True
        await world.start_agent()
        world.machine.kill("chat")
        await world.until(keys_of, [("two",)], world, seconds=60)
        world.faults.down = False


async def test_what_may_not_be_read_names_the_command():
    """A host reads no Secret but those that it was joined with."""

    async def read(key):
        await trio.lowlevel.checkpoint()
        raise ForbiddenError("x", code=403)

    body = {"metadata": {"name": "chat", "namespace": "ns"}, "spec": {"modelRef": "m", "apiKeySecretRef": REF}}
    with pytest.raises(UserError, match=r"llmkube agent join … --secret chat-keys"):
        await ClientKeys(read).find(decode(InferenceService, body))
