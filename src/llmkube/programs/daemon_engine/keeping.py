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
class Words:
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
class Seen:
    """One look.

    Attributes:
        words: What is said of the daemon.
        answers: Whether the server answers: `yes`, `late` (it listens, but says nothing in time) or `gone`.
        url: Where it was asked.
        said: What it has answered instead of what it was asked for; "" where it has said nothing.
        version: What it says that it is.
        listed: Whether it lists our model as loaded.
        others_listed: How many other models it lists.
        holders: Its processes that hold our weights.
        others: Its processes that hold other weights.
        orphans: Processes that hold our weights, and whose server has ended.
        visible: Whether its processes can be seen; without that its word stands alone.
        owned: Whether it was started by us.
    """

    words: Words = Words()
    answers: Literal["yes", "late", "gone"] = "yes"
    url: str = ""
    said: str = ""
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


def held_by(pids: tuple[int, ...]) -> str:
    """Return that these processes hold the model, in words."""
    one = len(pids) == 1
    return f"{'process' if one else 'processes'} {', '.join(map(str, pids))} {'holds' if one else 'hold'} it"


LOOK_SECONDS: Final = 5.0
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
    """What to do now, and when to look again; `why` is for the log, and "" when there is nothing to say."""

    act: Act
    why: str = ""
    wait_seconds: float = LOOK_SECONDS


CLOSE_SECONDS: Final = 1.0
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

WINDOW_SECONDS: Final = 600.0
"""How long it counts that a model was taken away."""

MOST_FAILURES: Final = 3
"""In a row, before it is given up: the agent starts the engine again later, and says why it had ended."""

LONGEST_PAUSE_SECONDS: Final = 60.0


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
class State:
    """What is remembered between looks.

    Attributes:
        ready: Whether requests are let through.
        prepared: Whether the server has the model in its store.
        version: What the server was at the last look.
        claimed: It has answered that the model is loaded, and no look has confirmed that yet.
        odd: What differs between the server's word and the kernel's; "" when nothing does.
        odd_since: Since when.
        silent_since: Since when it has not answered; None while it does.
        failures: Acts in a row that have failed.
        last_error: What the last of them said.
        next_at: No act before this time.
        losses: When the model was taken away.
        renewed_at: When its stay was prolonged.
    """

    ready: bool = False
    prepared: bool = False
    version: str = ""
    claimed: bool = False
    odd: str = ""
    odd_since: float = 0.0
    silent_since: float | None = None
    failures: int = 0
    last_error: str = ""
    next_at: float = 0.0
    losses: tuple[float, ...] = ()
    renewed_at: float = 0.0


def decide(state: State, seen: Seen, now: float) -> tuple[State, Step]:
    """Take one look into account while the model is to be loaded; return what to do."""
    if seen.answers != "yes":
        return _unanswered(state, seen, now)
    why = ""
    if state.silent_since is not None:
        why = f"{seen.words.name} answers again"
        state = attrs.evolve(state, silent_since=None)
    if seen.version != state.version:
        if state.version:
            why = f"{seen.words.name} is {seen.version} now, and was {state.version}"
        # Another release, or another server at this address, may have another store.
        state = attrs.evolve(state, version=seen.version, prepared=False)
    state, step = _answered(state, seen, now)
    return state, attrs.evolve(step, why="; ".join(filter(None, (why, step.why))))


def after(state: State, act: Act, outcome: Outcome, now: float) -> tuple[State, str]:
    """Take the end of an act into account; return with it why all is given up, or ""."""
    if not outcome.error:
        if act is Act.PREPARE:
            return attrs.evolve(state, prepared=True, next_at=0.0), ""
        if act is Act.LOAD:
            return attrs.evolve(state, claimed=True, renewed_at=now, odd="", next_at=0.0), ""
        return attrs.evolve(state, renewed_at=now), ""
    if act is Act.RENEW:  # the next look tells whether it is still loaded
        return attrs.evolve(state, renewed_at=now), ""
    if outcome.missing:
        state = attrs.evolve(state, prepared=False)
    state = _failed(state, outcome.error, now)
    if outcome.final or state.failures >= MOST_FAILURES:
        return attrs.evolve(state, ready=False), outcome.error
    return attrs.evolve(state, ready=False), ""


def _unanswered(state: State, seen: Seen, now: float) -> tuple[State, Step]:
    since = now if state.silent_since is None else state.silent_since
    first = state.silent_since is None
    silent = now - since
    if seen.answers == "late":
        # Late is not gone: what is loaded answers meanwhile.
        state = attrs.evolve(state, silent_since=since)
        if silent >= LATE_SECONDS:
            why = f"{seen.words.name} at {seen.url} has answered nothing for {silent:.0f} s"
            if seen.said:
                why = f"{seen.words.name} at {seen.url} has told nothing of the model for {silent:.0f} s: {seen.said}"
            return attrs.evolve(state, ready=False), Step(Act.GIVE_UP, why)
        return state, Step(Act.NOTHING, f"{seen.words.name} at {seen.url} does not answer in time" if first else "")
    state = attrs.evolve(state, silent_since=since, ready=False, prepared=False)
    if silent >= LOST_SECONDS or seen.owned:
        where = "" if seen.owned else f"; if it listens elsewhere, {seen.words.moved}"
        return state, Step(Act.GIVE_UP, f"no {seen.words.name} answers at {seen.url} any more{where}")
    why = f"no {seen.words.name} answers at {seen.url}; it may start again" if first else ""
    return state, Step(Act.NOTHING, why, CLOSE_SECONDS)


def _answered(state: State, seen: Seen, now: float) -> tuple[State, Step]:
    if seen.loaded:
        return _loaded(state, seen, now)
    if seen.orphans or seen.holders:
        return _held(state, seen, now)
    if seen.listed and not state.odd:
        return attrs.evolve(state, odd="hollow", odd_since=now), Step(Act.NOTHING, wait_seconds=CLOSE_SECONDS)
    if seen.listed and now - state.odd_since < CONFIRM_SECONDS:
        return state, Step(Act.NOTHING, wait_seconds=CLOSE_SECONDS)
    return _absent(state, seen, now)


def _loaded(state: State, seen: Seen, now: float) -> tuple[State, Step]:
    if not state.prepared and now >= state.next_at:  # of another server than before, or of an earlier front
        return state, Step(Act.PREPARE, seen.words.search, 0.0)
    if not state.prepared:
        return state, Step(Act.NOTHING, wait_seconds=max(0.1, state.next_at - now))
    became = not state.ready
    if became and not state.claimed:  # whatever has loaded it may have done so with other options
        return state, Step(Act.LOAD, "loading the model", 0.0)
    state = attrs.evolve(state, ready=True, claimed=False, odd="", failures=0, last_error="")
    why = f"{seen.words.name} says that it is loaded"
    if seen.visible:
        why = f"the model is loaded, and a process of {seen.words.name} holds it"
    if now - state.renewed_at >= RENEW_SECONDS:
        return state, Step(Act.RENEW)
    return state, Step(Act.NOTHING, why if became else "")


def _held(state: State, seen: Seen, now: float) -> tuple[State, Step]:
    """A process holds our weights that the server does not list, or that has no server any more.

    Nothing is loaded beside it: that would take the memory twice.
    """
    pids = (*seen.orphans, *seen.holders)
    if state.odd != "held":
        why = f"{seen.words.name} does not list the model, and {held_by(pids)} still"
        state = lost(attrs.evolve(state, odd="held", odd_since=now), now)
        return state, Step(Act.NOTHING, why, CLOSE_SECONDS)
    if now - state.odd_since < STALE_SECONDS:
        return state, Step(Act.NOTHING, wait_seconds=CLOSE_SECONDS)
    if seen.owned:
        return attrs.evolve(state, odd=""), Step(
            Act.END_RUNNERS, f"{seen.words.name} lists no such model, and {held_by(pids)}", CLOSE_SECONDS
        )
    fix = f"end it: kill {' '.join(map(str, pids))}" if seen.orphans else f"quit {seen.words.name} and start it again"
    return state, Step(Act.GIVE_UP, f"{seen.words.name} lists no such model, and {held_by(pids)} still; {fix}")


def _absent(state: State, seen: Seen, now: float) -> tuple[State, Step]:
    """Nothing is loaded: prepare, or load, unless it has just failed or was taken away too often."""
    why = ""
    if state.ready:
        state, why = lost(state, now), "the model is not loaded any more"
    elif state.claimed:
        said = f"{seen.words.name} says that it has loaded the model, and "
        said += "no process of it holds it" if seen.listed else "does not list it"
        state = _failed(attrs.evolve(state, claimed=False, odd=""), said, now)
        why = said
        if state.failures >= MOST_FAILURES:
            return state, Step(Act.GIVE_UP, said)
    if now < state.next_at:
        return state, Step(Act.NOTHING, why, min(LOOK_SECONDS, max(0.1, state.next_at - now)))
    if not state.prepared:
        return state, Step(Act.PREPARE, why or seen.words.search, 0.0)
    return state, Step(Act.LOAD, f"{why}; loading it again" if why else "loading the model", 0.0)


def lost(state: State, now: float) -> State:
    """Return the state after another client, or the server, has unloaded it: it is loaded again at once, or later."""
    if not state.ready:
        return state
    losses = (*(at for at in state.losses if now - at < WINDOW_SECONDS), now)
    pause = _pause(len(losses) - 1) if len(losses) > 1 else 0.0
    return attrs.evolve(state, ready=False, claimed=False, losses=losses, next_at=now + pause)


def _failed(state: State, error: str, now: float) -> State:
    failures = state.failures + 1
    return attrs.evolve(state, failures=failures, last_error=error, next_at=now + _pause(failures))


def _pause(count: int) -> float:
    return float(min(LONGEST_PAUSE_SECONDS, 2 ** min(count, 16)))


UNLOAD_SECONDS: Final = 6.0
"""For all of an unload: the agent gives an engine ten seconds between TERM and KILL."""

UNLOAD_AGAIN_SECONDS: Final = 2.0
"""Until an unload is repeated: another client may have had it loaded anew."""


def unload(seen: Seen, since: float, asked_at: float | None, now: float) -> Step:
    """Return what to do while the model is to go.

    Args:
        seen: One look.
        since: When the unload began.
        asked_at: When the server was asked last to unload; None before that.
        now: The time.
    """
    left = (*seen.holders, *seen.orphans)
    shared = seen.visible and not seen.listed and not seen.orphans and seen.loaded
    known = seen.answers == "yes" or seen.visible  # by one witness at least
    if asked_at is not None and known and not seen.listed and (not left or shared):
        return Step(Act.DONE, _gone(seen, shared=shared))
    if seen.answers == "gone" and not left:
        return Step(Act.DONE, f"{seen.words.name} does not {'run' if seen.visible else 'answer'} any more")
    if now - since >= UNLOAD_SECONDS:
        if seen.owned and left:
            why = f"{held_by(left)} {UNLOAD_SECONDS:g} s after {seen.words.name} was told to unload the model"
            return Step(Act.END_RUNNERS, why, 0.1)
        return Step(Act.GIVE_UP, _kept(seen, left))
    if seen.answers != "gone" and (asked_at is None or now - asked_at >= UNLOAD_AGAIN_SECONDS):
        return Step(Act.UNLOAD, wait_seconds=0.1)
    return Step(Act.NOTHING, wait_seconds=0.2)


def _gone(seen: Seen, *, shared: bool) -> str:
    if shared:
        return "another name of the same weights is loaded, and keeps their process"
    if not seen.visible:
        return f"{seen.words.name} says that the model is unloaded; its processes cannot be seen here"
    return seen.words.gone


def _kept(seen: Seen, left: tuple[int, ...]) -> str:
    if left:
        said = f"{seen.words.name} was told to unload the model, and {held_by(left)} still"
        return f"{said}; quit {seen.words.name} to have the memory back"
    said = f"{seen.words.name} at {seen.url} was told to unload the model, and lists it still"
    return f"{said}: it answers other requests with it"
