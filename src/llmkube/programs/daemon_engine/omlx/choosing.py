"""Whose oMLX serves a model: the one that runs, or one of our own beside it. Pure.

One that runs is used if it has the folder among its models. It reads its folders when it starts, and takes a new one
by its own pages alone, which no key of an API opens.
"""

import enum
from collections.abc import Collection

import attrs


class Whose(enum.Enum):
    """What is used."""

    THEIRS = "the one that runs"
    OURS = "one of our own"
    NONE = "none"


@attrs.frozen(kw_only=True)
class Found:
    """What answers at the address of the owner's oMLX.

    Attributes:
        url: The address.
        answers: Whether anything listens there.
        error: Why it was not understood; "" when it was.
        is_omlx: Whether it looks like oMLX.
        status: What it has refused our questions with; 0 when it has not.
        folders: Where its models are, with links followed; "" of each of which it does not say.
    """

    url: str
    answers: bool = True
    error: str = ""
    is_omlx: bool = True
    status: int = 0
    folders: Collection[str] = ()


@attrs.frozen
class Choice:
    """What is used, and why."""

    whose: Whose
    why: str


def choose(found: Found, folder: str) -> Choice:
    """Return what serves the model in this folder, whose links are followed."""
    if not found.answers:
        return Choice(Whose.OURS, f"no oMLX runs at {found.url}")
    if not found.is_omlx:
        return Choice(Whose.OURS, f"what answers at {found.url} does not answer as oMLX does")
    if found.status in (401, 403):
        why = f"the oMLX at {found.url} asks for a key: to have it used, name a file with the key by --omlx-key-file"
        return Choice(Whose.OURS, why)
    if found.error:  # it may have models in memory of which nothing can be told
        return Choice(Whose.NONE, f"{found.error}; no second one is started beside it")
    if folder in found.folders:
        return Choice(Whose.THEIRS, f"the oMLX at {found.url} has the model")
    if found.folders and not any(found.folders):
        return Choice(
            Whose.OURS, f"the oMLX at {found.url} does not say where its models are: it is too old to be used"
        )
    why = (
        f"the oMLX at {found.url} does not have the model: to have it used, add the folder above {folder} to its model"
    )
    return Choice(Whose.OURS, f"{why} folders")
