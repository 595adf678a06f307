"""How much memory an engine of this machine takes, by the agent's journal and the kernel."""

from collections.abc import Sequence
from pathlib import Path

from llmkube.base.units import format_bytes
from llmkube.k8s.resource import Key
from llmkube.supervisor.host.processes import start_of
from llmkube.supervisor.host.this_machine import footprints_here
from llmkube.supervisor.values.journal import EngineRecord, read_entry


def local_engine(folders: Sequence[Path], key: Key) -> EngineRecord | None:
    """Return what the journal of an agent on this machine says of the engine of a service, if it lives. Blocks.

    None when no agent on this machine runs one, in any of these state directories.
    """
    for folder in folders:
        entry = read_entry(folder / "journal", key)
        if entry is None or entry.engine is None or not entry.engine.pid:
            continue
        if start_of(entry.engine.pid) == entry.engine.started:
            return entry.engine
    return None


def bytes_of(pid: int) -> int:
    """Return the memory that an engine and what it has started use; 0 when it may not be looked at. Blocks."""
    return footprints_here([pid]).get(pid, 0)


def used_bytes(folders: Sequence[Path], key: Key) -> int:
    """Return the memory that a service's engine on this machine uses; 0 when there is none. Blocks."""
    engine = local_engine(folders, key)
    return bytes_of(engine.pid) if engine is not None else 0


def memory_of(folders: Sequence[Path], key: Key) -> str:
    """Return `used_bytes` in words; "" when there is none. Blocks."""
    used = used_bytes(folders, key)
    return f"{format_bytes(used)} in use on this machine" if used else ""
