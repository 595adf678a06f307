"""Engines that KILL has not ended: stuck in the kernel (state D), on a dead disk or in a driver.

Such a process holds its memory and its files for as long as it lasts, and only the kernel ends it. A second
engine on top of it would be stuck beside it, or would want the memory that the first one still has. So each of them is
noted, in a file that outlives the agent, and its service gets no other engine before it is gone.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import attrs
import psutil

from llmkube.base.private_files import write_private
from llmkube.supervisor.host import processes

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

    def note(self, engine: StuckEngine) -> None:
        """Remember one until it is gone.

        Raises:
            OSError: The disk does not take it.
        """
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(self.root / f"{engine.pid}.json", json.dumps(attrs.asdict(engine)), lasting=False)

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
