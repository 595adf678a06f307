"""What goes wrong in a random timeline: a table of faults, each with the codes of the catalogue that it stands for.

A fault is a task: it breaks something, waits, and mends it again. What it has not mended when the faults stop is mended
by `Stage.heal`. A fault that finds nothing to break (no engine runs, the agent is away) says so by raising `NotNow`.
"""

import math
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, contextmanager
from random import Random

import attrs
import trio

from llmkube.k8s.builtins import EndpointSlice, Lease, Service
from llmkube.k8s.codec import encode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.errors import ApiError, NotFoundError
from llmkube.k8s.resource import Key
from llmkube.supervisor.addresses import Reach
from sim.invariants import LEASES, SLICES, Books, Wishes
from sim.machine import NetworkDownError, Script, Trap
from sim.world import Faults, World

CALM = Script(load_seconds=3.0, stop_seconds=1.0)
SOURCES = ("builtin://one", "builtin://two", "builtin://three")
CONTEXTS = (512, 1024, 2048, 4096)


class NotNow(Exception):  # noqa: N818 - no error: there is nothing to break at the moment
    """There is nothing here that this fault could break."""


def span(rng, low, high):
    """A duration in seconds; short ones are as likely as long ones."""
    return low * (high / low) ** rng.random()


def at(address, *also):
    """A host that is reached at an address, and has other ones beside it."""
    return Reach(address, address, "as the simulation says", "", frozenset({address, *also}))


@attrs.define(eq=False)
class Stage:
    """Where faults and users act: a world, what its user wishes, and the books about it."""

    world: World
    wishes: Wishes
    books: Books
    busy: set = attrs.field(factory=set)

    def host(self, rng):
        """Any of the hosts."""
        return rng.choice(list(self.world.hosts.values()))

    def host_with_agent(self, rng):
        """A host whose agent runs and is left alone by other faults."""
        hosts = [host for host in self.world.hosts.values() if host.running and host.name not in self.busy]
        if not hosts:
            raise NotNow
        return rng.choice(hosts)

    def engine(self, rng, *, ready=None):
        """A host and an engine that runs on it."""
        found = [
            (host, child)
            for host in self.world.hosts.values()
            for child in host.machine.live()
            if ready in (None, child.ready)
        ]
        if not found:
            raise NotNow
        return rng.choice(found)

    def wished(self, rng):
        """The name of a service that is wished."""
        if not self.wishes.specs:
            raise NotNow
        return rng.choice(sorted(self.wishes.specs))

    @asynccontextmanager
    async def away(self, host, how):
        """Have the agent of a host end (`kill`, `stop` or `keep`), and after the block a new one start."""
        self.busy.add(host.name)
        try:
            with trio.CancelScope(shield=True):  # a stop has its own deadlines
                await self._end(host, how)
            yield
        finally:
            with trio.CancelScope(shield=True):
                await self.start(host)
            self.busy.discard(host.name)

    async def start(self, host):
        """A new agent on a host."""
        await host.start_agent()
        self.books.started(host)

    async def _end(self, host, how):
        if how == "kill":
            await host.kill_agent()
            return
        if how == "keep":
            host.agent.keep_engines()
        await host.stop_agent()
        if how == "stop" and host.machine.live():
            self.books.violate("orphans", f"engines on {host.name} have outlived an agent that was stopped in order")

    @contextmanager
    def wrong_api(self, host, **faults):
        """A host's way to the API server is as the given `Faults` say."""
        before = {name: getattr(host.faults, name) for name in faults}
        with self.books.disturbed(host):
            for name, value in faults.items():
                setattr(host.faults, name, value)
            try:
                yield
            finally:
                for name, value in before.items():
                    setattr(host.faults, name, value)

    @contextmanager
    def script(self, host, name, script):
        """The engines of a service behave in another way for a while."""
        host.machine.scripts[name] = script
        try:
            yield
        finally:
            if host.machine.scripts.get(name) is script:
                host.machine.scripts[name] = CALM

    async def heal(self):
        """Mend everything: from here on nothing goes wrong any more."""
        for host in self.world.hosts.values():
            clean(host)
            with self.books.disturbed(host):
                _reset(host.faults)
            if not host.running:
                await host.wait_stopped()
                await self.start(host)
        _reset(self.world.controller.faults)
        if self.world.controller.network.dead:
            self.world.controller.start()
        self.busy.clear()


def _reset(faults):
    for field in attrs.fields(Faults):
        setattr(faults, field.name, field.default)


def clean(host):
    """Mend a machine and what runs on it; what would never come to an end ends."""
    machine = host.machine
    machine.default, machine.scripts = CALM, {}
    machine.broken, machine.fetch_seconds = {}, {}
    machine.disk_full = machine.spawn_fails = machine.no_engine = False
    for trap in machine.traps.values():
        trap.released.set()
    machine.traps = {}
    for child in machine.live():
        child.frozen = child.mute = False
        child.slow_seconds, child.in_flight, child.counts, child.pace = 0.0, 0, True, 1.0
        child.closed = child.closed and not child.ready
        if child.script not in (CALM, machine.default) and not child.ready:
            child.end(-9)


Inject = Callable[[Stage, Random], Awaitable[None]]


@attrs.frozen
class Fault:
    """One row of the table.

    Attributes:
        codes: What it stands for in the catalogue of faults.
        phrase: What it is, shortly.
        inject: Lets it happen, and mends it.
        hosts: How many hosts there must be at least.
    """

    codes: str
    phrase: str
    inject: Inject
    hosts: int = 1


FAULTS: dict[str, Fault] = {}


def fault(codes, phrase, *, hosts=1):
    """Put a function into the table, under its own name."""

    def enter(inject):
        name = inject.__name__.replace("_", "-")
        assert name not in FAULTS
        FAULTS[name] = Fault(codes, phrase, inject, hosts)
        return inject

    return enter


def row(name, codes, phrase, inject, **more):
    """Put a function into the table under a name."""
    inject.__name__ = name
    fault(codes, phrase, **more)(inject)


# -- A: the API server, as one host sees it ------------------------------------------------------------------------


def answers(kind, *, low=5, high=300):
    """Every answer is wrong in one way for a while."""

    async def inject(stage, rng):
        host = stage.host(rng)
        with stage.wrong_api(host, kind=kind):
            if rng.random() < 0.7:
                host.network.sever()
            await trio.sleep(span(rng, low, high))

    return inject


for _kind, _codes in {
    "401": "A18",
    "403": "A17",
    "429": "A14",
    "500": "A15",
    "503": "A15",
    "no such page": "A16",
    "captive portal": "A22",
    "no object": "A22",
    "half-open": "A3",
}.items():
    row(f"api-{_kind.replace(' ', '-')}", _codes, f"every answer is {_kind}", answers(_kind))


def lists(kind):
    """Lists lie for less time than there is between the first look and the second."""

    async def inject(stage, rng):
        host = stage.host_with_agent(rng)
        with stage.wrong_api(host, kind=kind):
            host.asleep_seconds += 60.0  # a wake: everything is listed anew
            await trio.sleep(host.settings.lease_renew_seconds + span(rng, 0.5, 8))

    return inject


row("empty-lists", "A23", "lists are suddenly empty", lists("empty lists"))
row("old-lists", "A11", "lists come from a server that lags behind", lists("old lists"))


@fault("A24", "the API server is away for seconds")
async def api_blip(stage, rng):
    await _api_away(stage, span(rng, 0.5, 20), stage.host(rng))


@fault("A24", "the API server is away for minutes")
async def api_outage(stage, rng):
    await _api_away(stage, span(rng, 60, 900), stage.host(rng))


@fault("A24", "the API server is away for everybody")
async def api_outage_for_all(stage, rng):
    await _api_away(stage, span(rng, 10, 600), *stage.world.hosts.values(), stage.world.controller)


async def _api_away(stage, seconds, *clients):
    for client in clients:
        client.faults.down = True
        client.network.sever()
    hosts = [client for client in clients if client is not stage.world.controller]
    with _all(stage.books.disturbed(host) for host in hosts):
        try:
            await trio.sleep(seconds)
        finally:
            for client in clients:
                client.faults.down = False


@contextmanager
def _all(contexts):
    contexts = list(contexts)
    if not contexts:
        yield
        return
    with contexts[0], _all(contexts[1:]):
        yield


@fault("A15", "a burst of server errors")
async def burst_of_errors(stage, rng):
    host = stage.host(rng)
    with stage.wrong_api(host, errors=rng.randint(1, 50)):
        host.network.sever()
        await trio.sleep(span(rng, 10, 200))


@fault("A21", "every answer takes seconds")
async def slow_answers(stage, rng):
    with stage.wrong_api(stage.host(rng), slow_seconds=span(rng, 0.2, 4)):
        await trio.sleep(span(rng, 30, 400))


@fault("A21 N6", "answers come later than anybody waits for them")
async def too_slow_answers(stage, rng):
    with stage.wrong_api(stage.host(rng), slow_seconds=span(rng, 10, 70)):
        await trio.sleep(span(rng, 30, 300))


@fault("A2", "every connection is reset")
async def reset(stage, rng):
    host = stage.host(rng)
    with stage.books.disturbed(host):
        for _ in range(rng.choice((1, 1, 10))):
            host.network.sever()
            await trio.sleep(span(rng, 0.1, 15))


@fault("A7", "watches break off in the middle of a line")
async def torn_lines(stage, rng):
    host = stage.host(rng)
    with stage.wrong_api(host, torn=True):
        for _ in range(rng.randint(1, 5)):
            host.network.sever()
            await trio.sleep(span(rng, 1, 60))


@fault("A9", "watches tell everything twice")
async def duplicate_events(stage, rng):
    with stage.wrong_api(stage.host(rng), twice=True):
        await trio.sleep(span(rng, 10, 600))


@fault("A3", "open connections fall silent")
async def hush(stage, rng):
    host = stage.host(rng)
    with stage.books.disturbed(host):
        host.network.hush()
        await trio.sleep(100)


@fault("A1 A4", "the past is forgotten while connections are reset: 410")
async def compaction(stage, rng):
    host = stage.host(rng)
    with stage.wrong_api(host, down=True):
        host.network.sever()
        await trio.sleep(span(rng, 1, 40))
        stage.books.store.compact()


@fault("A5", "the past is forgotten under watches that are behind")
async def compaction_under_watches(stage, rng):
    stage.books.store.compact()
    await trio.lowlevel.checkpoint()


@fault("A27", "writes are carried out, and their answers get lost")
async def lost_answers(stage, rng):
    with stage.wrong_api(stage.host(rng), lost_answers=rng.randint(1, 12)):
        await trio.sleep(span(rng, 5, 300))


@fault("A29", "a webhook refuses every status")
async def refused_status(stage, rng):
    with stage.wrong_api(stage.host(rng), no_status=True):
        await trio.sleep(span(rng, 5, 200))


@fault("A10", "a service is deleted while its host hears nothing")
async def delete_while_cut_off(stage, rng):
    name, host = stage.wished(rng), stage.host(rng)
    with stage.wrong_api(host, down=True):
        host.network.sever()
        await trio.sleep(span(rng, 0.1, 30))
        if name in stage.wishes.specs:
            await stage.wishes.delete(stage.world, name)
        await trio.sleep(span(rng, 0.1, 100))


@fault("A12", "a service is deleted and made again at once")
async def recreate(stage, rng):
    name = stage.wished(rng)
    await _recreate(stage, rng, name, span(rng, 0.01, 3))


@fault("A12", "a service is deleted and made again while its host hears nothing")
async def recreate_while_cut_off(stage, rng):
    name, host = stage.wished(rng), stage.host(rng)
    with stage.wrong_api(host, down=True):
        host.network.sever()
        await trio.sleep(span(rng, 0.1, 30))
        await _recreate(stage, rng, name, span(rng, 0.01, 10))
        await trio.sleep(span(rng, 0.1, 30))


async def _recreate(stage, rng, name, seconds):
    spec = stage.wishes.specs.get(name)
    if spec is None:
        raise NotNow
    await stage.wishes.delete(stage.world, name)
    await trio.sleep(seconds)
    changes = {"contextSize": rng.choice(CONTEXTS)} if rng.random() < 0.5 else {}
    await stage.wishes.apply(stage.world, name, **{**spec, **changes})


@fault("A10", "an edit is made while its host hears nothing")
async def edit_while_cut_off(stage, rng):
    name, host = stage.wished(rng), stage.host(rng)
    with stage.wrong_api(host, down=True):
        host.network.sever()
        await trio.sleep(span(rng, 0.1, 60))
        if name in stage.wishes.specs:
            await stage.wishes.apply(stage.world, name, contextSize=rng.choice(CONTEXTS), extraArgs=[])
        await trio.sleep(span(rng, 0.1, 60))


# -- A: what others do to our objects ---------------------------------------------------------------------------------


def removed(kind, store_kind):
    """Somebody deletes one of the objects that the agents keep."""

    async def inject(stage, rng):
        refs = sorted(ref.key for ref in stage.books.store.refs() if ref.kind == store_kind and ours(ref.key))
        if not refs:
            raise NotNow
        try:
            await stage.world.client.delete(kind, rng.choice(refs))
        except NotFoundError:
            raise NotNow from None

    def ours(key):
        return key.name not in {"llmkube-controller", "kubernetes"}

    return inject


row("slice-deleted", "A13", "somebody deletes an EndpointSlice", removed(EndpointSlice, SLICES))
row("service-deleted", "A13", "somebody deletes a Service", removed(Service, "services"))
row("lease-deleted", "A13 N5", "somebody deletes a Lease: a host's, or a claim", removed(Lease, LEASES))
row("model-deleted", "A13", "somebody deletes a Model under its service", removed(Model, "models.inference.llmkube.dev"))


@fault("A13", "somebody writes other addresses and readiness into a slice")
async def slice_edited(stage, rng):
    slices = (await stage.world.client.list(EndpointSlice)).items
    if not slices:
        raise NotNow
    manifest = encode(rng.choice(slices))
    endpoint = {"addresses": ["192.0.2.99"], "conditions": {"ready": rng.random() < 0.5}}
    with _all([stage.books.disturbed(host) for host in stage.world.hosts.values()]):
        await _apply(
            stage, EndpointSlice, manifest, {"addressType": manifest["addressType"], "endpoints": [endpoint]}
        )
        await trio.sleep(350)  # until it is said again


@fault("A13", "somebody writes nonsense into a status")
async def status_edited(stage, rng):
    found = await stage.world.service(stage.wished(rng))
    if found is None:
        raise NotNow
    now = "2026-01-01T00:00:00Z"
    loaded = {"type": "Loaded", "status": "False", "reason": "Nonsense", "message": "", "lastTransitionTime": now}
    status = {"phase": "Failed", "conditions": [loaded]}
    await _apply(stage, InferenceService, found, {"status": status}, subresource="status")


async def _apply(stage, kind, found, body, subresource=""):
    metadata = {"name": found["metadata"]["name"], "namespace": found["metadata"]["namespace"]}
    try:
        await stage.world.client.apply(
            kind,
            {"apiVersion": kind.RESOURCE.api_version, "kind": kind.RESOURCE.kind, "metadata": metadata, **body},
            field_manager="somebody",
            subresource=subresource,
        )
    except ApiError:
        raise NotNow from None


@fault("N5 B8", "a claim names a host that nobody knows")
async def stale_claim(stage, rng):
    claims = [one for one in (await stage.world.client.list(Lease)).items if one.metadata.name.startswith("claim")]
    if not claims:
        claims = [
            one
            for one in (await stage.world.client.list(Lease, label_selector="inference.llmkube.dev/claim")).items
            if one.spec.holder_identity
        ]
    if not claims:
        raise NotNow
    try:
        await stage.world.client.patch(Lease, rng.choice(claims).key, {"spec": {"holderIdentity": "ghost"}})
    except ApiError:
        raise NotNow from None


# -- the controller ----------------------------------------------------------------------------------------------------


@fault("A24 A15", "the controller hears nothing")
async def controller_cut_off(stage, rng):
    controller = stage.world.controller
    controller.faults.down = True
    controller.network.sever()
    await trio.sleep(span(rng, 1, 300))
    controller.faults.down = False


@fault("A3", "the controller's connections fall silent")
async def controller_hush(stage, rng):
    stage.world.controller.network.hush()
    await trio.lowlevel.checkpoint()


@fault("A28", "the controller is killed, and another one starts")
async def controller_killed(stage, rng):
    controller = stage.world.controller
    if controller.network.dead:
        raise NotNow
    controller.kill()
    await trio.sleep(span(rng, 0.1, 200))
    controller.start()


# -- B: the agent -------------------------------------------------------------------------------------------------------


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
    """The agent is killed at one exact point in its dealings with a process."""

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
            raise NotNow
        async with stage.away(host, "kill"):
            await trio.sleep(span(rng, 0.05, 60))

    return inject


async def _crash_one(stage, rng, host):
    live = host.machine.live()
    if not live:
        raise NotNow
    rng.choice(live).end(-9)
    await trio.lowlevel.checkpoint()


async def _scale_one_down(stage, rng, host):
    live = sorted({child.name for child in host.machine.live()} & stage.wishes.specs.keys())
    if not live:
        raise NotNow
    await stage.wishes.apply(stage.world, rng.choice(live), replicas=0)


row("killed-before-intent", "B1", "the agent is killed before it writes what it wants", killed_at("intent", _crash_one))
row("killed-before-spawn", "B1", "the agent is killed between the journal and the spawn", killed_at("spawn", _crash_one))
row("killed-before-record", "B2", "the agent is killed before it notes the pid", killed_at("record", _crash_one))
row("killed-before-remove", "B1", "the agent is killed before it forgets a service", killed_at("remove", _scale_one_down))


@fault("B3 B6", "the agent is killed while it stops an engine")
async def killed_while_stopping(stage, rng):
    name, host = stage.wished(rng), stage.host_with_agent(rng)
    with stage.script(host, name, attrs.evolve(CALM, stop_seconds=20.0)):
        for child in host.machine.live(name):
            child.script, child.in_flight = attrs.evolve(child.script, stop_seconds=20.0), rng.randint(0, 1)
        await stage.wishes.apply(stage.world, name, contextSize=rng.choice(CONTEXTS), extraArgs=[])
        await trio.sleep(span(rng, 0.05, 12))
        if not host.running or host.name in stage.busy:
            raise NotNow
        async with stage.away(host, "kill"):
            await trio.sleep(span(rng, 0.05, 60))


@fault("B3 A24", "a new agent starts while the API server is away")
async def start_without_api(stage, rng):
    host = stage.host_with_agent(rng)
    with stage.wrong_api(host, down=True):
        host.network.sever()
        async with stage.away(host, rng.choice(("kill", "kill", "stop"))):
            await trio.sleep(span(rng, 0.05, 60))
        await trio.sleep(span(rng, 1, 300))


@fault("B3 A22", "a new agent starts among wrong answers")
async def start_among_wrong_answers(stage, rng):
    host = stage.host_with_agent(rng)
    kind = rng.choice(("401", "403", "503", "captive portal", "no object", "no such page", "half-open"))
    with stage.wrong_api(host, kind=kind):
        async with stage.away(host, "kill"):
            await trio.sleep(span(rng, 0.05, 30))
        await trio.sleep(span(rng, 1, 200))


@fault("B3 A23", "a new agent is told that there is nothing")
async def start_with_an_empty_list(stage, rng):
    host = stage.host_with_agent(rng)
    with stage.wrong_api(host, kind="empty lists"):
        async with stage.away(host, "kill"):
            await trio.sleep(span(rng, 0.05, 5))
        await trio.sleep(span(rng, 0.5, 8))


@fault("B19 C20", "an edit is made while no agent runs")
async def edit_while_away(stage, rng):
    name = stage.wished(rng)
    async with stage.away(stage.host_with_agent(rng), rng.choice(("kill", "keep"))):
        if name in stage.wishes.specs:
            await stage.wishes.apply(stage.world, name, contextSize=rng.choice(CONTEXTS), extraArgs=[])
        await trio.sleep(span(rng, 0.05, 60))


@fault("B18 A10", "a service is deleted while no agent runs")
async def delete_while_away(stage, rng):
    name = stage.wished(rng)
    async with stage.away(stage.host_with_agent(rng), rng.choice(("kill", "keep"))):
        if name in stage.wishes.specs:
            await stage.wishes.delete(stage.world, name)
        await trio.sleep(span(rng, 0.05, 60))


@fault("A12 B19", "a service is deleted and made again while no agent runs")
async def recreate_while_away(stage, rng):
    name = stage.wished(rng)
    async with stage.away(stage.host_with_agent(rng), rng.choice(("kill", "keep"))):
        await _recreate(stage, rng, name, span(rng, 0.05, 20))


@fault("B18 C4", "engines die while no agent runs")
async def death_while_away(stage, rng):
    host = stage.host_with_agent(rng)
    async with stage.away(host, rng.choice(("kill", "keep"))):
        await trio.sleep(span(rng, 0.05, 30))
        for child in host.machine.live():
            if rng.random() < 0.6:
                child.end(-9)
        await trio.sleep(span(rng, 0.05, 30))


@fault("B20", "entries of the journal are gone or cannot be read")
async def journal_lost(stage, rng):
    host = stage.host_with_agent(rng)
    async with stage.away(host, rng.choice(("kill", "keep"))):
        for key in list(host.machine.entries):
            if rng.random() < 0.6:
                del host.machine.entries[key]
        await trio.sleep(span(rng, 0.05, 30))


@fault("B20", "the journal is that of half an hour ago, as from a backup")
async def journal_old(stage, rng):
    host = stage.host_with_agent(rng)
    saved = dict(host.machine.entries)
    await trio.sleep(span(rng, 30, 600))
    if not host.running or host.name in stage.busy:
        raise NotNow
    async with stage.away(host, "kill"):
        host.machine.entries = saved
        await trio.sleep(span(rng, 0.05, 30))


@fault("B12", "the disk is full: the journal cannot be written")
async def disk_full(stage, rng):
    host, child = stage.engine(rng)
    host.machine.disk_full = True
    if rng.random() < 0.7:
        child.end(-9)
    await trio.sleep(span(rng, 5, 300))
    host.machine.disk_full = False


@fault("B15", "no process can be started")
async def no_spawn(stage, rng):
    host, child = stage.engine(rng)
    host.machine.spawn_fails = True
    child.end(-9)
    await trio.sleep(span(rng, 1, 300))
    host.machine.spawn_fails = False


@fault("B13", "the engine program is not there")
async def no_engine(stage, rng):
    host, child = stage.engine(rng)
    host.machine.no_engine = True
    child.end(-9)
    await trio.sleep(span(rng, 1, 200))
    host.machine.no_engine = False


@fault("B13", "files cannot be read, while somebody wants another one")
async def store_away(stage, rng):
    name, host = stage.wished(rng), stage.host(rng)
    host.machine.broken = {source: NetworkDownError("the disk is away") for source in SOURCES}
    await stage.wishes.apply(stage.world, name, source=rng.choice(SOURCES))
    await trio.sleep(span(rng, 5, 300))
    host.machine.broken = {}


@fault("D14 D9", "a file takes long to arrive")
async def slow_fetch(stage, rng):
    name, host = stage.wished(rng), stage.host(rng)
    host.machine.fetch_seconds = dict.fromkeys(SOURCES, span(rng, 10, 400))
    await stage.wishes.apply(stage.world, name, source=rng.choice(SOURCES))
    await trio.sleep(span(rng, 5, 400))
    host.machine.fetch_seconds = {}


@fault("B4 D14", "the agent is killed while a file arrives")
async def killed_while_fetching(stage, rng):
    name, host = stage.wished(rng), stage.host_with_agent(rng)
    host.machine.fetch_seconds = dict.fromkeys(SOURCES, 120.0)
    await stage.wishes.apply(stage.world, name, source=rng.choice(SOURCES))
    await trio.sleep(span(rng, 1, 100))
    if not host.running or host.name in stage.busy:
        raise NotNow
    async with stage.away(host, "kill"):
        host.machine.fetch_seconds = {}


# -- C: engines -----------------------------------------------------------------------------------------------------------


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
    name = stage.wished(rng)
    children = [child for host in stage.world.hosts.values() for child in host.machine.live(name)]
    for child in children:
        child.script, child.in_flight = attrs.evolve(child.script, stop_seconds=8.0), rng.randint(0, 1)
    await stage.wishes.apply(stage.world, name, contextSize=rng.choice(CONTEXTS), extraArgs=[])
    await trio.sleep(span(rng, 0.05, 8))
    for child in children:
        child.end(-9)


@fault("C19", "every engine of a host is killed for want of memory")
async def massacre(stage, rng):
    host, _ = stage.engine(rng)
    for child in host.machine.live():
        child.end(-9)
    await trio.lowlevel.checkpoint()


def behaves(script, *, low=20, high=400):
    """The next engines of a service behave badly for a while; the one that runs ends."""

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
    ("wrong-model", "C16", "engines serve another model", Script(load_seconds=2, says="somebody-else")),
    ("port-taken", "B16", "somebody is always faster at the port", Script(9, 0.5, words=BUSY_PORT)),
    ("intruder", "B17", "another program answers on the port", Script(load_seconds=2, intruder=True)),
    ("segfault", "C4", "engines die of a segmentation fault after half a minute", Script(2, 30, exit_code=-11)),
):
    row(_name, _codes, _phrase, behaves(_script))


@fault("C8", "an engine ignores TERM while it is replaced")
async def stubborn_stop(stage, rng):
    host, child = stage.engine(rng, ready=True)
    child.script = attrs.evolve(child.script, stop_seconds=math.inf)
    if child.name in stage.wishes.specs:
        await stage.wishes.apply(stage.world, child.name, contextSize=rng.choice(CONTEXTS), extraArgs=[])


@fault("C20", "requests in flight do not end while an engine is replaced")
async def slow_drain(stage, rng):
    host, child = stage.engine(rng, ready=True)
    child.in_flight = 3
    if child.name in stage.wishes.specs:
        await stage.wishes.apply(stage.world, child.name, contextSize=rng.choice(CONTEXTS), extraArgs=[])
    await trio.sleep(span(rng, 5, 60))
    child.in_flight = 0


def becomes(low=20, high=400, **how):
    """An engine that serves begins to misbehave."""

    async def inject(stage, rng):
        _, child = stage.engine(rng, ready=True)
        for name, value in how.items():
            setattr(child, name, value)
        await trio.sleep(span(rng, low, high))
        for name in how:
            setattr(child, name, attrs.fields_dict(type(child))[name].default)

    return inject


row("wedged", "C7", "requests stand still, and every question is answered", becomes(in_flight=3, pace=0.0, counts=False))
row("frozen", "C7", "an engine is stopped by a signal", becomes(frozen=True, in_flight=1))
row("frozen-briefly", "C7", "an engine is stopped and continued", becomes(frozen=True, low=0.1, high=5))
row("mute", "C5", "an engine accepts and never answers", becomes(mute=True))
row("late", "N6 C7", "an engine at rest answers late", becomes(slow_seconds=8.0))
row("long-prompt", "C6 C7", "an engine answers nothing while it computes", becomes(mute=True, in_flight=1))
row("port-lost", "C14", "an engine listens no more", becomes(closed=True))
row("busy", "C7 C13", "an engine has work for minutes", becomes(in_flight=8))


# -- N: hosts and networks ---------------------------------------------------------------------------------------------------


@fault("N4", "the host sleeps and wakes up")
async def sleep(stage, rng):
    host = stage.host(rng)
    with stage.wrong_api(host, kind="half-open"):
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


@fault("N1", "the host gets another address")
async def moved(stage, rng):
    host = stage.host(rng)
    if host.machine.reach is None:
        raise NotNow
    before = host.machine.reach
    with stage.books.disturbed(host):
        host.machine.reach = at(f"198.51.100.{rng.randint(1, 9)}")
        await trio.sleep(span(rng, 1, 300))
        if rng.random() < 0.5:
            host.machine.reach = before


@fault("N2", "another route appears, and the old address stays")
async def another_route(stage, rng):
    host = stage.host(rng)
    if host.machine.reach is None or host.machine.reach.address is None:
        raise NotNow
    host.machine.reach = at(f"198.51.100.{rng.randint(1, 9)}", host.machine.reach.address)
    await trio.lowlevel.checkpoint()


@fault("N1 N9", "the host has no address for a while")
async def no_address(stage, rng):
    host = stage.host(rng)
    if host.machine.reach is None:
        raise NotNow
    before = host.machine.reach
    with stage.wrong_api(host, down=True):
        host.network.sever()
        host.machine.reach = Reach(None, problem="no route")
        try:
            await trio.sleep(span(rng, 1, 300))
        finally:
            host.machine.reach = before


@fault("N3", "the host comes to a network with IPv6 only")
async def ipv6(stage, rng):
    host = stage.host(rng)
    if host.machine.reach is None:
        raise NotNow
    host.machine.reach = at(f"2001:db8::{rng.randint(1, 9)}")
    await trio.lowlevel.checkpoint()


@fault("N7", "the power of a host fails, and comes back")
async def power_cut(stage, rng):
    host = stage.host_with_agent(rng)
    async with stage.away(host, "kill"):
        for child in host.machine.live():
            child.end(-9)
        await trio.sleep(span(rng, 1, 400))


@fault("N7 B5", "the power of a host fails, and its disk has lost the journal and the files")
async def power_cut_with_loss(stage, rng):
    host = stage.host_with_agent(rng)
    async with stage.away(host, "kill"):
        for child in host.machine.live():
            child.end(-9)
        host.machine.entries.clear()
        host.machine.files.clear()
        await trio.sleep(span(rng, 1, 100))


@fault("N5", "a host is cut off from the cluster", hosts=2)
async def partition(stage, rng):
    await _api_away(stage, span(rng, 10, 600), stage.host(rng))


@fault("N5 N7", "every host is cut off, one after the other", hosts=2)
async def partition_in_turn(stage, rng):
    for host in stage.world.hosts.values():
        await _api_away(stage, span(rng, 5, 120), host)


@fault("N5", "the memory that hosts have free changes", hosts=2)
async def memory_moves(stage, rng):
    stage.host(rng).machine.free_bytes = rng.choice((0, 1 << 30, 16 << 30, 60 << 30))
    await trio.lowlevel.checkpoint()


# -- what users do -------------------------------------------------------------------------------------------------------------


async def _edit(stage, rng):
    await stage.wishes.apply(stage.world, stage.wished(rng), contextSize=rng.choice(CONTEXTS), extraArgs=[])


async def _create(stage, rng):
    name = rng.choice(stage.wishes.names)
    await stage.wishes.apply(stage.world, name, contextSize=rng.choice(CONTEXTS), extraArgs=[])


async def _scale(stage, rng):
    replicas = rng.choice((0, 1, 1, 2)[: 2 + len(stage.world.hosts)])
    await stage.wishes.apply(stage.world, stage.wished(rng), replicas=replicas)


async def _suspend(stage, rng):
    await stage.wishes.apply(stage.world, stage.wished(rng), suspend=rng.random() < 0.5)


async def _refuse(stage, rng):
    await stage.wishes.apply(stage.world, stage.wished(rng), extraArgs=["--port", "1"])


async def _source(stage, rng):
    await stage.wishes.apply(stage.world, stage.wished(rng), source=rng.choice(SOURCES))


async def _label(stage, rng):
    name = stage.wished(rng)
    stage.wishes.labels[name] = rng.choice(("red", "blue"))
    await stage.wishes.apply(stage.world, name)


async def _delete(stage, rng):
    await stage.wishes.delete(stage.world, stage.wished(rng))


async def _edits_in_a_row(stage, rng):
    name = stage.wished(rng)
    for _ in range(rng.randint(2, 6)):
        if name in stage.wishes.specs:
            await stage.wishes.apply(stage.world, name, contextSize=rng.choice(CONTEXTS), extraArgs=[])
        await trio.sleep(span(rng, 0.01, 3))


USERS: dict[str, Inject] = {
    "create": _create,
    "edit": _edit,
    "edits-in-a-row": _edits_in_a_row,
    "scale": _scale,
    "suspend": _suspend,
    "refuse": _refuse,
    "source": _source,
    "label": _label,
    "delete": _delete,
}
"""What users do, by name."""
