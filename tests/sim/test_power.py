"""Power use of a service, measured by its agent: its engine's process, and the tokens in its metrics."""

import pytest
import trio

from llmkube.k8s.resource import Key
from llmkube.supervisor.power.meter import PowerMeter
from llmkube.supervisor.power.sample import PowerSample
from sim.world import agent_settings, open_world

CHAT = Key("default", "chat")


class Cores:
    """The processor time of a simulated machine."""

    def __init__(self, machine):
        self.machine = machine

    def of_process(self, pid):
        (child,) = (each for each in self.machine.spawned if each.pid == pid)
        child.live_on()
        return None if child.exit is not None else child.cpu_seconds

    def of_host(self):
        return sum(each.cpu_seconds for each in self.machine.spawned)


async def measured(world, meter, seconds):
    for _ in range(int(seconds // 2)):
        await trio.sleep(2)
        meter.take(PowerSample({"gpu": 30.0, "combined": 30.0}, 2.0))
    return meter.view().services.get(CHAT)


@pytest.mark.ci
async def test_joules_per_token_follow_the_engine(autojump_clock):
    """The value appears with the engine's work, is unknown after its end, and starts again with the next one."""
    async with open_world(settings=agent_settings(lease_renew_seconds=5.0)) as world:
        await world.serve()
        meter = PowerMeter("apple", ("gpu",), world.agent.engines, Cores(world.machine))
        (engine,) = world.machine.live()
        assert (await measured(world, meter, 60)).watts == 0.0, "at rest"
        engine.in_flight = 1
        busy = await measured(world, meter, 600)
        assert busy.watts == 30.0
        before, batches = meter.view().services[CHAT].joules, engine.batches
        busy = await measured(world, meter, 600)
        truth = (busy.joules - before) / (engine.batches - batches)
        assert abs(busy.joules_per_token / truth - 1) < 0.05
        world.machine.kill("chat")
        after = await measured(world, meter, 20)
        assert after.joules_per_token is None
        assert after.joules >= busy.joules
        await world.delete()
        assert await measured(world, meter, 60) is None, "a service that is gone leaves a series behind"
