"""Reconcile queued keys, and retry until they succeed; a failure delays its own key and no other."""

import random
from collections.abc import Awaitable, Callable
from typing import Final, Never

import attrs
import structlog
import trio

from llmkube.base.backoff import Backoff
from llmkube.base.errors import ExternalError, LLMKubeError, leaves
from llmkube.controller.metrics import ReconcileMetrics, Result
from llmkube.k8s.errors import ConflictError, NotFoundError
from llmkube.k8s.resource import Key
from llmkube.k8s.workqueue import WorkQueue, run_each

log = structlog.get_logger()

RETRY: Final = Backoff(base_seconds=0.5, cap_seconds=30.0)
"""Delays after consecutive failures; a status may be late by the cap once the API server is available again."""

RECONCILE_SECONDS: Final = 30.0
"""Timeout of a reconcile, which is then retried: a server that does not answer must not block a worker."""


class Queues:
    """One queue per reconciled kind, initially empty."""

    def __init__(self, rng: random.Random) -> None:
        self.models, self.services, self.slices = (new_queue(rng) for _ in range(3))
        self.routers, self.quotas, self.pools = (new_queue(rng) for _ in range(3))


def new_queue(rng: random.Random) -> WorkQueue[Key]:
    """Return an empty queue that retries failed keys by `RETRY`."""
    return WorkQueue(rng, RETRY)


@attrs.define(eq=False)
class Reconciler:
    """Reconcile the objects of one kind, key by key.

    Attributes:
        name: The controller's name in logs and metrics.
        reconcile: Reconciles one object. Every exception is logged with the key, counted, and retried.
    """

    name: str
    reconcile: Callable[[Key], Awaitable[None]]
    metrics: ReconcileMetrics
    queue: WorkQueue[Key]

    async def run(self, workers: int) -> Never:
        """Reconcile keys until cancelled, `workers` at a time and never one key twice at once."""
        await run_each(self.queue, self._work, workers=workers)

    async def _work(self, key: Key) -> None:
        began = trio.current_time()
        result = await self._attempt(key)
        self.metrics.observe(self.name, result, trio.current_time() - began)

    async def _attempt(self, key: Key) -> Result:
        await trio.lowlevel.checkpoint()
        failure: ExceptionGroup[Exception] | None = None
        try:
            with trio.fail_after(RECONCILE_SECONDS):
                await self.reconcile(key)
        except* Exception as group:  # noqa: BLE001 (one of the broad catches; a Cancelled in the group is re-raised)
            failure = group
        if failure is None:
            self.queue.forget(key)
            return "success"
        return self._failed(key, failure)

    def _failed(self, key: Key, failure: ExceptionGroup[Exception]) -> Result:
        delay_seconds = self.queue.retry_later(key)
        errors = leaves(failure)
        facts = {
            "controller": self.name,
            "key": str(key),
            "error": "; ".join(str(error) or type(error).__name__ for error in errors),
            "retrySeconds": round(delay_seconds, 1),
        }
        if all(isinstance(error, ConflictError | NotFoundError) for error in errors):
            # Another client wrote or deleted first, which is no failure: its event enqueues the key, at the latest once
            # the reflector has recovered. The retry is for an event that has been handled already, changes nothing here
            # (a label), or never comes: one of several API servers may not know a kind yet that another serves.
            log.debug("reconcile overtaken", **facts)
            return "retry"
        if all(isinstance(error, ExternalError | trio.TooSlowError) for error in errors):
            log.warning("reconcile failed, will be retried", **facts)
            return "retry"
        if all(isinstance(error, LLMKubeError | trio.TooSlowError) for error in errors):
            log.error("reconcile refused", **facts)
        else:
            log.error("reconcile crashed", exc_info=failure, **facts)
        return "error"
