"""Probe each backend with a healthCheck at the interval of its spec; one task for each backend, until a reload."""

from collections.abc import Awaitable, Callable
from typing import NoReturn

import attrs
import trio

from llmkube.base.http.errors import HttpError
from llmkube.base.mailbox import Mailbox
from llmkube.router.config.routing_config import Auth, Probe, RoutingConfig
from llmkube.router.health.health_state import ProbeState, Reply
from llmkube.router.policy.permits import Permit, permits_for
from llmkube.router.policy.request_facts import RequestFacts

SendCheck = Callable[[Permit, str], Awaitable[Reply]]
"""Sends a health check to a path of a backend's host; raises HttpError or OSError if there is no response."""


async def send_or_none(send: SendCheck, permit: Permit, path: str, timeout_seconds: float) -> Reply | None:
    """Return a backend's response; None if there is none within the timeout."""
    with trio.move_on_after(timeout_seconds):
        try:
            return await send(permit, path)
        except (HttpError, OSError):
            return None
    return None


@attrs.define(eq=False)
class Probes:
    """The probes of one router.

    Attributes:
        send: Sends a health check.
        on_change: Called with a backend's name and the cause while it is unhealthy, with "" when it is healthy again.
        on_probe: Called after each probe with the backend's name and the result.
    """

    send: SendCheck
    on_change: Callable[[str, str], None]
    on_probe: Callable[[str, str], None]
    _config: Mailbox[RoutingConfig | None] = attrs.field(factory=lambda: Mailbox(None))
    _states: dict[str, ProbeState] = attrs.field(factory=dict)

    def reload_nowait(self, config: RoutingConfig, unchanged: frozenset[str]) -> None:
        """Apply a reloaded config; the states of backends that are not in `unchanged` are discarded."""
        self._states = {name: state for name, state in self._states.items() if name in unchanged}
        self._config.put_nowait(config)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> NoReturn:
        """Probe until cancelled; a reload ends the tasks of the previous config."""
        task_status.started()
        while True:
            version = self._config.version
            async with trio.open_nursery() as nursery:
                for permit, probe in _probed_backends(self._config.value):
                    nursery.start_soon(self._probe, permit, probe)
                await self._config.wait_newer(version)
                nursery.cancel_scope.cancel(reason="config reloaded")

    async def _probe(self, permit: Permit, probe: Probe) -> NoReturn:
        name = permit.backend.name
        while True:
            sent_at = trio.current_time()
            previous = self._states.get(name, ProbeState())
            state, found = await self._check(permit, probe, previous)
            self._states[name] = state
            self.on_probe(name, found)
            if not state.is_healthy:
                self.on_change(name, f"health check failed: {state.cause}")
            elif not previous.is_healthy:
                self.on_change(name, "")
            await trio.sleep_until(sent_at + probe.interval_seconds)

    async def _check(self, permit: Permit, probe: Probe, previous: ProbeState) -> tuple[ProbeState, str]:
        """Probe once; return the new state and the result."""
        reply: Reply | None = None
        with trio.move_on_after(probe.timeout_seconds) as scope:
            try:
                reply = await self.send(permit, probe.path)
            except (HttpError, OSError):
                return previous.failed(f"no response at {probe.path}"), "unhealthy"
        if reply is None or scope.cancelled_caught:
            return previous.failed(f"no response at {probe.path} within {probe.timeout_seconds} seconds"), "unhealthy"
        if reply.is_loading:
            return previous, "loading"
        state = previous.replied(reply, probe.path)
        return state, "unhealthy" if state.failures else "healthy"


def _probed_backends(config: RoutingConfig | None) -> list[tuple[Permit, Probe]]:
    """Return the backends to probe, and their probes."""
    permits = all_permits(config) if config is not None else []
    return [(permit, probe) for permit in permits if (probe := permit.backend.probe) is not None]


def all_permits(config: RoutingConfig) -> list[Permit]:
    """Return permits for health checks of all usable backends: without client data, they need no policy."""
    return list(permits_for(attrs.evolve(config, auth=Auth()), RequestFacts(model="")).allowed.values())
