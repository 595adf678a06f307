"""Every status field has one writer, by the managedFields of the API server."""

import trio

from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import AGENT_MANAGER, CONTROLLER_FIELD_MANAGER
from sim.world import agent_settings, open_world


def leaves(fields, path=""):
    """Yield the paths of a fieldsV1 that hold values."""
    for name, below in fields.items():
        if name != ".":
            here = f"{path}/{name.partition(':')[2]}"
            yield from leaves(below, here) if below else (here,)


async def owners(world, kind, name="chat"):
    """Return the writer of each field of a status: the controller, or the agents."""
    found = {}
    for entry in (await world.client.get(kind, Key("default", name))).metadata.managed_fields:
        if entry.get("subresource") == "status":
            who = "agents" if entry["manager"].startswith(AGENT_MANAGER) else entry["manager"]
            for path in leaves(entry["fieldsV1"]):
                found.setdefault(path, set()).add(who)
    return found


async def test_no_field_of_a_status_has_two_writers(autojump_clock):
    """Through loading, serving, an edit, suspension and another host, controller and agents share no field."""
    async with open_world(settings=agent_settings(lease_renew_seconds=5.0)) as world:
        await world.apply()
        for spec in ({}, {"contextSize": 8192}, {"suspend": True}, {}):
            await world.apply(**spec)
            for _ in range(40):
                for kind in (InferenceService, Model):
                    shared = {path: who for path, who in (await owners(world, kind)).items() if len(who) > 1}
                    assert shared == {}
                await trio.sleep(0.5)
        await world.add_host("second")
        await world.first.die()
        await world.until(world.live, ["second"])
        await world.until(world.phase, "Ready")
        of_service, of_model = await owners(world, InferenceService), await owners(world, Model)
        assert {len(who) for who in (*of_service.values(), *of_model.values())} == {1}
        assert of_service["/status/phase"] == of_model["/status/phase"] == {CONTROLLER_FIELD_MANAGER}
        assert of_service["/status/readyReplicas"] == {CONTROLLER_FIELD_MANAGER}
        assert of_model["/status/path"] == of_model["/status/gguf/architecture"] == {"agents"}
