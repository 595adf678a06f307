"""What an oMLX beside our engines has in memory, and what that means. Pure.

One process of it holds all of its models. What it says of them is one witness, and what the kernel shows of the process
the other: releases of it have kept memory of models that were unloaded (oMLX issue 2116).
"""

from collections.abc import Iterator
from typing import Final

import attrs

from llmkube.base.units import format_bytes
from llmkube.cli.commands.doctor.findings import Finding, passed, warned

NAME: Final = "oMLX"

EMPTY_BYTES: Final = 4 << 30
"""The most that one without a model takes: its program, and a cache of prompts in memory."""


@attrs.frozen(kw_only=True)
class Omlx:
    """An oMLX on this machine.

    Attributes:
        url: Where it was asked.
        loaded: How many models it says are loaded; None when nothing answers there as oMLX does.
        said_bytes: What it says that they take.
        pid: Its process; None where that is not seen.
        held_bytes: What the process holds.
    """

    url: str
    loaded: int | None = None
    said_bytes: int = 0
    pid: int | None = None
    held_bytes: int = 0


def omlx(fact: Omlx) -> Iterator[Finding]:
    """What it holds is no other program's to take; without a model it has to hold next to nothing."""
    if fact.loaded is None:
        return
    models = "1 model" if fact.loaded == 1 else f"{fact.loaded} models"
    if fact.loaded == 0 and fact.held_bytes > EMPTY_BYTES:
        yield warned(
            NAME,
            f"it says at {fact.url} that no model is loaded, and its process holds {format_bytes(fact.held_bytes)} "
            f"(pid {fact.pid})",
            why="memory of models that are said to be unloaded is not back, and ours get no memory that is taken",
            fix="quit oMLX and start it again",
        )
        return
    said = f", {format_bytes(fact.said_bytes)} by its own word" if fact.said_bytes else ""
    held = "" if fact.pid is None else f"; its process holds {format_bytes(fact.held_bytes)}"
    yield passed(NAME, f"it runs at {fact.url}; {models} loaded{said}{held}")
