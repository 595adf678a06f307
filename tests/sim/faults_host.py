"""Faults of engines, of hosts and of the networks between them."""

import math

import attrs
import trio

from llmkube.supervisor.values.host_addresses import HostAddress
from sim.machine import Script
from sim.stage import CALM, NotApplicable, api_away, at, fault, row, span

MAX_LEAKED_GIB = 8.0


# -- engines
@fault("C4", "an engine is killed while it serves")
async def engine_killed(stage, rng):
    _, child = stage.engine(rng, ready=True)
    child.end(-9)
    await trio.lowlevel.checkpoint()


@fault("C4 C1", "an engine is killed while it loads")
async def killed_while_loading(stage, rng):
    host, child = stage.engine(rng, ready=True)
    with stage.script(host, child.name, attrs.evolve(CALM, load_seconds=30.0)):
        child.end(-9)
        await trio.sleep(span(rng, 0.5, 25))
        for one in host.machine.live(child.name):
            one.end(-11)


@fault("C4 C8", "an engine is killed while it is being stopped")
async def killed_while_ending(stage, rng):
    name = stage.pick_desired(rng)
    children = [child for host in stage.world.hosts.values() for child in host.machine.live(name)]
    for child in children:
        child.script, child.in_flight = attrs.evolve(child.script, stop_seconds=8.0), rng.randint(0, 1)
    await stage.edit(rng, name)
    await trio.sleep(span(rng, 0.05, 8))
    for child in children:
        child.end(-9)


@fault("C19", "every engine of a host is killed for lack of memory")
async def massacre(stage, rng):
    host, _ = stage.engine(rng)
    for child in host.machine.live():
        child.end(-9)
    await trio.lowlevel.checkpoint()


def behaves(script, *, low=20, high=400):
    """Return a fault in which the next engines of a service misbehave for a while; the running one is killed."""

    async def inject(stage, rng):
        host, child = stage.engine(rng)
        with stage.script(host, child.name, script):
            child.end(-9)
            await trio.sleep(span(rng, low, high))

    return inject


BUSY_PORT = ("llama-server: cannot listen on 192.0.2.10 port 40001: Address already in use",)
for _name, _codes, _phrase, _script in (
    ("bad-flag", "C1", "engines exit at start", Script(load_seconds=math.inf, life_seconds=0.05)),
    ("crash-loop", "C2", "engines serve for seconds and exit", Script(load_seconds=1, life_seconds=4)),
    ("exit-zero", "C3", "engines exit with 0 a minute after they were started", Script(3, 60, exit_code=0)),
    ("load-stall", "C5", "loads stop to move", Script(load_seconds=900, stalls_after=5)),
    ("slow-load", "C6", "a load takes minutes", Script(load_seconds=200)),
    ("stubborn", "C8", "engines ignore TERM", Script(load_seconds=3, stop_seconds=math.inf)),
    ("deaf", "C15", "engines never listen on their port", Script(load_seconds=3, stalls_after=5, deaf=True)),
    ("wrong-model", "C16", "engines serve another model", Script(load_seconds=2, model_id="somebody-else")),
    ("port-taken", "B16", "another process always takes the port first", Script(9, 0.5, words=BUSY_PORT)),
    ("intruder", "B17", "another program answers on the port", Script(load_seconds=2, intruder=True)),
    ("segfault", "C4", "engines die of a segmentation fault after half a minute", Script(2, 30, exit_code=-11)),
):
    row(_name, _codes, _phrase, behaves(_script))


@fault("C8", "an engine ignores TERM while it is replaced")
async def stubborn_stop(stage, rng):
    _, child = stage.engine(rng, ready=True)
    child.script = attrs.evolve(child.script, stop_seconds=math.inf)
    await stage.edit(rng, child.name)


@fault("C9", "an engine is stuck in the kernel: no signal ends it")
async def stuck_in_kernel(stage, rng):
    _, child = stage.engine(rng, ready=True)
    child.odd = child.stuck = child.frozen = True
    await trio.sleep(span(rng, 5, 400))
    child.unstick()


@fault("C20", "requests in flight do not end while an engine is replaced")
async def slow_drain(stage, rng):
    _, child = stage.engine(rng, ready=True)
    child.in_flight = 3
    await stage.edit(rng, child.name)
    await trio.sleep(span(rng, 5, 60))
    child.in_flight = 0


def becomes(low=20, high=400, *, harmful=True, **how):
    """Return a fault in which a serving engine starts to misbehave."""

    async def inject(stage, rng):
        _, child = stage.engine(rng, ready=True)
        child.odd = child.odd or harmful
        for name, value in how.items():
            setattr(child, name, value)
        await trio.sleep(span(rng, low, high))
        for name in how:
            setattr(child, name, attrs.fields_dict(type(child))[name].default)

    return inject


row("wedged", "C7", "requests make no progress, probes are answered", becomes(in_flight=3, pace=0.0, counts=False))
row("frozen", "C7", "an engine is stopped by a signal", becomes(frozen=True, in_flight=1))
row("frozen-briefly", "C7", "an engine is stopped and continued", becomes(frozen=True, low=0.1, high=3, harmful=False))
row("mute", "C5", "an engine accepts and never answers", becomes(mute=True))
row("late", "N6 C7", "an idle engine answers late", becomes(slow_seconds=8.0, harmful=False))
row(
    "long-prompt",
    "C6 C7",
    "an engine answers nothing while it computes",
    becomes(mute=True, in_flight=1, harmful=False),
)
row("port-lost", "C14", "an engine listens no more", becomes(closed=True))
row("busy", "C7 C13", "an engine has work for minutes", becomes(in_flight=8, harmful=False))


@fault("C12", "an engine leaks memory for minutes")
async def leak(stage, rng):
    """Leak no more than leaves memory for the others, as the highest use of an engine is learned as its need."""
    host, child = stage.engine(rng, ready=True)
    memory = host.machine.memory
    if memory is None:
        raise NotApplicable
    gib_per_step, until = span(rng, 0.02, 1), trio.current_time() + span(rng, 60, 900)
    try:
        while child.exit is None and trio.current_time() < until:
            for each in host.machine.live():
                each.odd = True  # any of them may be evicted
            memory.leaked[child.pid] = min(MAX_LEAKED_GIB, memory.leaked.get(child.pid, 0.0) + gib_per_step)
            await trio.sleep(2)
    finally:
        memory.leaked.pop(child.pid, None)


# -- hosts and networks
@fault("N4", "the host sleeps and wakes up")
async def sleep(stage, rng):
    host = stage.host(rng)
    with stage.api_faults(host, kind="half-open"):
        if rng.random() < 0.5:
            host.network.hush()
        else:
            host.network.sever()
        await trio.sleep(span(rng, 1, 60))
        host.asleep_seconds += span(rng, 30, 8 * 3600)


@fault("A25", "the wall clock is set")
async def clock_set(stage, rng):
    stage.host(rng).asleep_seconds += rng.choice((-3600, -60, 60, 3600))
    await trio.lowlevel.checkpoint()


@fault("A26", "the wall clock runs twice as fast")
async def clock_fast(stage, rng):
    host = stage.host(rng)
    for _ in range(rng.randint(2, 12)):
        host.asleep_seconds += 10.0
        await trio.sleep(10)


def _host_that_may_move(stage, rng):
    host = stage.host(rng)
    if host.machine.reach is None:
        raise NotApplicable
    return host


@fault("N1", "the host gets another address")
async def moved(stage, rng):
    host = _host_that_may_move(stage, rng)
    before = host.machine.reach
    with stage.monitor.disturbed(host):
        host.machine.reach = at(f"198.51.100.{rng.randint(1, 9)}")
        await trio.sleep(span(rng, 1, 300))
        if rng.random() < 0.5:
            host.machine.reach = before


@fault("N2", "another route appears, and the old address stays")
async def another_route(stage, rng):
    host = _host_that_may_move(stage, rng)
    if host.machine.reach.address is None:
        raise NotApplicable
    host.machine.reach = at(f"198.51.100.{rng.randint(1, 9)}", host.machine.reach.address)
    await trio.lowlevel.checkpoint()


@fault("N1 N9", "the host has no address for a while, or only no route")
async def no_address(stage, rng):
    host = _host_that_may_move(stage, rng)
    before = host.machine.reach
    own = before.own if rng.random() < 0.5 else frozenset()
    with stage.api_faults(host, down=True):
        host.network.sever()
        host.machine.reach = HostAddress(None, problem="no route", own=own)
        try:
            await trio.sleep(span(rng, 1, 300))
        finally:
            host.machine.reach = before


@fault("N3", "the host comes to a network with IPv6 only")
async def ipv6(stage, rng):
    host = _host_that_may_move(stage, rng)
    host.machine.reach = at(f"2001:db8::{rng.randint(1, 9)}")
    await trio.lowlevel.checkpoint()


@fault("N7", "the power of a host fails, and comes back")
async def power_cut(stage, rng):
    host = stage.host_with_agent(rng)
    async with stage.away(host, "kill"):
        host.machine.lose_power()
        await trio.sleep(span(rng, 1, 400))


@fault("N7 B5", "the power of a host fails, and its disk has lost the journal and the files")
async def power_cut_with_loss(stage, rng):
    host = stage.host_with_agent(rng)
    async with stage.away(host, "kill"):
        host.machine.lose_power()
        host.machine.entries.clear()
        host.machine.files.clear()
        await trio.sleep(span(rng, 1, 100))


@fault("N5", "a host is cut off from the cluster", hosts=2)
async def partition(stage, rng):
    await api_away(stage, span(rng, 10, 600), stage.host(rng))


@fault("N5 N7", "every host is cut off, one after the other", hosts=2)
async def partition_in_turn(stage, rng):
    for host in stage.world.hosts.values():
        await api_away(stage, span(rng, 5, 120), host)


@fault("N5", "the memory that hosts have free changes", hosts=2)
async def memory_moves(stage, rng):
    stage.host(rng).machine.free_bytes = rng.choice((0, 1 << 30, 16 << 30, 60 << 30))
    await trio.lowlevel.checkpoint()
