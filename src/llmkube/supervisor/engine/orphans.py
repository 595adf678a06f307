"""Find what an earlier agent left on this host: engines to adopt, and orphans to stop. Nothing else is ever signalled.

```
 journal entry ─┬─ its cookie found in a process's environment ─▶ adopt
                └─ pid and start time still match the record ────▶ adopt (where the environment cannot be read)
 process with our mark that no entry claims ─────────────────────▶ orphan: TERM, grace, KILL
```

An engine may survive KILL: stuck in the kernel (state D), on a dead disk or in a driver. Such a process holds its
memory and files until the kernel ends it. A second engine would get stuck as well, or would need the memory that the
first one still holds. So each stuck engine is recorded in a file that survives the agent, and its service gets no other
engine until it is gone.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import attrs
import psutil

from llmkube.base.private_files import make_private_folder, write_private
from llmkube.k8s.resource import Key
from llmkube.supervisor.engine.door import door_cookie
from llmkube.supervisor.engine.proxy import proxy_cookie
from llmkube.supervisor.host import processes
from llmkube.supervisor.values.desired import accelerator
from llmkube.supervisor.values.journal import EngineRecord, Entry
from llmkube.supervisor.values.settings import AgentSettings

STUCK_FOLDER = "strays"
"""The folder for records of stuck engines in the state directory."""


@attrs.frozen
class StuckEngine:
    """An engine process that has survived KILL.

    Attributes:
        started: Distinguishes it from a later process with the same pid (`processes.start_of`).
        service: The service of the engine, as `namespace/name`.
    """

    pid: int
    started: str
    service: str


@attrs.frozen
class StuckEngines:
    """The records of stuck engines in one state directory; all methods block for a few microseconds."""

    root: Path

    def record(self, engine: StuckEngine) -> None:
        """Record one until it is gone.

        Raises:
            OSError: The record cannot be written.
        """
        make_private_folder(self.root)
        write_private(self.root / f"{engine.pid}.json", json.dumps(attrs.asdict(engine)), durable=False)

    def of(self, service: str) -> StuckEngine | None:
        """Return a stuck engine of a service, or None; records of processes that are gone are removed."""
        return next((engine for engine in self._alive() if engine.service == service), None)

    def _alive(self) -> Iterator[StuckEngine]:
        for path in sorted(self.root.glob("*.json")):
            try:
                engine = StuckEngine(**json.loads(path.read_text("utf-8")))
            except (OSError, ValueError, TypeError):
                continue
            if is_alive(engine.pid, engine.started):
                yield engine
            else:
                with contextlib.suppress(OSError):  # the next call tries again
                    path.unlink(missing_ok=True)


def stuck_engine_of(process: psutil.Process) -> StuckEngine | None:
    """Return the record of a process that an agent started in `work/<namespace>/<name>`; None for any other process."""
    try:
        folder = Path(process.cwd())
    except (psutil.Error, OSError, SystemError):  # SystemError as in `processes`
        return None
    return StuckEngine(process.pid, processes.start_of(process.pid), f"{folder.parent.name}/{folder.name}")


def is_alive(pid: int, started: str) -> bool:
    """Whether exactly this process still runs; a zombie does not."""
    if processes.start_of(pid) != started:
        return False
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, SystemError):  # SystemError as in `processes`
        return False


def is_in_scope(entry: Entry, settings: AgentSettings) -> bool:
    """Whether an agent with these settings would serve an entry."""
    return (
        settings.namespace in (None, entry.key.namespace)
        and accelerator(entry.desired.model) in settings.accelerators
        and settings.selector.matches(entry.desired.service.metadata.labels)
    )


def match_processes(
    entries: Mapping[Key, Entry],
    settings: AgentSettings,
    ours: Sequence[psutil.Process],
    start_of: Callable[[int], str] = processes.start_of,
    session_of: Callable[[psutil.Process], int] = processes.session_of,
) -> tuple[dict[Key, Entry], list[psutil.Process]]:
    """Compare the journal with the processes that carry our mark; return the remaining entries, and the orphans.

    An entry whose engine has exited is returned without it, or is dropped if an agent with these settings would not
    serve it: `llmkube cache prune` spares the files that the journal names. An entry out of scope whose engine runs is
    returned, so that the agent stops it gracefully. The family and the proxy of an adopted engine are not orphans, nor
    is the door. A process whose environment cannot be read belongs to the family whose session it leads.
    """
    by_cookie: dict[str, list[psutil.Process]] = {}
    cookies = {process.pid: processes.cookie_of(process) for process in ours}
    sessions = {session_of(process): cookies[process.pid] for process in ours if cookies[process.pid]}
    for process in ours:
        cookie = cookies[process.pid] or sessions.get(process.pid, "")
        by_cookie.setdefault(cookie, []).append(process)
    by_cookie.pop(proxy_cookie(door_cookie(settings.state_dir)), None)
    remaining = {}
    for key, entry in entries.items():
        record = entry.engine
        if record is not None:
            family = by_cookie.get(record.cookie, [])
            record = _alive(record, (each for each in family if session_of(each) == each.pid), start_of)
        if record is not None:
            for cookie in (record.cookie, proxy_cookie(record.cookie)):
                by_cookie.pop(cookie, None)
        if record is not None or is_in_scope(entry, settings):
            remaining[key] = attrs.evolve(entry, engine=record)
    return remaining, [process for family in by_cookie.values() for process in family]


def _alive(
    record: EngineRecord, leaders: Iterator[psutil.Process], start_of: Callable[[int], str]
) -> EngineRecord | None:
    """Return the record with the pid of its process, or None if that has exited."""
    if record.pid and start_of(record.pid) == record.started:
        return record
    if record.pid:
        return None  # helpers may be alive, but the engine is not
    leader = next(leaders, None)  # the agent was killed between the spawn and the second line of the journal
    return attrs.evolve(record, pid=leader.pid, started=start_of(leader.pid)) if leader is not None else None
