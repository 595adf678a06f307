"""The budgets of one router: decided in memory, and set aside in the file before a request is sent.

A request that is within what the file sets aside waits for nothing (`set_aside`); the others share the next write. What
cannot be written is refused: a budget that would not hold over a restart admits nothing. The clock goes on from where
an earlier process was: the wall clock is read once, and counts only where it is later.
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
from llmkube.router.budget_store.budget_file import BudgetFile, BudgetFileError
from llmkube.router.budget_store.set_aside import SetAside
from llmkube.router.budgets.meter import Charge, Claim, Exhausted, Meter, Reservation, Took, amount_of
from llmkube.router.config.routing_config import RoutingConfig
from llmkube.router.policy.request_facts import RequestFacts

WRITE_SECONDS: Final = 5.0
"""How long a request waits until its reservation is written; then it is refused."""

MOST_WAITING: Final = 10_000
"""Requests that may wait for a disk that hangs; those beyond are refused at once."""

FLUSH_SECONDS: Final = 0.1
"""From what no request waits for, such as the end of one, to the write that it shares."""

AGAIN_SECONDS: Final = 1.0
"""From a write that failed to the next one, unless a request asks for it before."""

OPEN_AGAIN: Final = Backoff(base_seconds=1.0, cap_seconds=60.0)
"""Between two attempts to open the file of a budget that a reload has brought."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger()


@attrs.define(eq=False)
class _Waiting:
    """One request that waits for a write."""

    done: trio.Event = attrs.field(factory=trio.Event)
    error: str = ""


@attrs.define(eq=False)
class KeptBudgets:
    """The meter, and the file that it is kept in; None keeps nothing.

    Attributes:
        file: It; opened before the first request that is under a budget.
        utcnow: The wall clock.
        rng: Spreads the attempts to open the file.
        problem: Why budgets cannot be written; "" while they can.
    """

    file: BudgetFile | None
    utcnow: Callable[[], datetime]
    rng: random.Random
    problem: str = ""
    _meter: Meter = attrs.field(factory=Meter)
    _offset: float = 0.0  # from Trio's clock to that of the file
    _waiting: list[_Waiting] = attrs.field(factory=list)
    _some: trio.Event = attrs.field(factory=trio.Event)
    _aside: SetAside = attrs.field(factory=SetAside)
    _windows: dict[str, float] = attrs.field(factory=dict)  # that a config has changed, to be written
    _flush_at: float = math.inf  # when is written what no request waits for
    _is_open: bool = False
    _using: trio.Lock = attrs.field(factory=trio.Lock)  # the file; one thread at a time has it
    _charged: tuple[Charge, ...] | None = None  # for what an earlier process had reserved; taken up once
    _config: RoutingConfig | None = None  # the newest that has a budget
    _failures: int = 0
    _open_at: float = math.inf  # when the file is opened again

    async def open(self, config: RoutingConfig) -> None:
        """Go on from what an earlier process has left, once a config has a budget.

        Raises:
            UserError: The file cannot be used.
            BudgetFileError: It cannot be written.
        """
        file = self.file
        if file is None or not config.budgets:
            return
        self._config = config
        async with self._using:
            if self._is_open:
                return
            if self._charged is None:
                saved = await trio.to_thread.run_sync(file.open)
                now = max(self.utcnow().timestamp(), saved.seen)
                self._offset = now - trio.current_time()
                self._charged = self._meter.restore(saved.charges, saved.held, now=now)
            write = partial(file.write, (), self._charged, _windows(config), self._now(), takes_over=True)
            await trio.to_thread.run_sync(write)
            self._is_open = True

    async def admit(self, claim: Claim, facts: RequestFacts) -> Reservation | Exhausted:
        """Reserve what a request may take, and return when that is in the file.

        Raises:
            BudgetFileError: It is not, and nothing stays reserved.
        """
        found = self._meter.reserve(claim, facts, now=self._now())
        if isinstance(found, Exhausted) or self.file is None:
            return found
        if not self._aside.reserve(found.accounts, self._meter.window_seconds):
            try:
                await self._next_write()
            except BaseException:  # a client that leaves as well
                self.settle(found, Took())
                raise
        return found

    async def _next_write(self) -> None:
        if len(self._waiting) >= MOST_WAITING:
            raise BudgetFileError("too much waits for the disk of the budgets")
        waiting = _Waiting()
        self._waiting.append(waiting)
        self._some.set()
        with trio.move_on_after(WRITE_SECONDS):
            await waiting.done.wait()
            if not waiting.error:
                return
        raise BudgetFileError(waiting.error or f"the disk of the budgets takes longer than {WRITE_SECONDS:g} s")

    def settle(self, reservation: Reservation, took: Took | None) -> None:
        """Charge what a request took; None charges what was reserved."""
        if not reservation.accounts:
            return
        charges = self._meter.settle(reservation, took, now=self._now())
        if self.file is not None:
            amount = None if took is None else amount_of(took, reservation.copies)
            self._aside.settle(reservation.accounts, amount, charges)
            self._flush_soon(FLUSH_SECONDS)

    def used(self, config: RoutingConfig) -> list[dict[str, Any]]:
        """Return of each budget how much is taken."""
        return self._meter.used(config, self._now())

    async def reload(self, config: RoutingConfig) -> None:
        """Take up another config; its first budget opens the file, without which requests under one are refused.

        A file that cannot be opened is tried again by `run`.
        """
        if self.file is None or not config.budgets:
            return
        if self._is_open:
            self._windows |= _windows(config)
            self._flush_soon(0.0)
            return
        await self._open_or_later(config)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> Never:
        """Write what waits until cancelled, and then what is left."""
        task_status.started()
        try:
            while True:
                with trio.move_on_at(min(self._open_at, self._flush_at)):
                    await self._some.wait()
                self._some = trio.Event()
                now = trio.current_time()
                if self._config is not None and now >= self._open_at:
                    await self._open_or_later(self._config)
                if self._waiting or now >= self._flush_at:
                    await self._write()
        finally:
            with trio.move_on_after(WRITE_SECONDS) as rest:
                rest.shield = True
                await self._write(is_last=True)
                if self.file is not None:
                    async with self._using:
                        await trio.to_thread.run_sync(self.file.close)

    async def _open_or_later(self, config: RoutingConfig) -> None:
        try:
            await self.open(config)
        except LLMKubeError as exc:
            self._failures += 1
            self._open_at = trio.current_time() + OPEN_AGAIN.delay(self._failures, self.rng)
            if str(exc) != self.problem:
                _log.error("budgets cannot be kept, requests under one are refused", error=str(exc))
            self.problem = str(exc)
        else:
            self._failures, self._open_at, self.problem = 0, math.inf, ""
        self._some.set()  # `run` learns of the new time

    def _now(self) -> float:
        return trio.current_time() + self._offset

    def _flush_soon(self, seconds: float) -> None:
        """Have what no request waits for written, unless that is to happen already."""
        if self._flush_at == math.inf:
            self._flush_at = trio.current_time() + seconds
            self._some.set()  # `run` learns of the new time

    async def _write(self, *, is_last: bool = False) -> None:
        file, batch, self._flush_at = self.file, list(self._waiting), math.inf
        if file is None or not (batch or self._windows or not self._aside.is_written):
            return
        plan, windows, error = self._aside.plan(is_last=is_last), dict(self._windows), ""
        if not self._is_open:
            error = self.problem or "the budgets are not open"
        else:
            try:
                async with self._using:
                    await trio.to_thread.run_sync(file.write, plan.held, plan.charges, windows, self._now())
            except LLMKubeError as exc:
                error = str(exc)
        if error and not self.problem:
            _log.error("budgets cannot be written, requests under one are refused", error=error)
        self.problem = error
        del self._waiting[: len(batch)]  # not before: a cancel leaves them for the last write
        if error:  # what has ended is written with the next write; who waits is refused
            self._aside.failed(plan)
        else:
            self._aside.written(plan)
            self._windows = {name: each for name, each in self._windows.items() if windows.get(name) != each}
        if self._windows or not self._aside.is_written:
            self._flush_soon(AGAIN_SECONDS if error else FLUSH_SECONDS)
        for each in batch:
            each.error = error
            each.done.set()


def _windows(config: RoutingConfig) -> Mapping[str, float]:
    return {budget.name: float(budget.window_seconds) for budget in config.budgets}
