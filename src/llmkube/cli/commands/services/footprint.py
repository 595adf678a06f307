"""Find an engine of this machine in the agent's journal, and read its memory use from the kernel."""

from collections.abc import Sequence
from pathlib import Path

from llmkube.base.units import format_bytes
from llmkube.k8s.resource import Key
from llmkube.supervisor.host.processes import start_of
from llmkube.supervisor.host.this_machine import footprints_here
from llmkube.supervisor.values.journal import EngineRecord, read_entry


def local_engine(folders: Sequence[Path], key: Key) -> EngineRecord | None:
    """Return the running engine of a service from the journals in these state directories; else None. Blocks."""
    for folder in folders:
        entry = read_entry(folder / "journal", key)
        if entry is None or entry.engine is None or not entry.engine.pid:
            continue
        if start_of(entry.engine.pid) == entry.engine.started:
            return entry.engine
    return None


def bytes_of(pid: int) -> int:
    """Return the memory of an engine and its child processes; 0 without permission to read it. Blocks."""
    return footprints_here([pid]).get(pid, 0)


def used_bytes(folders: Sequence[Path], key: Key) -> int:
    """Return the memory of a service's engine on this machine; 0 if there is none. Blocks."""
    engine = local_engine(folders, key)
    return bytes_of(engine.pid) if engine is not None else 0


def memory_of(folders: Sequence[Path], key: Key) -> str:
    """Return `used_bytes` as text; "" if there is no engine. Blocks."""
    used = used_bytes(folders, key)
    return f"{format_bytes(used)} in use on this machine" if used else ""
