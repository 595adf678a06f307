"""How much memory an engine of this machine takes, by the agent's journal and the kernel."""

from collections.abc import Sequence
from pathlib import Path

import psutil
import trio

from llmkube.base.units import format_bytes
from llmkube.k8s.resource import Key
from llmkube.supervisor.journal import read_entry
from llmkube.supervisor.processes import start_of


def memory_of(folders: Sequence[Path], key: Key) -> str:
    """Return the resident memory of a service's engine and of what it has started, in words.

    "" when no agent on this machine runs one, in any of these state directories, or when it may not be looked at. On a
    Mac, what the GPU holds is not part of it.
    """
    for folder in folders:
        entry = read_entry(folder / "journal", key)
        if entry is None or entry.engine is None or not entry.engine.pid:
            continue
        if start_of(entry.engine.pid) != entry.engine.started:
            continue
        try:
            leader = psutil.Process(entry.engine.pid)
            family = [leader, *leader.children(recursive=True)]
            return f"{format_bytes(sum(process.memory_info().rss for process in family))} resident on this machine"
        except psutil.Error:
            continue
    return ""


async def find_memory(folders: Sequence[Path], key: Key) -> str:
    """Look without holding up the event loop."""
    return await trio.to_thread.run_sync(memory_of, folders, key)
