"""What the timelines of replaced engines share: one service on a host of 64 GiB, and somebody who watches it."""

from contextlib import asynccontextmanager

import trio

from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from pressure.hosts import pressed_world
from sim.memory import shape_of

ONE = {"chat": (10, "normal")}


class Watcher:
    """Looks ten times a second whether the service is published, and where."""

    def __init__(self, world):
        self.world, self.gaps, self.ports = world, 0, []

    async def run(self):
        """Never return."""
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
    """A host of 64 GiB on which the service is served."""
    async with pressed_world(services) as world:
        await world.until(up_to_date, ("True", "UpToDate"), world, seconds=10)
        yield world


@asynccontextmanager
async def watched(world):
    """Watch a service for the time of the block; it must have answered all the while."""
    watcher = Watcher(world)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watcher.run)
        yield watcher
        nursery.cancel_scope.cancel()
    assert not watcher.gaps, f"for {watcher.gaps / 10} s nothing answered"


async def up_to_date(world):
    """What the service says of its newness, in two words."""
    found = await world.condition("UpToDate", "chat")
    return found[:2] if found else None


def engines(world):
    """The live engines of the service, the oldest first."""
    return world.machine.live("chat")


async def count(world):
    await trio.lowlevel.checkpoint()
    return len(engines(world))


async def large(world, source):
    """Have the service's Model come from a file of 30 GiB."""
    world.machine.shapes[source] = shape_of(30)
    await world._apply(Model, "chat", {"source": source, "hardware": {"accelerator": "metal"}})
