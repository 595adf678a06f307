"""What programs have computed, as the kernel counts it: one process, and all of them together."""

from typing import Final

import psutil

IDLE: Final = frozenset({"idle", "iowait", "guest", "guest_nice", "steal"})
"""What is no work of this machine's programs, or is counted under another name as well (proc_stat(5))."""


class CpuTime:
    """Processor time of this machine, in seconds; each look is one read of the kernel."""

    def of_process(self, pid: int) -> float | None:
        """What a process has taken since its start; None when it has ended, or cannot be looked at."""
        try:
            times = psutil.Process(pid).cpu_times()
        except (psutil.Error, OSError):
            return None
        return float(times.user + times.system)

    def of_host(self) -> float:
        """What all programs have taken since the machine was started; 0.0 when that cannot be read."""
        try:
            times = psutil.cpu_times()._asdict()
        except (OSError, RuntimeError):
            return 0.0
        return float(sum(seconds for name, seconds in times.items() if name not in IDLE))
