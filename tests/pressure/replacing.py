"""Helpers for timelines of replaced engines: one service on a host of 64 GiB, and a watcher of its endpoint."""

from contextlib import asynccontextmanager

import trio

from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from pressure.hosts import pressed_world
from sim.memory import shape_of

ONE = {"chat": (10, "normal")}


class Watcher:
    """Checks ten times a second whether the service is published, and where."""

    def __init__(self, world):
        self.world, self.gaps, self.ports = world, 0, []

    async def run(self):
        """Watch until cancelled."""
        while True:
            ready = [child for child in self.world.machine.live("chat") if child.ready]
            published = await self.world.ready_addresses("chat")
            self.gaps += not (ready and published)
            view = self.world.agent.services().get(Key("default", "chat"))
            if view is not None and view.port not in self.ports:
                self.ports.append(view.port)
            await trio.sleep(0.1)


@asynccontextmanager
async def serving_world(services):
    """Run a host of 64 GiB on which the service is served."""
    async with pressed_world(services) as world:
        await world.until(up_to_date, ("True", "UpToDate"), world, seconds=10)
        yield world


@asynccontextmanager
async def watched(world):
    """Watch a service during the block; fail if it did not answer all the time."""
    watcher = Watcher(world)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watcher.run)
        yield watcher
        nursery.cancel_scope.cancel()
    assert not watcher.gaps, f"for {watcher.gaps / 10} s nothing answered"


async def up_to_date(world):
    """Return status and reason of the service's `UpToDate` condition."""
    found = await world.condition("UpToDate", "chat")
    return found[:2] if found else None


def engines(world):
    """Return the live engines of the service, the oldest first."""
    return world.machine.live("chat")


async def count(world):
    await trio.lowlevel.checkpoint()
    return len(engines(world))


async def large(world, source):
    """Change the service's Model to a file of 30 GiB."""
    world.machine.shapes[source] = shape_of(30)
    await world._apply(Model, "chat", {"source": source, "hardware": {"accelerator": "metal"}})
