"""The stage on which faults and users act, and the table of faults that the neighboring files fill.

A fault is a task: it breaks something, waits, and repairs it. `Stage.repair_all` repairs the rest when the faults stop.
A fault that finds nothing to break (no engine runs, the agent is away) raises `NotApplicable`.
"""

import math
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, contextmanager
from random import Random

import attrs
import trio

from llmkube.supervisor.values.host_addresses import HostAddress
from llmkube.supervisor.values.lifecycle import Exit
from sim import daemons
from sim.clients import Gateway
from sim.invariants import DesiredServices, InvariantMonitor
from sim.machine import Script
from sim.macs import is_mac
from sim.world import Faults, World

CALM = Script(load_seconds=3.0, stop_seconds=1.0)
SOURCES = ("builtin://one", "builtin://two", "builtin://three")
CONTEXTS = (512, 1024, 2048, 4096)
RUNTIMES = ("llamacpp", "llamacpp", *daemons.RUNTIMES)


class NotApplicable(Exception):  # noqa: N818 - not an error: there is nothing to break at the moment
    """There is nothing that this fault could break."""


def span(rng, low, high):
    """Return a duration in seconds; short ones are as likely as long ones."""
    return low * (high / low) ** rng.random()


def at(address, *also):
    """Return the address of a host, with further addresses."""
    return HostAddress(address, address, "as the simulation says", "", frozenset({address, *also}))


@attrs.define(eq=False)
class Stage:
    """A world, the desired state of its user, and the monitor of its invariants."""

    world: World
    desired: DesiredServices
    monitor: InvariantMonitor
    busy: set = attrs.field(factory=set)
    layers: dict = attrs.field(factory=dict)
    gateways: dict = attrs.field(factory=dict)  # by agent

    def host(self, rng):
        """Return a random host."""
        return rng.choice(list(self.world.hosts.values()))

    def host_with_agent(self, rng):
        """Return a host whose agent runs and is free of other faults."""
        hosts = [host for host in self.world.hosts.values() if host.running and host.name not in self.busy]
        if not hosts:
            raise NotApplicable
        return rng.choice(hosts)

    def gateway(self, host):
        """Return the gateway of a host's agent."""
        return self.gateways.setdefault(host.agent, Gateway(host, self.monitor))

    def engine(self, rng, *, ready=None, computes=False):
        """Return a host and an engine that runs on it; with `computes` an engine with the model itself, not a front."""
        found = [
            (host, child)
            for host in self.world.hosts.values()
            for child in host.machine.live()
            if ready in (None, child.ready) and not (computes and child.keeper is not None)
        ]
        if not found:
            raise NotApplicable
        return rng.choice(found)

    def pick_desired(self, rng):
        """Return the name of a desired service."""
        if not self.desired.specs:
            raise NotApplicable
        return rng.choice(sorted(self.desired.specs))

    async def edit(self, rng, name):
        """Change a service, if it is still desired."""
        if name in self.desired.specs:
            await self.desired.apply(self.world, name, contextSize=rng.choice(CONTEXTS), extraArgs=[])

    @asynccontextmanager
    async def away(self, host, how):
        """Stop the agent of a host (`kill`, `stop` or `keep`), and start a new one after the block."""
        if not host.running or host.name in self.busy:
            raise NotApplicable
        self.busy.add(host.name)
        since = trio.current_time()
        try:
            with trio.CancelScope(shield=True):  # a stop has its own deadlines
                await self._end(host, how)
            yield
        finally:
            with trio.CancelScope(shield=True):
                await self.start(host, since)
            self.busy.discard(host.name)

    async def start(self, host, since=math.inf):
        """Start a new agent on a host."""
        await host.start_agent()
        self.monitor.started(host, since)

    async def _end(self, host, how):
        if how == "kill":
            await host.kill_agent()
            return
        serving = [child for child in host.machine.live() if self.monitor.must_stay(host, child)]
        if how == "keep":
            host.agent.keep_engines()
        await host.stop_agent()
        if how == "keep" and any(child.exit == Exit(0) for child in serving):
            self.monitor.report("needless", f"engines on {host.name} were ended by an agent that should leave them")
        if how == "stop" and not all(child.stuck for child in host.machine.live()):  # no signal ends stuck engines
            self.monitor.report("orphans", f"engines on {host.name} have outlived an agent that was stopped in order")

    @contextmanager
    def api_faults(self, client, **faults):
        """Apply the given `Faults` to the network of a host or the controller during the block.

        Faults overlap and end in any order: each field has the value of the newest active one.
        """
        layers = self.layers.setdefault(id(client), [])
        layers.append(faults)
        with self.monitor.disturbed(client):
            _overlay(client, faults, layers)
            try:
                yield
            finally:
                layers.remove(faults)
                _overlay(client, faults, layers)

    @contextmanager
    def script(self, host, name, script):
        """Change the behavior of a service's engines during the block."""
        host.machine.scripts[name] = script
        try:
            yield
        finally:
            if host.machine.scripts.get(name) is script:
                host.machine.scripts[name] = CALM

    async def repair_all(self):
        """Repair everything: from here on nothing fails any more.

        A cordon is no fault. One without an end stays on a single host, and only where another one serves.
        """
        able = [host for host in self.world.hosts.values() if host.machine.cordon is None]
        for host in self.world.hosts.values():
            if host.machine.cordon is not None and host.machine.cordon.until is None and not able:
                host.machine.cordon = None
                able.append(host)
        for number, host in enumerate(self.world.hosts.values()):
            repair_host(host)
            if host.machine.reach and not host.machine.reach.address:
                host.machine.reach = at(f"198.51.100.{50 + number}")
            if host.faults != Faults():
                with self.monitor.disturbed(host):
                    _reset(host.faults)
            if not host.running:
                await host.wait_stopped()
                await self.start(host)
        _reset(self.world.controller.faults)
        if self.world.controller.network.dead:
            self.world.controller.start()
        self.busy.clear()
        for name in self.desired.specs:
            self.unload(name)
            if await self.world.model(name) is None:
                await self.desired.apply(self.world, name)

    def unload(self, name):
        """Unload a service that is loaded on request: no client wants to keep it any more."""
        self.monitor.user_unloads(name)
        for host in self.world.hosts.values():
            host.agent.activator.unload(f"default/{name}")


def _overlay(client, changed, layers):
    for name in changed:
        values = [layer[name] for layer in layers if name in layer]
        setattr(client.faults, name, values[-1] if values else attrs.fields_dict(Faults)[name].default)


def _reset(faults):
    for field in attrs.fields(Faults):
        setattr(faults, field.name, field.default)


def repair_host(host):
    """Repair a machine and its engines; end what would never end by itself."""
    machine = host.machine
    machine.default, machine.scripts = CALM, {}
    machine.broken, machine.fetch_seconds = {}, {}
    machine.disk_full = machine.spawn_fails = machine.no_engine = False
    machine.no_address = machine.no_descriptors = False
    machine.bugs.clear()
    for each in machine.daemons.values():
        if each.shared.is_odd:
            each.shared.restart()
    if is_mac(machine):
        machine.memory.refuses = False
        machine.memory.restart()
    for trap in machine.traps.values():
        trap.released.set()
    machine.traps = {}
    for child in machine.live():
        if child.stuck:
            child.unstick()
        child.frozen = child.mute = False
        child.slow_seconds, child.in_flight, child.counts, child.pace = 0.0, 0, True, 1.0
        child.closed = child.closed and not child.ready
        if child.mac_exit is not None and not child.mac_exit.begun.is_set():
            child.mac_exit.seconds = 0.0
        if child.script not in (CALM, machine.default) and not child.ready:
            child.end(-9)


Inject = Callable[[Stage, Random], Awaitable[None]]


@attrs.frozen
class Fault:
    """One row of the table.

    Attributes:
        codes: Its rows in the catalogue of faults.
        phrase: Short description.
        inject: Function that breaks something, and repairs it.
        hosts: Minimum number of hosts.
    """

    codes: str
    phrase: str
    inject: Inject
    hosts: int = 1


FAULTS: dict[str, Fault] = {}


def fault(codes, phrase, *, hosts=1, table=FAULTS):
    """Return a decorator that adds a function to a table, under its own name."""

    def enter(inject):
        name = inject.__name__.replace("_", "-")
        assert name not in FAULTS
        assert name not in table
        table[name] = Fault(codes, phrase, inject, hosts)
        return inject

    return enter


def row(name, codes, phrase, inject, **more):
    """Add a function to the table under a name."""
    inject.__name__ = name
    fault(codes, phrase, **more)(inject)


async def api_away(stage, seconds, *clients):
    """Refuse the connections of hosts, or the controller, for a while."""
    with together(stage.api_faults(client, down=True) for client in clients):
        for client in clients:
            client.network.sever()
        await trio.sleep(seconds)


@contextmanager
def together(contexts):
    """Enter several contexts."""
    contexts = list(contexts)
    if not contexts:
        yield
        return
    with contexts[0], together(contexts[1:]):
        yield


async def recreate_service(stage, rng, name, seconds):
    """Delete a service and create it again, perhaps with another spec."""
    spec = stage.desired.specs.get(name)
    if spec is None:
        raise NotApplicable
    await stage.desired.delete(stage.world, name)
    await trio.sleep(seconds)
    changes = {"contextSize": rng.choice(CONTEXTS)} if rng.random() < 0.5 else {}
    await stage.desired.apply(stage.world, name, **{**spec, **changes})
