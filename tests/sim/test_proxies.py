"""Published engines and the proxies in front of them, in simulated time."""

import pytest

from llmkube.k8s.builtins import EndpointSlice
from sim.world import agent_settings, open_world


async def test_a_slice_names_the_proxy_and_the_next_agent_keeps_it(autojump_clock):
    """Clients are sent to the proxy's port, not the engine's, even after kill -9 of the agent."""
    async with open_world() as world:
        await world.apply()
        await world.until(world.phase, "Ready", seconds=10)
        (child,) = world.machine.live("chat")
        assert await _published(world) == child.address[1]
        assert child.address[1] != child.port
        await world.kill_agent()
        await world.start_agent()
        await world.until(world.ready_addresses, 1, seconds=60)
        assert [each.pid for each in world.machine.live("chat")] == [child.pid]
        assert await _published(world) == child.address[1]


async def test_an_engine_whose_proxy_does_not_open_is_not_ready(autojump_clock):
    """The service is not Ready, the condition names the proxy, and other attempts follow."""
    async with open_world() as world:
        world.machine.no_proxies = True
        await world.apply()
        await world.until(lambda: _reason(world), "PortTaken", seconds=1200)
        assert await world.ready_addresses() == 0
        assert "proxy" in (await world.condition())[2]
        world.machine.no_proxies = False
        await world.until(world.phase, "Ready", seconds=120)
        assert len(world.machine.live("chat")) == 1


@pytest.mark.parametrize("insecure", [True, False])
async def test_engines_require_a_key_unless_the_lan_is_insecure(autojump_clock, insecure):
    """The engine of an ordinary host requires a key; under --insecure-lan it is published itself, without one."""
    async with open_world(settings=agent_settings(insecure_lan=insecure)) as world:
        await world.apply()
        await world.until(world.phase, "Ready", seconds=10)
        (child,) = world.machine.live("chat")
        assert ("--api-key-file" in child.argv) == (not insecure)
        assert (child.address[1] == child.port) == insecure
        assert bool(child.api_keys[0]) == (not insecure)


async def _reason(world):
    return (await world.condition() or ("", ""))[1]


async def _published(world):
    slices = await world.client.list(EndpointSlice, namespace="default")
    (piece,) = slices.items
    return piece.ports[0].port
