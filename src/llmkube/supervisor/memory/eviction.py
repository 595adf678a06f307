"""Whether a service is evicted, which, why and how gently; or none, and why not. Pure.

```
 level      at once               while it lasts
 WARNING    admit nothing more    idle services are unloaded, then one service after the other is ended, gently;
                                  not those that have work if only the kernel says so, and the figures are fine
 CRITICAL   admit nothing more    one service after the other is ended, without waiting for its requests
 NORMAL     -                     after the dwell time: admit again, evicted services first
 UNKNOWN    admit nothing more    nothing: a model must not die of a reading that failed
```

After each eviction the release is measured before another service is chosen. There is no rung for cheap memory: over
HTTP llama-server gives back nothing that it has allocated. Erasing a slot only empties its cache; what does free
memory, `--sleep-idle-seconds`, is a clock of the engine's own that cannot be asked for, and the next request takes the
memory back without asking (docs/memory.md has what was measured).
"""

import enum
from collections.abc import Sequence
from functools import partial

import attrs

from llmkube.base.units import format_age, format_bytes
from llmkube.k8s.resource import Key
from llmkube.supervisor.host.sample import Level, Sample
from llmkube.supervisor.memory.policy import Mode, Policy
from llmkube.supervisor.memory.reservation import Reservation, Role, rank_of

_NEVER = float("-inf")


class Skip(enum.StrEnum):
    """Why no service is evicted although memory is short."""

    DISABLED = "disabled"
    DRY_RUN = "dry_run"
    UNKNOWN = "unknown"
    EMPTY = "empty"
    ALL_PROTECTED = "all_protected"
    LAST_SERVICE = "last_service"
    TOO_SMALL = "too_small"
    CANNOT_HELP = "cannot_help"
    RELEASE_PENDING = "release_pending"
    COOL_DOWN = "cool_down"
    NOT_LONG_ENOUGH = "not_long_enough"
    FIGURES_FINE = "figures_fine"


class Cause(enum.StrEnum):
    """Why a service has to go."""

    CRITICAL = "critical"
    WARNING = "warning"
    IDLE = "idle"
    OVER_BUDGET = "over_budget"
    DISPLACED = "displaced"


@attrs.frozen
class Observation:
    """What is decided on.

    Attributes:
        sample: The host's memory, as it is believed.
        engines: Every engine that runs.
        releasing: The memory of one that has ended is not seen to be back yet.
        over_bytes: How much more than the budget all engines hold.
    """

    sample: Sample
    engines: Sequence[Reservation] = ()
    releasing: bool = False
    over_bytes: int = 0


@attrs.frozen
class PressureState:
    """What is remembered between two looks; times are those of the monotonic clock.

    Attributes:
        level: As it is shown: it rises at once, and falls when the lower one has lasted.
        short_since: When memory became short; None while it is not.
        critical_at: When it was critical last.
        calm_since: Since when every look has said NORMAL.
        over_since: Since when the engines hold more than the budget.
        acted_at: When a service was last chosen.
        under_pressure: Admission has been closed by pressure and is not open again.
    """

    level: Level = Level.UNKNOWN
    short_since: float | None = None
    critical_at: float = _NEVER
    calm_since: float | None = None
    over_since: float | None = None
    acted_at: float = _NEVER
    under_pressure: bool = False


@attrs.frozen
class Eviction:
    """Who has to go, why, and whether requests in flight are waited for.

    With `successor` it is not the engine that serves, but the one that was to replace it. `winner` is the service for
    which it has to go, if it goes for one.
    """

    key: Key
    cause: Cause
    why: str
    successor: bool = False
    winner: Key | None = None

    @property
    def urgent(self) -> bool:
        """Whether requests in flight are cut short."""
        return self.cause is Cause.CRITICAL


@attrs.frozen
class Decision:
    """What follows from one observation.

    Attributes:
        level: What to tell people.
        why: What makes it short.
        admitting: Whether any but the smallest may start.
        calm_seconds: How long memory has been normal.
        evict: Who has to go now.
        dry_run_evict: Who would have to go, if this were not a dry run.
        skip: Why none has to, although memory is short.
        note: The same as a sentence.
    """

    level: Level
    why: str = ""
    admitting: bool = False
    calm_seconds: float = 0.0
    evict: Eviction | None = None
    dry_run_evict: Eviction | None = None
    skip: Skip | None = None
    note: str = ""


def step(policy: Policy, state: PressureState, observed: Observation, now: float) -> tuple[PressureState, Decision]:
    """Take in one look, and return what to do."""
    state = _next_state(policy, state, observed, now)
    calm = 0.0 if state.calm_since is None else now - state.calm_since
    level = observed.sample.level
    if level is Level.UNKNOWN:
        return state, Decision(Level.UNKNOWN, observed.sample.why, skip=Skip.UNKNOWN, note=observed.sample.why)
    admitting = level is Level.NORMAL and not state.under_pressure
    plain = Decision(state.level, observed.sample.why, admitting, calm)
    cause = _cause(policy, state, observed, now)
    if cause is None:
        return state, plain
    if isinstance(cause, Skip):
        return state, attrs.evolve(
            plain, skip=cause, note="no service is evicted yet: memory has not been short for long enough"
        )
    chosen = (
        _deferral(policy, state, observed, cause, now)
        or _choose_successor(observed, cause, now)
        or _choose_victim(policy, observed, cause, now)
    )
    if isinstance(chosen, tuple):
        skip, note = chosen
        return state, attrs.evolve(plain, skip=skip, note=note)
    if policy.mode is Mode.DRY_RUN:
        note = f"{chosen.key} would be evicted, but this is a dry run"
        return state, attrs.evolve(plain, dry_run_evict=chosen, skip=Skip.DRY_RUN, note=note)
    return attrs.evolve(state, acted_at=now), attrs.evolve(plain, evict=chosen)


def _next_state(policy: Policy, state: PressureState, observed: Observation, now: float) -> PressureState:
    """Remember since when what has been so."""
    level = observed.sample.level
    over_since = (now if state.over_since is None else state.over_since) if observed.over_bytes > 0 else None
    state = attrs.evolve(state, over_since=over_since)
    if level is Level.UNKNOWN:
        return attrs.evolve(state, level=level, calm_since=None)
    if level is not Level.NORMAL:
        since = now if state.short_since is None else state.short_since
        critical_at = now if level is Level.CRITICAL else state.critical_at
        shown = Level.CRITICAL if now - critical_at < policy.clear_seconds else level
        return attrs.evolve(
            state, level=shown, short_since=since, critical_at=critical_at, calm_since=None, under_pressure=True
        )
    calm_since = now if state.calm_since is None else state.calm_since
    calm = now - calm_since
    over = calm >= policy.clear_seconds or state.short_since is None
    return attrs.evolve(
        state,
        level=Level.NORMAL if over else state.level,
        short_since=None if over else state.short_since,
        calm_since=calm_since,
        under_pressure=state.under_pressure and calm < policy.return_seconds,
    )


def _cause(policy: Policy, state: PressureState, observed: Observation, now: float) -> Cause | Skip | None:
    """Why a service would have to go; None when none has to."""
    level = observed.sample.level
    if level is Level.CRITICAL:
        return Cause.CRITICAL
    if state.over_since is not None and now - state.over_since >= policy.soft_seconds:
        return Cause.OVER_BUDGET
    if level is Level.NORMAL or state.short_since is None:
        return None
    lasted = now - state.short_since
    if lasted >= policy.soft_seconds and not _is_above_floor(policy, observed.sample):
        return Cause.WARNING
    return Cause.IDLE if lasted >= policy.unload_seconds else Skip.NOT_LONG_ENOUGH


def _choose_successor(observed: Observation, cause: Cause, now: float) -> Eviction | None:
    """Name the engine that is to replace another one and does not serve yet, if there is any: the largest."""
    successors = [each for each in observed.engines if not each.is_exiting and each.role is Role.SUCCESSOR]
    if not successors:
        return None
    victim = max(successors, key=lambda each: each.reclaimable_bytes)
    return Eviction(victim.key, cause, _message(observed, cause, victim, now), successor=True)


def _choose_victim(policy: Policy, observed: Observation, cause: Cause, now: float) -> Eviction | tuple[Skip, str]:
    """Name the one that has to go, or say why none has to."""
    staying = [each for each in observed.engines if not each.is_exiting and each.role is not Role.SUCCESSOR]
    missing = _missing_bytes(policy, observed, cause)
    enough_bytes = missing + policy.reclaim_bytes(observed.sample.total_bytes)
    order = partial(_eviction_order, policy, enough_bytes, now)
    evictable = sorted((each for each in staying if not each.spec.protected), key=order)
    if not evictable:
        return Skip.ALL_PROTECTED, "no service is evicted: every engine is protected, or was told to end and has not"
    worthwhile = [each for each in evictable if each.reclaimable_bytes >= policy.worthwhile_bytes]
    if not worthwhile:
        return Skip.TOO_SMALL, "no service is evicted: no engine holds so much memory that its end would help"
    if policy.keep_last and len(worthwhile) == sum(
        each.reclaimable_bytes >= policy.worthwhile_bytes for each in staying
    ):
        worthwhile = worthwhile[:-1]
        if not worthwhile:
            return Skip.LAST_SERVICE, "no service is evicted: the last engine of a host is kept"
    gain = sum(each.reclaimable_bytes for each in worthwhile)
    if gain < missing:
        return Skip.CANNOT_HELP, (
            f"no service is evicted: {format_bytes(missing)} are missing, and all services that may be evicted hold "
            f"{format_bytes(gain)}; stop other programs, or services with eviction protection"
        )
    if cause is Cause.IDLE:
        high = rank_of("high")  # high and critical mean that an answer must not wait for a load
        worthwhile = [
            each for each in worthwhile if each.idle_seconds(now) >= policy.idle_seconds and each.spec.rank < high
        ]
        if not worthwhile and _is_above_floor(policy, observed.sample):
            return (
                Skip.FIGURES_FINE,
                "no service is evicted: only the kernel reports that memory is short, and services that have work stay",
            )
        if not worthwhile:
            return (
                Skip.NOT_LONG_ENOUGH,
                "no service is evicted yet: memory has not been short for long enough to end services that have work",
            )
    victim = worthwhile[0]
    return Eviction(victim.key, cause, _message(observed, cause, victim, now))


def _deferral(
    policy: Policy, state: PressureState, observed: Observation, cause: Cause, now: float
) -> tuple[Skip, str] | None:
    """Whether no service has to go at this moment, whichever run here."""
    if policy.mode is Mode.OFF:
        return Skip.DISABLED, "no service is evicted: eviction is switched off"
    if not observed.engines:
        return Skip.EMPTY, "no service is evicted: no engine runs here, other programs hold the memory"
    if observed.releasing or any(each.exits_in_time(now) for each in observed.engines):
        return Skip.RELEASE_PENDING, "no service is evicted yet: the memory of the last one is not back"
    doubtful = _is_above_floor(policy, observed.sample) and cause is not Cause.OVER_BUDGET
    pause = policy.doubt_seconds if doubtful else policy.cooldown_seconds
    if now - state.acted_at < pause:
        return Skip.COOL_DOWN, "no service is evicted yet: one has just been evicted"
    return None


def _is_above_floor(policy: Policy, sample: Sample) -> bool:
    """Whether so much is available that others could still start, whatever the kernel says.

    macOS counts what is compressed: with most of the memory wired, a full browser is enough for its warning.
    """
    return sample.available_bytes >= policy.floor_bytes(sample.total_bytes)


def _eviction_order(policy: Policy, enough_bytes: int, now: float, engine: Reservation) -> tuple[int, bool, int, Key]:
    """The lowest priority first, then one without work if it alone frees enough, then the one that frees most."""
    spared = engine.idle_seconds(now) < policy.idle_seconds or engine.reclaimable_bytes < enough_bytes
    return engine.spec.rank, spared, -engine.reclaimable_bytes, engine.key


def _missing_bytes(policy: Policy, observed: Observation, cause: Cause) -> int:
    """How much has to come back; 0 when only the kernel knows."""
    sample = observed.sample
    if cause is Cause.OVER_BUDGET:
        return observed.over_bytes
    lines = policy.thresholds
    line = lines.critical_bytes if cause is Cause.CRITICAL else lines.warning_bytes
    return max(0, line(sample.total_bytes) - sample.available_bytes)


def _message(observed: Observation, cause: Cause, victim: Reservation, now: float) -> str:
    """What happened, why, and what comes next, as one sentence about the service."""
    sample = observed.sample
    text = sample.why or f"{format_bytes(sample.available_bytes)} of {format_bytes(sample.total_bytes)} left"
    held = f"this service held {format_bytes(victim.reclaimable_bytes)} and starts again when memory is normal"
    if cause is Cause.OVER_BUDGET:
        over = f"all engines hold {format_bytes(observed.over_bytes)} more than the memory budget or the device allows"
        return f"Evicted because {over}; {held}"
    if cause is Cause.IDLE:
        idle = format_age(victim.idle_seconds(now))
        return f"Evicted because memory is short ({text}) and it was idle for {idle}; {held}"
    return f"Evicted because memory is {'critically short' if cause is Cause.CRITICAL else 'short'} ({text}); {held}"
