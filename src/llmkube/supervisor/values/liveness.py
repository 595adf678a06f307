"""Whether an engine works, rests or hangs, decided from what moves; false in neither direction. Pure.

`/health` alone decides nothing. A server deep in a long prompt may not answer for an hour and is healthy; one whose
HTTP threads answer while its decode loop is stuck is not. So a look has two tiers:

* **What the kernel says** (each tick, a few microseconds): process state, CPU time, major page faults, size of the log.
* **What the engine says** (rarely, and when something is odd): health, requests in flight or queued, decode counters.

An engine that waits for a GPU burns little CPU. But it cannot be perfectly still: a batch is cut into pieces of 512
tokens, encoding each piece costs milliseconds of CPU, and no driver lets one piece run for a minute. So only stillness
of *everything* (CPU, faults, log, counters) for a whole minute counts, and only together with evidence that a client
waits: requests in flight, or questions that are not answered. An idle engine is still, too, and is left alone.

| evidence | everything still | CPU below 1 % of a core, nothing else | CPU moves |
|---|---|---|---|
| stopped by a signal (state T), two looks in a row | hung | hung | it was continued meanwhile: fine |
| requests wait, counters answer and stand still | 60 s | 10 min | 1 h |
| questions are not answered, nor a request for one token | 60 s | 1 h | never |
| nothing listens on the port | 60 s | 60 s | 5 min |

CPU below 1 % is what a foreign health check costs a hung engine: without the second column it would hide the
hang for ever. CPU that moves is believed for an hour at most when the engine itself says that it gets nowhere.

Only time that the agent watched counts: after a sleep, or a pause of the agent itself, nothing is held against
an engine. What our own questions cost it (CPU, log lines) is not taken for work.
"""

import enum
from operator import attrgetter
from typing import Final, Literal

import attrs

PROBE_CPU_SECONDS: Final = 0.005
"""More than the answer to a question of ours costs an engine.

But less than a step of Linux's clock (0.01 s), or what a GPU engine does meanwhile would be taken for our doing.
"""

ALIVE_CPU_SHARE: Final = 0.01
"""Of one core. Below it is what answering other people's health checks costs."""

MOVED_BYTES: Final = 1024 * 1024
"""Resident memory that grows by less while a model loads is noise."""

MAX_BACKOFF: Final = 3
"""Questions to an engine at rest come at 30, 60, 120, and then every 240 seconds."""

MAX_BACKOFF_WITH_SOCKETS: Final = 5
"""And then at 480, 960 and so on, where the kernel shows whether a connection waits: that is a question by itself."""


class Probe(enum.Enum):
    """What to ask the engine before the next look."""

    NOTHING = 0
    COUNTERS = 1
    TOKEN = 2


@attrs.frozen
class Limits:
    """How long what may stand still, in seconds; see the table above."""

    tick_seconds: float = 5.0
    probe_seconds: float = 30.0
    still_seconds: float = 60.0
    low_cpu_seconds: float = 600.0
    stuck_seconds: float = 3600.0
    unreachable_seconds: float = 300.0
    load_stall_seconds: float = 120.0


@attrs.frozen
class ProbeResult:
    """What an engine said of itself.

    Attributes:
        health: `ok`, `busy` (no 200, or none in time) or `gone` (nothing listens, or it closed the connection).
        late: It listens, but some question was not answered in time.
        work: Requests in flight or queued; None when it does not say.
        counters: Whatever changes with every batch; None when it does not say.
        token: Whether a request for one token was answered; None when none was made.
        tokens: How many it has computed since its start; None when it does not say.
    """

    health: Literal["ok", "busy", "gone"]
    late: bool = False
    work: int | None = None
    counters: tuple[float, ...] | None = None
    token: bool | None = None
    tokens: float | None = None


@attrs.frozen
class EngineStats:
    """One look at a running engine; the numbers are those of the process and all below it.

    Attributes:
        state: The letter of proc_pid_stat(5): T if any of them is stopped, else R if any runs, else the first one's.
        cpu_seconds: User and system time.
        log_bytes: Size of the log file.
        faults: Major page faults: memory that came back from disk.
        resident_bytes: Resident memory.
        read_bytes: What was read from files; 0 where it was not looked at.
        listening: Whether a process accepts connections on the engine's port; None when not read.
        waiting: Whether a client has connected to it, or sent it bytes, that it has not read yet; None when it was
            not read, or the kernel does not tell.
        asked: Whether a question of ours was with the engine since the look before.
        answer: What it said, if an answer (or the end of our patience) came since the look before.
    """

    state: str
    cpu_seconds: float
    log_bytes: int = 0
    faults: int = 0
    resident_bytes: int = 0
    read_bytes: int = 0
    listening: bool | None = None
    waiting: bool | None = None
    asked: bool = False
    answer: ProbeResult | None = None


@attrs.frozen
class Verdict:
    """What follows from one look.

    Attributes:
        ask: What to ask the engine now.
        reachable: Whether requests may be sent to it.
        hung: What stands still and for how long, when that is enough to end it; else "".
    """

    ask: Probe = Probe.NOTHING
    reachable: bool = True
    hung: str = ""


FINE: Final = Verdict()
"""Of a look from which nothing follows; no other verdict says the same."""


@attrs.define
class Liveness:
    """What is remembered between looks: the last one, and for how many seconds what has stood still.

    A value like any other to those who hold one: `step` never changes its argument, but a copy, which costs a fifth of
    what a frozen class costs that is evolved field by field, and every engine on the host comes through here each tick.
    """

    stats: EngineStats | None = None
    at: float = 0.0
    probed_at: float = 0.0
    answered_at: float = 0.0
    counters: tuple[float, ...] | None = None
    work: int = 0
    still_seconds: float = 0.0
    low_cpu_seconds: float = 0.0
    stuck_seconds: float = 0.0
    stopped_seconds: float = 0.0
    stopped_samples: int = 0
    unreachable_seconds: float = 0.0
    not_listening: int = 0
    refusals: int = 0
    unanswered: int = 0
    backoff: int = 0
    has_socket_state: bool = False
    reachable: bool = True
    token_failed: bool = False


DEFAULT_LIMITS: Final = Limits()

_fields = attrgetter(*attrs.fields_dict(Liveness))


def step(watch: Liveness, stats: EngineStats, now: float, limits: Limits = DEFAULT_LIMITS) -> tuple[Liveness, Verdict]:
    """Take one look into account.

    Args:
        watch: What the step before returned; `Liveness()` at first.
        stats: What is seen now.
        now: Monotonic time in seconds.
        limits: How long what may stand still.
    """
    before = watch.stats
    if before is None:
        return Liveness(stats, now, now, now, stopped_samples=int(stats.state == "T")), FINE
    seconds = min(now - watch.at, 2 * limits.tick_seconds)
    watch = Liveness(*_fields(watch))  # copy.copy takes ten times as long
    _count_progress(watch, before, stats, seconds)
    if stats.answer is not None:
        _apply_result(watch, stats.answer, now, limits)
    _update_reachable(watch, stats, seconds)
    hung = _hung(watch, limits)
    ask = Probe.NOTHING if hung else _next_probe(watch, now, limits)
    watch.stats, watch.at = stats, now
    if ask is not Probe.NOTHING:
        watch.probed_at = now
    elif watch.reachable and not hung:
        return watch, FINE
    return watch, Verdict(ask, watch.reachable, hung)


def _count_progress(watch: Liveness, before: EngineStats, stats: EngineStats, seconds: float) -> None:
    """Count what moved since the look before, and for how long the rest has not."""
    cpu = stats.cpu_seconds - before.cpu_seconds - (PROBE_CPU_SECONDS if stats.asked else 0.0)
    answer = stats.answer
    strong = (cpu > 0 and cpu >= ALIVE_CPU_SHARE * seconds) or (stats.log_bytes != before.log_bytes and not stats.asked)
    if answer is not None:
        counted = None not in (answer.counters, watch.counters) and answer.counters != watch.counters
        strong = strong or counted or answer.token is True
    # a member of the family that has ended takes its CPU time with it; one that runs (R) or is being debugged (t) is
    # alive
    slight = (
        cpu > 0 or stats.cpu_seconds < before.cpu_seconds or stats.faults != before.faults or stats.state in ("R", "t")
    )
    if strong or slight:
        watch.still_seconds, watch.backoff = 0.0, 0
    else:
        watch.still_seconds += seconds
    if stats.waiting is not None:
        watch.has_socket_state = True
        watch.backoff = 0 if stats.waiting else watch.backoff
    if strong:
        watch.low_cpu_seconds, watch.token_failed = 0.0, False
    else:
        watch.low_cpu_seconds += seconds
    if stats.state == "T" and stats.cpu_seconds <= before.cpu_seconds:
        watch.stopped_seconds += seconds if watch.stopped_samples else 0.0
        watch.stopped_samples += 1
    else:
        watch.stopped_seconds, watch.stopped_samples = 0.0, int(stats.state == "T")


def _apply_result(watch: Liveness, answer: ProbeResult, now: float, limits: Limits) -> None:
    """Note what the engine said of itself, and for how long it has said the same."""
    if answer.work and answer.counters is not None and answer.counters == watch.counters:
        watch.stuck_seconds += min(now - watch.answered_at, 2 * limits.probe_seconds)
    else:
        watch.stuck_seconds = 0.0
    odd = answer.health == "busy" or answer.late or answer.token is False
    watch.answered_at = now
    if answer.counters is not None:
        watch.counters = answer.counters
    if answer.work is not None:
        watch.work = answer.work
    elif not odd:
        watch.work = 0
    watch.unanswered = watch.unanswered + 1 if odd else 0
    watch.refusals = watch.refusals + 1 if answer.health == "gone" else 0
    watch.token_failed = watch.token_failed or answer.token is False
    at_rest = answer.health == "ok" and not odd and not watch.work
    slowest = MAX_BACKOFF_WITH_SOCKETS if watch.has_socket_state else MAX_BACKOFF
    watch.backoff = min(watch.backoff + 1, slowest) if at_rest else 0


def _update_reachable(watch: Liveness, stats: EngineStats, seconds: float) -> None:
    """Two signs in a row that nothing listens on the port take an engine out of service; a 200 brings it back.

    One may be a burst that has overrun the backlog.
    """
    answer = stats.answer
    if stats.listening is not None:
        watch.not_listening = 0 if stats.listening else watch.not_listening + 1
    if watch.reachable:
        watch.reachable = watch.not_listening < 2 and watch.refusals < 2
        watch.unreachable_seconds = 0.0
    elif not watch.not_listening and answer is not None and answer.health == "ok":
        watch.reachable = True
    else:
        watch.unreachable_seconds += seconds


def _next_probe(watch: Liveness, now: float, limits: Limits) -> Probe:
    """Say what to ask: on a grid that all engines share while nothing is odd, closely when something is."""
    if watch.stopped_samples:
        return Probe.NOTHING  # it cannot answer, and the next look decides
    if _silent(watch, limits) and not watch.token_failed:
        return Probe.TOKEN
    odd = (
        watch.unanswered
        or watch.refusals
        or watch.not_listening
        or not watch.reachable
        or (watch.work and watch.still_seconds)
    )
    # every second tick: what moves in the others is not our own doing
    if odd and now - watch.probed_at >= 2 * limits.tick_seconds - 0.5:
        return Probe.COUNTERS
    period = limits.probe_seconds * 2**watch.backoff
    return Probe.COUNTERS if now // period > watch.probed_at // period else Probe.NOTHING


def _silent(watch: Liveness, limits: Limits) -> bool:
    """Whether questions stay unanswered and nothing moves for long enough to ask for one token."""
    still = watch.still_seconds >= limits.still_seconds or watch.low_cpu_seconds >= limits.stuck_seconds
    return still and watch.unanswered >= 2


def _hung(watch: Liveness, limits: Limits) -> str:
    """Say what stands still and for how long, if that is enough."""
    if watch.stopped_samples >= 2:
        return f"the process is stopped (state T) for {watch.stopped_seconds:.0f} s"
    still = watch.still_seconds >= limits.still_seconds
    if still or watch.low_cpu_seconds >= limits.low_cpu_seconds:
        what = (
            f"no CPU time, no log line and no token for {watch.still_seconds:.0f} s"
            if still
            else f"hardly any CPU time, no log line and no token for {watch.low_cpu_seconds:.0f} s"
        )
        if watch.work and watch.stuck_seconds > 0 and not watch.unanswered:
            return f"{_requests(watch.work)}, but nothing moves: {what}"
        if watch.token_failed and _silent(watch, limits):
            return f"it accepts connections but answers nothing, not even a request for one token: {what}"
    if watch.stuck_seconds >= limits.stuck_seconds:
        return f"{_requests(watch.work)}, but no token has been computed for {watch.stuck_seconds:.0f} s"
    if not watch.reachable:
        is_idle = watch.unreachable_seconds >= limits.still_seconds and watch.low_cpu_seconds >= limits.still_seconds
        if is_idle or watch.unreachable_seconds >= limits.unreachable_seconds:
            return f"nothing answers on its port for {watch.unreachable_seconds:.0f} s"
    return ""


def _requests(count: int) -> str:
    return "1 request waits" if count == 1 else f"{count} requests wait"


@attrs.frozen
class Load:
    """What is remembered of a load between looks: the last look in which something had moved."""

    moved: EngineStats | None = None
    at: float = 0.0
    still_seconds: float = 0.0
    stopped_samples: int = 0


def step_load(load: Load, stats: EngineStats, now: float, limits: Limits = DEFAULT_LIMITS) -> tuple[Load, str]:
    """Take one look at a loading engine into account; return what stands still for how long if it is too long, or "".

    No clock runs while anything moves, for however many hours: log, bytes read, page faults, resident memory, or CPU
    beyond what our question whether it is ready costs. All but the CPU is compared with the last look in which
    something had moved, so that a trickle counts as well.
    """
    before = load.moved
    if before is None:
        return Load(stats, now, 0.0, int(stats.state == "T")), ""
    seconds = min(now - load.at, 2 * limits.tick_seconds)
    share = (stats.cpu_seconds - before.cpu_seconds) / max(load.still_seconds + seconds, 1e-9)
    moved = (
        stats.log_bytes != before.log_bytes
        or stats.read_bytes != before.read_bytes
        or stats.faults != before.faults
        or abs(stats.resident_bytes - before.resident_bytes) >= MOVED_BYTES
        or not 0 <= share < ALIVE_CPU_SHARE
        or stats.state == "t"
    )
    stopped = load.stopped_samples + 1 if stats.state == "T" else 0
    if moved:
        return Load(stats, now, 0.0, stopped), ""
    load = Load(before, now, load.still_seconds + seconds, stopped)
    if stopped >= 2 and load.still_seconds > 0:
        return load, "the process is stopped (state T)"
    if load.still_seconds >= limits.load_stall_seconds:
        return load, f"no log line, no byte read, no memory and no CPU time for {load.still_seconds:.0f} s"
    return load, ""


def percent_loaded(resident_bytes: int, weights_bytes: int) -> int | None:
    """Return how much of a model is in memory, 0 to 99, or None when that says nothing (too small a file)."""
    if weights_bytes < 64 * MOVED_BYTES:
        return None
    return min(99, 100 * resident_bytes // weights_bytes)
