"""Random timelines of three hosts: in the end every replica runs once, on the host with its claim."""

import logging

import structlog
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from lengths import RANDOM_HOSTS
from sim.machine import Script
from sim.world import agent_settings, open_world
from virtual_clock import virtual_clock

NAMES = ("a", "b")
HOSTS = ("sim", "mini", "studio")

names, hosts = st.sampled_from(NAMES), st.sampled_from(HOSTS)
steps = st.one_of(
    st.tuples(st.just("sleep"), st.floats(0, 90)),
    st.tuples(st.just("replicas"), names, st.integers(0, 4)),
    st.tuples(st.just("delete"), names),
    st.tuples(st.just("cut"), hosts, st.booleans()),
    st.tuples(st.just("agent"), hosts, st.sampled_from(["stop", "kill", "die", "start"])),
    st.tuples(st.just("sleeps"), hosts, st.floats(0, 7200)),
    st.tuples(st.just("engine"), hosts, names),
)


async def take(world, desired, down, step):
    """Apply one event."""
    match step:
        case ("sleep", seconds):
            await trio.sleep(seconds)
        case ("replicas", name, replicas):
            desired[name] = replicas
            await world.apply(name, replicas=replicas)
        case ("delete", name) if desired.pop(name, None) is not None:
            await world.delete(name)
        case ("cut", host, yes):
            world.hosts[host].cut_off(yes)
        case ("agent", host, "start") if host in down:
            down.remove(host)
            await world.hosts[host].start_agent()
        case ("agent", host, how) if how != "start" and host not in down:
            down.add(host)
            await {"stop": Host.stop, "kill": Host.kill, "die": Host.die}[how](world.hosts[host])
        case ("sleeps", host, seconds):
            world.hosts[host].asleep_seconds += seconds
        case ("engine", host, name) if world.hosts[host].machine.live(name):
            world.hosts[host].machine.kill(name)


class Host:
    """The ends of an agent."""

    @staticmethod
    async def stop(host):
        await host.stop_agent()

    @staticmethod
    async def kill(host):
        await host.kill_agent()

    @staticmethod
    async def die(host):
        await host.die()


async def converge(world, desired, down):
    """After all repairs, wait until every replica runs once, as claimed, without further writes."""
    for name, host in world.hosts.items():
        host.cut_off(False)
        if name in down:
            await host.start_agent()
    await trio.sleep(300)
    for name in NAMES:
        wanted = min(desired.get(name, 0), len(HOSTS))
        live = world.live(name)
        assert len(live) == len(set(live)) == wanted, f"{name} runs on {live}, wanted {wanted}"
        claims = await world.claims(name)
        assert len(claims) == min(max(1, desired[name]), len(HOSTS)) if name in desired else not claims
        assert set(live) <= set(claims.values()), f"{name} runs on {live}, claimed by {claims}"
        assert sorted(host for host, _, ready in await world.slices(name) if ready) == live
        if wanted and wanted == desired[name]:
            assert await world.phase(name) == "Ready"
    before = [await world.claims(name) for name in NAMES], [world.live(name) for name in NAMES]
    spawned = sum(len(host.machine.spawned) for host in world.hosts.values())
    await trio.sleep(300)
    assert before == ([await world.claims(name) for name in NAMES], [world.live(name) for name in NAMES])
    assert spawned == sum(len(host.machine.spawned) for host in world.hosts.values())


@settings(max_examples=RANDOM_HOSTS)
@given(timeline=st.lists(steps, max_size=20), seed=st.integers(0, 2**16))
def test_any_timeline_of_three_hosts_ends_with_each_replica_once(timeline, seed):
    """Hosts that stop, die, sleep, and lose their network in any order leave no replica doubled or missing."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))

    async def main():
        desired, down = {}, set()
        async with open_world(seed=seed, settings=agent_settings(lease_renew_seconds=5.0)) as world:
            for name in HOSTS[1:]:
                await world.add_host(name)
            for host in world.hosts.values():
                host.machine.default = Script(load_seconds=3, stop_seconds=1)
            for step in timeline:
                await take(world, desired, down, step)
            await converge(world, desired, down)

    try:
        trio.run(main, clock=virtual_clock())
    finally:
        structlog.reset_defaults()
