"""Work on one key at a time, again until it succeeds: a failure delays its own key and no other."""

from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

import attrs
import structlog
import trio

from llmkube.base.errors import LLMKubeError, WorldError
from llmkube.controller.metrics import ReconcileMetrics, Result
from llmkube.k8s.errors import ConflictError, NotFoundError
from llmkube.k8s.resource import Key
from llmkube.k8s.workqueue import WorkQueue

log = structlog.get_logger()

RECONCILE_SECONDS: Final = 30.0
"""A reconcile that takes longer is given up and retried: a server that says nothing must not hold a worker."""


@attrs.define(eq=False)
class Reconciler:
    """Bring one kind's objects in line, key by key.

    Attributes:
        name: The controller's name in logs and metrics.
        reconcile: Brings one object in line. Whatever it raises is logged with the key, counted, and tried again.
        metrics: Where reconciles are counted and timed.
        queue: Where keys come from, and go back to after a failure.
    """

    name: str
    reconcile: Callable[[Key], Awaitable[None]]
    metrics: ReconcileMetrics
    queue: WorkQueue[Key]

    async def run(self, workers: int) -> NoReturn:
        """Reconcile keys until cancelled, `workers` at a time and never one key twice at once."""
        async with trio.open_nursery() as nursery:
            for _ in range(workers):
                nursery.start_soon(self._work)
        raise AssertionError("workers never return")

    async def _work(self) -> NoReturn:
        while True:
            async with self.queue.acquire() as key:
                began = trio.current_time()
                result = await self._attempt(key)
                self.metrics.observe(self.name, result, trio.current_time() - began)

    async def _attempt(self, key: Key) -> Result:
        await trio.lowlevel.checkpoint()
        failure: ExceptionGroup[Exception] | None = None
        try:
            with trio.fail_after(RECONCILE_SECONDS):
                await self.reconcile(key)
        except* Exception as group:  # noqa: BLE001 (one of the three broad catches; a Cancelled in the group passes on)
            failure = group
        if failure is None:
            self.queue.forget(key)
            return "success"
        return self._failed(key, failure)

    def _failed(self, key: Key, failure: ExceptionGroup[Exception]) -> Result:
        delay_seconds = self.queue.retry_nowait(key)
        errors = leaves(failure)
        facts = {
            "controller": self.name,
            "key": str(key),
            "error": "; ".join(str(error) or type(error).__name__ for error in errors),
            "retrySeconds": round(delay_seconds, 1),
        }
        if all(isinstance(error, ConflictError | NotFoundError) for error in errors):
            # Another client wrote or deleted first, which is no failure: the event of that wakes the key, at the latest
            # when the reflector has healed. The retry is for the case that it has been handled already, changes nothing
            # here (a label), or never comes: of several API servers one may not know yet a kind that another serves.
            log.debug("reconcile overtaken", **facts)
            return "retry"
        if all(isinstance(error, WorldError | trio.TooSlowError) for error in errors):
            log.warning("reconcile failed for now", **facts)
            return "retry"
        if all(isinstance(error, LLMKubeError | trio.TooSlowError) for error in errors):
            log.error("reconcile refused", **facts)
        else:
            log.error("bug in reconcile", exc_info=failure, **facts)
        return "error"


def leaves(error: BaseException) -> list[BaseException]:
    """Return the errors in a group, however deep; an error that is none stands for itself."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in leaves(one)]
    return [error]
