"""Whether somebody has to give memory back, who, why and how gently; or nobody, and why not. Pure.

```
 level      at once               while it lasts
 WARNING    admit nothing more    idle services are unloaded, then one service after the other is ended, gently;
                                  not those that have work if only the kernel says so, and the figures are fine
 CRITICAL   admit nothing more    one service after the other is ended, without waiting for its requests
 NORMAL     -                     after the dwell time: admit again, whoever was evicted first
 UNKNOWN    admit nothing more    nothing: a model must not die of a reading that failed
```

After each eviction the release is measured before anybody else is chosen. There is no rung for cheap memory: over HTTP
llama-server gives back nothing that it has allocated. Erasing a slot only empties its cache; what does free memory,
`--sleep-idle-seconds`, is a clock of the engine's own that nobody can ask for, and the next request takes the memory
back without asking anybody (docs/memory.md has what was measured).
"""

import enum
from collections.abc import Sequence
from functools import partial

import attrs

from llmkube.base.units import format_age, format_bytes
from llmkube.k8s.crd.inferenceservice import PRIORITIES
from llmkube.k8s.resource import Key
from llmkube.supervisor.host.pressure_level import DEFAULTS, Thresholds
from llmkube.supervisor.host.sample import Level, Sample

_NEVER = float("-inf")


class Mode(enum.StrEnum):
    """Whether services are ended for memory."""

    ON = "on"
    DRY_RUN = "dry-run"
    OFF = "off"


class Skip(enum.StrEnum):
    """Why nobody is evicted although memory is short."""

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
class Policy:
    """Every threshold, dwell and switch.

    Attributes:
        mode: Whether services are ended for memory at all.
        keep_last: The last service on a host that is worth mentioning stays, whatever happens.
        thresholds: When memory is short. Admission leaves as much to everybody else as WARNING begins at, and nobody
            is evicted if that would not bring the line back.
        reclaim_share: How far beyond the line memory has to come before anybody returns, up to `reclaim_cap_bytes`.
        reclaim_cap_bytes: The most that is asked for that reason.
        worthwhile_bytes: Who would give back less is left alone.
        small_bytes: Who needs no more than this is admitted as long as there is that much, except at CRITICAL.
        idle_seconds: Who has had no work for so long is idle.
        unload_seconds: WARNING for so long unloads idle services.
        soft_seconds: WARNING for so long, or too much for the budget, ends services that have work.
        clear_seconds: NORMAL for so long ends an episode; a shorter one was a flap.
        return_seconds: NORMAL for so long opens admission after an episode.
        cooldown_seconds: The least time between two evictions.
        doubt_seconds: The same when the figures look fine and only the kernel says otherwise.
        release_seconds: How long memory may take to be seen again after a process has ended.
        margin_share: Who was evicted returns if there is this much more than it needs.
        relapse_seconds: Evicted so soon after its return although nobody else has grown, a service waits as long for
            the next one, then twice as long, and so on.
        dwell_cap_seconds: The longest that it ever waits for that reason.
        displace_seconds: The least time between two displacements in favour of one service.
    """

    mode: Mode = Mode.ON
    keep_last: bool = True
    thresholds: Thresholds = DEFAULTS
    reclaim_share: float = 0.03
    reclaim_cap_bytes: int = 1 << 30
    worthwhile_bytes: int = 128 << 20
    small_bytes: int = 256 << 20
    idle_seconds: float = 300.0
    unload_seconds: float = 20.0
    soft_seconds: float = 60.0
    clear_seconds: float = 10.0
    return_seconds: float = 30.0
    cooldown_seconds: float = 15.0
    doubt_seconds: float = 60.0
    release_seconds: float = 10.0
    margin_share: float = 0.05
    relapse_seconds: float = 600.0
    dwell_cap_seconds: float = 3600.0
    displace_seconds: float = 600.0

    def reclaim_bytes(self, total_bytes: int) -> int:
        """How far beyond a line is far enough."""
        return int(min(self.reclaim_share * total_bytes, self.reclaim_cap_bytes))

    def floor_bytes(self, total_bytes: int) -> int:
        """What admission leaves to everybody else: the line of WARNING, and a step beyond it."""
        return self.thresholds.warning_bytes(total_bytes) + self.reclaim_bytes(total_bytes)

    def dwell_seconds(self, relapses: int) -> float:
        """How long memory has to be normal before a service returns whose returns have brought so many evictions."""
        if relapses == 0:
            return self.return_seconds
        return float(min(self.relapse_seconds * 2.0 ** min(relapses - 1, 20), self.dwell_cap_seconds))


@attrs.frozen
class Candidate:
    """One engine that runs, and what its going would bring.

    Attributes:
        key: Its service.
        rank: Its priority as a number, the lowest first.
        frees_bytes: What it holds, or is about to hold while it loads.
        protected: It is never evicted.
        idle_seconds: How long it has had no work.
        leaves_by: It has been told to go, and should have gone by then; None while it may stay.
        spare: It is to replace another engine, which still serves: its going costs nobody an answer.
    """

    key: Key
    rank: int
    frees_bytes: int
    protected: bool = False
    idle_seconds: float = 0.0
    leaves_by: float | None = None
    spare: bool = False


@attrs.frozen
class Look:
    """What is decided on.

    Attributes:
        sample: The host's memory, as it is believed.
        engines: Every engine that runs.
        releasing: The memory of one that has ended is not seen to be back yet.
        over_bytes: How much more than the budget all engines hold.
    """

    sample: Sample
    engines: Sequence[Candidate] = ()
    releasing: bool = False
    over_bytes: int = 0


@attrs.frozen
class State:
    """What is remembered between two looks; times are those of the monotonic clock.

    Attributes:
        level: As it is shown: it rises at once, and falls when the lower one has lasted.
        short_since: When memory became short; None while it is not.
        critical_at: When it was critical last.
        calm_since: Since when every look has said NORMAL.
        over_since: Since when the engines hold more than the budget.
        acted_at: When somebody was last chosen.
        pressed: Admission has been closed by pressure and is not open again.
    """

    level: Level = Level.UNKNOWN
    short_since: float | None = None
    critical_at: float = _NEVER
    calm_since: float | None = None
    over_since: float | None = None
    acted_at: float = _NEVER
    pressed: bool = False


@attrs.frozen
class Evict:
    """Who has to go, why, and whether requests in flight are waited for.

    With `spare` it is not the engine that serves, but the one that was to replace it. `winner` is the service for which
    it has to go, if it goes for one.
    """

    key: Key
    cause: Cause
    why: str
    spare: bool = False
    winner: Key | None = None

    @property
    def urgent(self) -> bool:
        """Whether requests in flight are cut short."""
        return self.cause is Cause.CRITICAL


@attrs.frozen
class Decision:
    """What follows from one look.

    Attributes:
        level: What to tell people.
        why: What makes it short.
        admitting: Whether anybody but the smallest may start.
        calm_seconds: How long memory has been normal.
        evict: Who has to go now.
        would: Who would have to go, if this were not a dry run.
        skip: Why nobody has to, although memory is short.
        note: The same as a sentence.
    """

    level: Level
    why: str = ""
    admitting: bool = False
    calm_seconds: float = 0.0
    evict: Evict | None = None
    would: Evict | None = None
    skip: Skip | None = None
    note: str = ""


def rank_of(priority: str) -> int:
    """Return a priority as a number, the lowest first; one that nobody knows is normal."""
    return PRIORITIES.index(priority) if priority in PRIORITIES else PRIORITIES.index("normal")


def step(policy: Policy, state: State, look: Look, now: float) -> tuple[State, Decision]:
    """Take in one look, and return what to do."""
    state = _noted(policy, state, look, now)
    calm = 0.0 if state.calm_since is None else now - state.calm_since
    level = look.sample.level
    if level is Level.UNKNOWN:
        return state, Decision(Level.UNKNOWN, look.sample.why, skip=Skip.UNKNOWN, note=look.sample.why)
    admitting = level is Level.NORMAL and not state.pressed
    plain = Decision(state.level, look.sample.why, admitting, calm)
    cause = _cause(policy, state, look, now)
    if cause is None:
        return state, plain
    if isinstance(cause, Skip):
        return state, attrs.evolve(plain, skip=cause, note="memory is short, but not for long enough yet")
    chosen = _not_now(policy, state, look, cause, now) or _spare(look, cause) or _choose(policy, look, cause)
    if isinstance(chosen, tuple):
        skip, note = chosen
        return state, attrs.evolve(plain, skip=skip, note=note)
    if policy.mode is Mode.DRY_RUN:
        note = f"{chosen.key} would be evicted, but this is a dry run"
        return state, attrs.evolve(plain, would=chosen, skip=Skip.DRY_RUN, note=note)
    return attrs.evolve(state, acted_at=now), attrs.evolve(plain, evict=chosen)


def _noted(policy: Policy, state: State, look: Look, now: float) -> State:
    """Remember since when what has been so."""
    level = look.sample.level
    over_since = (now if state.over_since is None else state.over_since) if look.over_bytes > 0 else None
    state = attrs.evolve(state, over_since=over_since)
    if level is Level.UNKNOWN:
        return attrs.evolve(state, level=level, calm_since=None)
    if level is not Level.NORMAL:
        since = now if state.short_since is None else state.short_since
        critical_at = now if level is Level.CRITICAL else state.critical_at
        shown = Level.CRITICAL if now - critical_at < policy.clear_seconds else level
        return attrs.evolve(
            state, level=shown, short_since=since, critical_at=critical_at, calm_since=None, pressed=True
        )
    calm_since = now if state.calm_since is None else state.calm_since
    calm = now - calm_since
    over = calm >= policy.clear_seconds or state.short_since is None
    return attrs.evolve(
        state,
        level=Level.NORMAL if over else state.level,
        short_since=None if over else state.short_since,
        calm_since=calm_since,
        pressed=state.pressed and calm < policy.return_seconds,
    )


def _cause(policy: Policy, state: State, look: Look, now: float) -> Cause | Skip | None:
    """Why somebody would have to go; None when nobody has to."""
    level = look.sample.level
    if level is Level.CRITICAL:
        return Cause.CRITICAL
    if state.over_since is not None and now - state.over_since >= policy.soft_seconds:
        return Cause.OVER_BUDGET
    if level is Level.NORMAL or state.short_since is None:
        return None
    lasted = now - state.short_since
    if lasted >= policy.soft_seconds and not _figures_fine(policy, look.sample):
        return Cause.WARNING
    return Cause.IDLE if lasted >= policy.unload_seconds else Skip.NOT_LONG_ENOUGH


def _spare(look: Look, cause: Cause) -> Evict | None:
    """Name the engine that is to replace another one and serves nobody yet, if there is any: the largest of them."""
    spares = [each for each in look.engines if each.leaves_by is None and each.spare]
    if not spares:
        return None
    victim = max(spares, key=lambda each: each.frees_bytes)
    return Evict(victim.key, cause, _why(look, cause, victim), spare=True)


def _choose(policy: Policy, look: Look, cause: Cause) -> Evict | tuple[Skip, str]:
    """Name the one that has to go, or say why nobody has to."""
    staying = [each for each in look.engines if each.leaves_by is None and not each.spare]
    lacking = _lacking(policy, look, cause)
    enough_bytes = lacking + policy.reclaim_bytes(look.sample.total_bytes)
    order = partial(_order, policy, enough_bytes)
    open_to = sorted((each for each in staying if not each.protected), key=order)
    if not open_to:
        return Skip.ALL_PROTECTED, "every engine is protected, or does not end although it was told to"
    worthwhile = [each for each in open_to if each.frees_bytes >= policy.worthwhile_bytes]
    if not worthwhile:
        return Skip.TOO_SMALL, "no engine holds enough for its end to help"
    if policy.keep_last and len(worthwhile) == sum(each.frees_bytes >= policy.worthwhile_bytes for each in staying):
        worthwhile = worthwhile[:-1]
        if not worthwhile:
            return Skip.LAST_SERVICE, "the last engine of a host is kept"
    gain = sum(each.frees_bytes for each in worthwhile)
    if gain < lacking:
        return Skip.CANNOT_HELP, (
            f"{format_bytes(lacking)} are lacking, and all that may be evicted holds {format_bytes(gain)}: "
            "other programs, or protected services, have to give memory back"
        )
    if cause is Cause.IDLE:
        high = rank_of("high")  # high and critical mean that an answer must not wait for a load
        worthwhile = [each for each in worthwhile if each.idle_seconds >= policy.idle_seconds and each.rank < high]
        if not worthwhile and _figures_fine(policy, look.sample):
            return Skip.FIGURES_FINE, "only the kernel says that memory is short: services that have work stay"
        if not worthwhile:
            return Skip.NOT_LONG_ENOUGH, "memory is short, but not for long enough to end services that have work"
    victim = worthwhile[0]
    return Evict(victim.key, cause, _why(look, cause, victim))


def _not_now(policy: Policy, state: State, look: Look, cause: Cause, now: float) -> tuple[Skip, str] | None:
    """Whether nobody has to go at this moment, whoever runs here."""
    if policy.mode is Mode.OFF:
        return Skip.DISABLED, "eviction is switched off"
    if not look.engines:
        return Skip.EMPTY, "no engine runs here: other programs hold the memory"
    if look.releasing or any(each.leaves_by is not None and now < each.leaves_by for each in look.engines):
        return Skip.RELEASE_PENDING, "the memory of the last one is not back yet"
    doubtful = _figures_fine(policy, look.sample) and cause is not Cause.OVER_BUDGET
    pause = policy.doubt_seconds if doubtful else policy.cooldown_seconds
    if now - state.acted_at < pause:
        return Skip.COOL_DOWN, "somebody has just been evicted"
    return None


def _figures_fine(policy: Policy, sample: Sample) -> bool:
    """Whether so much is available that others could still start, whatever the kernel says.

    macOS counts what is compressed: with most of the memory wired, a full browser is enough for its warning.
    """
    return sample.available_bytes >= policy.floor_bytes(sample.total_bytes)


def _order(policy: Policy, enough_bytes: int, candidate: Candidate) -> tuple[int, bool, int, Key]:
    """The lowest priority first, then one without work if it alone frees enough, then the one that frees most."""
    spared = candidate.idle_seconds < policy.idle_seconds or candidate.frees_bytes < enough_bytes
    return candidate.rank, spared, -candidate.frees_bytes, candidate.key


def _lacking(policy: Policy, look: Look, cause: Cause) -> int:
    """How much has to come back; 0 when only the kernel knows."""
    sample = look.sample
    if cause is Cause.OVER_BUDGET:
        return look.over_bytes
    lines = policy.thresholds
    line = lines.critical_bytes if cause is Cause.CRITICAL else lines.warning_bytes
    return max(0, line(sample.total_bytes) - sample.available_bytes)


def _why(look: Look, cause: Cause, victim: Candidate) -> str:
    sample = look.sample
    left = f"{format_bytes(sample.available_bytes)} of {format_bytes(sample.total_bytes)} left"
    said = sample.why or left
    frees = f"it holds {format_bytes(victim.frees_bytes)}"
    if cause is Cause.OVER_BUDGET:
        return f"all engines hold {format_bytes(look.over_bytes)} more than its budget or its device allows; {frees}"
    if cause is Cause.IDLE:
        return f"memory is short ({said}), and it has had no work for {format_age(victim.idle_seconds)}; {frees}"
    return f"memory is {'critical' if cause is Cause.CRITICAL else 'short'} ({said}); {frees}"
