"""One host's memory as scopes: within `admitted()` and `beside()` the bytes are one engine's own.

```
 wait ──▶ admitted ──▶ spawned, loaded, served, ended ──▶ process gone ──▶ memory seen to be back
          └ reserved ─────────────────────────────────────────────────────┘ (or its deadline is over)
```

The `Book` decides; the ledger carries its orders out at once and without an await, so that what is entered and what
runs never differ. A service that waits holds nothing that another one needs.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

import attrs
import trio

from llmkube.k8s.resource import Key
from llmkube.supervisor.host.sample import Sample
from llmkube.supervisor.memory.admission import Strategy
from llmkube.supervisor.memory.book import Book, ExpediteStop, Grant, Orders, ReportRefusal, StopEngine
from llmkube.supervisor.memory.capacity import CapacitySummary, MemoryView
from llmkube.supervisor.memory.eviction import Decision, Eviction
from llmkube.supervisor.memory.refusal import Refusal
from llmkube.supervisor.memory.reservation import MemorySpec, Need, Reservation, Role


@attrs.define(eq=False)
class Allocation:
    """What a scope of the ledger gives its body: a reservation, and the word that the engine has to go.

    Attributes:
        scope: Cancelled when the engine has to go.
        expedited: Set when its requests are not waited for.
    """

    _book: Book
    _reservation: Reservation
    scope: trio.CancelScope
    expedited: trio.Event = attrs.field(factory=trio.Event)

    @property
    def reservation(self) -> Reservation:
        """The reservation as it is now."""
        return self._book.records.newest(self._reservation)

    @property
    def urgent(self) -> bool:
        """Whether the engine has to go without waiting for its requests."""
        return self.expedited.is_set()

    def worked(self) -> None:
        """The engine has had work just now."""
        self._book.records.change(self._reservation, busy_at=trio.current_time())


@attrs.define(eq=False)
class _Wait:
    """One service's wait: the reservation that ends it, or why it goes on."""

    reservation: Reservation | None = None
    refusal: Refusal | None = None
    changed: trio.Event = attrs.field(factory=trio.Event)


@attrs.define(eq=False)
class Ledger:
    """The tasks that hold memory, wait for it, and have to give it back.

    Attributes:
        book: What is promised.
        watched: Whether the host's memory is sampled; without that every engine is admitted at once.
        notified: Called with each service that has to go, before its scope is cancelled.
        sample_requested: Set when the host is to be looked at without waiting for the next regular look.
        decided: Set, and replaced, at every decision.
    """

    book: Book = attrs.field(factory=Book)
    watched: bool = True
    notified: Callable[[Eviction], None] = lambda _: None
    sample_requested: trio.Event = attrs.field(factory=trio.Event)
    decided: trio.Event = attrs.field(factory=trio.Event)
    _waits: dict[Key, _Wait] = attrs.field(factory=dict)
    _allocations: dict[int, Allocation] = attrs.field(factory=dict)

    # -- scopes ---------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def admitted(
        self, key: Key, need: Need, *, scope: trio.CancelScope, report: Callable[[Refusal], None]
    ) -> AsyncIterator[Allocation]:
        """Wait until there is room, and hold it for as long as the body runs, and its memory after that.

        Args:
            key: The service.
            need: How much its engine will take.
            scope: Encloses the whole of this; cancelled when the engine has to go.
            report: Called with why it waits: at once, and when that has changed.
        """
        if not self.watched:
            yield Allocation(self.book, Reservation(0, key, need), scope)
            return
        wait = self._waits[key] = _Wait(self.book.records.serving(key))  # an adopted engine has its memory already
        try:
            if wait.reservation is None:
                self.carry_out(self.book.make_request(key, need, trio.current_time()))
            with self._allocated(await self._reserved(wait, report), scope) as allocation:
                yield allocation
        finally:
            if self._waits.get(key) is wait:
                del self._waits[key]
                self.book.withdraw(key)
            if wait.reservation is not None:  # also when the wait was cancelled in the moment of its end
                self._release(wait.reservation)

    @contextmanager
    def beside(self, key: Key, need: Need, *, scope: trio.CancelScope) -> Iterator[Allocation | None]:
        """Hold what a second engine of a service needs for as long as the body runs; None when there is no room now.

        Args:
            key: The service; its engine keeps what it has.
            need: How much the other one will take.
            scope: Cancelled when memory is short: of two engines the one that does not serve yet goes first.
        """
        reservation = self.book.request_successor(key, need, trio.current_time()) if self.watched else None
        if reservation is None:
            yield None
            return
        try:
            with self._allocated(reservation, scope) as allocation:
                yield allocation
        finally:
            self._release(reservation)

    async def wait_urgent(self, allocation: Allocation) -> None:
        """Return when the engine, which ends already, has to end at once: the host is about to run out of memory."""
        while not (allocation.urgent or self.book.is_critical):
            await self.decided.wait()

    # -- services and engines -------------------------------------------------------------------------------------

    def follow(self, key: Key, spec: MemorySpec) -> None:
        """Take in what the objects say now; an edit is a new chance for a service that waits."""
        self.carry_out(self.book.follow(key, spec, trio.current_time()))

    def adopt(self, key: Key, need: Need) -> None:
        """Promise at once what an engine has already that an earlier agent left; `admitted` finds it there."""
        if self.watched:
            self.book.adopt(key, need, trio.current_time())

    def forget(self, key: Key) -> None:
        """The service is no longer this host's."""
        self.carry_out(self.book.forget(key, trio.current_time()))
        self.request_sample()

    def replacement(self, key: Key, need: Need) -> Strategy | Refusal:
        """Return how the engine of a service gives way to one of another plan, or why it should not yet."""
        return self.book.replacement(key, need, trio.current_time()) if self.watched else Strategy.RECREATE

    def permanent_refusal(self, key: Key, need: Need) -> Refusal | None:
        """Return why a service could not start if it had the host to itself; None if it could, or it is not known."""
        return self.book.permanent_refusal(key, need, trio.current_time())

    def started(self, allocation: Allocation, pid: int) -> None:
        """The engine's process has been started, or found."""
        self.book.records.change(allocation.reservation, pid=pid)
        self.request_sample()

    def loaded(self, allocation: Allocation) -> None:
        """The engine answers."""
        self.book.loaded(allocation.reservation, trio.current_time())
        self.request_sample()

    def set_device_limit(self, limit_bytes: int) -> None:
        """An engine's GPU has told it how much it may hold."""
        self.book.set_device_limit(limit_bytes)
        self.request_sample()

    def take_over(self, allocation: Allocation) -> None:
        """The second engine of a service serves from now on; the first one is on its way out."""
        self.book.take_over(allocation.reservation, trio.current_time())

    # -- the host -------------------------------------------------------------------------------------------------

    def request_sample(self) -> None:
        """Have the host looked at without waiting for the next regular look."""
        self.sample_requested.set()

    def observe(self, sample: Sample, footprints: Mapping[int, int]) -> None:
        """Take in one look at the host; `decide` follows."""
        self.book.observe(sample, footprints, trio.current_time())

    def decide(self, decision: Decision) -> None:
        """Take in what follows from the look, and carry it out."""
        orders = self.book.decide(decision, trio.current_time())
        self.decided.set()
        self.decided = trio.Event()
        self.carry_out(orders)

    def capacity_summary(self) -> CapacitySummary | None:
        """What there is for engines; None before the first look."""
        return self.book.capacity_summary(trio.current_time())

    def view(self) -> MemoryView | None:
        """A snapshot for people and metrics; None before the first look."""
        return self.book.view(trio.current_time())

    # -- details --------------------------------------------------------------------------------------------------

    async def _reserved(self, wait: _Wait, report: Callable[[Refusal], None]) -> Reservation:
        while wait.reservation is None:
            if wait.refusal is not None:
                refusal, wait.refusal = wait.refusal, None
                report(refusal)
            await wait.changed.wait()
            wait.changed = trio.Event()
        return wait.reservation

    @contextmanager
    def _allocated(self, reservation: Reservation, scope: trio.CancelScope) -> Iterator[Allocation]:
        """Have orders reach the engine's task while the body runs; one may have come before."""
        reservation = self.book.records.change(reservation, held=True)  # from now on it can be told to go
        allocation = self._allocations[reservation.number] = Allocation(self.book, reservation, scope)
        if reservation.urgent:
            allocation.expedited.set()
        if reservation.evicted_why is not None:
            scope.cancel(reason=reservation.evicted_why)
        try:
            yield allocation
        finally:
            del self._allocations[reservation.number]

    def _release(self, reservation: Reservation) -> None:
        self.carry_out(self.book.release(reservation, trio.current_time()))
        self.request_sample()

    def carry_out(self, orders: Orders) -> None:
        """Pass on what the book has decided to the tasks that it concerns."""
        for order in orders:
            match order:
                case Grant(reservation):
                    if (wait := self._waits.get(reservation.key)) is not None:
                        wait.reservation = reservation
                        wait.changed.set()
                case ReportRefusal(key, refusal):
                    if (wait := self._waits.get(key)) is not None:
                        wait.refusal = refusal
                        wait.changed.set()
                case StopEngine(reservation, evict):
                    self._stop_engine(reservation, evict)
                case ExpediteStop(reservation):
                    if (allocation := self._allocations.get(reservation.number)) is not None:
                        allocation.expedited.set()

    def _stop_engine(self, reservation: Reservation, evict: Eviction) -> None:
        if reservation.role is Role.SERVING:  # a successor does not serve yet: its end is not reported
            self.notified(evict)
        if (allocation := self._allocations.get(reservation.number)) is not None:
            if reservation.urgent:
                allocation.expedited.set()
            allocation.scope.cancel(reason=evict.why)
