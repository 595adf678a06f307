"""What Linux processes hold, each with its part of what it shares (PSS), measured the less often the larger they are.

The kernel walks all page tables of a process for that: about 30 ms per GiB in pages of 4 KiB, which is two seconds for
an engine with 64 GiB on the CPU. The resident size (RSS) costs nothing, so between two measurements it tells what has
been added since.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

from llmkube.supervisor.host.process_trees import footprints
from llmkube.supervisor.host.processes import stat_fields

PAUSE_SECONDS_PER_GIB: Final = 1.5
"""Between two measurements of a process: at 30 ms per GiB this keeps one processor busy for 2 % of the time."""

PAUSE_SECONDS_PER_PROCESS: Final = 0.25
"""Between two measurements of each of so many: at 0.2 ms for a small one this keeps one processor busy for 0.1 %."""

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


@attrs.frozen
class Resident:
    """What /proc/PID/stat says of a process: when it started, in clock ticks since boot, and what is resident of it."""

    started: int
    size_bytes: int


@attrs.frozen
class _Measured:
    resident: Resident
    own_bytes: int
    due_seconds: float


@attrs.define(eq=False)
class Proportions:
    """Measure processes; whoever was measured a short while ago is estimated from then."""

    _known: Mapping[int, _Measured] = attrs.field(factory=dict)

    def footprints(self, pids: Sequence[int], now_seconds: float) -> dict[int, int]:
        """Return what each of these holds with all below it; blocks for 15 ms, and 30 ms per GiB that is measured."""
        before, self._known = self._known, (known := dict[int, _Measured]())

        def own_bytes(pid: int) -> int | None:
            resident = resident_of(pid)
            if resident is None:
                return None
            measured = before.get(pid)
            if measured is None or measured.resident.started != resident.started or now_seconds >= measured.due_seconds:
                pause_seconds = max(
                    PAUSE_SECONDS_PER_GIB * resident.size_bytes / (1 << 30), PAUSE_SECONDS_PER_PROCESS * len(before)
                )
                measured = _Measured(resident, shared_out(pid) or resident.size_bytes, now_seconds + pause_seconds)
            known[pid] = measured
            return max(0, measured.own_bytes + resident.size_bytes - measured.resident.size_bytes)

        return footprints(pids, own_bytes)


def resident_of(pid: int) -> Resident | None:
    """Return what is resident of a process; None when it has ended."""
    try:
        fields = stat_fields(pid)
        return Resident(int(fields[19]), int(fields[21]) * _PAGE_BYTES)
    except (OSError, IndexError, ValueError):
        return None


def shared_out(pid: int) -> int | None:
    """Return a process's memory with its part of what it shares, in bytes; None where that may not be known.

    It takes the right to trace the process: the same user, and a program that has not forbidden it.
    """
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_bytes().splitlines():
            if line.startswith(b"Pss:"):
                return int(line[4:].removesuffix(b"kB")) * 1024
    except (OSError, ValueError):
        pass
    return None
