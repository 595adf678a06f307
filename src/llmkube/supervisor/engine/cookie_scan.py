"""Find the processes that carry a cookie: one look at every process of the host for all that ask at the same time.

Hundreds of engines end together, and a look takes tens of milliseconds then.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import attrs
import psutil
import trio

from llmkube.supervisor.host import processes
from llmkube.supervisor.host.processes import COOKIE_VARIABLE


@attrs.define(eq=False)
class CookieScan:
    """Which process carries which cookie; one per host."""

    _scan: Callable[[], Mapping[str, Sequence[psutil.Process]]] = partial(processes.carriers, COOKIE_VARIABLE)
    _found: Mapping[str, Sequence[psutil.Process]] = attrs.field(factory=dict)
    _begun: int = 0
    _done: int = 0
    _running: trio.Event | None = None

    async def carriers(self, cookie: str) -> Sequence[psutil.Process]:
        """Return what a scan finds that begins after this was called; one that runs already may have missed some.

        Raises:
            OSError: No descriptor is left for it.
        """
        wanted = self._begun + 1
        while self._done < wanted:
            if self._running is not None:
                await self._running.wait()
                continue
            self._running, self._begun = trio.Event(), self._begun + 1
            try:
                # It only looks: a process on a dead disk, which blocks the scan, must not block an engine's end.
                self._found = await trio.to_thread.run_sync(self._scan, abandon_on_cancel=True)
                self._done = self._begun
            finally:
                self._running.set()
                self._running = None
        return self._found.get(cookie, ())
