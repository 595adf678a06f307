"""Children that an earlier agent left behind: known by their environment, ended before anything new starts.

An agent that was killed cannot end its children, and they must not hold memory beside their successors. Each child
carries the state directory of its agent in its environment from the moment of exec, so there is no line between spawn
and bookkeeping where a crash could lose one. Nothing else is ever signalled.
"""

import os
import signal

import psutil
import structlog

log = structlog.get_logger(__name__)

OWNER_VARIABLE = "LLMKUBE_AGENT_STATE"
"""Set in every child's environment to its agent's state directory."""


def end_orphans(owner: str, *, grace_seconds: float) -> int:
    """End every process that carries our mark, in one grace period for all; return how many there were.

    Blocks for up to `grace_seconds`: call it in a thread, before the first service starts and under the host lock.
    A process is held by pid and start time (psutil), so a recycled pid is not signalled.
    """
    strays = [process for process in psutil.process_iter() if _is_ours(process, owner)]
    for process in strays:
        log.warning("ending a process that an earlier agent left behind", pid=process.pid)
        _signal(process, signal.SIGTERM)
    _, alive = psutil.wait_procs(strays, timeout=grace_seconds)
    for process in alive:
        _signal(process, signal.SIGKILL)
    psutil.wait_procs(alive, timeout=grace_seconds)
    return len(strays)


def _is_ours(process: psutil.Process, owner: str) -> bool:
    try:
        return process.pid != os.getpid() and process.environ().get(OWNER_VARIABLE) == owner
    except (psutil.Error, OSError):  # another user's, or gone since
        return False


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        log.debug("gone before the signal", pid=process.pid)
