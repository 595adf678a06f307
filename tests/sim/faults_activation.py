"""Events of hosts whose services are loaded on request, and have memory for two of three: clients, users, faults."""

from contextlib import suppress

import attrs
import trio

from llmkube.supervisor.host.sample import Level
from sim.clients import SimClient
from sim.memory import SimMemory, shape_of
from sim.stage import CALM, SOURCES, NotApplicable, Stage, api_away, span
from sim.stage import fault as enter

ACTIVATION_FAULTS = {}

MODEL_GIB = 20.0
"""Size of each model: a host of 64 GiB has memory for two."""

SHORT_GIB = 14.0
"""Memory that other programs take at most: one model still fits."""

ALWAYS = "a"
"""The only service that may be pinned or always loaded; otherwise the rest could not be served."""


def tight(machine):
    """Return the memory of a host with room for two services at a time."""
    machine.shapes.update(dict.fromkeys(SOURCES, shape_of(MODEL_GIB)))
    return SimMemory(machine, sizes=dict.fromkeys(("a", "b", "c"), MODEL_GIB))


def fault(codes, phrase):
    """Return a decorator that adds a function to the table of faults of these hosts."""
    return enter(codes, phrase, table=ACTIVATION_FAULTS)


# -- clients and users
async def _ask(stage: Stage, rng):
    patience = span(rng, 5, 900) if rng.random() < 0.3 else float("inf")
    name, seconds = rng.choice(stage.desired.names), span(rng, 0.1, 200)
    gateway, streams = stage.gateway(stage.host_with_agent(rng)), rng.random() < 0.5
    with trio.move_on_after(patience if rng.random() < 0.5 else float("inf")):  # it leaves
        await gateway.ask(name, seconds=seconds, client=SimClient(patience), streams=streams)


async def _burst(stage: Stage, rng):
    gateway = stage.gateway(stage.host_with_agent(rng))
    async with trio.open_nursery() as nursery:
        for _ in range(rng.randint(3, 9)):
            name, seconds = rng.choice(stage.desired.names), span(rng, 0.1, 30)
            nursery.start_soon(lambda name=name, seconds=seconds: gateway.ask(name, seconds=seconds))
            await trio.sleep(span(rng, 0.001, 5))


async def _load(stage: Stage, rng):
    name = stage.pick_desired(rng)
    stage.monitor.user_loads(name)
    stage.host_with_agent(rng).agent.activator.load(f"default/{name}")


async def _unload(stage: Stage, rng):
    name = stage.pick_desired(rng)
    stage.monitor.user_unloads(name)
    stage.host_with_agent(rng).agent.activator.unload(f"default/{name}")


async def _keep_alive(stage: Stage, rng):
    name = stage.pick_desired(rng)
    seconds = None if name == ALWAYS and rng.random() < 0.5 else span(rng, 5, 300)
    activator = stage.host_with_agent(rng).agent.activator
    stage.monitor.user_loads(name)
    if seconds is not None:
        stage.monitor.user_unloads(name)
    activator.pin(f"default/{name}", seconds)


async def _activation(stage: Stage, rng):
    """Change `spec.activation`; a service that stays loaded has a priority, since an equal one displaces nothing."""
    name = stage.pick_desired(rng)
    choices = [{}, {"idleTimeout": "15s"}, {"idleTimeout": "40s", "maxHold": "90s"}, {"mode": "OnRequest"}]
    if name == ALWAYS:
        choices += [{"mode": "Always"}, {"pin": True}]
    chosen = rng.choice(choices)
    priority = "high" if chosen.get("mode") == "Always" or chosen.get("pin") else "normal"
    await stage.desired.apply(stage.world, name, activation=chosen, priority=priority)


ACTIVATION_USERS = {
    "ask": _ask,
    "burst": _burst,
    "load": _load,
    "unload": _unload,
    "keep-alive": _keep_alive,
    "activation": _activation,
}
"""Actions of clients and users, by name."""


# -- faults while requests are held
def while_held(codes, phrase):
    """Return a decorator for a fault that happens while a request is held by a service whose load takes a while."""

    def enter_held(inject):
        async def held(stage, rng):
            host = stage.host_with_agent(rng)
            idle = [name for name in sorted(stage.desired.specs) if not host.machine.live(name)]
            if not idle:
                raise NotApplicable
            name, gateway = rng.choice(idle), stage.gateway(host)
            with stage.script(host, name, attrs.evolve(CALM, load_seconds=30.0)):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(lambda: gateway.ask(name, seconds=5.0, streams=True))
                    await trio.sleep(span(rng, 0.01, 25))
                    with suppress(NotApplicable):
                        await inject(stage, rng, host, name)

        held.__name__ = inject.__name__
        return fault(codes, phrase)(held)

    return enter_held


@while_held("C4 C1", "an engine dies while it loads for a request")
async def death_while_held(stage, rng, host, name):
    for child in host.machine.live(name):
        child.end(-9)
    await trio.lowlevel.checkpoint()


@while_held("B3", "the agent is killed while requests are held")
async def kill_while_held(stage, rng, host, name):
    async with stage.away(host, "kill"):
        await trio.sleep(span(rng, 0.05, 60))


@while_held("B6 B19", "the agent is stopped or replaced while requests are held")
async def stop_while_held(stage, rng, host, name):
    async with stage.away(host, rng.choice(("stop", "keep"))):
        await trio.sleep(span(rng, 0.05, 60))


@while_held("N4", "the host sleeps while requests are held")
async def sleep_while_held(stage, rng, host, name):
    with stage.api_faults(host, kind="half-open"):
        host.network.hush()
        await trio.sleep(span(rng, 1, 30))
        host.asleep_seconds += span(rng, 30, 8 * 3600)


@while_held("A1", "the API server is away while requests are held")
async def api_away_while_held(stage, rng, host, name):
    await api_away(stage, span(rng, 10, 300), host)


@while_held("B12", "the disk is full while requests are held")
async def disk_full_while_held(stage, rng, host, name):
    host.machine.disk_full = True
    await trio.sleep(span(rng, 1, 100))
    host.machine.disk_full = False


@while_held("C20", "a service is edited, stopped or deleted while its requests are held")
async def change_while_held(stage, rng, host, name):
    if name not in stage.desired.specs:
        raise NotApplicable
    if rng.random() < 0.3:
        await stage.desired.delete(stage.world, name)
    else:
        change = rng.choice(({"replicas": 0}, {"suspend": True}, {"contextSize": 512}, {"priority": "low"}))
        await stage.desired.apply(stage.world, name, **change)


@fault("C19", "other programs take the memory of a model for minutes")
async def memory_short(stage: Stage, rng):
    memory = stage.host(rng).machine.memory
    taken, most = 0.0, rng.uniform(4, SHORT_GIB)
    with stage.monitor.pressed():
        try:
            while taken < most:
                memory.other, taken = memory.other + 1.0, taken + 1.0
                await trio.sleep(span(rng, 1, 20))
            await trio.sleep(span(rng, 10, 200))
        finally:
            memory.other -= taken


@fault("C19", "the kernel reports that memory is short for minutes, whatever the figures")
async def kernel_warns(stage: Stage, rng):
    memory = stage.host(rng).machine.memory
    with stage.monitor.pressed():
        memory.speak(Level.WARNING)
        try:
            await trio.sleep(span(rng, 10, 300))
        finally:
            memory.speak()
