"""The agent calls only the API that its role declares."""

import pytest
import trio

from k8s.api_calls import DISCOVERY, ApiCall, undeclared, unused
from llmkube.supervisor.rights import PROGRAM
from sim import world as sim_world
from sim.world import agent_settings, open_world


@pytest.fixture
def calls(monkeypatch):
    """Record every request of the agent, from its start."""
    recorded = []

    class Recording(sim_world.Network):
        async def handle_async_request(self, request):
            if not DISCOVERY.fullmatch(request.url.path):
                recorded.append(ApiCall.of(request))
            return await super().handle_async_request(request)

    monkeypatch.setattr(sim_world, "Network", Recording)
    return recorded


@pytest.mark.ci
@pytest.mark.parametrize("api", ["endpointslices", "endpoints"])
async def test_what_the_agent_does_is_what_it_declares(calls, api, autojump_clock):
    """A service that is created, crashes, loses its network, changes and is deleted needs no undeclared right."""
    settings = agent_settings(
        advertise_address=sim_world.ADDRESS,
        endpoints_api=api,
        lease_renew_seconds=5.0,
        reassert_seconds=240.0,
        api_server="https://192.0.2.100",  # so that it lists nodes, which the embedded API server does not have
    )
    async with open_world(settings=settings) as world:
        await world.apply()
        await world.until(world.phase, "Ready") if api == "endpointslices" else await trio.sleep(60)
        world.faults.down = True
        world.network.sever()
        await trio.sleep(120)
        world.faults.down = False
        await world.apply(contextSize=2048)
        await trio.sleep(300)
        await world.add_host("mini")
        await trio.sleep(60)
        await world.first.die()
        await world.until(world.claims, {0: "mini"}, seconds=60)
        await world.delete()
        await trio.sleep(300)
        await world.apply()
        await world.until(world.claims, {0: "mini"}, seconds=60)
        await world.hosts["mini"].die()
        await world.delete()
        await world.start_agent()  # finds the claim of a dead host
        await world.until(world.claims, {}, seconds=60)
    assert undeclared(calls, PROGRAM) == set()
    other = {"endpointslices": "endpoints", "endpoints": "endpointslices"}[api]
    # Rights of the other form of endpoints, of events, of nodes where they exist, and of
    # sources that need a token (tests/supervisor/test_fetching.py).
    spare = {"create events", "patch events", "get secrets", "watch nodes"}
    spare |= {f"{verb} {other}" for verb in ("create", "patch", "list")}
    assert unused(calls, PROGRAM) <= spare
