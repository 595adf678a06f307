"""The budgets of one router: reserved in memory, and set aside in a file before a request is sent.

* A request within the amount that the file sets aside does not wait (`set_aside`); others share the next write.
* If the file cannot be written, requests are refused: a budget that is lost with the process is not enforced.
* Time never goes backwards across a restart: the wall clock is read once, and used only if it is later than the file's.
"""

import math
import random
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Final, Never

import attrs
import structlog
import trio

from llmkube.base.backoff import Backoff
from llmkube.base.errors import LLMKubeError
from llmkube.router.budget_store.budget_file import BudgetFile
from llmkube.router.budget_store.set_aside import Holds
from llmkube.router.budgets.meter import (
    BudgetStoreError,
    Charge,
    Consumption,
    ExhaustedBudget,
    Meter,
    Reservation,
    UsageBound,
    charged_amount,
)
from llmkube.router.config.routing_config import RoutingConfig
from llmkube.router.policy.request_facts import RequestFacts

WRITE_SECONDS: Final = 5.0
"""Longest wait of a request for the write of its reservation; then it is refused."""

MAX_PENDING_WRITES: Final = 10_000
"""Requests that may wait for a disk that hangs; further ones are refused at once."""

FLUSH_SECONDS: Final = 0.1
"""Delay of a write for which no request waits, such as a settlement, so that several share it."""

RETRY_SECONDS: Final = 1.0
"""Between a failed write and the next one, unless a request needs it earlier."""

OPEN_BACKOFF: Final = Backoff(base_seconds=1.0, cap_seconds=60.0)
"""Between two attempts to open the file after a reload has added the first budget."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger()


@attrs.define(eq=False)
class _PendingWrite:
    """One request that waits for a write."""

    done: trio.Event = attrs.field(factory=trio.Event)
    error: str = ""


@attrs.define(eq=False)
class LocalBudgets:
    """The meter and its file.

    Attributes:
        file: Opened before the first request under a budget; None stores nothing.
        utcnow: The wall clock.
        rng: Jitter of the attempts to open the file.
        problem: Why budgets cannot be written; "" while they can.
    """

    file: BudgetFile | None
    utcnow: Callable[[], datetime]
    rng: random.Random
    problem: str = ""
    _meter: Meter = attrs.field(factory=Meter)
    _offset: float = 0.0  # added to Trio's clock, gives the file's
    _pending_writes: list[_PendingWrite] = attrs.field(factory=list)
    _wakeup: trio.Event = attrs.field(factory=trio.Event)
    _holds: Holds = attrs.field(factory=Holds)
    _windows: dict[str, float] = attrs.field(factory=dict)  # changed by a reload, not written yet
    _flush_at: float = math.inf  # time of the next write for which no request waits
    _is_open: bool = False
    _file_lock: trio.Lock = attrs.field(factory=trio.Lock)  # one thread at a time uses the file
    _restored_charges: tuple[Charge, ...] | None = None  # for what an earlier process had set aside; restored once
    _config: RoutingConfig | None = None  # the newest with a budget
    _failures: int = 0
    _open_at: float = math.inf  # time of the next attempt to open the file

    async def open(self, config: RoutingConfig) -> None:
        """Open the file and restore the state of an earlier process, if the config has a budget.

        Raises:
            UserError: The file cannot be used.
            BudgetStoreError: The file cannot be written.
        """
        file = self.file
        if file is None or not config.budgets:
            return
        self._config = config
        async with self._file_lock:
            if self._is_open:
                return
            if self._restored_charges is None:
                snapshot = await trio.to_thread.run_sync(file.open)
                now = max(self.utcnow().timestamp(), snapshot.last_written_at)
                self._offset = now - trio.current_time()
                self._restored_charges = self._meter.restore(snapshot.charges, snapshot.held, now=now)
            write = partial(file.write, (), self._restored_charges, _windows(config), self._now(), replaces_holds=True)
            await trio.to_thread.run_sync(write)
            self._is_open = True

    async def admit(self, bound: UsageBound, facts: RequestFacts) -> Reservation | ExhaustedBudget:
        """Reserve the bound of a request, and return once it is in the file.

        Raises:
            BudgetStoreError: It cannot be written; nothing stays reserved.
        """
        found = self._meter.reserve(bound, facts, now=self._now())
        if isinstance(found, ExhaustedBudget) or self.file is None:
            return found
        if not self._holds.reserve(found.accounts, self._meter.window_seconds):
            try:
                await self._next_write()
            except BaseException:  # includes cancellation, when the client disconnects
                self.settle(found, Consumption())
                raise
        return found

    async def _next_write(self) -> None:
        if len(self._pending_writes) >= MAX_PENDING_WRITES:
            raise BudgetStoreError("too many requests are waiting for the disk of the budgets")
        pending = _PendingWrite()
        self._pending_writes.append(pending)
        self._wakeup.set()
        with trio.move_on_after(WRITE_SECONDS):
            await pending.done.wait()
            if not pending.error:
                return
        raise BudgetStoreError(pending.error or f"the disk of the budgets did not respond within {WRITE_SECONDS:g} s")

    def settle(self, reservation: Reservation, spent: Consumption | None) -> None:
        """Charge what a request used; None charges the reservation."""
        if not reservation.accounts:
            return
        amount = None if spent is None else charged_amount(spent, reservation.copies)
        charges = self._meter.settle(reservation, amount, now=self._now())
        if self.file is not None:
            self._holds.settle(reservation.accounts, amount, charges)
            self._flush_soon(FLUSH_SECONDS)

    def used(self, config: RoutingConfig) -> list[dict[str, Any]]:
        """Return the usage of each budget."""
        return self._meter.used(config, self._now())

    async def reload(self, config: RoutingConfig) -> None:
        """Apply a reloaded config; its first budget opens the file.

        If the file cannot be opened, requests under a budget are refused, and `run` tries again.
        """
        if self.file is None or not config.budgets:
            return
        if self._is_open:
            self._windows |= _windows(config)
            self._flush_soon(0.0)
            return
        await self._try_open(config)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> Never:
        """Write until cancelled, then write what is left."""
        task_status.started()
        try:
            while True:
                with trio.move_on_at(min(self._open_at, self._flush_at)):
                    await self._wakeup.wait()
                self._wakeup = trio.Event()
                now = trio.current_time()
                if self._config is not None and now >= self._open_at:
                    await self._try_open(self._config)
                if self._pending_writes or now >= self._flush_at:
                    await self._write()
        finally:
            with trio.move_on_after(WRITE_SECONDS, shield=True):
                await self._write(is_last=True)
            if self.file is not None:
                with trio.move_on_after(WRITE_SECONDS, shield=True):  # also after a write that took too long
                    async with self._file_lock:
                        await trio.to_thread.run_sync(self.file.close)

    async def _try_open(self, config: RoutingConfig) -> None:
        try:
            await self.open(config)
        except LLMKubeError as exc:
            self._failures += 1
            self._open_at = trio.current_time() + OPEN_BACKOFF.delay(self._failures, self.rng)
            if str(exc) != self.problem:
                _log.error("budget file unusable, requests under a budget refused", error=str(exc))
            self.problem = str(exc)
        else:
            self._failures, self._open_at, self.problem = 0, math.inf, ""
        self._wakeup.set()  # `run` uses the new time

    def _now(self) -> float:
        return trio.current_time() + self._offset

    def _flush_soon(self, seconds: float) -> None:
        """Schedule a write unless one is scheduled."""
        if self._flush_at == math.inf:
            self._flush_at = trio.current_time() + seconds
            self._wakeup.set()  # `run` uses the new time

    async def _write(self, *, is_last: bool = False) -> None:
        file, batch, self._flush_at = self.file, list(self._pending_writes), math.inf
        if file is None or not (batch or self._windows or not self._holds.is_written):
            return
        plan, windows, error = self._holds.plan(is_last=is_last), dict(self._windows), ""
        if not self._is_open:
            error = self.problem or "the budget file is not open"
        else:
            try:
                async with self._file_lock:
                    await trio.to_thread.run_sync(file.write, plan.held, plan.charges, windows, self._now())
            except LLMKubeError as exc:
                error = str(exc)
        if error and not self.problem:
            _log.error("budget write failed, requests under a budget refused", error=error)
        self.problem = error
        del self._pending_writes[: len(batch)]  # only now: after a cancellation the last write still has them
        if error:  # settlements are retried with the next write; waiting requests are refused
            self._holds.failed(plan)
        else:
            self._holds.written(plan)
            self._windows = {name: each for name, each in self._windows.items() if windows.get(name) != each}
        if self._windows or not self._holds.is_written:
            self._flush_soon(RETRY_SECONDS if error else FLUSH_SECONDS)
        for each in batch:
            each.error = error
            each.done.set()


def _windows(config: RoutingConfig) -> Mapping[str, float]:
    return {budget.name: float(budget.window_seconds) for budget in config.budgets}
