"""What only an engine on a Mac's GPU does: it says that it is well and answers 500, or computes without the GPU.

ggml keeps a failed command of the GPU for ever (`has_error`, ggml-metal-context.m), and `/health` knows nothing of it:
without a look at what it computes and writes such an engine stays Ready until a user restarts it.
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
"""How much of the log is looked at after each change; ggml repeats its error with each request."""

LOAD_LINES: Final = 5000
"""More than llama.cpp writes while it loads."""


def uses_metal(launch: Launch, settings: AgentSettings) -> bool:
    """Whether an engine is to compute on Metal."""
    demand = launch.plan.demand
    return settings.metal and demand is not None and demand.device_layers > 0


def grace_of(launch: Launch, settings: AgentSettings, urgent: Callable[[], Awaitable[None]]) -> Grace:
    """Return how long an engine gets between TERM and KILL."""
    seconds = settings.longest_grace_seconds if uses_metal(launch, settings) else settings.grace_seconds
    return Grace(seconds, settings.grace_seconds, urgent)


def failure_of(lines: tuple[str, ...], words: LogReader, refused: str = "") -> Failure | None:
    """Return what follows from an engine's lines, and from its answer to a request for a token; pure."""
    found = words.gpu_failure(lines)
    if found is not None:
        return Failure(Reason.METAL_ERROR, f"{found}; it answers no request after that")
    return Failure(Reason.METAL_ERROR, f"the model is loaded, and cannot be computed: {refused}") if refused else None


def is_without_gpu(lines: tuple[str, ...], words: LogReader) -> bool:
    """Whether an engine has told of its buffers, and none of them is the GPU's; pure."""
    buffers = words.buffers(lines)
    return bool(buffers) and all(each.place is Location.HOST for each in buffers)


@attrs.frozen
class MetalMonitor:
    """Look at an engine that is to compute on Metal; nothing is seen of others.

    Attributes:
        child: Its process.
        launch: What it runs.
        settings: The host's.
    """

    child: Child
    launch: Launch
    settings: AgentSettings

    @property
    def words(self) -> LogReader:
        """What the lines of its runtime mean."""
        return log_reader_of(self.launch.plan.runtime)

    async def first_failure(self, engine: Engine) -> Failure | None:
        """Return why an engine that says that it is ready cannot compute; None when it can."""
        if not uses_metal(self.launch, self.settings):
            return None
        refused = await engine.token_error()
        return failure_of(await self.child.last_lines(LINES), self.words, refused)

    async def load_warning(self, record_limit: Callable[[int], None]) -> str:
        """Say of one that has no buffer on Metal what that means, and "" of others.

        Args:
            record_limit: Told how much the GPU may hold, if the engine has written that.
        """
        if not uses_metal(self.launch, self.settings):
            return ""
        lines = await self.child.last_lines(LOAD_LINES)
        if (limit_bytes := self.words.device_limit(lines)) is not None:
            record_limit(limit_bytes)
        if not is_without_gpu(lines, self.words):
            return ""
        return "; it computes on the CPU, as Metal gave it no buffer: its log says which GPU it has looked for"

    async def wait_failure(self, read: Callable[[], Awaitable[EngineStats | None]]) -> Failure:
        """Return when the engine has written that the GPU has failed.

        Args:
            read: What the kernel says of it; tells when its log has grown.
        """
        log_bytes = -1
        while True:
            stats = await read()
            if stats is not None and stats.log_bytes != log_bytes:
                log_bytes = stats.log_bytes
                if (failure := failure_of(await self.child.last_lines(LINES), self.words)) is not None:
                    return failure
            await wait_tick(self.settings.limits.tick_seconds)
