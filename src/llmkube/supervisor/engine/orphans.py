"""What an earlier agent left on this host: engines to go on with, and orphans to end. Nothing else is ever signalled.

```
 journal entry ─┬─ its cookie found in a process's environment ─▶ adopt
                └─ pid and start time still those of the record ─▶ adopt (where the environment cannot be read)
 process with our mark, and no entry claims it ──────────────────▶ orphan: TERM, grace, KILL
```

An engine may outlive KILL: stuck in the kernel (state D), on a dead disk or in a driver. Such a process holds its
memory and its files for as long as it lasts, and only the kernel ends it. A second engine on top of it would be stuck
beside it, or would want the memory that the first one still has. So each of them is noted, in a file that outlives the
agent, and its service gets no other engine before it is gone.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import attrs
import psutil

from llmkube.base.private_files import write_private
from llmkube.k8s.resource import Key
from llmkube.supervisor.engine.proxy import proxy_cookie
from llmkube.supervisor.host import processes
from llmkube.supervisor.values.desired import accelerator
from llmkube.supervisor.values.journal import EngineRecord, Entry
from llmkube.supervisor.values.settings import AgentSettings

STUCK_FOLDER = "strays"
"""Their folder in the state directory."""


@attrs.frozen
class StuckEngine:
    """A process that has outlived its end.

    Attributes:
        pid: Its process id.
        started: What tells it from a later one with this pid (`processes.start_of`).
        service: Whose engine it was, as `namespace/name`.
    """

    pid: int
    started: str
    service: str


@attrs.frozen
class StuckEngines:
    """The notes of one state directory; all of this blocks for some microseconds."""

    root: Path

    def record(self, engine: StuckEngine) -> None:
        """Remember one until it is gone.

        Raises:
            OSError: The disk does not take it.
        """
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(self.root / f"{engine.pid}.json", json.dumps(attrs.asdict(engine)), durable=False)

    def of(self, service: str) -> StuckEngine | None:
        """Return one that was a service's engine, or None; what is gone is forgotten."""
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
                with contextlib.suppress(OSError):  # it is looked at again
                    path.unlink(missing_ok=True)


def stuck_engine_of(process: psutil.Process) -> StuckEngine | None:
    """Return the note on a process that an agent has started in `work/<namespace>/<name>`, or None if it was not."""
    try:
        folder = Path(process.cwd())
    except (psutil.Error, OSError, SystemError):  # SystemError as in `processes`
        return None
    return StuckEngine(process.pid, processes.start_of(process.pid), f"{folder.parent.name}/{folder.name}")


def is_alive(pid: int, started: str) -> bool:
    """Whether this very process still runs; one that has ended and was not reaped does not."""
    if processes.start_of(pid) != started:
        return False
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, SystemError):  # SystemError as in `processes`
        return False


def is_in_scope(entry: Entry, settings: AgentSettings) -> bool:
    """Whether an agent with these settings would serve this."""
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
    """Compare the journal with the processes that carry our mark; return what is left of each service, and the orphans.

    An entry whose engine has ended is returned without it, or not at all if it does not belong to an agent with these
    settings: it is to be forgotten then, for `llmkube cache prune` spares the files that the journal names. What does
    not belong and runs is returned: the agent ends it in order, with its requests. A member of an adopted engine's
    family is no orphan, nor is its proxy. Whose environment cannot be read belongs to those whose session it leads.
    """
    by_cookie: dict[str, list[psutil.Process]] = {}
    cookies = {process.pid: processes.cookie_of(process) for process in ours}
    sessions = {session_of(process): cookies[process.pid] for process in ours if cookies[process.pid]}
    for process in ours:
        cookie = cookies[process.pid] or sessions.get(process.pid, "")
        by_cookie.setdefault(cookie, []).append(process)
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
    """Return the record with the pid that the process has, or None when it has ended."""
    if record.pid and start_of(record.pid) == record.started:
        return record
    if record.pid:
        return None  # its helpers may be alive, but the engine is not
    leader = next(leaders, None)  # its agent was killed between the spawn and the second line of the journal
    return attrs.evolve(record, pid=leader.pid, started=start_of(leader.pid)) if leader is not None else None
