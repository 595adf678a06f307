"""One host's memory as scopes: within `admitted()` and `reserve_successor()` the bytes belong to one engine.

```
 wait ──▶ admitted ──▶ spawned, loaded, served, stopped ──▶ process gone ──▶ memory released
          └ reserved ───────────────────────────────────────────────────────┘ (or its deadline has passed)
```

The `Book` decides; the ledger carries out its orders at once and without an await, so that records and running engines
never differ. A waiting service holds no memory.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

import attrs
import trio

from llmkube.k8s.resource import Key
from llmkube.supervisor.host.sample import Sample
from llmkube.supervisor.memory.admission import Strategy
from llmkube.supervisor.memory.book import Book, ExpediteStop, Grant, Orders, ReportDoors, ReportRefusal, StopEngine
from llmkube.supervisor.memory.capacity import CapacitySummary, MemoryView
from llmkube.supervisor.memory.eviction import Decision, Eviction
from llmkube.supervisor.memory.refusal import Refusal
from llmkube.supervisor.memory.reservation import MemorySpec, Need, Reservation, Role, Usage
from llmkube.weights.estimate.demand import Component, Location


@attrs.define(eq=False)
class Allocation:
    """The value of a ledger scope: a reservation, and the means to stop its engine.

    Attributes:
        scope: Cancelled when the engine must stop.
        expedited: Set when its requests are cut short.
        unload: Stops the engine, for a reason, once its requests have ended; None while it has no process.
    """

    _book: Book
    _reservation: Reservation
    scope: trio.CancelScope
    expedited: trio.Event = attrs.field(factory=trio.Event)
    unload: Callable[[str], None] | None = None

    @property
    def reservation(self) -> Reservation:
        """The newest state of the reservation."""
        return self._book.records.newest(self._reservation)

    @property
    def urgent(self) -> bool:
        """Whether the engine must stop without waiting for its requests."""
        return self.expedited.is_set()

    def record_activity(self) -> None:
        """Record that the engine has just had work."""
        self._book.record_activity(self._reservation, trio.current_time())


@attrs.define(eq=False)
class _Wait:
    """The wait of a service: the reservation that ends it, or the next refusal to report."""

    reservation: Reservation | None = None
    refusal: Refusal | None = None
    changed: trio.Event = attrs.field(factory=trio.Event)


@attrs.define(eq=False)
class Ledger:
    """The tasks that hold memory, wait for it, and must release it.

    Attributes:
        watched: Whether the host's memory is sampled; if not, every engine is admitted at once.
        notified: Called with each eviction, before the scope is cancelled.
        doors_changed: Called when doors have been closed or opened.
        refused: Called with a service that waits, and why.
        sample_requested: Set to sample the host before the next interval.
        decided: Set, and replaced, at every decision.
    """

    book: Book = attrs.field(factory=Book)
    watched: bool = True
    notified: Callable[[Eviction], None] = lambda _: None
    doors_changed: Callable[[], None] = lambda: None
    refused: Callable[[Key, Refusal], None] = lambda *_: None
    sample_requested: trio.Event = attrs.field(factory=trio.Event)
    decided: trio.Event = attrs.field(factory=trio.Event)
    _waits: dict[Key, _Wait] = attrs.field(factory=dict)
    _allocations: dict[int, Allocation] = attrs.field(factory=dict)

    # -- scopes ---------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def admitted(
        self, key: Key, need: Need, *, scope: trio.CancelScope, report: Callable[[Refusal], None]
    ) -> AsyncIterator[Allocation]:
        """Wait for memory and hold it while the body runs, and after that until it is released.

        Args:
            key: The service.
            need: The memory of its engine.
            scope: Encloses this context; cancelled when the engine must stop.
            report: Called with why the service waits, at once and whenever that changes.
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
                self.carry_out(self.book.admit(trio.current_time()))  # others may be next, and doors open
            if wait.reservation is not None:  # even if the wait was cancelled when it had just been granted
                self._release(wait.reservation)

    @contextmanager
    def reserve_successor(self, key: Key, need: Need, *, scope: trio.CancelScope) -> Iterator[Allocation | None]:
        """Hold memory for a second engine of a service while the body runs; yield None if there is not enough now.

        Args:
            key: The service; its first engine keeps its reservation.
            need: The memory of the second engine.
            scope: Cancelled when memory is short: the engine that does not serve yet is stopped first.
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
        """Return when an engine that is already stopping must stop at once: the host is about to run out of memory."""
        while not (allocation.urgent or self.book.is_critical):
            await self.decided.wait()

    # -- services and engines -------------------------------------------------------------------------------------

    def set_spec(self, key: Key, spec: MemorySpec) -> None:
        """Update the spec of a service; an edit may admit a service that waits."""
        self.carry_out(self.book.set_spec(key, spec, trio.current_time()))

    def set_usage(self, key: Key, usage: Usage) -> None:
        """Set the requests and users of a service; when there are none, another one may displace it at once."""
        self.carry_out(self.book.set_usage(key, usage, trio.current_time()))

    def adopt(self, key: Key, need: Need) -> None:
        """Reserve at once the memory of a running engine that an earlier agent started; `admitted` uses it."""
        if self.watched:
            self.book.adopt(key, need, trio.current_time())

    def forget(self, key: Key) -> None:
        """Remove a service that this host no longer serves."""
        self.carry_out(self.book.forget(key, trio.current_time()))
        self.request_sample()

    def replacement(self, key: Key, need: Need) -> Strategy | Refusal:
        """Return how to replace the engine of a service by one with another plan, or why not to do it yet."""
        return self.book.replacement(key, need, trio.current_time()) if self.watched else Strategy.RECREATE

    def permanent_refusal(self, key: Key, need: Need) -> Refusal | None:
        """Return why a service could not start even alone on the host; None if it could, or that is not known."""
        return self.book.permanent_refusal(key, need, trio.current_time())

    def started(self, allocation: Allocation, pid: int) -> None:
        """Record the engine's process, started or adopted."""
        self.book.records.change(allocation.reservation, pid=pid)
        self.request_sample()

    def record_loaded(self, allocation: Allocation, *, adopted: bool = False) -> None:
        """Record that the engine answers; the load time of an adopted one is not recorded."""
        self.book.record_loaded(allocation.reservation, trio.current_time(), adopted=adopted)
        self.request_sample()

    def release_parts(self, allocation: Allocation, parts: Iterable[Component]) -> None:
        """Release parts of a reservation that its engine does not use."""
        need = allocation.reservation.need
        for part in parts:
            size = part.size_bytes
            on_device = size if part.place is Location.DEVICE else 0
            if on_device and need.devices:
                kept = max(0.0, 1 - size / sum(need.devices.values()))
                devices = {name: int(count * kept) for name, count in need.devices.items()}
                need = attrs.evolve(need, devices=devices)
                continue
            total, device = max(0, need.total_bytes - size), max(0, need.device_bytes - on_device)
            need = attrs.evolve(need, total_bytes=total, device_bytes=device)
        self.book.records.change(allocation.reservation, need=need)
        self.request_sample()

    def set_device_limit(self, limit_bytes: int) -> None:
        """Set the GPU memory limit that an engine reported."""
        self.book.set_device_limit(limit_bytes)
        self.request_sample()

    def take_over(self, allocation: Allocation) -> None:
        """Make the second engine of a service the serving one; the first one is exiting."""
        self.book.take_over(allocation.reservation, trio.current_time())

    # -- the host -------------------------------------------------------------------------------------------------

    def request_sample(self) -> None:
        """Request a sample of the host before the next interval."""
        self.sample_requested.set()

    def observe(self, sample: Sample, footprints: Mapping[int, int]) -> None:
        """Record a sample of the host; call `decide` next."""
        self.book.observe(sample, footprints, trio.current_time())

    def decide(self, decision: Decision) -> None:
        """Apply a decision about pressure, and carry out its orders."""
        orders = self.book.decide(decision, trio.current_time())
        self.decided.set()
        self.decided = trio.Event()
        self.carry_out(orders)

    def capacity_summary(self) -> CapacitySummary | None:
        """Return the memory for engines; None before the first sample."""
        return self.book.capacity_summary(trio.current_time())

    def view(self) -> MemoryView | None:
        """Return a snapshot for people and metrics; None before the first sample."""
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
        """Route orders to the engine's task while the body runs, including one that came before."""
        reservation = self.book.records.change(reservation, held=True)  # from now on it can be stopped
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
        """Carry out the book's orders on the tasks that they concern."""
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
                        self.refused(key, refusal)
                case StopEngine(reservation, evict):
                    self._stop_engine(reservation, evict)
                case ReportDoors():
                    self.doors_changed()
                case ExpediteStop(reservation):
                    if (allocation := self._allocations.get(reservation.number)) is not None:
                        allocation.expedited.set()

    def _stop_engine(self, reservation: Reservation, evict: Eviction) -> None:
        if reservation.role is Role.SERVING:  # a successor does not serve yet: its end is not reported
            self.notified(evict)
        if (allocation := self._allocations.get(reservation.number)) is not None:
            if reservation.urgent:
                allocation.expedited.set()
            if allocation.unload is None or reservation.urgent or not reservation.spec.on_request:
                allocation.scope.cancel(reason=evict.why)
            else:  # the next request loads it: those that it has may take their time
                allocation.unload(evict.why)
