"""Faults of the agent: its end, events while it is away, and failures of its machine."""

from contextlib import AsyncExitStack, asynccontextmanager, suppress

import attrs
import trio

from llmkube.k8s.builtins import EndpointSlice, Lease, Service
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.errors import NotFoundError
from sim.freezing import frozen
from sim.invariants import USER_TIMEOUT_SECONDS
from sim.machine import NetworkDownError, Trap
from sim.stage import CALM, SOURCES, NotApplicable, fault, recreate_service, row, span


@fault("B3", "the agent is killed, and another one starts")
async def agent_killed(stage, rng):
    async with stage.away(stage.host_with_agent(rng), "kill"):
        await trio.sleep(span(rng, 0.05, 120))


@fault("B6", "the agent is stopped in order, and another one starts")
async def agent_stopped(stage, rng):
    async with stage.away(stage.host_with_agent(rng), "stop"):
        await trio.sleep(span(rng, 0.05, 120))


@fault("B19", "the agent is replaced and leaves its engines")
async def agent_upgraded(stage, rng):
    async with stage.away(stage.host_with_agent(rng), "keep"):
        await trio.sleep(span(rng, 0.05, 60))


@fault("B3 B11", "the agent is killed again and again")
async def agent_crash_loop(stage, rng):
    host = stage.host_with_agent(rng)
    for _ in range(rng.randint(2, 4)):
        if host.running and host.name not in stage.busy:
            async with stage.away(host, "kill"):
                await trio.sleep(span(rng, 0.05, 5))
            await trio.sleep(span(rng, 0.01, 10))


def killed_at(point, provoke):
    """Return a fault that kills the agent at one exact point of starting or stopping a process."""

    async def inject(stage, rng):
        host = stage.host_with_agent(rng)
        trap = host.machine.traps.setdefault(point, Trap())
        stage.busy.add(host.name)
        try:
            await provoke(stage, rng, host)
            with trio.move_on_after(120):
                await trap.hit.wait()
        finally:
            stage.busy.discard(host.name)
            host.machine.traps.pop(point, None)
            if not trap.hit.is_set():
                trap.released.set()
        if not (trap.hit.is_set() and host.running):
            trap.released.set()
            raise NotApplicable
        async with stage.away(host, "kill"):
            await trio.sleep(span(rng, 0.05, 60))

    return inject


async def _crash_one(stage, rng, host):
    live = host.machine.live()
    if not live:
        raise NotApplicable
    rng.choice(live).end(-9)
    await trio.lowlevel.checkpoint()


async def _scale_one_down(stage, rng, host):
    live = sorted({child.name for child in host.machine.live()} & stage.desired.specs.keys())
    if not live:
        raise NotApplicable
    await stage.desired.apply(stage.world, rng.choice(live), replicas=0)


row("killed-before-intent", "B1", "the agent is killed before it writes its intent", killed_at("intent", _crash_one))
row("killed-before-spawn", "B1", "the agent is killed between journal and spawn", killed_at("spawn", _crash_one))
row("killed-before-record", "B2", "the agent is killed before it records the pid", killed_at("record", _crash_one))
row("killed-before-remove", "B1", "the agent is killed before it removes one", killed_at("remove", _scale_one_down))


@fault("B3 B6", "the agent is killed while it stops an engine")
async def killed_while_stopping(stage, rng):
    name, host = stage.pick_desired(rng), stage.host_with_agent(rng)
    with stage.script(host, name, attrs.evolve(CALM, stop_seconds=20.0)):
        for child in host.machine.live(name):
            child.script, child.in_flight = attrs.evolve(child.script, stop_seconds=20.0), rng.randint(0, 1)
        await stage.edit(rng, name)
        await trio.sleep(span(rng, 0.05, 12))
        async with stage.away(host, "kill"):
            await trio.sleep(span(rng, 0.05, 60))


@fault("B3 A24", "a new agent starts while the API server is away")
async def start_without_api(stage, rng):
    host = stage.host_with_agent(rng)
    with stage.api_faults(host, down=True):
        host.network.sever()
        async with stage.away(host, rng.choice(("kill", "kill", "stop"))):
            await trio.sleep(span(rng, 0.05, 60))
        await trio.sleep(span(rng, 1, 300))


@fault("B3 A22", "a new agent starts among wrong answers")
async def start_among_wrong_answers(stage, rng):
    host = stage.host_with_agent(rng)
    kind = rng.choice(("401", "403", "503", "captive portal", "no object", "no such page", "half-open"))
    with stage.api_faults(host, kind=kind):
        async with stage.away(host, "kill"):
            await trio.sleep(span(rng, 0.05, 30))
        await trio.sleep(span(rng, 1, 200))


@fault("B3 A23", "a new agent gets an empty list of services")
async def start_with_an_empty_list(stage, rng):
    host = stage.host_with_agent(rng)
    with stage.api_faults(host, kind="empty lists"):
        async with stage.away(host, "kill"):
            await trio.sleep(span(rng, 0.05, 5))
        await trio.sleep(span(rng, 0.5, 8))


@fault("B19 C20", "an edit is made while no agent runs")
async def edit_while_away(stage, rng):
    name = stage.pick_desired(rng)
    async with stage.away(stage.host_with_agent(rng), rng.choice(("kill", "keep"))):
        await stage.edit(rng, name)
        await trio.sleep(span(rng, 0.05, 60))


@fault("B18 A10", "a service is deleted while no agent runs")
async def delete_while_away(stage, rng):
    name = stage.pick_desired(rng)
    async with stage.away(stage.host_with_agent(rng), rng.choice(("kill", "keep"))):
        await stage.desired.delete(stage.world, name)
        await trio.sleep(span(rng, 0.05, 60))


@fault("A12 B19", "a service is deleted and made again while no agent runs")
async def recreate_while_away(stage, rng):
    name = stage.pick_desired(rng)
    async with stage.away(stage.host_with_agent(rng), rng.choice(("kill", "keep"))):
        await recreate_service(stage, rng, name, span(rng, 0.05, 20))


@fault("N8", "the cluster is another one, as by a new kubeconfig: it has none of our objects until its user comes")
async def other_cluster(stage, rng):
    """Empty the store between two programs: in the new cluster, no object has its old name or uid."""
    controller, hosts = stage.world.controller, list(stage.world.hosts.values())
    if controller.network.dead or any(not host.running or host.name in stage.busy for host in hosts):
        raise NotApplicable
    controller.kill()
    try:
        async with AsyncExitStack() as agents:
            for host in hosts:
                await agents.enter_async_context(stage.away(host, rng.choice(("kill", "keep"))))
            specs = dict(sorted(stage.desired.specs.items()))
            for name in specs:
                await stage.desired.delete(stage.world, name)
            with trio.fail_after(USER_TIMEOUT_SECONDS, shield=True):  # a cluster is never emptied halfway
                await _empty(stage.world.client)
            early = {name: spec for name, spec in specs.items() if rng.random() < 0.5}
            for name, spec in early.items():
                await stage.desired.apply(stage.world, name, **spec)
    finally:
        controller.start()
    await trio.sleep(span(rng, 0.1, 60))
    for name, spec in specs.items():
        if name not in early and rng.random() < 0.8:
            await stage.desired.apply(stage.world, name, **spec)


async def _empty(client):
    for kind in (InferenceService, Model, Service, EndpointSlice, Lease):
        for one in (await client.list(kind)).items:
            with suppress(NotFoundError):
                await client.delete(kind, one.key)


def _some_die(host, rng):
    for child in host.machine.live():
        if rng.random() < 0.6:
            child.end(-9)


@fault("B18 C4", "engines die while no agent runs")
async def death_while_away(stage, rng):
    host = stage.host_with_agent(rng)
    async with stage.away(host, rng.choice(("kill", "keep"))):
        await trio.sleep(span(rng, 0.05, 30))
        _some_die(host, rng)
        await trio.sleep(span(rng, 0.05, 30))


@fault("B20", "entries of the journal are gone or cannot be read")
async def journal_lost(stage, rng):
    host = stage.host_with_agent(rng)
    async with stage.away(host, rng.choice(("kill", "keep"))):
        for key in list(host.machine.entries):
            if rng.random() < 0.6:
                del host.machine.entries[key]
        stage.monitor.forget_unloads()
        await trio.sleep(span(rng, 0.05, 30))


@fault("B20", "the journal is that of half an hour ago, as from a backup")
async def journal_old(stage, rng):
    host = stage.host_with_agent(rng)
    saved = dict(host.machine.entries)
    await trio.sleep(span(rng, 30, 600))
    async with stage.away(host, "kill"):
        host.machine.entries = saved
        stage.monitor.forget_unloads()
        await trio.sleep(span(rng, 0.05, 30))


@fault("B12", "the disk is full: the journal cannot be written")
async def disk_full(stage, rng):
    host, child = stage.engine(rng)
    host.machine.disk_full = True
    if rng.random() < 0.7:
        child.end(-9)
    await trio.sleep(span(rng, 5, 300))
    host.machine.disk_full = False


async def _lacking(stage, rng, what, max_seconds):
    """Kill an engine on a machine that cannot start another one for a while."""
    host, child = stage.engine(rng)
    setattr(host.machine, what, True)
    child.end(-9)
    await trio.sleep(span(rng, 1, max_seconds))
    setattr(host.machine, what, False)


@fault("B15", "no process can be started")
async def no_spawn(stage, rng):
    await _lacking(stage, rng, "spawn_fails", 300)


@fault("B14", "the agent can open no file and no connection, and look at nothing")
async def no_descriptors(stage, rng):
    host, child = stage.engine(rng)
    with stage.api_faults(host, down=True):  # open descriptors stay open
        host.machine.no_descriptors, host.machine.has_proc = True, rng.random() < 0.5
        if rng.random() < 0.5:
            child.end(-9)
        await trio.sleep(span(rng, 1, 300))
        host.machine.no_descriptors = False


@fault("B10", "a bug in the task of one service, again and again")
async def bug(stage, rng):
    host, child = stage.engine(rng)
    host.machine.bugs.add(child.name)
    child.end(-9)
    await trio.sleep(span(rng, 1, 300))
    host.machine.bugs.discard(child.name)


@fault("B21", "all programs are blocked for minutes, and continue")
async def standstill(stage, rng):
    trio.lowlevel.current_clock().jump(span(rng, 10, 600))
    stage.monitor.record_standstill()
    await trio.lowlevel.checkpoint()


@asynccontextmanager
async def _agent_frozen(stage, rng):
    host = stage.host_with_agent(rng)
    stage.busy.add(host.name)
    try:
        with stage.monitor.disturbed(host):
            with stage.monitor.standing_still(host), frozen(host.program):
                yield host
            await trio.lowlevel.checkpoint()
    finally:
        stage.busy.discard(host.name)


@fault("B21", "the agent alone is stopped for seconds or minutes, and continues")
async def agent_frozen(stage, rng):
    async with _agent_frozen(stage, rng):
        await trio.sleep(span(rng, 1, 900))


@fault("B21 C4", "engines die while their agent is stopped")
async def death_while_frozen(stage, rng):
    async with _agent_frozen(stage, rng) as host:
        await trio.sleep(span(rng, 0.05, 30))
        _some_die(host, rng)
        await trio.sleep(span(rng, 0.05, 300))


@fault("B21 C20", "users edit and delete while an agent is stopped")
async def edit_while_frozen(stage, rng):
    name = stage.pick_desired(rng)
    async with _agent_frozen(stage, rng):
        await trio.sleep(span(rng, 0.05, 30))
        if name in stage.desired.specs and rng.random() < 0.3:
            await stage.desired.delete(stage.world, name)
        else:
            await stage.edit(rng, name)
        await trio.sleep(span(rng, 0.05, 300))


@fault("B21 A2", "connections are aborted while an agent is stopped")
async def cut_off_while_frozen(stage, rng):
    async with _agent_frozen(stage, rng) as host:
        await trio.sleep(span(rng, 0.05, 100))
        host.network.sever()
        await trio.sleep(span(rng, 0.05, 300))


@fault("B21 B3", "an agent that is stopped is killed, and another one starts")
async def killed_while_frozen(stage, rng):
    async with _agent_frozen(stage, rng) as host:
        await trio.sleep(span(rng, 1, 600))
    async with stage.away(host, "kill"):
        await trio.sleep(span(rng, 0.05, 60))


@fault("B13", "the engine program is not there")
async def no_engine(stage, rng):
    await _lacking(stage, rng, "no_engine", 200)


@fault("B13 N1", "engines cannot listen on the address that the host should have")
async def no_such_address(stage, rng):
    await _lacking(stage, rng, "no_address", 200)


@fault("B13", "files cannot be read, while a user requests another one")
async def store_away(stage, rng):
    name, host = stage.pick_desired(rng), stage.host(rng)
    host.machine.broken = {source: NetworkDownError("the disk is away") for source in SOURCES}
    await stage.desired.apply(stage.world, name, source=rng.choice(SOURCES))
    await trio.sleep(span(rng, 5, 300))
    host.machine.broken = {}


@fault("D14 D9", "a file takes long to arrive")
async def slow_fetch(stage, rng):
    name, host = stage.pick_desired(rng), stage.host(rng)
    host.machine.fetch_seconds = dict.fromkeys(SOURCES, span(rng, 10, 400))
    await stage.desired.apply(stage.world, name, source=rng.choice(SOURCES))
    await trio.sleep(span(rng, 5, 400))
    host.machine.fetch_seconds = {}


@fault("B4 D14", "the agent is killed while a file arrives")
async def killed_while_fetching(stage, rng):
    name, host = stage.pick_desired(rng), stage.host_with_agent(rng)
    host.machine.fetch_seconds = dict.fromkeys(SOURCES, 120.0)
    await stage.desired.apply(stage.world, name, source=rng.choice(SOURCES))
    await trio.sleep(span(rng, 1, 100))
    async with stage.away(host, "kill"):
        host.machine.fetch_seconds = {}
