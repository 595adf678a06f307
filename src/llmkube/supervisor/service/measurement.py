"""Measure an engine while it serves: when it last worked, and how much memory it really uses."""

import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
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
"""Growth of an engine's peak memory after which the figure is recorded again."""

LOAD_LINES: Final = 5000
"""Log lines to read for the engine's buffers; llama.cpp writes fewer while it loads."""


async def key_of(launch: Launch, engines: Engines) -> str:
    """Return the key for the learned figures of a launch with this host's engine program."""
    try:
        version = (await engines.info(launch.plan.engine_key)).version
    except ExternalError:
        version = ""  # an adopted engine keeps running without its program; starting another one reports the error
    return figure_key(launch.plan, version)


@attrs.define(eq=False)
class EngineMeasurement:
    """Measures one engine from outside, and records its peak memory.

    Attributes:
        child: Its process.
        read: Reads its statistics from the kernel.
        read_nowait: The same without waiting; returns None if that is not possible.
        launch: Its plan and weights.
        allocation: Its memory: reserved, and last measured.
        ports: Dependencies; their `learned` stores the figures.
        errors: Returns the number of errors that clients have got from the service.
        worked_at: When it last had work.
    """

    child: Child
    read: Callable[[], Awaitable[EngineStats | None]]
    read_nowait: Callable[[], EngineStats | None]
    launch: Launch
    allocation: Allocation
    ports: Ports
    errors: Callable[[], int] = lambda: 0
    _errors_before: int = attrs.field(init=False, default=attrs.Factory(lambda self: self.errors(), takes_self=True))
    _cpu_seconds: float = 0.0
    _sampled_at: float = math.inf
    _learned_bytes: int = 0
    worked_at: float = -math.inf

    async def measure(self) -> EngineStats | None:
        """Read the statistics; record whether it has worked since the last sample, and its peak if that has grown."""
        stats = await self.read()
        self._record_activity(stats)
        if self._has_grown:
            await self._learn()
        if stats is not None and (total := self.errors()) != self._errors_before:
            stats, self._errors_before = attrs.evolve(stats, errors=total - self._errors_before), total
        return stats

    def measure_nowait(self) -> EngineStats | None:
        """Do the same without waiting; None also if its memory or the number of errors has grown."""
        if self._has_grown or self.errors() != self._errors_before:
            return None
        stats = self.read_nowait()
        self._record_activity(stats)
        return stats

    def _record_activity(self, stats: EngineStats | None) -> None:
        if stats is not None:
            now = trio.current_time()
            if stats.cpu_seconds - self._cpu_seconds > ALIVE_CPU_SHARE * (now - self._sampled_at) > 0:
                self.worked_at = now
                self.allocation.record_activity()
                self.child.record_activity()
            self._cpu_seconds, self._sampled_at = stats.cpu_seconds, now

    @contextmanager
    def ignoring(self) -> Iterator[None]:
        """Leave the engine's work within the context out of its clients' use."""
        self._sampled_at = math.inf
        try:
            yield
        finally:
            self._sampled_at = math.inf

    @property
    def _has_grown(self) -> bool:
        held = self.allocation.reservation
        return held.measured and held.peak_bytes > self._learned_bytes * LEARN_SHARE

    async def _learn(self) -> None:
        """Record its peak memory and, the first time, the buffers that it has logged."""
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
    """Return why a launch has to wait, with the largest context that would fit."""
    return refusal.message + context_hint(launch, refusal.fit_bytes)


def context_hint(launch: Launch, fit_bytes: int | None) -> str:
    """Return a hint with the largest context that fits into `fit_bytes`, if it is smaller than the requested one."""
    if fit_bytes is None or launch.shape is None or launch.plan.demand is None:
        return ""
    context = largest_context(launch.shape, launch.plan.demand, fit_bytes)
    requested = launch.plan.demand.context or launch.shape.trained_context
    return f"; context {context} would fit" if context and context < requested else ""
