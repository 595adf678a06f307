"""An `llmkube up` of the version before `spec.activation` is replaced by this one while its engines serve.

`data/up_before_activation.json` was recorded from that version on the simulated host: its objects, its journal and its
processes, when `a` and `b` served, `c` waited for memory and `d` was stopped.
"""

import json
from pathlib import Path

import pytest
import trio

from llmkube.apiserver.storage.revisions import Ref, Store
from llmkube.k8s.resource import Key
from llmkube.router.backends import Backend
from llmkube.supervisor.values.journal import load
from sim.machine import Script, SimChild
from sim.memory import SimMemory, shape_of
from sim.test_activation import SETTINGS, answered, is_idle, resident
from sim.world import open_world

pytestmark = pytest.mark.ci

GIB = 20
RECORDED = json.loads((Path(__file__).parent / "data" / "up_before_activation.json").read_text())


def recorded_store():
    """Return the API server's store as that version left it."""
    found = [(kind, one["metadata"], one) for kind, one in RECORDED["objects"]]
    objects = [(Ref(kind, Key(of.get("namespace", ""), of["name"])), one) for kind, of, one in found]
    return Store(RECORDED["revision"], objects)


def recorded_host(machine):
    """Leave journal and processes on a machine as that version did."""
    machine.entries = {entry.key: entry for entry in map(load, RECORDED["journal"])}
    machine.shapes |= {f"builtin://{name}": shape_of(GIB) for name in "abcd"}
    machine.files |= set(machine.shapes)
    for each in RECORDED["processes"]:
        lists = {name: tuple(each[name]) for name in ("argv", "address", "api_keys")}
        child = SimChild(**(each | lists), script=Script(load_seconds=0))
        machine.spawned.append(child)
        machine.nursery.start_soon(machine._live, child)
    return SimMemory(machine, sizes=dict.fromkeys("abcd", GIB))


async def test_an_up_without_activation_is_upgraded(autojump_clock):
    """Its engines are adopted, and are still the same after minutes; what waited for memory is loaded on request."""
    async with open_world(settings=SETTINGS, store=recorded_store(), memory=recorded_host) as world:
        machine, left = world.machine, list(world.machine.spawned)
        await world.until(world.phase, "Idle", "c", seconds=30)
        assert await is_idle(world, "c")
        for name in "ab":
            await world.until(world.phase, "Ready", name)
            assert (await world.service(name))["status"]["activation"] == "OnRequest"
        assert await world.phase("d") == "Stopped"
        await trio.sleep(300)
        assert machine.live() == machine.spawned == left
        assert isinstance(await answered(world, "c"), Backend)
        assert len(resident(world)) == 2
