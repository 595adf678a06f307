"""Decide the next step to keep a model loaded, or to unload it, from the server's list and its processes. Pure.

```
 no answer ─────────────▶ wait; too long ─▶ give up, with the address
 another release ───────▶ prepare again
 not prepared ──────────▶ PREPARE ─▶ LOAD ─▶ confirmed by both ─▶ ready, RENEW each minute
 listed, no process ────▶ in a second sample as well: LOAD
 a process, not listed ─▶ wait until it exits; otherwise END it (ours), or give up (not ours)
 neither ───────────────▶ LOAD, with a longer pause after each time that it was unloaded
```

A state is trusted only if the server's list and its processes agree: Ollama has listed a model whose process was
killed, and has kept a process whose model it did not list (ollama issue 17792).
"""

import enum
from typing import Final, Literal

import attrs

UNKNOWN_RELEASE: Final = "of an unknown release"
"""The version of a server that does not report one, in messages."""


@attrs.frozen(kw_only=True)
class DaemonTexts:
    """Texts for messages about one daemon.

    Attributes:
        moved: Fix if it listens at another address now.
        search: Log message for the preparation of a load.
        gone: Log message for a completed unload.
    """

    name: str = "the server"
    moved: str = ""
    search: str = "looking for the model"
    gone: str = "the model is unloaded, and its process is gone"


@attrs.frozen(kw_only=True)
class DaemonSample:
    """One sample of a daemon's state.

    Attributes:
        answers: Whether the server answers: `yes`, `late` (it listens, but times out) or `gone`.
        url: Address of the server.
        problem: Unexpected response; empty if there was none.
        version: Version that the server reports.
        listed: Whether it lists our model as loaded.
        others_listed: Number of other models that it lists.
        holders: Its processes that hold our weights.
        others: Its processes that hold other weights.
        orphans: Processes that hold our weights, but whose server has exited.
        visible: Whether its processes can be inspected; otherwise only its list is used.
        owned: Whether we started it.
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
        """Whether the server's list and its processes both show that our weights are loaded.

        Two names of one file share a process, which is listed under one of them.
        """
        if not self.visible:
            return self.listed
        named = self.listed or self.others_listed > len(self.others)
        return named and bool(self.holders)


def holders_text(pids: tuple[int, ...]) -> str:
    """Return a clause such as "process 12 holds it"."""
    one = len(pids) == 1
    return f"{'process' if one else 'processes'} {', '.join(map(str, pids))} {'holds' if one else 'hold'} it"


SAMPLE_SECONDS: Final = 5.0
"""Interval between samples in a normal state."""


class Act(enum.Enum):
    """An act of the keeper."""

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
    """The next act, and the pause until the next sample; `reason` is a log message, or empty."""

    act: Act
    reason: str = ""
    wait_seconds: float = SAMPLE_SECONDS


RECHECK_SECONDS: Final = 1.0
"""Interval between samples in an inconsistent state: a process exits within a second after its model was unlisted."""

CONFIRM_SECONDS: Final = 2.0
"""Duration after which an inconsistent state is trusted."""

RENEW_SECONDS: Final = 60.0
"""Interval between renewals of a model's keep-alive: the server unloads a model five minutes after the last one."""

LOST_SECONDS: Final = 30.0
"""Limit for a server that has exited: after an upgrade it starts again within seconds."""

LATE_SECONDS: Final = 120.0
"""Limit for a server that does not answer: it may be loading from a slow disk."""

STALE_SECONDS: Final = 15.0
"""Limit for a process that holds an unlisted model."""

LOSS_WINDOW_SECONDS: Final = 600.0
"""Period in which losses of the model are counted."""

MAX_FAILURES: Final = 3
"""Consecutive failures before giving up: the agent restarts the engine later, and reports the reason."""

MAX_PAUSE_SECONDS: Final = 60.0


@attrs.frozen(kw_only=True)
class Outcome:
    """Result of an act.

    Attributes:
        error: Error message; empty on success.
        missing: The server no longer has the model.
        final: A retry would fail again.
    """

    error: str = ""
    missing: bool = False
    final: bool = False


@attrs.frozen(kw_only=True)
class KeeperState:
    """State between samples.

    Attributes:
        ready: Whether requests are forwarded.
        prepared: Whether the server has the model in its store.
        version: Version of the server at the last sample.
        unconfirmed: The server has reported a successful load, which no sample has confirmed yet.
        doubt: Kind of disagreement between the server's list and its processes; empty if there is none.
        doubt_since: Start of the disagreement.
        silent_since: Time since which the server has not answered; None while it does.
        failures: Consecutive failed acts.
        not_before: Earliest time of the next act.
        losses: Times at which other clients unloaded the model.
        renewed_at: Time of the last renewal.
    """

    ready: bool = False
    prepared: bool = False
    version: str = ""
    unconfirmed: bool = False
    doubt: str = ""
    doubt_since: float = 0.0
    silent_since: float | None = None
    failures: int = 0
    not_before: float = 0.0
    losses: tuple[float, ...] = ()
    renewed_at: float = 0.0


def decide(state: KeeperState, sample: DaemonSample, now: float) -> tuple[KeeperState, Step]:
    """Return the next state and step after a sample, while the model should be loaded."""
    if sample.answers != "yes":
        return _unanswered(state, sample, now)
    reason = ""
    if state.silent_since is not None:
        reason = f"{sample.texts.name} answers again"
        state = attrs.evolve(state, silent_since=None)
    if sample.version != state.version:
        if state.version:
            reason = f"{sample.texts.name} changed from {state.version} to {sample.version}"
        # Another release, or another server at this address, may have another store.
        state = attrs.evolve(state, version=sample.version, prepared=False)
    state, step = _answered(state, sample, now)
    return state, attrs.evolve(step, reason="; ".join(filter(None, (reason, step.reason))))


def after_action(state: KeeperState, act: Act, outcome: Outcome, now: float) -> tuple[KeeperState, str]:
    """Return the next state after an act, and the reason for giving up, or an empty string."""
    if not outcome.error:
        if act is Act.PREPARE:
            return attrs.evolve(state, prepared=True, not_before=0.0), ""
        if act is Act.LOAD:
            return attrs.evolve(state, unconfirmed=True, renewed_at=now, doubt="", not_before=0.0), ""
        return attrs.evolve(state, renewed_at=now), ""
    if act is Act.RENEW:  # the next sample shows whether it is still loaded
        return attrs.evolve(state, renewed_at=now), ""
    if outcome.missing:
        state = attrs.evolve(state, prepared=False)
    state = _failed(state, now)
    if outcome.final or state.failures >= MAX_FAILURES:
        return attrs.evolve(state, ready=False), outcome.error
    return attrs.evolve(state, ready=False), ""


def _unanswered(state: KeeperState, sample: DaemonSample, now: float) -> tuple[KeeperState, Step]:
    since = now if state.silent_since is None else state.silent_since
    first = state.silent_since is None
    silent = now - since
    if sample.answers == "late":
        # A late server is not gone: a loaded model still answers.
        state = attrs.evolve(state, silent_since=since)
        if silent >= LATE_SECONDS:
            reason = f"{sample.texts.name} at {sample.url} has not answered for {silent:.0f} s"
            if sample.problem:
                failing = f"{sample.texts.name} at {sample.url} has failed to list its models for {silent:.0f} s"
                reason = f"{failing}: {sample.problem}"
            return attrs.evolve(state, ready=False), Step(Act.GIVE_UP, reason)
        return state, Step(Act.NOTHING, f"{sample.texts.name} at {sample.url} does not answer in time" if first else "")
    state = attrs.evolve(state, silent_since=since, ready=False, prepared=False)
    if silent >= LOST_SECONDS or sample.owned:
        where = "" if sample.owned else f"; if it listens elsewhere, {sample.texts.moved}"
        return state, Step(Act.GIVE_UP, f"no {sample.texts.name} answers at {sample.url} any longer{where}")
    reason = f"no {sample.texts.name} answers at {sample.url}; it may start again" if first else ""
    return state, Step(Act.NOTHING, reason, RECHECK_SECONDS)


def _answered(state: KeeperState, sample: DaemonSample, now: float) -> tuple[KeeperState, Step]:
    if sample.loaded:
        return _loaded(state, sample, now)
    if sample.orphans or sample.holders:
        return _handle_unlisted(state, sample, now)
    if sample.listed and not state.doubt:
        return attrs.evolve(state, doubt="hollow", doubt_since=now), Step(Act.NOTHING, wait_seconds=RECHECK_SECONDS)
    if sample.listed and now - state.doubt_since < CONFIRM_SECONDS:
        return state, Step(Act.NOTHING, wait_seconds=RECHECK_SECONDS)
    return _absent(state, sample, now)


def _loaded(state: KeeperState, sample: DaemonSample, now: float) -> tuple[KeeperState, Step]:
    if not state.prepared and now >= state.not_before:  # loaded by another server, or by an earlier front
        return state, Step(Act.PREPARE, sample.texts.search, 0.0)
    if not state.prepared:
        return state, Step(Act.NOTHING, wait_seconds=max(0.1, state.not_before - now))
    newly_ready = not state.ready
    if newly_ready and not state.unconfirmed:  # another client may have loaded it with other options
        return state, Step(Act.LOAD, "loading the model", 0.0)
    state = attrs.evolve(state, ready=True, unconfirmed=False, doubt="", failures=0)
    reason = f"{sample.texts.name} reports that the model is loaded"
    if sample.visible:
        reason = f"the model is loaded, and a process of {sample.texts.name} holds it"
    if now - state.renewed_at >= RENEW_SECONDS:
        return state, Step(Act.RENEW)
    return state, Step(Act.NOTHING, reason if newly_ready else "")


def _handle_unlisted(state: KeeperState, sample: DaemonSample, now: float) -> tuple[KeeperState, Step]:
    """Handle a process that holds our weights although the server does not list them or has exited.

    Nothing is loaded meanwhile, since that would use the memory twice.
    """
    pids = (*sample.orphans, *sample.holders)
    reason = f"{sample.texts.name} does not list the model, but {holders_text(pids)}"
    if state.doubt != "held":
        state = after_loss(attrs.evolve(state, doubt="held", doubt_since=now), now)
        return state, Step(Act.NOTHING, reason, RECHECK_SECONDS)
    if now - state.doubt_since < STALE_SECONDS:
        return state, Step(Act.NOTHING, wait_seconds=RECHECK_SECONDS)
    if sample.owned:
        return attrs.evolve(state, doubt=""), Step(Act.END_RUNNERS, reason, RECHECK_SECONDS)
    kill = f"end it: kill {' '.join(map(str, pids))}"
    fix = kill if sample.orphans else f"quit {sample.texts.name} and start it again"
    return state, Step(Act.GIVE_UP, f"{reason}; {fix}")


def _absent(state: KeeperState, sample: DaemonSample, now: float) -> tuple[KeeperState, Step]:
    """Prepare or load the model, unless that has just failed or other clients unloaded the model too often."""
    reason = ""
    if state.ready:
        state, reason = after_loss(state, now), "the model is no longer loaded"
    elif state.unconfirmed:
        problem = f"{sample.texts.name} reports that it has loaded the model, but "
        problem += "none of its processes holds it" if sample.listed else "does not list it"
        state = _failed(attrs.evolve(state, unconfirmed=False, doubt=""), now)
        reason = problem
        if state.failures >= MAX_FAILURES:
            return state, Step(Act.GIVE_UP, problem)
    if now < state.not_before:
        return state, Step(Act.NOTHING, reason, min(SAMPLE_SECONDS, max(0.1, state.not_before - now)))
    if not state.prepared:
        return state, Step(Act.PREPARE, reason or sample.texts.search, 0.0)
    return state, Step(Act.LOAD, f"{reason}; loading it again" if reason else "loading the model", 0.0)


def after_loss(state: KeeperState, now: float) -> KeeperState:
    """Return the state after another client unloaded the model; after repeated losses the next load is delayed."""
    if not state.ready:
        return state
    losses = (*(at for at in state.losses if now - at < LOSS_WINDOW_SECONDS), now)
    pause = _pause(len(losses) - 1) if len(losses) > 1 else 0.0
    return attrs.evolve(state, ready=False, unconfirmed=False, losses=losses, not_before=now + pause)


def _failed(state: KeeperState, now: float) -> KeeperState:
    failures = state.failures + 1
    return attrs.evolve(state, failures=failures, not_before=now + _pause(failures))


def _pause(count: int) -> float:
    return float(min(MAX_PAUSE_SECONDS, 2 ** min(count, 16)))


UNLOAD_SECONDS: Final = 6.0
"""Limit for a complete unload: the agent gives an engine ten seconds between SIGTERM and SIGKILL."""

UNLOAD_AGAIN_SECONDS: Final = 2.0
"""Interval between repeated unloads: another client may have loaded the model again."""


def unload(sample: DaemonSample, since: float, requested_at: float | None, now: float) -> Step:
    """Return the next step while the model should be unloaded.

    Args:
        sample: The current sample.
        since: Start of the unload.
        requested_at: Time of the last unload request; None if there was none.
        now: The current time.
    """
    remaining = (*sample.holders, *sample.orphans)
    shared = sample.visible and not sample.listed and not sample.orphans and sample.loaded
    known = sample.answers == "yes" or sample.visible  # by the list or by the processes
    if requested_at is not None and known and not sample.listed and (not remaining or shared):
        return Step(Act.DONE, _unloaded_text(sample, shared=shared))
    if sample.answers == "gone" and not remaining:
        return Step(Act.DONE, f"{sample.texts.name} no longer {'runs' if sample.visible else 'answers'}")
    if now - since >= UNLOAD_SECONDS:
        if sample.owned and remaining:
            reason = f"{sample.texts.name} did not unload the model in {UNLOAD_SECONDS:g} s: {holders_text(remaining)}"
            return Step(Act.END_RUNNERS, reason, 0.1)
        return Step(Act.GIVE_UP, _still_loaded_text(sample, remaining))
    if sample.answers != "gone" and (requested_at is None or now - requested_at >= UNLOAD_AGAIN_SECONDS):
        return Step(Act.UNLOAD, wait_seconds=0.1)
    return Step(Act.NOTHING, wait_seconds=0.2)


def _unloaded_text(sample: DaemonSample, *, shared: bool) -> str:
    if shared:
        return "the same weights are loaded under another name, which keeps the process"
    if not sample.visible:
        return f"{sample.texts.name} reports that the model is unloaded; its processes are not visible here"
    return sample.texts.gone


def _still_loaded_text(sample: DaemonSample, remaining: tuple[int, ...]) -> str:
    if remaining:
        problem = f"{sample.texts.name} was asked to unload the model, but {holders_text(remaining)}"
        return f"{problem}; quit {sample.texts.name} to free the memory"
    problem = f"{sample.texts.name} at {sample.url} was asked to unload the model, but still lists it"
    return f"{problem}: other clients use it"
