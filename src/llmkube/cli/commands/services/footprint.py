"""How much memory an engine of this machine takes, by the agent's journal and the kernel."""

from collections.abc import Sequence
from pathlib import Path

import trio

from llmkube.base.units import format_bytes
from llmkube.k8s.resource import Key
from llmkube.supervisor.host.processes import start_of
from llmkube.supervisor.host.this_machine import footprints_here
from llmkube.supervisor.nouns.journal import read_entry


def memory_of(folders: Sequence[Path], key: Key) -> str:
    """Return the memory that a service's engine and what it has started use, in words.

    "" when no agent on this machine runs one, in any of these state directories, or when it may not be looked at.
    """
    for folder in folders:
        entry = read_entry(folder / "journal", key)
        if entry is None or entry.engine is None or not entry.engine.pid:
            continue
        pid = entry.engine.pid
        if start_of(pid) == entry.engine.started and (used := footprints_here([pid])):
            return f"{format_bytes(used[pid])} in use on this machine"
    return ""


async def find_memory(folders: Sequence[Path], key: Key) -> str:
    """Look without holding up the event loop."""
    return await trio.to_thread.run_sync(memory_of, folders, key)
