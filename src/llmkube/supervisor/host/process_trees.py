"""What process trees use, whatever one process's use is on this platform."""

from collections.abc import Callable, Sequence

from llmkube.supervisor.host.processes import families


def footprints(pids: Sequence[int], own_bytes: Callable[[int], int | None]) -> dict[int, int]:
    """Return what each of these processes uses together with all below it; blocks.

    Those that hold nothing are left out: a process that is about to end holds nothing before its end is known.

    Args:
        pids: The leaders.
        own_bytes: What a single process uses; None when it has ended, or may not be looked at.
    """
    below = families(pids)
    used = {pid: [own_bytes(member) for member in (pid, *below[pid])] for pid in pids}
    return {pid: sum(filter(None, sizes)) for pid, sizes in used.items() if any(sizes)}
