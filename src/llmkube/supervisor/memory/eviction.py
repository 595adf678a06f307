"""Decide which service is evicted when memory is short, why and how gently, or why none is. Pure.

```
 level      at once               while it lasts
 WARNING    stop admitting        evict idle services, then busy ones, one at a time, gently; busy ones stay if only
                                  the kernel reports pressure and the figures are fine
 CRITICAL   stop admitting        evict one service after the other, without waiting for its requests
 NORMAL     -                     after the dwell time: admit again, evicted services first
 UNKNOWN    stop admitting        nothing: a failed reading must not stop a model
```

After each eviction the release is measured before the next service is chosen. There is no cheaper step: over HTTP,
llama-server releases nothing that it has allocated. Erasing a slot only empties its cache. `--sleep-idle-seconds` does
free memory, but it is a timer inside the engine that cannot be triggered, and the next request allocates the memory
again without admission (docs/explanations/memory.md has measurements).
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
    """The reason why no service is evicted although memory is short."""

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
    """The reason why a service is evicted."""

    CRITICAL = "critical"
    WARNING = "warning"
    IDLE = "idle"
    OVER_BUDGET = "over_budget"
    DISPLACED = "displaced"


@attrs.frozen
class Observation:
    """The input of a decision.

    Attributes:
        sample: The host's memory, the last credible sample.
        engines: All engines that run.
        releasing: Whether memory of an exited engine has yet to be released.
        over_bytes: Bytes by which all engines exceed the budget.
    """

    sample: Sample
    engines: Sequence[Reservation] = ()
    releasing: bool = False
    over_bytes: int = 0


@attrs.frozen
class PressureState:
    """The state between two samples; times are those of the monotonic clock.

    Attributes:
        level: The level to show: it rises at once, and falls when the lower one has lasted.
        short_since: When memory became short; None while it is not.
        critical_at: When it was last critical.
        calm_since: Start of the current run of NORMAL samples.
        over_since: When the engines exceeded the budget; None while they do not.
        acted_at: When a service was last evicted.
        under_pressure: Whether pressure has closed admission and it has not reopened.
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
    """The eviction of a service, with its reason.

    With `successor` only the engine that was to replace the serving one is stopped. `winner` is the service for which
    this one is displaced, if it is.
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
    """The result of one observation.

    Attributes:
        level: The level to show.
        why: The reason for the level.
        admitting: Whether more than the smallest services may start.
        calm_seconds: Time for which memory has been normal.
        dry_run_evict: The eviction that a dry run leaves out.
        skip: The reason why none is evicted although memory is short.
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
    """Return the next state and the decision for one observation."""
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
        note = "no service is evicted yet: memory has not been short for long enough"
        return state, attrs.evolve(plain, skip=cause, note=note)
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
    """Update the timestamps and the level."""
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
    """Return why a service should be evicted, or why not yet; None when none should."""
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
    """Choose the largest engine that would replace another one and does not serve yet; None if there is none."""
    successors = [each for each in observed.engines if not each.is_exiting and each.role is Role.SUCCESSOR]
    if not successors:
        return None
    victim = max(successors, key=lambda each: each.reclaimable_bytes)
    return Eviction(victim.key, cause, _message(observed, cause, victim, now), successor=True)


def _choose_victim(policy: Policy, observed: Observation, cause: Cause, now: float) -> Eviction | tuple[Skip, str]:
    """Choose the service to evict, or return why none is."""
    staying = [each for each in observed.engines if not each.is_exiting and each.role is not Role.SUCCESSOR]
    missing = _missing_bytes(policy, observed, cause)
    enough_bytes = missing + policy.reclaim_bytes(observed.sample.total_bytes)
    order = partial(_eviction_order, policy, enough_bytes, now)
    evictable = sorted((each for each in staying if not each.spec.protected), key=order)
    if not evictable:
        return Skip.ALL_PROTECTED, "no service is evicted: every engine is protected or already stopping"
    worthwhile = [each for each in evictable if each.reclaimable_bytes >= policy.worthwhile_bytes]
    if not worthwhile:
        return Skip.TOO_SMALL, "no service is evicted: no engine holds enough memory for its eviction to help"
    if policy.keep_last and len(worthwhile) == sum(
        each.reclaimable_bytes >= policy.worthwhile_bytes for each in staying
    ):
        worthwhile = worthwhile[:-1]
        if not worthwhile:
            return Skip.LAST_SERVICE, "no service is evicted: the last engine is kept"
    gain = sum(each.reclaimable_bytes for each in worthwhile)
    if gain < missing:
        return Skip.CANNOT_HELP, (
            f"no service is evicted: {format_bytes(missing)} must be freed, but all services that may be evicted hold "
            f"{format_bytes(gain)}; stop other programs, or services with eviction protection"
        )
    if cause is Cause.IDLE:
        high = rank_of("high")  # requests to high and critical services must not wait for a load
        worthwhile = [
            each
            for each in worthwhile
            if (each.is_unused or each.idle_seconds(now) >= policy.idle_seconds) and each.spec.rank < high
        ]
        if not worthwhile and _is_above_floor(policy, observed.sample):
            note = "no service is evicted: only the kernel reports that memory is short, and busy services are kept"
            return Skip.FIGURES_FINE, note
        if not worthwhile:
            note = "no service is evicted yet: memory has not been short for long enough to stop busy services"
            return Skip.NOT_LONG_ENOUGH, note
    victim = worthwhile[0]
    return Eviction(victim.key, cause, _message(observed, cause, victim, now))


def _deferral(
    policy: Policy, state: PressureState, observed: Observation, cause: Cause, now: float
) -> tuple[Skip, str] | None:
    """Return why no service is evicted at this moment, regardless of which services run; None if one may be."""
    if policy.mode is Mode.OFF:
        return Skip.DISABLED, "no service is evicted: eviction is switched off"
    if not observed.engines:
        return Skip.EMPTY, "no service is evicted: no engine is running; other programs hold the memory"
    if observed.releasing or any(each.exits_in_time(now) for each in observed.engines):
        return Skip.RELEASE_PENDING, "no service is evicted yet: the memory of the last one has not been released"
    doubtful = _is_above_floor(policy, observed.sample) and cause is not Cause.OVER_BUDGET
    pause = policy.doubt_seconds if doubtful else policy.cooldown_seconds
    if now - state.acted_at < pause:
        return Skip.COOL_DOWN, "no service is evicted yet: one has just been evicted"
    return None


def _is_above_floor(policy: Policy, sample: Sample) -> bool:
    """Whether enough is available for other services to start, regardless of the kernel's level."""
    # macOS looks at compressed memory: with most memory wired, a full browser is enough for its warning.
    return sample.available_bytes >= policy.floor_bytes(sample.total_bytes)


def _eviction_order(
    policy: Policy, enough_bytes: int, now: float, engine: Reservation
) -> tuple[bool, int, bool, int, Key]:
    """Order by use, priority, then idle engines that each free enough on their own, then the engine that frees most."""
    spared = engine.idle_seconds(now) < policy.idle_seconds or engine.reclaimable_bytes < enough_bytes
    return not engine.is_unused, engine.spec.rank, spared, -engine.reclaimable_bytes, engine.key


def _missing_bytes(policy: Policy, observed: Observation, cause: Cause) -> int:
    """Return the bytes that must be freed; 0 when only the kernel reports a shortage."""
    sample, limits = observed.sample, policy.thresholds
    if cause is Cause.OVER_BUDGET:
        return observed.over_bytes
    threshold = limits.critical_bytes if cause is Cause.CRITICAL else limits.warning_bytes
    return max(0, threshold(sample.total_bytes) - sample.available_bytes)


def _message(observed: Observation, cause: Cause, victim: Reservation, now: float) -> str:
    """Return the message for the service: what happened, why, and what comes next."""
    sample = observed.sample
    text = sample.why or f"{format_bytes(sample.available_bytes)} of {format_bytes(sample.total_bytes)} left"
    again = "; the next request loads it" if victim.is_unused else " and starts again when memory is normal"
    held = f"this service held {format_bytes(victim.reclaimable_bytes)}{again}"
    if cause is Cause.OVER_BUDGET:
        over = f"all engines hold {format_bytes(observed.over_bytes)} more than the memory budget or the device allows"
        return f"Stopped because {over}; {held}"
    if cause is Cause.IDLE:
        idle = format_age(victim.idle_seconds(now))
        return f"Stopped because memory is short ({text}) and it was idle for {idle}; {held}"
    return f"Stopped because memory is {'critically short' if cause is Cause.CRITICAL else 'short'} ({text}); {held}"
