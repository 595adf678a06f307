"""What one engine does with its memory while it serves: when it worked last, and what it really holds."""

import math
from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import structlog
import trio

from llmkube.base.errors import ExternalError
from llmkube.runtimes.process.host_runtimes import log_reader_of
from llmkube.supervisor.memory.learned import Figure, figure_key
from llmkube.supervisor.memory.ledger import Allocation
from llmkube.supervisor.memory.refusal import Refusal
from llmkube.supervisor.values.desired import Launch
from llmkube.supervisor.values.liveness import ALIVE_CPU_SHARE, EngineStats
from llmkube.supervisor.values.ports import Child, Engines, Ports
from llmkube.weights.estimate.demand import Location
from llmkube.weights.estimate.sizing import largest_context

log = structlog.get_logger(__name__)

LEARN_SHARE: Final = 1.02
"""An engine that holds this much more than it ever did teaches something."""

LOAD_LINES: Final = 5000
"""More than llama.cpp writes while it loads; its buffers are told of there."""


async def key_of(launch: Launch, engines: Engines) -> str:
    """Return what the figures of a launch are kept under, on this host's engine."""
    try:
        version = (await engines.info(launch.plan.runtime)).version
    except ExternalError:
        version = ""  # an adopted engine goes on without its program; who wants to start one is told
    return figure_key(launch.plan, version)


@attrs.define(eq=False)
class EngineMeasurement:
    """Look at an engine from outside, and learn from what is seen.

    Attributes:
        child: Its process.
        read: What the kernel says of it.
        read_nowait: The same without waiting, where that can be had.
        launch: What it runs.
        allocation: What it has been promised, and what it was last seen to hold.
        ports: Where that is kept.
    """

    child: Child
    read: Callable[[], Awaitable[EngineStats | None]]
    read_nowait: Callable[[], EngineStats | None]
    launch: Launch
    allocation: Allocation
    ports: Ports
    _cpu_seconds: float = 0.0
    _sampled_at: float = math.inf
    _learned_bytes: int = 0

    async def measure(self) -> EngineStats | None:
        """Look, and note whether it has computed anything since the last look, and whether it has grown."""
        stats = await self.read()
        self._record_activity(stats)
        if self._has_grown:
            await self._learn()
        return stats

    def measure_nowait(self) -> EngineStats | None:
        """The same without waiting; None also when it has grown, which takes a look to note."""
        if self._has_grown:
            return None
        stats = self.read_nowait()
        self._record_activity(stats)
        return stats

    def _record_activity(self, stats: EngineStats | None) -> None:
        if stats is not None:
            now = trio.current_time()
            if stats.cpu_seconds - self._cpu_seconds > ALIVE_CPU_SHARE * (now - self._sampled_at) > 0:
                self.allocation.worked()
                self.child.worked()
            self._cpu_seconds, self._sampled_at = stats.cpu_seconds, now

    @property
    def _has_grown(self) -> bool:
        held = self.allocation.reservation
        return held.measured and held.peak_bytes > self._learned_bytes * LEARN_SHARE

    async def _learn(self) -> None:
        """Keep what it holds at most, and once what it says that it has allocated."""
        lines = () if self._learned_bytes else await self.child.last_lines(LOAD_LINES)
        buffers = log_reader_of(self.launch.plan.runtime).buffers(lines)
        held = self.allocation.reservation
        self._learned_bytes = measured = held.peak_bytes
        estimated, size = held.need.estimated_bytes, sum(each.size_bytes for each in buffers)
        on_device = sum(each.size_bytes for each in buffers if each.place is Location.DEVICE)
        log.info(
            "memory measured",
            name=held.key.name,
            namespace=held.key.namespace,
            estimatedBytes=estimated,
            measuredBytes=measured,
            reportedBytes=size,
        )
        figure = Figure(measured_bytes=measured, reported_bytes=size, device_bytes=on_device, estimated_bytes=estimated)
        self.ports.learned.record(await key_of(self.launch, self.ports.engines), figure)


def explain(refusal: Refusal, launch: Launch) -> str:
    """Return why a launch has to wait, with the largest context that would fit if that is smaller than its own."""
    return refusal.message + context_hint(launch, refusal.fit_bytes)


def context_hint(launch: Launch, fit_bytes: int | None) -> str:
    """Name the largest context that would fit into so much, if a smaller one than was asked for would; else nothing."""
    if fit_bytes is None or launch.shape is None or launch.plan.demand is None:
        return ""
    context = largest_context(launch.shape, launch.plan.demand, fit_bytes)
    requested = launch.plan.demand.context or launch.shape.trained_context
    return f"; context {context} would fit" if context and context < requested else ""
