"""The simulated host: engines that load, serve, crash and hang by a script, connected over in-memory HTTP."""

from __future__ import annotations

import errno
import json
import math
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio

from llmkube.base.errors import ExternalError
from llmkube.base.waiting import wait_any
from llmkube.k8s.resource import Key
from llmkube.programs.daemon_engine.keeper import Keeper
from llmkube.runtimes.plan import UNLOAD_LEFT, EngineInfo
from llmkube.supervisor.engine.child import KILL_SECONDS, AdoptError
from llmkube.supervisor.engine.key_file import with_client_keys
from llmkube.supervisor.engine.launcher import AddressMissingError, EngineStuckError
from llmkube.supervisor.engine.orphans import match_processes
from llmkube.supervisor.host.exit_events import wait_exit
from llmkube.supervisor.host.processes import COOKIE_VARIABLE
from llmkube.supervisor.memory.learned import LearnedFigures
from llmkube.supervisor.values.cordon import Cordon
from llmkube.supervisor.values.host_addresses import HostAddress
from llmkube.supervisor.values.journal import Entry, JournalError, dump, load
from llmkube.supervisor.values.lifecycle import Exit
from llmkube.supervisor.values.liveness import EngineStats
from llmkube.supervisor.values.ports import HostFacts
from llmkube.weights.download.progress import Progress
from llmkube.weights.formats.shape import GGUFFacts
from llmkube.weights.store.blobs import WeightsFile
from sim.connection import Connection
from sim.daemon import Daemons
from sim.daemons import MODULES, daemons_of_a_host, is_front, runtime_of
from sim.mac_exit import MacExit

HELP_FLAGS = frozenset(
    f"--{name}"
    for name in (
        *("model", "host", "port", "alias", "ctx-size", "parallel", "n-gpu-layers", "flash-attn", "metrics", "fit"),
        *("verbosity", "no-ui", "cache-type-k", "cache-type-v", "batch-size", "ubatch-size", "jinja", "no-warmup"),
        *("cache-ram", "api-key-file", "cors-origins", "no-slots"),
    )
)

ALIAS_FLAGS = {"--alias": "llamacpp", "--llmkube-alias": "llmkube", "--served-model-name": "vllm"}
"""The flag with the model's name, and the metrics prefix, by runtime."""

KEY_FLAGS = ("--api-key-file", "--llmkube-keys")

INJECTED_BUG = "a bug that the simulation has made"

FACTS = GGUFFacts("llama", 3, 10, 100, name="sim", context_length=4096, layer_count=4)


@attrs.define
class Script:
    """The behavior of the next engines of one service.

    Attributes:
        load_seconds: From spawn to the first 200 on /health; math.inf never gets there.
        life_seconds: From spawn to its own exit; math.inf serves forever.
        exit_code: Exit code of its own exit.
        stop_seconds: From TERM to its exit; more than the grace means KILL.
        words: Its output.
        stalls_after: Seconds after which a load makes no progress.
        model_id: The model id that it serves, if not the requested one.
        intruder: Another program has its port and answers 200; the engine itself never gets there.
        deaf: It never listens on its port.
        computes: Whether it answers a request for a token with one, and not with 500.
        unsigned: macOS ends it at its own exit, because of its code signature.
    """

    load_seconds: float = 5.0
    life_seconds: float = math.inf
    exit_code: int = 1
    stop_seconds: float = 1.0
    words: tuple[str, ...] = ("loading",)
    stalls_after: float = math.inf
    model_id: str = ""
    intruder: bool = False
    deaf: bool = False
    unsigned: bool = False
    computes: bool = True

    @property
    def is_odd(self):
        """Whether such an engine may have to be stopped."""
        return bool(self.deaf or self.intruder or self.model_id or self.stalls_after < math.inf)


@attrs.define(eq=False)
class SimChild:
    """One simulated process."""

    pid: int
    name: str
    port: int
    argv: tuple[str, ...]
    script: Script
    serves: bool = False
    keeper: Keeper | None = None  # of a front of a shared daemon: whether it serves
    stop_requested: trio.Event = attrs.field(factory=trio.Event)
    exit: Exit | None = None
    ended: trio.Event = attrs.field(factory=trio.Event)
    terminated: bool = False  # an agent has begun to stop it
    mac_exit: MacExit | None = None  # its kernel's exit events on a Mac; None reports an exit when it has exited

    @property
    def ready(self):
        """Whether it reports that it is ready."""
        return self.exit is None and (self.serves if self.keeper is None else self.keeper.ready)

    async def wait(self):
        if self.mac_exit is not None:
            await wait_exit(self.mac_exit, self.pid, lambda: self.exit is not None)
            return self.exit or Exit(None)
        await self.ended.wait()
        return self.exit

    started: str = "boot:1"
    log_offset: int = 0
    cookie: str = ""
    in_flight: int = 0
    requests: int = 0  # of clients of the gateway; `in_flight` is set by faults
    owners: int = 0  # number of agents that supervise it: one, or none while none runs
    spawned_at: float = 0.0
    odd: bool = False  # it has misbehaved, and may be stopped for that
    log: Path | None = None
    api_keys: tuple[str, ...] = ()
    address: tuple[str, int] = ("", 0)  # address for clients, of its proxy or its own
    visible: Callable[[], bool] = lambda: True  # whether the agent can inspect it

    @property
    def runtime(self):
        """The prefix of its metrics."""
        return next(name for flag, name in ALIAS_FLAGS.items() if flag in self.argv)

    def environ(self):
        return {COOKIE_VARIABLE: self.cookie}

    async def last_lines(self, count):
        await trio.lowlevel.checkpoint()
        return self.script.words[-count:]

    async def first_lines(self):
        await trio.lowlevel.checkpoint()
        return self.script.words

    async def rename_log(self, path):
        await trio.lowlevel.checkpoint()
        self.log = path

    async def listens(self, port):
        await trio.lowlevel.checkpoint()
        return not self.visible() or (port == self.port and not self.script.intruder)

    # Current behavior. A frozen engine (SIGSTOP) does nothing at all, a mute one accepts and answers nothing, a closed
    # one does not listen, a slow one takes this long for an answer. `pace` is the share of a core that its work takes
    # while requests are in flight; `counts` is whether batches finish meanwhile.
    frozen: bool = False
    stuck: bool = False  # in the kernel: even KILL does not end it
    mute: bool = False
    slow_seconds: float = 0.0
    closed: bool = False
    pace: float = 1.0
    counts: bool = True
    tokens_given: int = 0
    asked: int = 0
    answered: int = 0
    cpu_seconds: float = 0.0
    batches: int = 0
    worked_at: list[float] = attrs.field(factory=list)
    ended_at: float = math.inf
    _seen_at: float = attrs.field(factory=lambda: math.nan)
    _born_at: float = attrs.field(factory=lambda: math.nan)

    def live_on(self):
        """Update progress and CPU time for the time since the last call."""
        now = trio.current_time()
        if math.isnan(self._seen_at):
            self._born_at = self._seen_at = now
        passed, self._seen_at = now - self._seen_at, now
        loading = not self.ready and now - self._born_at < self.script.stalls_after
        if not self.frozen and (loading or self.in_flight or self.requests):
            self.cpu_seconds += passed * (1.0 if loading else self.pace)
            self.batches += int(passed > 0 and self.counts and not loading)

    async def read_stats(self, host, port, *, loading):
        await trio.lowlevel.checkpoint()
        return self.read_stats_nowait(host, port)

    def read_stats_nowait(self, host, port):
        if not self.visible():
            return None
        self.live_on()
        state = "D" if self.stuck else "T" if self.frozen else "S"
        # llama.cpp writes a line for each request of its metrics
        return EngineStats(
            state, round(self.cpu_seconds, 2), len(self.script.words) + self.answered, listening=not self.closed
        )

    def record_activity(self):
        self.worked_at.append(trio.current_time())

    def memory_kills(self):
        return 0

    def unstick(self):
        """End the process that was stuck in the kernel."""
        self.stuck = False
        self.end(-9)

    def end(self, code, *, for_signature=False):
        if self.exit is None and not self.stuck and (self.mac_exit is None or not self.mac_exit.hides(self, code)):
            self.exit, self.serves, self.ended_at = Exit(code, for_signature), False, trio.current_time()
            self.ended.set()


@attrs.define(eq=False)
class Trap:
    """A point in the agent's handling of processes where it is blocked until released, or killed."""

    hit: trio.Event = attrs.field(factory=trio.Event)
    released: trio.Event = attrs.field(factory=trio.Event)


@attrs.define(eq=False)
class Machine:
    """`Engines`, `Weights` and the network of one simulated host; also the history that invariants read.

    Attributes:
        scripts: Behavior by service name; `default` for the others.
        plans: Behavior by an argument of the command line, whatever the service.
        fetch_seconds: Duration of a fetch, by source.
        broken: Sources that cannot be fetched now, with the error to raise.
        spawned: Every process so far, in order.
        agent_killed: The agent is being killed by SIGKILL: none of its actions has an effect.
        entries: The journal on disk.
        files: The sources whose files are stored.
        free_bytes: Available memory.
        reach: Address of this host, if the agent looks it up; None for the one in the settings.
        doubles: Services that had two live engines at some moment.
        disk_full: The journal cannot be written.
        spawn_fails: No process can be started.
        no_engine: The engine program is not there.
        build: Installed build of the engine program, and its flags.
        daemons: The owner's daemons, and those that fronts have started, by runtime.
        programs: The installed runtimes.
        no_proxies: The proxies of published engines do not listen.
        no_address: No process can listen on the configured address of engines.
        no_descriptors: The agent can open nothing: no file, no connection, and nothing of /proc.
        cordon: The owner's cordon; it survives the agent.
        has_proc: Whether inspecting a process takes a descriptor; on macOS it takes none.
        look_seconds: Duration of a network scan.
        bugs: Services whose engines the agent does not start, because of a bug.
        memory: Its memory; None for a host whose memory is not watched.
        shapes: Model shapes in the headers of files, by source.
        learned: Needs that its agents have learned.
        traps: Points where the agent is blocked: `intent`, `spawn`, `record`, `remove`.
        stopping: Called when the agent is about to stop an engine.
        changed: Called when an engine has started or exited, or when an agent starts or stops supervising it.
    """

    nursery: trio.Nursery
    default: Script = attrs.field(factory=Script)
    scripts: dict[str, Script] = attrs.field(factory=dict)
    plans: dict[str, Script] = attrs.field(factory=dict)
    fetch_seconds: dict[str, float] = attrs.field(factory=dict)
    broken: dict[str, Exception] = attrs.field(factory=dict)
    spawned: list[SimChild] = attrs.field(factory=list)
    agent_killed: bool = False
    spawned_at: dict[str, list[float]] = attrs.field(factory=dict)
    entries: dict[Key, Entry] = attrs.field(factory=dict)
    ports_given: int = 0
    files: set[str] = attrs.field(factory=set)
    free_bytes: int = 32 << 30
    reach: HostAddress | None = None
    doubles: list[str] = attrs.field(factory=list)
    disk_full: bool = False
    spawn_fails: bool = False
    no_engine: bool = False
    build: tuple[str, frozenset[str]] = ("sim", HELP_FLAGS)
    daemons: dict[str, Daemons] = attrs.field(factory=daemons_of_a_host)
    programs: set[str] = attrs.field(factory=lambda: {"llamacpp"})
    no_address: bool = False
    no_proxies: bool = False
    no_descriptors: bool = False
    cordon: Cordon | None = None
    has_proc: bool = True
    look_seconds: float = 0.0
    bugs: set[str] = attrs.field(factory=set)
    memory: object = None
    shapes: dict[str, object] = attrs.field(factory=dict)
    learned: LearnedFigures = attrs.field(factory=LearnedFigures)
    traps: dict[str, Trap] = attrs.field(factory=dict)
    mac_exit: Callable[[], MacExit | None] = lambda: None
    changed: Callable[[], None] = lambda: None
    stopping: Callable[[SimChild], None] = lambda child: None

    # -- the supervisor's interface -------------------------------------------------------------------------------

    async def _pass(self, point):
        await trio.lowlevel.checkpoint()
        if trap := self.traps.get(point):
            trap.hit.set()
            await trap.released.wait()

    async def info(self, runtime="llamacpp"):
        await trio.lowlevel.checkpoint()
        if self.no_engine or runtime not in self.programs:
            raise NetworkDownError("the engine program is not there")
        if runtime != "llamacpp":
            front = (sys.executable, "-m", MODULES[runtime]) if runtime in MODULES else ()
            wrapper = "" if "/" in runtime else f"/sim/{runtime}.py"
            return EngineInfo(f"/sim/{runtime}", "0.1", frozenset(), wrapper=wrapper, front=front)
        return EngineInfo("/sim/llama-server", *self.build)

    def free_port(self, host):
        if self.no_address:
            raise AddressMissingError(f"engines cannot listen on {host}: no such address")
        self.ports_given += 1
        return 40_000 + self.ports_given

    @asynccontextmanager
    async def open_child(self, command, shutdown, grace):
        await self._pass("spawn")
        if self.spawn_fails:
            raise NetworkDownError("cannot start a process: resource temporarily unavailable")
        if self.no_descriptors:
            raise NetworkDownError("cannot start a process: too many open files")
        argv = command.argv
        if UNLOAD_LEFT in argv:
            code = await self.daemons[runtime_of(argv)].unload_leftover(argv[:-1])
            gone = SimChild(0, "", 0, argv, Script(), exit=Exit(code))
            gone.ended.set()
            yield gone
            return
        (named,) = (flag for flag in ALIAS_FLAGS if flag in argv)
        name, port = argv[argv.index(named) + 1], int(argv[argv.index("--port") + 1])
        if name in self.bugs:
            raise KeyError(INJECTED_BUG)
        if any(child.stuck for child in self.live(name)):
            raise EngineStuckError(f"the last engine of {name} is stuck in the kernel")
        if not self._may_start(name, argv):
            self.doubles.append(name)
        child = SimChild(1000 + len(self.spawned), name, port, argv, self._script(name, argv))
        child.cookie, child.closed, child.log = command.cookie, child.script.deaf, command.log_path
        child.api_keys = command.api_keys
        child.address = command.proxy.listen if command.proxy else (argv[argv.index("--host") + 1], port)
        child.spawned_at, child.odd = trio.current_time(), child.script.is_odd
        child.mac_exit = self.mac_exit()
        child.visible = lambda: not (self.no_descriptors and self.has_proc)
        self.spawned.append(child)
        self.spawned_at.setdefault(name, []).append(trio.current_time())
        self.nursery.start_soon(self._live_front if is_front(argv) else self._live, child)
        async with self._owned(child, shutdown, grace):
            yield child

    @asynccontextmanager
    async def adopt_child(self, record, log_path, shutdown, grace):
        await trio.lowlevel.checkpoint()
        (child,) = [child for child in self.spawned if child.pid == record.pid]
        if child.exit is not None:
            raise AdoptError(f"process {record.pid} has exited")
        async with self._owned(child, shutdown, grace):
            while self.no_descriptors:  # noqa: ASYNC110 - as the real one: there is no event for a free descriptor
                await trio.sleep(1)
            yield child

    @asynccontextmanager
    async def _owned(self, child, shutdown, grace):
        child.owners += 1
        self.changed()
        try:
            yield
        finally:
            if not (shutdown.keep or self.agent_killed):
                self.stopping(child)
                child.terminated = True
                self.nursery.start_soon(self._term, child)
                with trio.move_on_after(grace.seconds, shield=True):
                    await wait_any(child.wait, grace.wait_expired)
                if not self.agent_killed:
                    child.end(-9)
                    if child.mac_exit is not None:
                        with trio.move_on_after(KILL_SECONDS, shield=True):
                            await child.wait()
            child.owners -= 1
            self.changed()

    def _script(self, name, argv):
        planned = [script for argument, script in self.plans.items() if argument in argv]
        return planned[0] if planned else self.scripts.get(name, self.default)

    def _may_start(self, name, argv):
        """Return whether no engine serves this already, or only one of another plan on a host that holds both."""
        others = [_plan(child.argv) for child in self.live(name)]
        return not others or (self.memory is not None and len(others) == 1 and _plan(argv) not in others)

    async def _term(self, child):
        child.frozen = False  # TERM comes with CONT
        await trio.sleep(child.script.stop_seconds)
        if child.exit is None:
            child.stop_requested.set()
        if not is_front(child.argv):
            child.end(0)

    async def write(self, entry):
        await self._pass("record" if entry.engine and entry.engine.pid else "intent")
        if self.disk_full or self.no_descriptors:
            raise JournalError(f"cannot write the journal: {'no space left' if self.disk_full else 'too many files'}")
        if not self.agent_killed:
            self.entries[entry.key] = load(json.loads(json.dumps(dump(entry))))

    async def remove(self, key):
        await self._pass("remove")
        if not self.agent_killed:
            self.entries.pop(key, None)

    def match_processes(self, settings):
        """Return the engines for the next agent: unclaimed ones have exited, as on a real machine."""
        starts = {child.pid: child.started for child in self.live()}
        left, strays = match_processes(
            self.entries, settings, self.live(), lambda pid: starts.get(pid, ""), lambda child: child.pid
        )
        for child in strays:
            child.end(-15)
        keys_of = {child.cookie: child.api_keys for child in self.spawned}
        for key, entry in left.items():
            if (record := self.entries[key].engine) is not None:
                left[key] = with_client_keys(entry, keys_of.get(record.cookie, ()))
        for key in self.entries.keys() - left.keys():
            del self.entries[key]
        return left

    async def fetch(self, model, progress):
        await trio.lowlevel.checkpoint()
        source = model.spec.source
        if self.no_descriptors:
            raise NetworkDownError("cannot open the file: too many open files")
        if source in self.broken:
            raise self.broken[source]
        seconds = self.fetch_seconds.get(source, 0.0)
        for percent in range(0, 100, 25):
            if seconds:
                progress(Progress("Copying", percent, 100))
                await trio.sleep(seconds / 4)
        self.files.add(source)
        return WeightsFile(
            path=Path("/sim") / source.replace("/", "_"), size_bytes=100, sha256=None, identity=source
        ), attrs.evolve(FACTS, shape=self._shape(model))

    async def compare_vocabularies(self, model, draft):
        await trio.lowlevel.checkpoint()
        return ""

    async def fetch_projector(self, model, weights, facts, progress):
        await trio.lowlevel.checkpoint()

    async def preview(self, model):
        """Return the model's shape from its header before the download; None for a stored file."""
        await trio.lowlevel.checkpoint()
        shape = self._shape(model)
        return None if shape is None or model.spec.source in self.files else attrs.evolve(FACTS, shape=shape)

    def _shape(self, model):
        shape = self.shapes.get(model.spec.source)
        return attrs.evolve(shape, format="mlx") if shape is not None and model.spec.format == "mlx" else shape

    async def has(self, model):
        await trio.lowlevel.checkpoint()
        return model.spec.source in self.files

    async def keeps(self, file):
        await trio.lowlevel.checkpoint()
        return file.identity in self.files

    def facts(self):
        if self.no_descriptors:
            return HostFacts()
        return HostFacts(64 << 30, self.free_bytes)

    async def find_address(self):
        await trio.sleep(self.look_seconds)
        return None if self.no_descriptors else self.reach

    async def connect(self, host, port):
        await trio.lowlevel.checkpoint()
        if self.no_descriptors:
            raise OSError(errno.EMFILE, "too many open files")
        child = next((child for child in self.live() if port in (child.port, child.address[1])), None)
        if child is None or child.closed or (self.no_proxies and port != child.port):
            raise ConnectionRefusedError(111, "connection refused")
        return Connection(child, requires_key=port == child.port and any(flag in child.argv for flag in KEY_FLAGS))

    # -- behavior -------------------------------------------------------------------------------------------------

    async def _live(self, child):
        with trio.move_on_after(child.script.life_seconds):
            with trio.move_on_after(child.script.load_seconds):
                await child.ended.wait()
            child.serves = child.exit is None
            await child.ended.wait()
        child.end(child.script.exit_code, for_signature=child.script.unsigned)
        self.changed()

    async def _live_front(self, child):
        with trio.move_on_after(child.script.life_seconds) as life:
            with trio.move_on_after(child.script.load_seconds):
                await wait_any(child.ended.wait, child.stop_requested.wait)
            await self.daemons[runtime_of(child.argv)].live(child)
        if life.cancelled_caught:
            child.end(child.script.exit_code)
        self.changed()

    # -- the tests' interface -------------------------------------------------------------------------------------

    def live(self, name=None):
        return [child for child in self.spawned if child.exit is None and name in (None, child.name)]

    def finish_requests(self):
        """Finish every request in flight."""
        for child in self.spawned:
            child.in_flight = 0

    def kill(self, name):
        """SIGKILL the engine of a service."""
        (child,) = self.live(name)
        child.end(-9)

    def lose_power(self):
        """End all processes."""
        for child in self.live():
            child.end(-9)
        for daemons in self.daemons.values():
            daemons.shared.restart()

    def starts(self, name):
        """Return the spawn times of a service's engines."""
        return self.spawned_at.get(name, [])

    def counts(self):
        return Counter(child.name for child in self.live())


def _plan(argv):
    """Return a command line without the port, which differs for each engine."""
    return [each for flag, each in zip(("", *argv), argv, strict=False) if flag != "--port"]


class NetworkDownError(ExternalError):
    """Error of a broken source when the environment is at fault."""
