"""A cordon: requests finish, other hosts serve, the memory is free, and everything returns by itself."""

import datetime

import pytest
import trio

from llmkube.k8s.builtins import Lease
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import CORDON_ANNOTATION
from llmkube.supervisor.engine import health
from llmkube.supervisor.host_cordon import POLL_SECONDS, HostCordon
from llmkube.supervisor.values.cordon import Cordon
from sim.machine import Script
from sim.mutation import assert_caught, do_nothing, rows
from sim.world import agent_settings, open_world

pytestmark = pytest.mark.ci

QUICK = {"lease_renew_seconds": 5.0}


def a_host(**changes):
    return open_world(settings=agent_settings(**QUICK, **changes))


async def test_requests_finish_and_only_the_cordon_is_left(autojump_clock):
    """The endpoint is withdrawn at once, the engine stops after its requests; the objects name the cordon's end."""
    async with a_host() as world:
        engine = await world.serve()
        engine.in_flight = 1
        world.first.cordon(3600)
        await world.until(world.ready_addresses, 0, seconds=POLL_SECONDS + 2)
        await trio.sleep(10)
        assert engine.exit is None, "the request in flight has lost its engine"
        engine.in_flight = 0
        await world.until(world.live, [], "chat", seconds=20)
        await trio.sleep(10)
        assert await world.claims() == {}
        end = world.machine.cordon.end
        assert (await world.condition())[1:] == ("Released", f"sim is cordoned {end}")
        lease = await world.client.get(Lease, Key(world.settings.lease_namespace, "sim"))
        assert lease.metadata.annotations[CORDON_ANNOTATION] == end
        assert await world.phase() == "Pending"
        _, reason, message = await world.condition("Available")
        assert (reason, f"sim is cordoned {end}" in message) == ("NoHost", True), message


async def test_a_request_that_does_not_end_keeps_the_memory_no_longer_than_the_grace(autojump_clock):
    """Memory is free after the drain and the grace at the latest, whatever a client does."""
    async with a_host() as world:
        engine = await world.serve()
        engine.in_flight = 1
        world.first.cordon()
        settings = world.settings
        within = settings.withdraw_seconds + settings.drain_seconds + settings.longest_grace_seconds
        await world.until(world.live, [], "chat", seconds=POLL_SECONDS + within + 1)


async def test_the_mac_serves_again_when_the_time_is_over(autojump_clock):
    """After two hours the service is back by itself, and not a minute earlier."""
    async with a_host() as world:
        await world.serve()
        world.first.cordon(7200)
        await world.until(world.live, [], "chat")
        for _ in range(118):
            await trio.sleep(60)
            assert world.live("chat") == []
        await world.until(world.ready_addresses, 1, seconds=180)
        assert await world.claims() == {0: "sim"}
        assert len(world.machine.spawned) == 2


async def test_uncordon_ends_it_early(autojump_clock):
    """An uncordon applies at the next check."""
    async with a_host() as world:
        await world.serve()
        world.first.cordon()
        await world.until(world.live, [], "chat")
        world.machine.cordon = None
        await world.until(world.ready_addresses, 1, seconds=30)


async def test_another_mac_takes_over(autojump_clock):
    """Another Mac serves the services of the cordoned one, and they stay there after the cordon."""
    async with a_host() as world:
        holder, other = await world.serve_on_one_of_two()
        holder.cordon(600)
        await world.until(world.live, [other.name], "chat", seconds=60)
        await world.until(world.phase, "Ready", seconds=60)
        await trio.sleep(1200)
        assert world.live("chat") == [other.name]
        await world.apply("second")
        await world.until(world.live, lambda found: len(found) == 1, "second")


async def test_nothing_starts_on_a_cordoned_mac(autojump_clock):
    """A new service goes to another Mac, although this one has more free memory."""
    async with a_host() as world:
        await world.add_host("mini")
        await trio.sleep(10)
        world.first.cordon()
        await trio.sleep(2 * POLL_SECONDS)
        for name in ("a", "b", "c"):
            await world.apply(name)
        await trio.sleep(60)
        assert [world.live(name) for name in ("a", "b", "c")] == [["mini"]] * 3
        assert world.machine.spawned == []


async def test_the_cordon_outlives_the_agent(autojump_clock):
    """A new agent starts nothing, drains the engines of a killed one, and serves when the cordon expires."""
    async with a_host() as world:
        engine = await world.serve()
        engine.in_flight = 1
        await world.kill_agent()
        world.first.cordon(600)
        await world.start_agent()
        await world.until(world.ready_addresses, 0, seconds=POLL_SECONDS + 5)
        await trio.sleep(10)
        assert engine.exit is None, "its request was cut off"
        engine.in_flight = 0
        await world.until(world.live, [], "chat", seconds=20)
        await world.first.stop_agent()
        await world.start_agent()
        await trio.sleep(120)
        assert len(world.machine.spawned) == 1
        await world.until(world.ready_addresses, 1, seconds=600)


async def test_no_api_server_is_needed(autojump_clock):
    """Without the cluster, and with an agent that has never reached it, a cordon frees the memory."""
    async with a_host() as world:
        await world.serve()
        await world.kill_agent()
        world.first.cut_off()
        await world.start_agent()
        await trio.sleep(30)
        assert world.live("chat") == ["sim"]
        world.first.cordon(600)
        await world.until(world.live, [], "chat", seconds=60)
        await world.kill_agent()
        await world.start_agent()
        await trio.sleep(60)
        assert world.live("chat") == []
        world.first.cut_off(False)
        await world.until(world.ready_addresses, 1, seconds=900)


async def test_a_cordon_includes_time_asleep(autojump_clock):
    """The wall clock decides: a Mac that sleeps through the end of the cordon serves when it is awake."""
    async with a_host() as world:
        await world.serve()
        world.first.cordon(7200)
        await world.until(world.live, [], "chat")
        world.first.asleep_seconds += 7200
        await world.until(world.ready_addresses, 1, seconds=60)


async def test_a_loading_engine_is_stopped_at_once(autojump_clock):
    """An engine that does not answer yet has no requests to drain."""
    async with a_host() as world:
        world.machine.default = Script(load_seconds=600)
        await world.apply()
        await world.until(world.live, ["sim"], "chat")
        world.first.cordon()
        await world.until(world.live, [], "chat", seconds=POLL_SECONDS + 15)


async def forever(_):
    await trio.sleep_forever()


def never_over(self, now):
    return True


MUTANTS = {
    test_requests_finish_and_only_the_cordon_is_left: {
        "requests are not waited for": (health.Engine, "wait_idle", do_nothing)
    },
    test_the_mac_serves_again_when_the_time_is_over: {"the cordon never ends": (Cordon, "is_active", never_over)},
    test_a_cordon_includes_time_asleep: {
        "it expires by the clock that stops in sleep": (
            HostCordon,
            "utcnow",
            property(lambda self: lambda: datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), lambda self, value: None),
        )
    },
    test_uncordon_ends_it_early: {"the word is read once": (HostCordon, "run", forever)},
    test_a_request_that_does_not_end_keeps_the_memory_no_longer_than_the_grace: {
        "what runs stays": (HostCordon, "serves", property(lambda self: self.accelerators))
    },
}


@pytest.mark.soak
@pytest.mark.parametrize("row", rows(MUTANTS))
def test_mutants_are_caught(row, monkeypatch):
    """Each deliberate bug fails its timeline."""
    assert_caught(monkeypatch, row)
