"""What Linux processes hold, each with its part of what it shares (PSS), measured the less often the larger they are.

The kernel walks all page tables of a process for that: about 30 ms per GiB in pages of 4 KiB, which is two seconds for
an engine with 64 GiB on the CPU. The resident size (RSS) costs nothing, so between two measurements it tells what has
been added since.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from llmkube.supervisor.host.process_trees import footprints
from llmkube.supervisor.host.procfs import ProcessStat, read_pss_bytes, read_stat

PAUSE_SECONDS_PER_GIB: Final = 1.5
"""Between two measurements of a process: at 30 ms per GiB this keeps one processor busy for 2 % of the time."""

PAUSE_SECONDS_PER_PROCESS: Final = 0.25
"""Between two measurements of each of so many: at 0.2 ms for a small one this keeps one processor busy for 0.1 %."""


@attrs.frozen
class _Measured:
    stat: ProcessStat
    own_bytes: int
    due_seconds: float


@attrs.define(eq=False)
class PssSampler:
    """Measure processes; one that was measured a short while ago is estimated from that measurement."""

    _known: Mapping[int, _Measured] = attrs.field(factory=dict)

    def footprints(self, pids: Sequence[int], now_seconds: float) -> dict[int, int]:
        """Return what each of these holds with all below it; blocks for 15 ms, and 30 ms per GiB that is measured."""
        before, self._known = self._known, (known := dict[int, _Measured]())

        def own_bytes(pid: int) -> int | None:
            stat = read_stat(pid)
            if stat is None:
                return None
            measured = before.get(pid)
            if measured is None or measured.stat.start_ticks != stat.start_ticks or now_seconds >= measured.due_seconds:
                pause_seconds = max(
                    PAUSE_SECONDS_PER_GIB * stat.resident_bytes / (1 << 30), PAUSE_SECONDS_PER_PROCESS * len(before)
                )
                measured = _Measured(stat, read_pss_bytes(pid) or stat.resident_bytes, now_seconds + pause_seconds)
            known[pid] = measured
            return max(0, measured.own_bytes + stat.resident_bytes - measured.stat.resident_bytes)

        return footprints(pids, own_bytes)
