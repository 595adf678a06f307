"""Seeds, timelines and the scorecard: a seed is half an hour of random events, and half an hour without events.

A seed is replayed by its number, since all randomness is seeded: the timeline's, the programs', Trio's scheduler. A
failing timeline is shrunk by leaving events out; each event has its own random seed, so the rest stays the same.
"""

import gc
import logging
import math
import random
import time
from collections import Counter
from contextlib import contextmanager
from functools import partial

import attrs
import structlog
import trio

from llmkube.k8s.crd.placement import ON_REQUEST
from mac.macs import RELEASES
from sim import daemons
from sim.clients import SimClient
from sim.faults import FAULTS, USERS
from sim.faults_activation import ACTIVATION_FAULTS, ACTIVATION_USERS, tight
from sim.faults_mac import MAC_FAULTS
from sim.invariants import (
    COLUMNS,
    DesiredServices,
    InvariantMonitor,
    Violation,
    WatchedStore,
    is_cordoned,
    is_on_request,
)
from sim.machine import SimChild
from sim.macs import mac_of
from sim.memory import SimMemory, shape_of
from sim.stage import CALM, SOURCES, NotApplicable, Stage, at
from sim.world import ADDRESS, agent_settings, open_world
from virtual_clock import virtual_clock

NAMES = ("a", "b", "c")
MINUTE = 60.0
BUSY_SECONDS = 30 * MINUTE
CONVERGED_SECONDS = 900.0
"""Time after the last fault until the desired state; the slowest are repeated writes (300 s) and silent watches."""

SETTLED_SECONDS = 60.0
"""Time for the last write about the desired state; afterwards nothing is written."""

KNOWN = FAULTS | MAC_FAULTS | ACTIVATION_FAULTS
"""All faults."""

ACTIONS = USERS | ACTIVATION_USERS
"""All actions of users and clients."""

PATIENCE_SECONDS = 300.0
"""Time for a request to an idle service at the end: two other services may have to be loaded and used before."""

trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING = True  # the order of tasks depends on `_r` alone


@attrs.frozen
class Happening:
    """One event of a timeline: its time, its name, and its own random seed."""

    at: float
    name: str
    seed: int

    def __str__(self):
        row = KNOWN.get(self.name)
        return f"{self.at:7.1f} s  {self.name:26} " + (f"{row.phrase} [{row.codes}]" if row else "(user)")


@attrs.frozen
class Timeline:
    """All parameters of one run."""

    seed: int
    hosts: int
    renew_seconds: float
    looks: bool
    watched: bool  # hosts' memory is watched, and engines are replaced side by side
    happenings: tuple[Happening, ...]
    busy_seconds: float = BUSY_SECONDS
    release: int = 0  # of macOS, where the hosts are Macs
    on_request: bool = False  # services are loaded on request, and there is memory for two


@attrs.define
class Result:
    """The result of a timeline.

    `converged_seconds` is the time from the last fault to the final desired state.
    """

    seed: int
    violations: list[Violation] = attrs.field(factory=list)
    faults: Counter = attrs.field(factory=Counter)
    converged_seconds: float = math.nan
    simulated_seconds: float = 0.0
    real_seconds: float = 0.0
    engines: int = 0
    trace: list = attrs.field(factory=list)  # all events with their times: equal for two runs of one timeline


def timeline_of(seed, hosts=None, *, macs=False, on_request=None):
    """Draw a timeline.

    Args:
        seed: Its seed.
        hosts: Number of hosts; drawn if None.
        macs: Whether they are Macs, with faults that only Macs have.
        on_request: Whether services are loaded on request; drawn if None.
    """
    rng = random.Random(seed)
    hosts = 1 if on_request else hosts or (1 if rng.random() < 0.7 else 2)
    renew_seconds = rng.choice((5.0, 15.0, 30.0, 30.0))
    looks = rng.random() < 0.5
    watched = rng.random() < 0.5
    able = sorted(name for name, row in FAULTS.items() if row.hosts <= hosts)
    happenings = [Happening(rng.uniform(0, 20), "create", rng.getrandbits(32)) for _ in NAMES]
    for names, count in ((able, rng.randint(5, 20)), (sorted(USERS), rng.randint(3, 12))):
        happenings += [
            Happening(rng.uniform(10, BUSY_SECONDS - 20), rng.choice(names), rng.getrandbits(32)) for _ in range(count)
        ]
    happenings += [  # still active when the faults stop
        Happening(rng.uniform(BUSY_SECONDS - 60, BUSY_SECONDS - 1), rng.choice(able), rng.getrandbits(32))
        for _ in range(rng.randint(1, 4))
    ]
    release = rng.choice(RELEASES) if macs else 0
    if macs:
        happenings += [
            Happening(rng.uniform(10, BUSY_SECONDS - 1), rng.choice(sorted(MAC_FAULTS)), rng.getrandbits(32))
            for _ in range(rng.randint(5, 15))
        ]
        watched = True
    dice = random.Random(f"activation {seed}")  # of its own: without it the timelines would be the same
    if on_request is None:
        on_request = hosts == 1 and not macs and dice.random() < 0.4
    if on_request:
        happenings += _activation_happenings(dice)
        watched = True
    happenings.sort(key=lambda one: one.at)
    return Timeline(
        seed, hosts, renew_seconds, looks, watched, tuple(happenings), release=release, on_request=on_request
    )


def _activation_happenings(rng):
    names = [name for name in sorted(ACTIVATION_USERS) if name != "ask"]
    drawn = [
        (["ask"], rng.randint(30, 80)),
        (names, rng.randint(6, 20)),
        (sorted(ACTIVATION_FAULTS), rng.randint(4, 12)),
    ]
    return [
        Happening(rng.uniform(10, BUSY_SECONDS - 5), rng.choice(among), rng.getrandbits(32))
        for among, count in drawn
        for _ in range(count)
    ]


SHAPES = {source: shape_of(2 + 2 * number) for number, source in enumerate(SOURCES)}


def roomy(machine):
    """Return the memory of a host that holds every service twice."""
    machine.shapes.update(SHAPES)
    return SimMemory(machine)


async def _happen(stage, happening, result):
    await trio.sleep_until(happening.at)
    known = KNOWN.get(happening.name)
    inject = known.inject if known else ACTIONS[happening.name]
    result.trace.append((happening.name, trio.current_time()))
    try:
        await inject(stage, random.Random(happening.seed))
    except NotApplicable:
        return
    finally:
        stage.monitor.look()
    if known:
        result.faults[happening.name] += 1


async def _play(timeline, quiet_minutes, result):
    settings = agent_settings(bind_address=ADDRESS, lease_renew_seconds=timeline.renew_seconds, reassert_seconds=300.0)
    reach = at(ADDRESS) if timeline.looks else None
    memory = tight if timeline.on_request else roomy if timeline.watched else None
    if timeline.on_request:
        settings = attrs.evolve(settings, activation=ON_REQUEST)
    if timeline.release:
        settings = attrs.evolve(settings, metal=True)
        memory = partial(mac_of, timeline.release, SHAPES)
    store = WatchedStore()
    async with open_world(seed=timeline.seed, settings=settings, store=store, reach=reach, memory=memory) as world:
        for number in range(1, timeline.hosts):
            reach = at(f"192.0.2.{20 + number}") if timeline.looks else None
            await world.add_host(f"host{number}", reach=reach, memory=memory)
        desired = DesiredServices(NAMES)
        monitor = InvariantMonitor(world, store, desired)
        stage = Stage(world, desired, monitor)
        for host in world.hosts.values():
            host.machine.default = CALM
            host.machine.programs |= set(daemons.RUNTIMES)
            monitor.started(host)
        async with trio.open_nursery() as watching:
            watching.start_soon(monitor.run)
            async with trio.open_nursery() as nursery:
                for happening in timeline.happenings:
                    nursery.start_soon(_happen, stage, happening, result)
                await trio.sleep_until(timeline.busy_seconds)
                nursery.cancel_scope.cancel(reason="the faults stop")
            await stage.repair_all()
            await _converge(stage, result)
            if not monitor.violations:
                monitor.quiet_since = trio.current_time()
                await trio.sleep(quiet_minutes * MINUTE)
                monitor.quiet_since = math.inf
                for column, text in monitor.problems(stage.desired):
                    monitor.report(column, f"after the quiet time {text}")
                await _ask_each(stage)
            watching.cancel_scope.cancel()
        result.violations = monitor.violations
        result.engines = sum(len(host.machine.spawned) for host in world.hosts.values())
        for host in world.hosts.values():
            result.trace += [(host.name, name, starts) for name, starts in sorted(host.machine.spawned_at.items())]
        result.trace.append(store.revision)
        result.simulated_seconds = trio.current_time()


async def _converge(stage, result):
    """Wait until the desired state is reached, and has lasted a while.

    Some objects are outside the desired state, such as the empty slice of a service that is scaled to zero. Other
    clients' changes to them just before the end are fixed when the agents reapply, or when silent watches are
    restarted; that is not restless, and the monitor knows how long it may take. A status is fixed within seconds.
    """
    healed = trio.current_time()
    for host in stage.world.hosts.values():  # a cordon with an end expires by itself
        if (cordon := host.machine.cordon) is not None and cordon.until is not None:
            healed = max(healed, trio.current_time() + (cordon.until - host.utcnow()).total_seconds())
    await trio.sleep_until(healed)
    while not await _wake_each(stage) and trio.current_time() - healed < CONVERGED_SECONDS:
        await trio.sleep(1.0)
    for name in stage.desired.specs:  # some are loaded again, and kept for minutes
        stage.unload(name)
    while True:
        problems = stage.monitor.problems(stage.desired)
        changed = stage.monitor.last_change
        if not problems and trio.current_time() >= max(
            max(healed, changed) + SETTLED_SECONDS, stage.monitor.excused_until
        ):
            break
        if problems and trio.current_time() - healed > CONVERGED_SECONDS:
            for column, text in problems:
                stage.monitor.report(column, text)
            return
        if trio.current_time() - healed > 2 * CONVERGED_SECONDS:
            stage.monitor.report("restless", "in the desired state, but writes never stop")
            return
        await trio.sleep(1.0)
    result.converged_seconds = max(0.0, changed - healed)


def _woken(stage):
    """Yield the hosts that are not cordoned, with the services that their requests load."""
    for host in stage.world.hosts.values():
        for name, spec in sorted(stage.desired.specs.items()):
            runs = spec.get("replicas", 1) and not (spec.get("suspend") or spec.get("extraArgs"))
            if runs and is_on_request(host, spec) and not is_cordoned(host):
                yield host, name


async def _wake_each(stage):
    """Return whether each service that is loaded on request answers: some are not loaded because their load failed."""
    answers = [await stage.gateway(host).ask(name, client=SimClient(PATIENCE_SECONDS)) for host, name in _woken(stage)]
    return all(isinstance(each, SimChild) for each in answers)


async def _ask_each(stage):
    """Report services that are available and do not answer."""
    for host, name in _woken(stage):
        answer = await stage.gateway(host).ask(name, client=SimClient(PATIENCE_SECONDS))
        if not isinstance(answer, SimChild):
            stage.monitor.report("stuck", f"{name} is available, and answers {answer}")


@contextmanager
def _rare_collections():
    """Let the garbage collector scan only young objects, and rarely."""
    thresholds = gc.get_threshold()
    if not gc.get_freeze_count():
        gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


def play(timeline, *, quiet_minutes=30.0):
    """Run a timeline; all errors are in the result."""
    result = Result(timeline.seed)
    began = time.perf_counter()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    state = trio._core._run._r.getstate()
    trio._core._run._r.seed(timeline.seed)
    try:
        with _rare_collections():
            trio.run(_play, timeline, quiet_minutes, result, clock=virtual_clock())
    except (Exception, ExceptionGroup) as error:  # noqa: BLE001 - a crash of the world is a finding
        result.violations.append(Violation("bugs", math.nan, f"the world ended: {_words(error)}"))
    finally:
        trio._core._run._r.setstate(state)
        structlog.reset_defaults()
    result.real_seconds = time.perf_counter() - began
    return result


def _words(error):
    while isinstance(error, BaseExceptionGroup):
        asserts, _ = error.split(AssertionError)
        error = (asserts or error).exceptions[0]
    frame, where = error.__traceback__, ""
    while frame is not None:
        code = frame.tb_frame.f_code
        if "llmkube" in code.co_filename or "/sim/" in code.co_filename:
            where = f"{code.co_filename.rpartition('/')[2]}:{frame.tb_lineno}"
        frame = frame.tb_next
    return f"{error!r} at {where}"


def run_seed(seed, *, hosts=None, macs=False, on_request=None, quiet_minutes=30.0):
    """Draw a seed's timeline and run it."""
    return play(timeline_of(seed, hosts, macs=macs, on_request=on_request), quiet_minutes=quiet_minutes)


def shrink(timeline, *, quiet_minutes=30.0, budget_seconds=120.0):
    """Return a shorter timeline that fails in the same column: events are left out in ever smaller portions."""
    deadline = time.perf_counter() + budget_seconds
    column = play(timeline, quiet_minutes=quiet_minutes).violations[0].column
    if column != "restless":
        quiet_minutes = 0.0

    def fails(happenings):
        seen = play(attrs.evolve(timeline, happenings=tuple(happenings)), quiet_minutes=quiet_minutes).violations
        return any(one.column == column for one in seen)

    left, portion = list(timeline.happenings), len(timeline.happenings) // 2
    while portion and time.perf_counter() < deadline:
        start, smaller = 0, False
        while start < len(left) and time.perf_counter() < deadline:
            without = left[:start] + left[start + portion :]
            if fails(without):
                left, smaller = without, True
            else:
                start += portion
        if not (smaller and portion == 1):
            portion //= 2
    return attrs.evolve(timeline, happenings=tuple(left))


def percentile(values, share):
    """Return the value below which a share of all values lies; nan without values."""
    values = sorted(value for value in values if not math.isnan(value))
    return values[min(len(values) - 1, int(share * len(values)))] if values else math.nan


@attrs.define
class Scorecard:
    """The results of many seeds, in one line."""

    results: list[Result] = attrs.field(factory=list)
    began: float = attrs.field(factory=time.perf_counter)

    @property
    def failed(self):
        """The results with a violation."""
        return [result for result in self.results if result.violations]

    def __str__(self):
        faults = sum((result.faults for result in self.results), Counter())
        hours = sum(result.simulated_seconds for result in self.results) / 3600
        violations = Counter(column for result in self.results for column in {one.column for one in result.violations})
        converged = [result.converged_seconds for result in self.results]
        real = time.perf_counter() - self.began
        return ", ".join(
            (
                f"seeds {len(self.results)}",
                f"simulated hours {hours:.0f}",
                f"faults {faults.total()} of {len(faults)} kinds",
                *(f"{column} {violations[column]}" for column in COLUMNS),
                f"convergence p50 {percentile(converged, 0.5):.0f} s p99 {percentile(converged, 0.99):.0f} s",
                f"{hours / real:.2f} simulated hours per second",
            )
        )
