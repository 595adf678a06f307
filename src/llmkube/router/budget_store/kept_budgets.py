"""The budgets of one router: decided in memory, and in the file before a request is sent.

Requests that come while the disk is written to share the next write. What cannot be written is refused: a budget that
would not hold over a restart admits nothing. The clock goes on from where an earlier process was: the wall clock is
read once, and counts only where it is later.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Never

import attrs
import structlog
import trio

from llmkube.base.backoff import Backoff
from llmkube.base.errors import LLMKubeError
from llmkube.router.budget_store.budget_file import BudgetFile, BudgetFileError, Entry, Reserve, Settle, Windows
from llmkube.router.budgets.meter import (
    NOTHING,
    Charge,
    Claim,
    Demand,
    Exhausted,
    Meter,
    Reservation,
    Took,
    claim_of,
    teams_of,
)
from llmkube.router.config.routing_config import RoutingConfig
from llmkube.router.policy.decision import Decision
from llmkube.router.policy.request_facts import RequestFacts

WRITE_SECONDS: Final = 5.0
"""How long a request waits until its reservation is written; then it is refused."""

MOST_WAITING: Final = 10_000
"""Entries that may wait for a disk that hangs; requests beyond are refused at once."""

MOST_UNSETTLED: Final = 10_000
"""Settlements that wait while the disk cannot be written; those beyond stay reserved in the file."""

OPEN_AGAIN: Final = Backoff(base_seconds=1.0, cap_seconds=60.0)
"""Between two attempts to open the file of a budget that a reload has brought."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger()


@attrs.define(eq=False)
class _Waiting:
    """One entry, and who waits for it."""

    entry: Entry
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
    _unwritten: set[int] = attrs.field(factory=set)  # reservations that are not in the file, and not settled yet
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
            await trio.to_thread.run_sync(file.take_over, self._charged, _windows(config), self._now())
            self._is_open = True

    async def admit(
        self, config: RoutingConfig, decision: Decision, facts: RequestFacts, demand: Demand
    ) -> Reservation | Exhausted:
        """Reserve what a request may take, and return when that is in the file.

        Raises:
            BudgetFileError: It is not, and nothing stays reserved.
        """
        claim = claim_of(config, decision, demand)
        return NOTHING if claim is None else await self.admit_claim(claim, teams_of(claim, facts))

    async def admit_claim(self, claim: Claim, teams: Sequence[str]) -> Reservation | Exhausted:
        """Reserve a claim, and return when that is in the file.

        Args:
            claim: What a request may take.
            teams: Whose account counts, for each of the claim's budgets.

        Raises:
            BudgetFileError: It is not, and nothing stays reserved.
        """
        found = self._meter.reserve(claim, teams, now=self._now())
        if isinstance(found, Reservation):
            try:
                await self._keep(found)
            except BaseException:  # a client that leaves as well
                self.settle(found, Took())
                raise
        return found

    async def _keep(self, reservation: Reservation) -> None:
        """Return when a reservation is in the file.

        Raises:
            BudgetFileError: It is not.
        """
        if self.file is None or not reservation.accounts:
            return
        if len(self._waiting) >= MOST_WAITING:
            self._unwritten.add(reservation.number)
            raise BudgetFileError("too much waits for the disk of the budgets")
        seconds = {key: self._meter.window_seconds(key) for key in reservation.accounts}
        waiting = self._put(Reserve(reservation=reservation, seconds=seconds))
        with trio.move_on_after(WRITE_SECONDS):
            await waiting.done.wait()
            if not waiting.error:
                return
        raise BudgetFileError(waiting.error or f"the disk of the budgets takes longer than {WRITE_SECONDS:g} s")

    def settle(self, reservation: Reservation, took: Took | None) -> None:
        """Charge what a request took; None charges what was reserved."""
        charges = self._meter.settle(reservation, took, now=self._now())
        if reservation.number in self._unwritten:
            self._unwritten.remove(reservation.number)
        elif self.file is not None and reservation.accounts:
            self._put(Settle(number=reservation.number, charges=charges))

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
            self._put(Windows(seconds=_windows(config)))
            return
        await self._open_or_later(config)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> Never:
        """Write what waits until cancelled, and then what is left."""
        task_status.started()
        try:
            while True:
                with trio.move_on_at(self._open_at):
                    await self._some.wait()
                if self._config is not None and trio.current_time() >= self._open_at:
                    await self._open_or_later(self._config)
                await self._write()
        finally:
            with trio.move_on_after(WRITE_SECONDS) as rest:
                rest.shield = True
                await self._write()
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

    def _put(self, entry: Entry) -> _Waiting:
        waiting = _Waiting(entry)
        self._waiting.append(waiting)  # no more than two for each request under way
        self._some.set()
        return waiting

    async def _write(self) -> None:
        file, batch = self.file, list(self._waiting)
        self._some = trio.Event()
        if file is None or not batch:
            return
        entries, error = [each.entry for each in batch], ""
        if not self._is_open:
            error = self.problem or "the budgets are not open"
        else:
            try:
                async with self._using:
                    await trio.to_thread.run_sync(file.write, entries, self._now())
            except LLMKubeError as exc:
                error = str(exc)
        if error and not self.problem:
            _log.error("budgets cannot be written, requests under one are refused", error=error)
        self.problem = error
        del self._waiting[: len(batch)]  # not before: a cancel leaves them for the last write
        if error:  # what has ended is written with the next request; what was reserved is refused
            refused = {each.entry.reservation.number for each in batch if isinstance(each.entry, Reserve)}
            left, beyond = still_to_write([each for each in batch if not isinstance(each.entry, Reserve)])
            if beyond:
                _log.error("too many settlements wait, a restart charges as reserved", requests=beyond, error=error)
            self._waiting[:0] = left
            settled = {each.entry.number for each in self._waiting if isinstance(each.entry, Settle)}
            self._unwritten |= refused - settled
        for each in batch:
            each.error = error
            each.done.set()


def _windows(config: RoutingConfig) -> Mapping[str, float]:
    return {budget.name: float(budget.window_seconds) for budget in config.budgets}


def still_to_write(waiting: Sequence[_Waiting]) -> tuple[list[_Waiting], int]:
    """Return what waits for the next write, and how many settlements are left out: the oldest above the bound.

    What is left out stays reserved in the file, so the next process charges the most that it may have taken. This
    process has charged it already. Of changed windows the last counts for each budget.
    """
    settles = [each for each in waiting if isinstance(each.entry, Settle)]
    beyond = max(0, len(settles) - MOST_UNSETTLED)
    seconds: dict[str, float] = {}
    for each in waiting:
        if isinstance(each.entry, Windows):
            seconds |= each.entry.seconds
    windows = [_Waiting(Windows(seconds=seconds))] if seconds else []
    return [*settles[beyond:], *windows], beyond
