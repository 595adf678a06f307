"""Wait from the start of an engine's process to its first answer to clients; detect another process on its port."""

from functools import partial
from typing import Final

import attrs
import trio

from llmkube.base.http.client import HttpClient
from llmkube.base.http.message import netloc
from llmkube.k8s.wire.reasons import Reason
from llmkube.runtimes.allowances import find_ready_line
from llmkube.runtimes.process.host_runtime import LogReader
from llmkube.runtimes.process.host_runtimes import log_reader_of
from llmkube.supervisor.engine import health
from llmkube.supervisor.service.engine_status import EngineStatus
from llmkube.supervisor.values.desired import Launch
from llmkube.supervisor.values.journal import EngineRecord
from llmkube.supervisor.values.lifecycle import Failure
from llmkube.supervisor.values.liveness import EngineStats, Limits, percent_loaded
from llmkube.supervisor.values.ports import Child

MIN_INTERVAL_SECONDS: Final = 5.0
"""Minimum time between two progress reports that differ."""

MAX_INTERVAL_SECONDS: Final = 30.0
"""Time after which unchanged progress is reported again, with the time so far."""

LINES: Final = 20


PROXY_SECONDS: Final = 30.0
"""Time limit for the first answer of a proxy, which was started together with its engine."""

READY_LINES: Final = 1000
READY_SECONDS: Final = 0.25
"""Lines in which the one that shows that an engine is ready is searched for, and the interval."""

# Less may only mean a busy machine: the engine and its proxy have clients, and a starting agent uses much CPU time.
CONFIRM_SECONDS: Final = 2.0
"""Time in which an adopted engine must answer before its endpoint becomes not ready; at once if its port refuses."""


@attrs.define(eq=False)
class LoadProgress:
    """Report the progress of one load in the `Loaded` condition; rarely, since each report is an API write."""

    _child: Child
    _status: EngineStatus
    _weights_bytes: int
    _log_reader: LogReader
    _started_at: float = attrs.field(factory=trio.current_time)
    _written_at: float = attrs.field(factory=trio.current_time)
    _log_bytes: int = -1
    _phase: str = ""
    _reported: str = ""

    async def write(self, stats: EngineStats) -> None:
        """Report the progress if it has changed, or if nothing was reported for a while."""
        now = trio.current_time()
        if stats.log_bytes != self._log_bytes:
            self._log_bytes = stats.log_bytes
            self._phase = self._log_reader.phase(await self._child.last_lines(LINES)) or self._phase
        percent = percent_loaded(stats.resident_bytes, self._weights_bytes)
        progress = self._phase or "loading the model"
        if percent is not None:
            progress = f"{progress}, {percent} % in memory"
        waited = now - self._written_at
        if waited >= MAX_INTERVAL_SECONDS or (progress != self._reported and waited >= MIN_INTERVAL_SECONDS):
            self._written_at, self._reported = now, progress
            self._status.set_reason(Reason.LOADING, f"{progress}, for {now - self._started_at:.0f} s so far")


@attrs.frozen
class RunningEngine:
    """An engine's process, its URLs, and its load until clients get answers.

    Attributes:
        child: The process.
        record: Its addresses and its API key.
        launch: Its plan and weights.
        http: Client for its URLs.
        limits: Time limits, such as the longest load without progress.
    """

    child: Child
    record: EngineRecord
    launch: Launch
    http: HttpClient
    limits: Limits

    @property
    def engine(self) -> health.Engine:
        """Return the engine at the address that the agent uses."""
        record = self.record
        proxy_url = _url(*record.address) if record.public_host else ""
        url, key = _url(record.host, record.port), health.bearer(record.api_key)
        return health.Engine(self.http, url, self.launch.plan, key, proxy_url=proxy_url)

    @property
    def public(self) -> health.Engine:
        """Return the engine at the address that clients use, which may be its proxy's."""
        return attrs.evolve(self.engine, url=_url(*self.record.address))

    async def answers_at_once(self) -> bool:
        """Whether an adopted engine answers already."""
        with trio.move_on_after(CONFIRM_SECONDS):
            return await health.probe(self.http, self.public.ready_url) == "ok"
        return False

    async def wait_loaded(self, status: EngineStatus, *, adopted: bool = False) -> Failure | None:
        """Wait until clients get answers from this engine; return a failure if the load failed.

        Args:
            status: Gets the progress of the load.
            adopted: Whether an earlier agent started it; the line of its log that shows that it is ready may be gone.
        """
        pattern = "" if adopted else self.launch.plan.ready_pattern
        return await self._wait_loaded(status, pattern) or await self._wait_proxy()

    async def _wait_loaded(self, status: EngineStatus, pattern: str) -> Failure | None:
        record, engine, stalled, stall_hint = self.record, self.engine, "", ""
        line = LoadProgress(self.child, status, self.launch.weights.size_bytes, log_reader_of(self.launch.plan.runtime))
        async with trio.open_nursery() as nursery:

            async def watch_stall() -> None:
                nonlocal stalled
                read = partial(self.child.read_stats, record.host, record.port, loading=True)
                stalled = await health.watch_load(read, line.write, self.limits)
                nursery.cancel_scope.cancel(reason="the load has stalled")

            nursery.start_soon(watch_stall)
            await health.wait_ready(self.http, engine.ready_url)
            while pattern and not find_ready_line(pattern, await self.child.last_lines(READY_LINES)):
                stall_hint = "; no line of its log matches ready_pattern"
                await trio.sleep(READY_SECONDS)
            nursery.cancel_scope.cancel(reason="ready")
        if stalled:
            return Failure(Reason.LOAD_STALLED, f"loading the model has stalled: {stalled}{stall_hint}")
        error = await self._port_error(engine)
        return Failure(Reason.PORT_TAKEN, error) if error else None

    async def _port_error(self, engine: health.Engine) -> str:
        """Return an error if something else answers on the engine's port; "" if it is the engine with its model."""
        # Another process may have bound the port after it was chosen and before the engine did, and may answer 200.
        port = self.record.port
        if not await self.child.listens(port):
            return f"port {port} taken: another process answers on it"
        names, alias = await engine.model_names(), engine.plan.alias
        if names and alias not in names:
            return f"port {port} serves {', '.join(sorted(names))} instead of {alias}"
        return ""

    async def _wait_proxy(self) -> Failure | None:
        """Wait until the engine answers at the address that clients use; return a failure if it does not."""
        with trio.move_on_after(PROXY_SECONDS):
            await health.wait_ready(self.http, self.public.ready_url)
            return None
        message = f"the engine answers, but its proxy at {self.public.url} does not; see proxies.log"
        return Failure(Reason.PORT_TAKEN, message)


def _url(host: str, port: int) -> str:
    return f"http://{netloc((host, port))}"
