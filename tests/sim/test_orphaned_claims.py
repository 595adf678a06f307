"""Claims of dead hosts on deleted services are removed by any host, and no others are."""

import trio

from llmkube.k8s.label_selectors import parse_selector
from sim.world import agent_settings, open_world


def world_of_two():
    return open_world(settings=agent_settings(lease_renew_seconds=5.0))


async def serving_on_the_first(world, **options):
    """Run a service that the first host has claimed, with a second host that could serve it."""
    await world.serve(**options)
    assert await world.claims() == {0: "sim"}


async def test_the_claim_of_a_dead_host_on_a_deleted_service_goes(autojump_clock):
    """Whether the service is deleted before or after the death of its host, another host removes the claim."""
    for pause in (1.0, 40.0):
        async with world_of_two() as world:
            await serving_on_the_first(world)
            await world.add_host("mini", accelerators=frozenset({"cpu"}))
            await world.first.die()
            await trio.sleep(pause)
            await world.delete()
            await world.until(world.claims, {}, seconds=60)


async def test_a_host_that_returns_removes_its_own_claim(autojump_clock):
    """Without other hosts, the claim on a service that was deleted meanwhile is removed when its host is back."""
    async with world_of_two() as world:
        await serving_on_the_first(world)
        await world.first.die()
        await world.delete()
        await trio.sleep(60)
        assert await world.claims() == {0: "sim"}
        await world.start_agent()
        await world.until(world.claims, {}, seconds=30)
        assert world.machine.live() == []


async def test_a_claim_on_an_unselected_service_is_kept(autojump_clock):
    """A host whose selector excludes a service removes a dead host's claim only once the service is deleted."""
    async with world_of_two() as world:
        await world.add_host("mini", selector=parse_selector("team=b"))
        await serving_on_the_first(world, labels={"team": "a"})
        await world.first.die()
        await trio.sleep(120)
        assert await world.claims() == {0: "sim"}
        await world.delete()
        await trio.sleep(120)
        await world.start_agent()
        await world.until(world.claims, {}, seconds=30)


async def test_the_claim_of_a_live_host_is_never_removed_by_another(autojump_clock):
    """A deleted service whose host still drains keeps its claim until that host releases it."""
    async with world_of_two() as world:
        await world.add_host("mini", accelerators=frozenset({"cpu"}))
        await serving_on_the_first(world)
        (engine,) = world.machine.live()
        engine.in_flight = 1
        await world.delete()
        await trio.sleep(10)
        assert await world.claims() == {0: "sim"}
        engine.in_flight = 0
        await world.until(world.claims, {}, seconds=30)
