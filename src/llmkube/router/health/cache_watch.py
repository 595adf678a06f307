"""Poll the KV cache use of InferenceServices' engines while requests are under way.

Only llama.cpp's server reports it. A request to `/slots` would wake a sleeping engine, so an idle engine is polled at
`/health` only, and its use is 0. If an engine does not respond, its use is unknown: no figure outlives its engine.
"""

from collections.abc import Callable, Mapping
from typing import Final, NoReturn

import attrs
import trio

from llmkube.router.config.routing_config import Backend, RoutingConfig
from llmkube.router.health.health_state import (
    HEALTH_PATH,
    LLAMA_SERVER,
    SLOTS_PATH,
    TIMEOUT_SECONDS,
    CacheUse,
    cache_use,
)
from llmkube.router.health.probes import SendCheck, all_permits, send_or_none
from llmkube.router.policy.permits import Permit

INTERVAL_SECONDS: Final = 5.0
"""Between two polls of an engine."""


@attrs.define(eq=False)
class CacheWatch:
    """The KV caches of one router's engines.

    Attributes:
        send: Sends a health check.
        config: Returns the current config.
        in_flight: Requests under way, by the backend's name.
        is_llama: Whether a backend has identified itself as llama.cpp's server; others have no `/slots`.
    """

    send: SendCheck
    config: Callable[[], RoutingConfig]
    in_flight: Mapping[str, int]
    is_llama: Callable[[str], bool]
    _uses: dict[str, tuple[Backend, CacheUse]] = attrs.field(factory=dict)

    def use(self, backend: Backend) -> CacheUse | None:
        """Return the last use that a backend's engine has reported; None if it reports none or did not respond."""
        found = self._uses.get(backend.name)
        return found[1] if found is not None and found[0] == backend else None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> NoReturn:
        """Poll until cancelled."""
        task_status.started()
        while True:
            await trio.sleep(INTERVAL_SECONDS)
            permits = [each for each in all_permits(self.config()) if _has_single_engine(each.backend)]
            for name in self._uses.keys() - {each.backend.name for each in permits}:
                del self._uses[name]
            async with trio.open_nursery() as nursery:
                for permit in permits:
                    if self._should_check(permit.backend):
                        nursery.start_soon(self._check, permit)

    def _should_check(self, backend: Backend) -> bool:
        is_busy = bool(self.in_flight.get(backend.name)) and self.is_llama(backend.name)
        return is_busy or self.use(backend) is not None

    async def _check(self, permit: Permit) -> None:
        backend = permit.backend
        is_busy = bool(self.in_flight.get(backend.name))
        reply = await send_or_none(self.send, permit, SLOTS_PATH if is_busy else HEALTH_PATH, TIMEOUT_SECONDS)
        known, found = self.use(backend), None
        if reply is not None and reply.status == 200 and reply.server == LLAMA_SERVER:
            idle = CacheUse(0, known.tokens) if known is not None else None
            found = cache_use(reply.body, backend.splits_cache) if is_busy else idle
        if found is None:
            self._uses.pop(backend.name, None)
        else:
            self._uses[backend.name] = backend, found


def _has_single_engine(backend: Backend) -> bool:
    """Whether the backend is an InferenceService with exactly one engine."""
    return not (backend.provider or backend.is_replicated or backend.missing)
