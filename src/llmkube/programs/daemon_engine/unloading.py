"""What to do next so that a model is gone, and its memory with it, and when that is believed. Pure."""

from typing import Final

from llmkube.programs.daemon_engine.seen import Seen, held_by
from llmkube.programs.daemon_engine.steps import Act, Step

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
