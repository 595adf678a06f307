"""What is told of a load while it lasts: what the engine does, how much of the model is in memory, for how long."""

from typing import Final

import attrs
import trio

from llmkube.k8s.wire.reasons import Reason
from llmkube.runtimes.process.host_runtime import LogWords
from llmkube.supervisor.nouns.liveness import EngineStats, percent_loaded
from llmkube.supervisor.nouns.ports import Child
from llmkube.supervisor.service.engine_status import EngineStatus

SOONEST_SECONDS: Final = 5.0
"""Between two lines that differ in what they say."""

LATEST_SECONDS: Final = 30.0
"""Between two lines of which only the second says that time has passed."""

LINES: Final = 20


@attrs.define(eq=False)
class LoadLine:
    """Write the progress of one load into the service's `Loaded` condition; seldom, for each line is a write."""

    _child: Child
    _status: EngineStatus
    _weights_bytes: int
    _words: LogWords
    _started_at: float = attrs.field(factory=trio.current_time)
    _written_at: float = attrs.field(factory=trio.current_time)
    _log_bytes: int = -1
    _phase: str = ""
    _said: str = ""

    async def write(self, stats: EngineStats) -> None:
        """Report how far the load is, if that has changed, or if nothing was reported for a while."""
        now = trio.current_time()
        if stats.log_bytes != self._log_bytes:
            self._log_bytes = stats.log_bytes
            self._phase = self._words.phase(await self._child.last_lines(LINES)) or self._phase
        percent = percent_loaded(stats.resident_bytes, self._weights_bytes)
        what = self._phase or "loading the model"
        if percent is not None:
            what = f"{what}, {percent} % in memory"
        waited = now - self._written_at
        if waited >= LATEST_SECONDS or (what != self._said and waited >= SOONEST_SECONDS):
            self._written_at, self._said = now, what
            self._status.set_reason(Reason.LOADING, f"{what}, for {now - self._started_at:.0f} s so far")
