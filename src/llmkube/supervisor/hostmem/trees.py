"""What process trees use, whatever one process's use is on this platform."""

from collections.abc import Callable, Sequence

from llmkube.supervisor.processes import families


def footprints(pids: Sequence[int], own_bytes: Callable[[int], int | None]) -> dict[int, int]:
    """Return what each of these processes uses together with all below it; those that have ended are left out. Blocks.

    Args:
        pids: The leaders.
        own_bytes: What a single process uses; None when it has ended, or may not be looked at.
    """
    below = families(pids)
    used = {pid: [own_bytes(member) for member in (pid, *below[pid])] for pid in pids}
    return {pid: sum(filter(None, each)) for pid, each in used.items() if any(each)}
