"""What one look at a model shows: the server's word, and the processes that the kernel shows. Pure."""

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
