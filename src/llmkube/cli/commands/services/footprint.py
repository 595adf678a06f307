"""Find an engine of this machine in the agent's journal, and read its memory use from the kernel, and its drafts."""

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path

import trio

from llmkube.base.http.client import open_http_client
from llmkube.base.http.errors import HttpError
from llmkube.base.http.message import Headers, netloc
from llmkube.base.units import format_bytes
from llmkube.k8s.resource import Key
from llmkube.supervisor.host.processes import start_of
from llmkube.supervisor.host.this_machine import footprints_here
from llmkube.supervisor.values.journal import EngineRecord, read_entry

_DRAFTS = re.compile(rb"^llamacpp:spec_decode_num_(draft|accepted)_tokens_total ([0-9.e+]+)$", re.MULTILINE)


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


async def drafts_of(folders: Sequence[Path], key: Key) -> str:
    """Return how many of its drafted tokens a service's engine on this machine has accepted; "" if not known."""
    engine = await trio.to_thread.run_sync(local_engine, folders, key)
    if engine is None:
        return ""
    found, headers = {}, Headers.of({"Authorization": f"Bearer {engine.api_key}"})
    with trio.move_on_after(2.0), contextlib.suppress(HttpError):
        async with open_http_client() as http:
            answer = await http.request("GET", f"http://{netloc((engine.host, engine.port))}/metrics", headers=headers)
        found = dict(_DRAFTS.findall(answer.body))
    drafted, accepted = (float(found.get(name, 0)) for name in (b"draft", b"accepted"))
    return f"{accepted:.0f} of {drafted:.0f} tokens accepted ({accepted / drafted:.0%})" if drafted else ""
