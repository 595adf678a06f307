"""Detect engines on a Mac's GPU that report healthy but answer 500, or that compute without the GPU.

After one failed GPU command, ggml fails all later ones (`has_error`, ggml-metal-context.m), while `/health` stays ok.
Only a computed token and the engine's log show it; otherwise the engine stays Ready until a user restarts it.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import attrs

from llmkube.base.waiting import wait_tick
from llmkube.k8s.wire.reasons import Reason
from llmkube.runtimes.process.host_runtime import LogReader
from llmkube.runtimes.process.host_runtimes import log_reader_of
from llmkube.supervisor.engine.health import Engine
from llmkube.supervisor.values.desired import Launch
from llmkube.supervisor.values.lifecycle import Failure
from llmkube.supervisor.values.liveness import EngineStats
from llmkube.supervisor.values.ports import Child, Grace
from llmkube.supervisor.values.settings import AgentSettings
from llmkube.weights.estimate.demand import Location

LINES: Final = 200
"""Log lines to read after each change; ggml repeats its error with each request."""


def uses_metal(launch: Launch, settings: AgentSettings) -> bool:
    """Whether an engine is to compute on Metal."""
    demand = launch.plan.demand
    return settings.metal and demand is not None and demand.device_layers > 0


def grace_of(launch: Launch, settings: AgentSettings, urgent: Callable[[], Awaitable[None]]) -> Grace:
    """Return the grace of an engine between TERM and KILL."""
    seconds = settings.longest_grace_seconds if uses_metal(launch, settings) else settings.grace_seconds
    return Grace(seconds, settings.grace_seconds, urgent)


def failure_of(lines: tuple[str, ...], log_reader: LogReader, token_error: str = "") -> Failure | None:
    """Return the GPU failure that an engine's log lines or its failed computation of a token show, if any; pure."""
    found = log_reader.gpu_failure(lines)
    if found is not None:
        return Failure(Reason.METAL_ERROR, f"{found}; the engine can answer no more requests")
    if not token_error:
        return None
    return Failure(Reason.METAL_ERROR, f"the model is loaded, but computing a token failed: {token_error}")


def is_without_gpu(lines: tuple[str, ...], log_reader: LogReader) -> bool:
    """Whether an engine has logged its buffers, and all are on the CPU; pure."""
    buffers = log_reader.buffers(lines)
    return bool(buffers) and all(each.place is Location.HOST for each in buffers)


@attrs.frozen
class MetalMonitor:
    """Check that an engine can compute, and on Metal if it must; other checks pass for other engines.

    Attributes:
        child: Its process.
        launch: Its plan and weights.
        settings: The host's settings.
    """

    child: Child
    launch: Launch
    settings: AgentSettings

    @property
    def log_reader(self) -> LogReader:
        """Reader of log lines of its runtime."""
        return log_reader_of(self.launch.plan.runtime)

    async def first_failure(self, engine: Engine) -> Failure | None:
        """Return why an engine that reports ready cannot compute; None if it can."""
        token_error = await engine.token_error()
        if not uses_metal(self.launch, self.settings):
            message = f"the model is loaded, but computing a token failed: {token_error}"
            return Failure(Reason.COMPUTE_FAILED, message) if token_error else None
        return failure_of(await self.child.last_lines(LINES), self.log_reader, token_error)

    def load_warning(self, lines: tuple[str, ...], record_limit: Callable[[int], None]) -> str:
        """Return a warning if the engine has no buffer on Metal, else "".

        Args:
            lines: The lines that it has logged while it loaded.
            record_limit: Gets the limit of the GPU's memory in bytes, if the engine has logged it.
        """
        if not uses_metal(self.launch, self.settings):
            return ""
        if (limit_bytes := self.log_reader.device_limit(lines)) is not None:
            record_limit(limit_bytes)
        if not is_without_gpu(lines, self.log_reader):
            return ""
        return "; it computes on the CPU because Metal gave it no buffer: its log names the GPU that it looked for"

    async def wait_failure(self, read: Callable[[], Awaitable[EngineStats | None]]) -> Failure:
        """Wait until the engine's log reports that the GPU has failed; return that failure.

        Args:
            read: Reads the engine's statistics, which show when its log has grown.
        """
        log_bytes = -1
        while True:
            stats = await read()
            if stats is not None and stats.log_bytes != log_bytes:
                log_bytes = stats.log_bytes
                if (failure := failure_of(await self.child.last_lines(LINES), self.log_reader)) is not None:
                    return failure
            await wait_tick(self.settings.limits.tick_seconds)
