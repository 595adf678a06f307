"""Decide from its activity whether an engine works, is idle or hangs. Pure.

`/health` alone is not enough. A server that computes a long prompt may not answer for an hour and is healthy; one whose
HTTP threads answer while its decode loop is stuck is not. Samples therefore have two tiers:

* **The kernel's figures** (each tick, a few microseconds): process state, CPU time, major page faults, log size.
* **The engine's answers** (rarely, or when something is odd): health, requests in flight or queued, decode counters.

An engine that waits for a GPU uses little CPU time, but never none: a batch is split into pieces of 512 tokens, each
piece takes milliseconds of CPU time to encode, and no driver lets one piece run for a minute. An engine hangs only if
there is no activity at all (CPU, faults, log, counters) for a whole minute while a client waits: requests are in
flight, or probes are not answered. An idle engine shows no activity, either, but no client waits for it.

| evidence | no activity at all | CPU below 1 % of a core, nothing else | CPU active |
|---|---|---|---|
| stopped by a signal (state T), two samples in a row | hung | hung | it was continued meanwhile: fine |
| requests wait, counters are answered and do not change | 60 s | 10 min | 1 h |
| probes are not answered, nor a request for one token | 60 s | 1 h | never |
| nothing listens on the port | 60 s | 60 s | 5 min |
| clients get status 500 and higher, and two requests for one token as well | at once | at once | at once |

Health checks of other programs cost a hung engine less than 1 % of a core; without the second column they would hide
the hang for ever. Active CPU is accepted for one hour at most if the engine's own counters show no progress.

Only time during which the agent was watching is counted: after a sleep, or a pause of the agent, an engine starts from
zero. CPU time and log lines that the agent's own probes cause are not activity.
"""

import enum
from operator import attrgetter
from typing import Final, Literal

import attrs

PROBE_CPU_SECONDS: Final = 0.005
"""CPU time that is attributed to the answer to a probe, which costs less.

It is below Linux's clock tick (0.01 s), or the work of a GPU engine would be attributed to the probe.
"""

ALIVE_CPU_SHARE: Final = 0.01
"""Share of one core; health checks of other programs cost less."""

MOVED_BYTES: Final = 1024 * 1024
"""Growth of resident memory that counts as progress of a load; less is noise."""

MAX_BACKOFF: Final = 3
"""Limit of the probe interval of an idle engine: 30, 60, 120, then 240 seconds."""

MAX_BACKOFF_WITH_SOCKETS: Final = 5
"""The limit if the kernel shows whether a connection waits, which tells as much as a probe: up to 960 seconds."""


class Probe(enum.Enum):
    """Request to send to the engine before the next sample."""

    NOTHING = 0
    COUNTERS = 1
    TOKEN = 2


@attrs.frozen
class Limits:
    """Intervals and time limits in seconds; see the table above."""

    tick_seconds: float = 5.0
    probe_seconds: float = 30.0
    still_seconds: float = 60.0
    low_cpu_seconds: float = 600.0
    stuck_seconds: float = 3600.0
    unreachable_seconds: float = 300.0
    load_stall_seconds: float = 120.0


@attrs.frozen
class ProbeResult:
    """Answers of an engine to a probe.

    Attributes:
        health: `ok`, `busy` (no 200, or none in time) or `gone` (nothing listens, or it closed the connection).
        late: Whether it listens, but did not answer some request in time.
        work: Requests in flight or queued; None if it does not report them.
        counters: Counters that change with every batch; None if it does not report them.
        token: Whether a request for one token was answered; None if none was sent.
        error: The engine's error in reply to that request; "" for none.
        tokens: Tokens computed since its start; None if it does not report them.
    """

    health: Literal["ok", "busy", "gone"]
    late: bool = False
    work: int | None = None
    counters: tuple[float, ...] | None = None
    token: bool | None = None
    error: str = ""
    tokens: float | None = None


@attrs.frozen
class EngineStats:
    """One sample of a running engine; figures are sums over the process and its descendants.

    Attributes:
        state: Letter of proc_pid_stat(5): T if any process is stopped, else R if any runs, else that of the first one.
        cpu_seconds: User and system time.
        log_bytes: Size of the log file.
        faults: Major page faults, which read memory back from disk.
        resident_bytes: Resident memory.
        read_bytes: Bytes read from files; 0 if not sampled.
        listening: Whether a process accepts connections on the engine's port; None if not sampled.
        waiting: Whether the engine has connections or bytes of a client that it has not read yet; None if not sampled,
            or the kernel does not report it.
        errors: Responses with status 500 or higher that clients have got since the previous sample.
        asked: Whether a probe was pending since the previous sample.
        answer: The result of a probe, if one was answered or timed out since the previous sample.
    """

    state: str
    cpu_seconds: float
    log_bytes: int = 0
    faults: int = 0
    resident_bytes: int = 0
    read_bytes: int = 0
    listening: bool | None = None
    waiting: bool | None = None
    errors: int = 0
    asked: bool = False
    answer: ProbeResult | None = None


@attrs.frozen
class Verdict:
    """Result of one sample.

    Attributes:
        probe: Probe to send now; NOTHING for none.
        reachable: Whether requests may be sent to the engine.
        hung: Missing activity and its duration, if the engine hangs; else "".
    """

    probe: Probe = Probe.NOTHING
    reachable: bool = True
    hung: str = ""


FINE: Final = Verdict()
"""The one verdict of an engine that is fine and needs no probe; it is compared by identity."""


@attrs.define
class Liveness:
    """State between samples: the last sample, and for how many seconds which activity has been missing.

    It is used as an immutable value: `step` changes only a copy of its argument.
    """

    # Not frozen: each engine on the host takes a step at each tick, and changing a copy costs a fifth of evolving a
    # frozen class field by field.

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
    is_accused: bool = False
    failed_tokens: int = 0
    error: str = ""


DEFAULT_LIMITS: Final = Limits()

_fields = attrgetter(*attrs.fields_dict(Liveness))


def step(watch: Liveness, stats: EngineStats, now: float, limits: Limits = DEFAULT_LIMITS) -> tuple[Liveness, Verdict]:
    """Evaluate one sample.

    Args:
        watch: Result of the previous step; `Liveness()` at first.
        stats: The new sample.
        now: Monotonic time in seconds.
        limits: Time limits.
    """
    before = watch.stats
    if before is None:
        return Liveness(stats, now, now, now, stopped_samples=int(stats.state == "T")), FINE
    seconds = min(now - watch.at, 2 * limits.tick_seconds)
    watch = Liveness(*_fields(watch))  # copy.copy takes ten times as long
    _count_progress(watch, before, stats, seconds)
    watch.is_accused = watch.is_accused or stats.errors > 0
    if stats.answer is not None:
        _apply_result(watch, stats.answer, now, limits)
    _update_reachable(watch, stats, seconds)
    hung = _hung(watch, limits)
    probe = Probe.NOTHING if hung else _next_probe(watch, now, limits)
    watch.stats, watch.at = stats, now
    if probe is not Probe.NOTHING:
        watch.probed_at = now
    elif watch.reachable and not hung:
        return watch, FINE
    return watch, Verdict(probe, watch.reachable, hung)


def _count_progress(watch: Liveness, before: EngineStats, stats: EngineStats, seconds: float) -> None:
    """Update the durations without activity since the previous sample."""
    cpu = stats.cpu_seconds - before.cpu_seconds - (PROBE_CPU_SECONDS if stats.asked else 0.0)
    answer = stats.answer
    strong = (cpu > 0 and cpu >= ALIVE_CPU_SHARE * seconds) or (stats.log_bytes != before.log_bytes and not stats.asked)
    if answer is not None:
        counted = None not in (answer.counters, watch.counters) and answer.counters != watch.counters
        strong = strong or counted or answer.token is True
    # the CPU time of a descendant that has exited is lost; one that runs (R) or is being debugged (t) is alive
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
    """Record a probe's result, and for how long the counters have not changed."""
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
    if answer.token is not None:
        watch.failed_tokens, watch.error = (watch.failed_tokens + 1, answer.error) if answer.error else (0, "")
        watch.is_accused = bool(answer.error)
    is_idle = answer.health == "ok" and not odd and not watch.work
    max_backoff = MAX_BACKOFF_WITH_SOCKETS if watch.has_socket_state else MAX_BACKOFF
    watch.backoff = min(watch.backoff + 1, max_backoff) if is_idle else 0


def _update_reachable(watch: Liveness, stats: EngineStats, seconds: float) -> None:
    """Mark an engine unreachable after two signs in a row that nothing listens on its port, and reachable after a 200.

    A single sign may be a burst of connections that overflowed the backlog.
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
    """Return the probe to send: at ticks that all engines share while nothing is odd, more often otherwise."""
    if watch.stopped_samples:
        return Probe.NOTHING  # it cannot answer, and the next sample decides
    if (_silent(watch, limits) and not watch.token_failed) or watch.is_accused:
        return Probe.TOKEN
    odd = (
        watch.unanswered
        or watch.refusals
        or watch.not_listening
        or not watch.reachable
        or (watch.work and watch.still_seconds)
    )
    # every second tick: activity in the other ticks is not caused by probes
    if odd and now - watch.probed_at >= 2 * limits.tick_seconds - 0.5:
        return Probe.COUNTERS
    period = limits.probe_seconds * 2**watch.backoff
    return Probe.COUNTERS if now // period > watch.probed_at // period else Probe.NOTHING


def _silent(watch: Liveness, limits: Limits) -> bool:
    """Whether probes are not answered and there was no activity for long enough to request one token."""
    still = watch.still_seconds >= limits.still_seconds or watch.low_cpu_seconds >= limits.stuck_seconds
    return still and watch.unanswered >= 2


def _hung(watch: Liveness, limits: Limits) -> str:
    """Return the missing activity and its duration if the engine hangs; else ""."""
    if watch.stopped_samples >= 2:
        return f"the process has been stopped (state T) for {watch.stopped_seconds:.0f} s"
    if watch.failed_tokens >= 2:
        return watch.error
    still = watch.still_seconds >= limits.still_seconds
    if still or watch.low_cpu_seconds >= limits.low_cpu_seconds:
        inactivity = (
            f"no CPU time, no log line and no token for {watch.still_seconds:.0f} s"
            if still
            else f"hardly any CPU time, no log line and no token for {watch.low_cpu_seconds:.0f} s"
        )
        if watch.work and watch.stuck_seconds > 0 and not watch.unanswered:
            return f"{_requests(watch.work)} without progress: {inactivity}"
        if watch.token_failed and _silent(watch, limits):
            return f"it accepts connections but answers nothing, not even a request for one token: {inactivity}"
    if watch.stuck_seconds >= limits.stuck_seconds:
        return f"{_requests(watch.work)}, but no token has been computed for {watch.stuck_seconds:.0f} s"
    if not watch.reachable:
        is_idle = watch.unreachable_seconds >= limits.still_seconds and watch.low_cpu_seconds >= limits.still_seconds
        if is_idle or watch.unreachable_seconds >= limits.unreachable_seconds:
            return f"nothing has answered on its port for {watch.unreachable_seconds:.0f} s"
    return ""


def _requests(count: int) -> str:
    return "1 request waits" if count == 1 else f"{count} requests wait"


@attrs.frozen
class Load:
    """State of a load between samples: the last sample that showed progress."""

    moved: EngineStats | None = None
    at: float = 0.0
    still_seconds: float = 0.0
    stopped_samples: int = 0


def step_load(load: Load, stats: EngineStats, now: float, limits: Limits = DEFAULT_LIMITS) -> tuple[Load, str]:
    """Evaluate one sample of a loading engine; return the missing progress and its duration if it has stalled, or "".

    A load has no time limit while it makes progress: log, bytes read, page faults, resident memory, or more CPU time
    than a readiness probe costs. All but the CPU time is compared with the last sample that showed progress, so slow
    progress is recognised, too.
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
        return load, f"no log line, no disk read, no new memory and no CPU time for {load.still_seconds:.0f} s"
    return load, ""


def percent_loaded(resident_bytes: int, weights_bytes: int) -> int | None:
    """Return the percentage of a model that is in memory, 0 to 99; None if the file is too small to tell."""
    if weights_bytes < 64 * MOVED_BYTES:
        return None
    return min(99, 100 * resident_bytes // weights_bytes)
