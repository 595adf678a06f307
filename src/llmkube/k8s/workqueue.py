"""A queue of keys, not of events: one task at a time handles a key, once for any number of additions."""

import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Iterable
from contextlib import asynccontextmanager
from typing import Final, Generic, Never, TypeVar

import trio

from llmkube.base.backoff import Backoff
from llmkube.base.errors import ExternalError

K = TypeVar("K", bound=Hashable)

RETRY = Backoff(base_seconds=0.5, cap_seconds=300.0, factor=2.0, jitter=0.2)

MIN_DELAY_SECONDS: Final = 0.001
"""The shortest delay: a smaller one, added to a large clock reading, could round to nothing and never elapse."""


class WorkQueue(Generic[K]):
    """A queue that has each key at most once; a key that is added while it is being handled is queued again afterwards.

    Delayed keys need no extra task: one of the tasks in `acquire` wakes at the earliest time, and each new key wakes
    one. The size is bounded by the number of different keys.

    Args:
        rng: Jitter for the delays.
        backoff: The delays of a key that has failed.
        urgent: Returns whether a key precedes all others.
    """

    def __init__(
        self, rng: random.Random, backoff: Backoff = RETRY, urgent: Callable[[K], bool] = lambda _: False
    ) -> None:
        self._rng = rng
        self._backoff = backoff
        self._is_urgent = urgent
        self._ready: dict[K, None] = {}  # a set that remembers the order of arrival
        self._urgent: dict[K, None] = {}
        self._due: dict[K, float] = {}
        self._held: set[K] = set()
        self._again: set[K] = set()
        self._failures: dict[K, int] = {}
        self._idle = trio.lowlevel.ParkingLot()

    def add_nowait(self, key: K) -> None:
        """Queue a key for the next free worker."""
        if key in self._held:
            self._again.add(key)
        elif key not in (ready := self._urgent if self._is_urgent(key) else self._ready):
            ready[key] = None
            self._idle.unpark()

    def add_all(self, keys: Iterable[K]) -> None:
        """Queue several keys."""
        for key in keys:
            self.add_nowait(key)

    def add_after(self, key: K, seconds: float) -> None:
        """Queue a key after a delay; of several delays for one key, the earliest applies."""
        due = trio.current_time() + max(seconds, MIN_DELAY_SECONDS)
        if due < self._due.get(key, float("inf")):
            self._due[key] = due
            self._idle.unpark()

    def retry_later(self, key: K) -> float:
        """Queue a key again after a failure; return the delay, which grows with consecutive failures."""
        self._failures[key] = self._failures.get(key, 0) + 1
        delay_seconds = self._backoff.delay(self._failures[key], self._rng)
        self.add_after(key, delay_seconds)
        return delay_seconds

    def is_failing(self, key: K) -> bool:
        """Return whether a key has failed and not succeeded since."""
        return key in self._failures

    def forget(self, key: K) -> None:
        """Reset a key's failures: it succeeded, or it is gone."""
        self._failures.pop(key, None)

    def __len__(self) -> int:
        """Return the number of keys that are ready for a worker; delayed keys are not included."""
        return len(self._urgent) + len(self._ready)

    @asynccontextmanager
    async def acquire(self) -> AsyncGenerator[K, None]:
        """Wait for a key and hold it: no other worker gets it until the body exits."""
        key = await self._next()
        self._held.add(key)
        try:
            yield key
        finally:
            self._held.discard(key)
            if key in self._again:
                self._again.discard(key)
                self.add_nowait(key)

    async def _next(self) -> K:
        await trio.lowlevel.checkpoint()
        try:
            while True:
                now = trio.current_time()
                for key in [key for key, due in self._due.items() if due <= now]:
                    del self._due[key]
                    self.add_nowait(key)
                if ready := self._urgent or self._ready:
                    key = next(iter(ready))
                    del ready[key]
                    return key
                with trio.move_on_at(min(self._due.values(), default=float("inf"))):
                    await self._idle.park()
        finally:
            if self._due:
                self._idle.unpark()  # this worker may have been the one that slept until the next deadline


async def run_workers(queue: WorkQueue[K], handle: Callable[[K], Awaitable[float | None]], *, workers: int) -> Never:
    """Handle the queue's keys with `workers` tasks until cancelled.

    Args:
        queue: The keys.
        handle: Handles one key; returns the seconds after which to requeue it, or None. After an ExternalError the
            key is retried with back-off; any other error is a bug and propagates.
        workers: The number of keys that may be handled at a time.
    """

    async def work(key: K) -> None:
        try:
            requeue_seconds = await handle(key)
        except ExternalError:
            queue.retry_later(key)
            return
        queue.forget(key)
        if requeue_seconds is not None:
            queue.add_after(key, requeue_seconds)

    await run_each(queue, work, workers=workers)


async def run_each(queue: WorkQueue[K], work: Callable[[K], Awaitable[None]], *, workers: int) -> Never:
    """Handle the queue's keys with `workers` tasks until cancelled; `work` handles its own failures."""

    async def run() -> Never:
        while True:
            async with queue.acquire() as key:
                await work(key)

    async with trio.open_nursery() as nursery:
        for _ in range(workers):
            nursery.start_soon(run)
    raise AssertionError("workers never return")
