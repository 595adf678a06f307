"""A minimal host: the real ledger and the real pressure loop, with simulated services that reserve and free memory.

It has no objects, files, processes or endpoints; `test_agent` has those.
"""

from collections.abc import Sequence

import attrs
import trio

from llmkube.k8s.resource import Key
from llmkube.supervisor.host.pressure_level import Signals, Thresholds, assess_pressure
from llmkube.supervisor.host.sample import Level, Sample
from llmkube.supervisor.memory.book import Book
from llmkube.supervisor.memory.eviction import Cause
from llmkube.supervisor.memory.eviction_manager import EvictionManager
from llmkube.supervisor.memory.ledger import Ledger
from llmkube.supervisor.memory.policy import Policy, Rules
from llmkube.supervisor.memory.reservation import MemorySpec, Need

GIB = 1 << 30
PIDS = iter(range(1000, 10**9))


@attrs.define(eq=False)
class Engine:
    """A service and its behavior; sizes in GiB.

    Attributes:
        needs: Expected size.
        takes: Real size once it is loaded; None for the expected size.
        load_seconds: Time from the start until the engine has all its memory and answers.
        stop_seconds: Time from the eviction until the process is gone.
        late_seconds: Time from then until its memory is free.
        grows: Growth per hour once it is loaded.
        learns: Whether the next start reserves the size that this one took.
        on_device: Whether all its memory is on the device.
    """

    name: str
    needs: float
    priority: str = "normal"
    protected: bool = False
    takes: float | None = None
    load_seconds: float = 20.0
    stop_seconds: float = 2.0
    late_seconds: float = 0.0
    grows: float = 0.0
    learns: bool = True
    on_device: bool = True
    idle: bool = False
    adopted: bool = False
    wanted: bool = True

    @property
    def key(self):
        return Key("ns", self.name)

    @property
    def spec(self):
        return MemorySpec(self.priority, self.protected)


@attrs.define(eq=False)
class Process:
    """The process of an engine, and the memory that it holds."""

    engine: Engine
    started: float
    pid: int = attrs.field(factory=lambda: next(PIDS))
    ended: float | None = None

    def holds(self, now):
        """Return the bytes held at a moment: they grow evenly during the load, and are freed at once, perhaps late."""
        engine = self.engine
        if self.ended is not None and now >= self.ended + engine.late_seconds:
            return 0
        full = (engine.needs if engine.takes is None else engine.takes) * GIB
        age = now - self.started
        share = 1.0 if engine.load_seconds <= 0 else min(1.0, age / engine.load_seconds)
        grown = max(0.0, age - engine.load_seconds) / 3600 * engine.grows * GIB
        return int(full * share + grown)


@attrs.frozen
class Mark:
    """Something that happened to a service."""

    at: float
    name: str
    what: str  # start, ready, evict, gone

    def __str__(self):
        return f"{self.at:.1f} {self.name} {self.what}"


@attrs.define(eq=False)
class Memory:
    """`HostMemory` of a host of `total` GiB, of which other programs hold `other` GiB."""

    total: float
    other: float
    processes: list[Process] = attrs.field(factory=list)
    level: Level | None = None  # the kernel's level, if it differs from the figures
    touchy: float = 0.0
    broken: Sample | None = None
    device_limit: float | None = None
    news: trio.Event = attrs.field(factory=trio.Event)
    thresholds: Thresholds = Thresholds()

    @property
    def available_bytes(self):
        now = trio.current_time()
        held = sum(process.holds(now) for process in self.processes)
        return int((self.total - self.other) * GIB) - held

    async def sample(self):
        await trio.lowlevel.checkpoint()
        if self.broken is not None:
            return self.broken
        total, available = int(self.total * GIB), max(0, self.available_bytes)
        level, why = assess_pressure(Signals(total, available), self.thresholds)
        held = sum(process.holds(trio.current_time()) for process in self.processes)
        if self.touchy and held > self.touchy * GIB:
            level = Level.CRITICAL
        limit = None if self.device_limit is None else int(self.device_limit * GIB)
        is_mac = any(process.engine.late_seconds for process in self.processes)  # Linux is never late
        return Sample(
            total,
            available,
            level if self.level is None else self.level,
            device_limit_bytes=limit,
            wired_bytes=3 * GIB + held if is_mac else None,
            why=why,
        )

    async def wait_change(self):
        await self.news.wait()
        self.news = trio.Event()

    async def footprint(self, pids):
        await trio.lowlevel.checkpoint()
        now = trio.current_time()
        return {each.pid: each.holds(now) for each in self.processes if each.pid in pids and each.ended is None}


@attrs.define(eq=False)
class Carrier:
    """A running host."""

    memory: Memory
    engines: dict[str, Engine]
    policy: Policy
    nursery: trio.Nursery
    ledger: Ledger
    pressure: EvictionManager
    over: bool = False
    marks: list[Mark] = attrs.field(factory=list)
    decisions: list = attrs.field(factory=list)
    waits: dict[str, list[str]] = attrs.field(factory=dict)
    evictions: list = attrs.field(factory=list)  # (moment, Evict)
    lives: dict[str, trio.CancelScope] = attrs.field(factory=dict)
    crashed: dict[str, trio.Event] = attrs.field(factory=dict)
    leak: float = 0.0
    forced: bool = False  # the kernel has reported a level that the figures do not show
    peaks: dict[str, int] = attrs.field(factory=dict)

    def record(self, name, what):
        if self.over:
            return
        self.marks.append(Mark(trio.current_time(), name, what))

    def at(self, name, what):
        """Return the time of an event of a service."""
        return [mark.at for mark in self.marks if mark.name == name and mark.what == what]

    def running(self):
        """Return the services that are loaded now, in order."""
        state = {}
        for mark in self.marks:
            state[mark.name] = mark.what
        return sorted(name for name, what in state.items() if what == "ready")

    def add(self, engine):
        """Add a service."""
        self.engines[engine.name] = engine
        self.ledger.set_spec(engine.key, engine.spec)
        process = None
        if engine.adopted:
            process = Process(engine, trio.current_time() - engine.load_seconds)
            self.memory.processes.append(process)
            self.ledger.adopt(engine.key, Need(int(engine.needs * GIB), estimated_bytes=int(engine.needs * GIB)))
        self.lives[engine.name] = scope = trio.CancelScope()
        self.nursery.start_soon(self._serve, engine, scope, process)

    def delete(self, name):
        """Delete a service."""
        self.lives[name].cancel(reason="deleted")

    def edit(self, name, **changes):
        """Edit the objects of a service."""
        for field, value in changes.items():
            setattr(self.engines[name], field, value)
        self.ledger.set_spec(self.engines[name].key, self.engines[name].spec)

    def crash(self, name):
        """Kill the process of a service."""
        for process in self.memory.processes:
            if process.engine.name == name and process.ended is None:
                process.ended = trio.current_time()
        if name in self.crashed:
            self.crashed[name].set()

    async def _serve(self, engine, life, process):
        with life:
            while True:
                with trio.CancelScope() as attempt:
                    await self._attempt(engine, attempt, process)
                process = None
        self.ledger.forget(engine.key)

    async def _attempt(self, engine, attempt, process):
        expected = int(engine.needs * GIB)
        learned = self.peaks.get(engine.name, 0) if engine.learns else 0
        total = max(expected, learned)
        need = Need(total, total if engine.on_device else 0, estimated_bytes=expected)
        messages = self.waits.setdefault(engine.name, [])

        def report(refusal):
            messages.append(refusal.message)

        async with self.ledger.admitted(engine.key, need, scope=attempt, report=report) as allocation:
            found = process is not None
            if process is None:
                process = Process(engine, trio.current_time())
                self.memory.processes.append(process)
                self.record(engine.name, "start")
            self.crashed[engine.name] = crashed = trio.Event()
            self.ledger.started(allocation, process.pid)
            try:
                if not found:
                    with trio.move_on_after(engine.load_seconds):
                        await crashed.wait()
                if not crashed.is_set():
                    self.ledger.record_loaded(allocation)
                    self.record(engine.name, "ready")
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._work, engine, allocation)
                        await crashed.wait()
                        nursery.cancel_scope.cancel()
            finally:
                if process.ended is None:
                    with trio.CancelScope(shield=True, deadline=trio.current_time() + engine.stop_seconds):
                        await trio.sleep_forever()
                    process.ended = trio.current_time()
                self.peaks[engine.name] = max(self.peaks.get(engine.name, 0), allocation.reservation.peak_bytes)
                self.record(engine.name, "gone")

    async def _work(self, engine, allocation):
        while True:
            if not engine.idle:
                allocation.record_activity()
            await trio.sleep(10)

    def notified(self, evict):
        self.record(evict.key.name, "displaced" if evict.cause is Cause.DISPLACED else "evict")
        self.evictions.append((trio.current_time(), evict))


async def run_host(timeline, *, memory, engines: Sequence[Engine], policy=None, fraction=None, watch=None):
    """Run a timeline on a host, and return the host."""
    policy = policy or Policy()
    rules = Rules(policy, fraction, gentle_seconds=20.0, urgent_seconds=8.0)
    ledger = Ledger(Book(rules))
    async with trio.open_nursery() as nursery:
        carrier = Carrier(memory, {}, policy, nursery, ledger, EvictionManager(memory, ledger))

        def announce(decision, before):
            carrier.decisions.append((trio.current_time(), decision))
            if watch is not None:
                watch(carrier, decision)

        ledger.notified, carrier.pressure.announce = carrier.notified, announce
        for engine in engines:
            carrier.add(engine)
        nursery.start_soon(carrier.pressure.run)
        await timeline(carrier)
        carrier.over = True
        nursery.cancel_scope.cancel(reason="the timeline has ended")
    return carrier
