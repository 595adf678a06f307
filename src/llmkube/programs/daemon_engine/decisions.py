"""What to do next so that a model stays loaded, or is gone, from what the server says and the kernel shows. Pure.

```
 no answer ─────────────▶ wait; too long ─▶ give up, with the address
 another release ───────▶ prepare again
 not prepared ──────────▶ PREPARE ─▶ LOAD ─▶ seen in both ─▶ ready, RENEW each minute
 listed, no process ────▶ at the second look: LOAD
 a process, not listed ─▶ wait until it is gone; else END it (ours), or give up (not ours)
 neither ───────────────▶ LOAD, later each time that it was taken away
```

The server is one witness, the kernel the other. Only what both say is believed: Ollama lists a model whose process was
killed, and has kept a process whose model it did not list (ollama issue 17792).
"""

import enum
from typing import Final, Literal

import attrs

UNKNOWN_RELEASE: Final = "of an unknown release"
"""The version of a server that does not tell one; a sentence goes on with it."""


@attrs.frozen(kw_only=True)
class DaemonTexts:
    """What is said of one daemon.

    Attributes:
        name: What people call it.
        moved: What to do where it listens elsewhere now.
        search: What is looked for before a load.
        gone: What an unload that has succeeded is seen by.
    """

    name: str = "the server"
    moved: str = ""
    search: str = "looking for the model"
    gone: str = "the model is unloaded, and its process is gone"


@attrs.frozen(kw_only=True)
class DaemonSample:
    """One look.

    Attributes:
        texts: What is said of the daemon.
        answers: Whether the server answers: `yes`, `late` (it listens, but says nothing in time) or `gone`.
        url: Where it was asked.
        problem: What it has answered instead of what it was asked for; "" where it has said nothing.
        version: What it says that it is.
        listed: Whether it lists our model as loaded.
        others_listed: How many other models it lists.
        holders: Its processes that hold our weights.
        others: Its processes that hold other weights.
        orphans: Processes that hold our weights, and whose server has ended.
        visible: Whether its processes can be seen; without that its word stands alone.
        owned: Whether it was started by us.
    """

    texts: DaemonTexts = DaemonTexts()
    answers: Literal["yes", "late", "gone"] = "yes"
    url: str = ""
    problem: str = ""
    version: str = ""
    listed: bool = False
    others_listed: int = 0
    holders: tuple[int, ...] = ()
    others: tuple[int, ...] = ()
    orphans: tuple[int, ...] = ()
    visible: bool = True
    owned: bool = False

    @property
    def loaded(self) -> bool:
        """Whether server and kernel both say that our weights are loaded.

        Two names of one file share a process, which is listed under one of them.
        """
        if not self.visible:
            return self.listed
        named = self.listed or self.others_listed > len(self.others)
        return named and bool(self.holders)


def holders_text(pids: tuple[int, ...]) -> str:
    """Return that these processes hold the model, in words."""
    one = len(pids) == 1
    return f"{'process' if one else 'processes'} {', '.join(map(str, pids))} {'holds' if one else 'hold'} it"


SAMPLE_SECONDS: Final = 5.0
"""Between two looks while all is well."""


class Act(enum.Enum):
    """What is to be done."""

    NOTHING = "nothing"
    PREPARE = "prepare"
    LOAD = "load"
    RENEW = "renew"
    UNLOAD = "unload"
    END_RUNNERS = "end runners"
    GIVE_UP = "give up"
    DONE = "done"


@attrs.frozen
class Step:
    """What to do now, and when to look again; `reason` is for the log, and "" when there is nothing to say."""

    act: Act
    reason: str = ""
    wait_seconds: float = SAMPLE_SECONDS


RECHECK_SECONDS: Final = 1.0
"""Between two looks while something is odd: a process ends within a second after its model is not listed any more."""

CONFIRM_SECONDS: Final = 2.0
"""So long something odd lasts before it is believed."""

RENEW_SECONDS: Final = 60.0
"""Between two renewals of a model's stay, which is five minutes: what a killed front leaves goes by itself."""

LOST_SECONDS: Final = 30.0
"""So long a server may be away: one that is upgraded starts again within seconds."""

LATE_SECONDS: Final = 120.0
"""So long a server may leave questions unanswered: one that loads from a slow disk is late."""

STALE_SECONDS: Final = 15.0
"""So long a process may hold a model that is not listed."""

LOSS_WINDOW_SECONDS: Final = 600.0
"""How long it counts that a model was taken away."""

MAX_FAILURES: Final = 3
"""In a row, before it is given up: the agent starts the engine again later, and says why it had ended."""

MAX_PAUSE_SECONDS: Final = 60.0


@attrs.frozen(kw_only=True)
class Outcome:
    """How an act has ended.

    Attributes:
        error: What went wrong; "" when nothing did.
        missing: The server does not know the model any more.
        final: To repeat it would fail again.
    """

    error: str = ""
    missing: bool = False
    final: bool = False


@attrs.frozen(kw_only=True)
class KeeperState:
    """What is remembered between looks.

    Attributes:
        ready: Whether requests are let through.
        prepared: Whether the server has the model in its store.
        version: What the server was at the last look.
        unconfirmed: It has answered that the model is loaded, and no look has confirmed that yet.
        doubt: What differs between the server's word and the kernel's; "" when nothing does.
        doubt_since: Since when.
        silent_since: Since when it has not answered; None while it does.
        failures: Acts in a row that have failed.
        last_error: What the last of them said.
        not_before: No act before this time.
        losses: When the model was taken away.
        renewed_at: When its stay was prolonged.
    """

    ready: bool = False
    prepared: bool = False
    version: str = ""
    unconfirmed: bool = False
    doubt: str = ""
    doubt_since: float = 0.0
    silent_since: float | None = None
    failures: int = 0
    last_error: str = ""
    not_before: float = 0.0
    losses: tuple[float, ...] = ()
    renewed_at: float = 0.0


def decide(state: KeeperState, sample: DaemonSample, now: float) -> tuple[KeeperState, Step]:
    """Take one look into account while the model is to be loaded; return what to do."""
    if sample.answers != "yes":
        return _unanswered(state, sample, now)
    reason = ""
    if state.silent_since is not None:
        reason = f"{sample.texts.name} answers again"
        state = attrs.evolve(state, silent_since=None)
    if sample.version != state.version:
        if state.version:
            reason = f"{sample.texts.name} is {sample.version} now, and was {state.version}"
        # Another release, or another server at this address, may have another store.
        state = attrs.evolve(state, version=sample.version, prepared=False)
    state, step = _answered(state, sample, now)
    return state, attrs.evolve(step, reason="; ".join(filter(None, (reason, step.reason))))


def after_action(state: KeeperState, act: Act, outcome: Outcome, now: float) -> tuple[KeeperState, str]:
    """Take the end of an act into account; return with it why all is given up, or ""."""
    if not outcome.error:
        if act is Act.PREPARE:
            return attrs.evolve(state, prepared=True, not_before=0.0), ""
        if act is Act.LOAD:
            return attrs.evolve(state, unconfirmed=True, renewed_at=now, doubt="", not_before=0.0), ""
        return attrs.evolve(state, renewed_at=now), ""
    if act is Act.RENEW:  # the next look tells whether it is still loaded
        return attrs.evolve(state, renewed_at=now), ""
    if outcome.missing:
        state = attrs.evolve(state, prepared=False)
    state = _failed(state, outcome.error, now)
    if outcome.final or state.failures >= MAX_FAILURES:
        return attrs.evolve(state, ready=False), outcome.error
    return attrs.evolve(state, ready=False), ""


def _unanswered(state: KeeperState, sample: DaemonSample, now: float) -> tuple[KeeperState, Step]:
    since = now if state.silent_since is None else state.silent_since
    first = state.silent_since is None
    silent = now - since
    if sample.answers == "late":
        # Late is not gone: what is loaded answers meanwhile.
        state = attrs.evolve(state, silent_since=since)
        if silent >= LATE_SECONDS:
            reason = f"{sample.texts.name} at {sample.url} has answered nothing for {silent:.0f} s"
            if sample.problem:
                reason = f"{sample.texts.name} at {sample.url} gave no model for {silent:.0f} s: {sample.problem}"
            return attrs.evolve(state, ready=False), Step(Act.GIVE_UP, reason)
        return state, Step(Act.NOTHING, f"{sample.texts.name} at {sample.url} does not answer in time" if first else "")
    state = attrs.evolve(state, silent_since=since, ready=False, prepared=False)
    if silent >= LOST_SECONDS or sample.owned:
        where = "" if sample.owned else f"; if it listens elsewhere, {sample.texts.moved}"
        return state, Step(Act.GIVE_UP, f"no {sample.texts.name} answers at {sample.url} any more{where}")
    reason = f"no {sample.texts.name} answers at {sample.url}; it may start again" if first else ""
    return state, Step(Act.NOTHING, reason, RECHECK_SECONDS)


def _answered(state: KeeperState, sample: DaemonSample, now: float) -> tuple[KeeperState, Step]:
    if sample.loaded:
        return _loaded(state, sample, now)
    if sample.orphans or sample.holders:
        return _held_unlisted(state, sample, now)
    if sample.listed and not state.doubt:
        return attrs.evolve(state, doubt="hollow", doubt_since=now), Step(Act.NOTHING, wait_seconds=RECHECK_SECONDS)
    if sample.listed and now - state.doubt_since < CONFIRM_SECONDS:
        return state, Step(Act.NOTHING, wait_seconds=RECHECK_SECONDS)
    return _absent(state, sample, now)


def _loaded(state: KeeperState, sample: DaemonSample, now: float) -> tuple[KeeperState, Step]:
    if not state.prepared and now >= state.not_before:  # of another server than before, or of an earlier front
        return state, Step(Act.PREPARE, sample.texts.search, 0.0)
    if not state.prepared:
        return state, Step(Act.NOTHING, wait_seconds=max(0.1, state.not_before - now))
    newly_ready = not state.ready
    if newly_ready and not state.unconfirmed:  # whatever has loaded it may have done so with other options
        return state, Step(Act.LOAD, "loading the model", 0.0)
    state = attrs.evolve(state, ready=True, unconfirmed=False, doubt="", failures=0, last_error="")
    reason = f"{sample.texts.name} says that it is loaded"
    if sample.visible:
        reason = f"the model is loaded, and a process of {sample.texts.name} holds it"
    if now - state.renewed_at >= RENEW_SECONDS:
        return state, Step(Act.RENEW)
    return state, Step(Act.NOTHING, reason if newly_ready else "")


def _held_unlisted(state: KeeperState, sample: DaemonSample, now: float) -> tuple[KeeperState, Step]:
    """A process holds our weights that the server does not list, or that has no server any more.

    Nothing is loaded beside it: that would take the memory twice.
    """
    pids = (*sample.orphans, *sample.holders)
    if state.doubt != "held":
        reason = f"{sample.texts.name} does not list the model, and {holders_text(pids)} still"
        state = after_loss(attrs.evolve(state, doubt="held", doubt_since=now), now)
        return state, Step(Act.NOTHING, reason, RECHECK_SECONDS)
    if now - state.doubt_since < STALE_SECONDS:
        return state, Step(Act.NOTHING, wait_seconds=RECHECK_SECONDS)
    if sample.owned:
        return attrs.evolve(state, doubt=""), Step(
            Act.END_RUNNERS, f"{sample.texts.name} lists no such model, and {holders_text(pids)}", RECHECK_SECONDS
        )
    fix = (
        f"end it: kill {' '.join(map(str, pids))}" if sample.orphans else f"quit {sample.texts.name} and start it again"
    )
    return state, Step(Act.GIVE_UP, f"{sample.texts.name} lists no such model, and {holders_text(pids)} still; {fix}")


def _absent(state: KeeperState, sample: DaemonSample, now: float) -> tuple[KeeperState, Step]:
    """Nothing is loaded: prepare, or load, unless it has just failed or was taken away too often."""
    reason = ""
    if state.ready:
        state, reason = after_loss(state, now), "the model is not loaded any more"
    elif state.unconfirmed:
        problem = f"{sample.texts.name} says that it has loaded the model, and "
        problem += "no process of it holds it" if sample.listed else "does not list it"
        state = _failed(attrs.evolve(state, unconfirmed=False, doubt=""), problem, now)
        reason = problem
        if state.failures >= MAX_FAILURES:
            return state, Step(Act.GIVE_UP, problem)
    if now < state.not_before:
        return state, Step(Act.NOTHING, reason, min(SAMPLE_SECONDS, max(0.1, state.not_before - now)))
    if not state.prepared:
        return state, Step(Act.PREPARE, reason or sample.texts.search, 0.0)
    return state, Step(Act.LOAD, f"{reason}; loading it again" if reason else "loading the model", 0.0)


def after_loss(state: KeeperState, now: float) -> KeeperState:
    """Return the state after another client, or the server, has unloaded it: it is loaded again at once, or later."""
    if not state.ready:
        return state
    losses = (*(at for at in state.losses if now - at < LOSS_WINDOW_SECONDS), now)
    pause = _pause(len(losses) - 1) if len(losses) > 1 else 0.0
    return attrs.evolve(state, ready=False, unconfirmed=False, losses=losses, not_before=now + pause)


def _failed(state: KeeperState, error: str, now: float) -> KeeperState:
    failures = state.failures + 1
    return attrs.evolve(state, failures=failures, last_error=error, not_before=now + _pause(failures))


def _pause(count: int) -> float:
    return float(min(MAX_PAUSE_SECONDS, 2 ** min(count, 16)))


UNLOAD_SECONDS: Final = 6.0
"""For all of an unload: the agent gives an engine ten seconds between TERM and KILL."""

UNLOAD_AGAIN_SECONDS: Final = 2.0
"""Until an unload is repeated: another client may have had it loaded anew."""


def unload(sample: DaemonSample, since: float, requested_at: float | None, now: float) -> Step:
    """Return what to do while the model is to go.

    Args:
        sample: One look.
        since: When the unload began.
        requested_at: When the server was asked last to unload; None before that.
        now: The time.
    """
    remaining = (*sample.holders, *sample.orphans)
    shared = sample.visible and not sample.listed and not sample.orphans and sample.loaded
    known = sample.answers == "yes" or sample.visible  # by one witness at least
    if requested_at is not None and known and not sample.listed and (not remaining or shared):
        return Step(Act.DONE, _unloaded_text(sample, shared=shared))
    if sample.answers == "gone" and not remaining:
        return Step(Act.DONE, f"{sample.texts.name} does not {'run' if sample.visible else 'answer'} any more")
    if now - since >= UNLOAD_SECONDS:
        if sample.owned and remaining:
            reason = (
                f"{holders_text(remaining)} {UNLOAD_SECONDS:g} s after {sample.texts.name} was told to unload the model"
            )
            return Step(Act.END_RUNNERS, reason, 0.1)
        return Step(Act.GIVE_UP, _still_loaded_text(sample, remaining))
    if sample.answers != "gone" and (requested_at is None or now - requested_at >= UNLOAD_AGAIN_SECONDS):
        return Step(Act.UNLOAD, wait_seconds=0.1)
    return Step(Act.NOTHING, wait_seconds=0.2)


def _unloaded_text(sample: DaemonSample, *, shared: bool) -> str:
    if shared:
        return "another name of the same weights is loaded, and keeps their process"
    if not sample.visible:
        return f"{sample.texts.name} says that the model is unloaded; its processes cannot be seen here"
    return sample.texts.gone


def _still_loaded_text(sample: DaemonSample, remaining: tuple[int, ...]) -> str:
    if remaining:
        problem = f"{sample.texts.name} was told to unload the model, and {holders_text(remaining)} still"
        return f"{problem}; quit {sample.texts.name} to have the memory back"
    problem = f"{sample.texts.name} at {sample.url} was told to unload the model, and lists it still"
    return f"{problem}: it answers other requests with it"
