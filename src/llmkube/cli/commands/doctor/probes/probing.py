"""Probes side by side: one that hangs or fails becomes a line that says so, and ends no other."""

import subprocess
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import attrs
import psutil
import trio

from llmkube.base.errors import LLMKubeError, innermost
from llmkube.cli.commands.doctor.facts import Fact, Unanswered

SECONDS: Final = 8.0
"""What one probe may take unless it says otherwise."""

_EXPECTED: Final = (LLMKubeError, OSError, ValueError, KeyError, psutil.Error, subprocess.SubprocessError)
"""What a machine that is not as it should be raises; anything else is a bug, and shows as one."""


@attrs.frozen
class Probe:
    """One look.

    Attributes:
        name: What it looks at, for the line that tells of its failure.
        look: Finds the fact.
        seconds: What it may take.
    """

    name: str
    look: Callable[[], Awaitable[Fact]]
    seconds: float = SECONDS


async def run_probes(probes: Sequence[Probe]) -> tuple[Fact, ...]:
    """Return what each probe has found, in their order."""
    found: dict[int, Fact] = {}

    async def run(index: int, probe: Probe) -> None:
        with trio.move_on_after(probe.seconds):
            try:
                found[index] = await probe.look()
            except _EXPECTED as exc:
                found[index] = Unanswered(probe.name, str(exc) or type(exc).__name__)
            except ExceptionGroup as group:
                expected, bugs = group.split(_EXPECTED)
                if bugs is not None or expected is None:
                    raise
                found[index] = Unanswered(probe.name, str(innermost(expected)))
            return
        found[index] = Unanswered(probe.name, f"no answer within {probe.seconds:g} s")

    async with trio.open_nursery() as nursery:
        for index, probe in enumerate(probes):
            nursery.start_soon(run, index, probe)
    return tuple(found[index] for index in range(len(probes)))
