"""A host whose memory is watched: the simulated world, with the whole agent."""

from contextlib import asynccontextmanager
from functools import partial

import trio

from llmkube.k8s.builtins import Event
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from sim.memory import SimMemory, shape_of
from sim.world import agent_settings, open_world

USUAL = {"chat": (26, "high"), "embed": (6, "normal"), "draft": (10, "low")}


@asynccontextmanager
async def pressed_world(services=USUAL, *, other=8.0, **settings):
    """Run a host of 64 GiB with these services, all of them loaded."""
    memory = partial(SimMemory, other=other)
    async with open_world(settings=agent_settings(**settings), memory=memory) as world:
        for name, (gib, priority) in services.items():
            await serve(world, name, gib, priority)
        await world.until(running, sorted(services), world, seconds=60)
        yield world


async def serve(world, name, gib, priority="normal", budget=None, **spec):
    """Create or change a service whose model has this size."""
    source = f"https://models.example/{name}.gguf"
    world.machine.shapes[source] = shape_of(gib)
    world.machine.memory.sizes[name] = gib + 0.1
    hardware = {"accelerator": "metal"} | ({"memoryBudget": budget} if budget else {})
    await world._apply(Model, name, {"source": source, "hardware": hardware})
    await world._apply(InferenceService, name, {"modelRef": name, "priority": priority, **spec})


async def running(world):
    """Return the services whose engines answer, in order."""
    await trio.lowlevel.checkpoint()
    return sorted(child.name for child in world.machine.live() if child.ready)


async def why(world, name):
    """Return reason and message of the service's scheduling status."""
    status = (await world.service(name)).get("status", {})
    return status.get("schedulingStatus"), status.get("schedulingMessage")


async def events(world, reason):
    """Return the messages of the Events with a reason, by service."""
    found = (await world.client.list(Event)).items
    return {one.involved_object.name: one.message for one in found if one.reason == reason}
