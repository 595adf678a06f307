"""The wait until a service is ready or has failed."""

from collections.abc import Callable
from typing import Final

import attrs
import trio

from llmkube.cli.view.progress import Stopwatch, detail_of
from llmkube.cli.view.progress_line import Display
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.reasons import Reason
from llmkube.k8s.wire.service_health import STEPS, Health, State
from llmkube.programs.informer import ObjectCaches

STALE_SECONDS: Final = 5.0
"""Time that a possibly stale failure has to persist before it is reported."""

SETTLE_SECONDS: Final = 1.0
"""Time that "Ready" has to persist after a change: at first it is the old engine that is ready."""

DELETED: Final = "Deleted"
"""Reason of a service that was deleted during the wait."""

Assessor = Callable[[InferenceService, Model | None], Health]


@attrs.define(eq=False, kw_only=True)
class Readiness:
    """A wait for one service.

    Attributes:
        caches: Caches of the objects.
        key: The service.
        assess: Returns the health of the service.
        display: Shows the steps.
        detail: Returns the text that is shown while waiting.
        may_be_stale: Whether a failure may be older than the wait: then it has to persist for `STALE_SECONDS`.
        changed: Whether a service that ran before was changed: then "Ready" has to persist for `SETTLE_SECONDS`.
        loads: Whether a load was requested: then "Idle" has to persist for `STALE_SECONDS`.
        applied: Whether anything was created or changed: without a change, no steps are shown.
        timer: Measures the steps.
        last: The text that was shown last.
    """

    caches: ObjectCaches
    key: Key
    assess: Assessor
    display: Display
    detail: Callable[[Health], str]
    may_be_stale: Callable[[Health], bool]
    changed: bool = False
    loads: bool = False
    applied: bool = True
    timer: Stopwatch = attrs.field(factory=lambda: Stopwatch(trio.current_time()))
    last: str = ""
    _before: Health | None = None
    _failing_since: float | None = None
    _ready_since: float | None = None

    async def wait(self) -> Health:
        """Return the service's health once it is ready, stopped as requested, or failed."""
        while True:
            version = self.caches.changed.version
            service = self.caches.services.get(self.key)
            if service is None:
                return Health(State.FAILING, 0, DELETED, f"InferenceService {self.key} was deleted during the wait")
            model = self.caches.model_of(service)
            health = self.assess(service, model)
            if self._is_final(health, trio.current_time()):
                if not health.failing and (self.applied or self.timer.laps):
                    self._show_done(len(STEPS), service, model)
                return health
            # After a change only the file's step is certain: at first it is the old engine that is loaded.
            is_done = health.done == len(STEPS)
            self._show_done(min(health.done, 1 if self.changed else len(STEPS) - 1), service, model)
            self.last = self._wait_text(health)
            if not is_done:
                self.display.show_step(STEPS[health.done], self.last)
            with trio.move_on_after(SETTLE_SECONDS if health.failing or is_done else STALE_SECONDS):
                await self.caches.changed.wait_newer(version)

    def _wait_text(self, health: Health) -> str:
        """Return the text to show while waiting, except a failure from before the change."""
        before = self._before = self._before or health
        old = self.changed and health.failing and (before.reason, before.message) == (health.reason, health.message)
        return "waiting for the change to take effect" if old else self.detail(health)

    def _is_final(self, health: Health, now: float) -> bool:
        is_done = health.state in {State.READY, State.STOPPED}
        self._failing_since = _since(self._failing_since, now) if health.failing else None
        self._ready_since = _since(self._ready_since, now) if is_done else None
        if self._failing_since is not None:
            return not self.may_be_stale(health) or now - self._failing_since >= STALE_SECONDS
        settle = STALE_SECONDS if self.loads and health.reason == Reason.IDLE else SETTLE_SECONDS * self.changed
        return self._ready_since is not None and now - self._ready_since >= settle

    def _show_done(self, done: int, service: InferenceService, model: Model | None) -> None:
        for step in self.timer.mark_done(done, trio.current_time()):
            self.display.done(step, detail_of(step, service, model), self.timer.laps[step])


def _since(before: float | None, now: float) -> float:
    return now if before is None else before
