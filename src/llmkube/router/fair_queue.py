"""Start-time fair queueing: a free slot goes to the tenant that has used the fewest tokens. Pure, without a clock.

Virtual time is in tokens. The next request of a tenant starts where its previous one ends, but no earlier than one
request (`largest`) before the start of the last admitted request. So an idle tenant is next, and its credit is bounded
by the largest recent request. Without that credit, an idle tenant that sends a second request soon would wait for one
turn of every other tenant: while requests of equal length wait, all starts are equal, and its own is a few tokens
later. When a request ends, its estimate is replaced by the tokens it used. Estimates alone earn no credit.
"""

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Final, Generic, TypeVar

import attrs

MAX_WAITING: Final = 256
"""Waiting requests per engine."""

MAX_REMEMBERED: Final = 1024
"""Idle tenants whose usage is remembered; beyond that, those with the lowest usage are forgotten."""

DECAY: Final = 0.97
"""Factor by which `largest` decays per finished request: a tenth is left after 76."""

Ticket = TypeVar("Ticket", bound=Hashable)


@attrs.define(eq=False)
class _Tenant(Generic[Ticket]):
    """Usage and waiting requests of one tenant.

    Attributes:
        finish: Virtual end of its last admitted request.
        waiting: Waiting requests with their estimated tokens and their slots, oldest first.
        running: Number of slots of admitted requests.
    """

    finish: float = 0.0
    waiting: dict[Ticket, tuple[int, int]] = attrs.field(factory=dict)
    running: int = 0


@attrs.define(eq=False)
class FairQueue(Generic[Ticket]):
    """Queue of one engine.

    Attributes:
        slots: Requests that the engine serves at a time.
        virtual_time: Virtual start of the last admitted request.
        waiting: Number of waiting requests.
        running: Number of slots of admitted requests.
        largest: Tokens of the largest recent request; decays with each finished request.
    """

    slots: int
    virtual_time: float = 0.0
    waiting: int = 0
    running: int = 0
    largest: float = 0.0
    _tenants: dict[str, _Tenant[Ticket]] = attrs.field(factory=dict)

    def waiting_of(self, tenant: str) -> int:
        """Return the number of waiting requests of a tenant."""
        return len(one.waiting) if (one := self._tenants.get(tenant)) is not None else 0

    @property
    def active(self) -> int:
        """Number of tenants with a waiting or running request."""
        return sum(1 for each in self._tenants.values() if each.waiting or each.running)

    def offer(self, tenant: str, ticket: Ticket, tokens: int, slots: int = 1) -> tuple[str, Ticket] | None:
        """Enqueue a request; return the tenant and request dropped for it, if the queue is full.

        The newest request of the tenant with the most waiting requests is dropped.
        """
        one = self._tenants.setdefault(tenant, _Tenant())
        one.waiting[ticket] = tokens, slots
        self.waiting += 1
        if self.waiting <= MAX_WAITING:
            return None
        name, longest = max(self._tenants.items(), key=lambda each: (len(each[1].waiting), each[1] is one))
        dropped = next(reversed(longest.waiting))
        self.remove(name, dropped)
        return name, dropped

    def admit(self) -> list[Ticket]:
        """Admit requests to free slots and return them; no other passes one that needs more slots than are free."""
        admitted: list[Ticket] = []
        while self.running < self.slots and self.waiting:
            ready = [each for each in self._tenants.values() if each.waiting]
            earliest = self._earliest
            one = min(ready, key=lambda each: (max(each.finish, earliest), each.running, each.finish))
            ticket, (tokens, slots) = next(iter(one.waiting.items()))
            if self.running and self.running + slots > self.slots:
                break
            del one.waiting[ticket]
            start = max(one.finish, earliest)
            self.virtual_time, one.finish = max(start, self.virtual_time), start + tokens
            one.running += slots
            self.waiting -= 1
            self.running += slots
            admitted.append(ticket)
        return admitted

    def remove(self, tenant: str, ticket: Ticket) -> None:
        """Remove a waiting request, if it is one."""
        one = self._tenants.get(tenant)
        if one is not None and one.waiting.pop(ticket, None) is not None:
            self.waiting -= 1
            self._prune()

    def ended(self, tenant: str, tokens: int, took: int, slots: int = 1) -> None:
        """Free the slots of an admitted request and charge the tokens it took; do nothing if the tenant has none."""
        one = self._tenants.get(tenant)
        if one is None or not one.running:
            return
        one.running -= slots
        self.running -= slots
        if took:
            self.largest = max(took, DECAY * self.largest)
        one.finish = max(self._earliest, one.finish + took - tokens)
        self._prune()

    @property
    def _earliest(self) -> float:
        """Virtual start of a request of an idle tenant."""
        return self.virtual_time - self.largest

    def _prune(self) -> None:
        """Forget tenants whose usage no longer delays them, and every tenant while the engine is idle."""
        if not self.running and not self.waiting:
            self._tenants.clear()
            return
        idle = [(each.finish, name) for name, each in self._tenants.items() if not each.running and not each.waiting]
        surplus, earliest = len(idle) - MAX_REMEMBERED, self._earliest
        for place, (finish, name) in enumerate(sorted(idle)):
            if finish <= earliest or place < surplus:
                del self._tenants[name]


@attrs.define(eq=False)
class Shares:
    """A resource that tenants share: each may have as much as is left, so that there is always some for another.

    Attributes:
        limit: All of it.
        taken: The part that is in use.
    """

    limit: int
    taken: int = 0
    _held: dict[str, int] = attrs.field(factory=dict)

    @contextmanager
    def hold(self, tenant: str, amount: int) -> Iterator[bool]:
        """Hold an amount for a tenant, and return whether it may have it."""
        held = self._held.get(tenant, 0) + amount
        if held > self.limit - self.taken:
            yield False
            return
        self._held[tenant], self.taken = held, self.taken + amount
        try:
            yield True
        finally:
            self.taken -= amount
            self._held[tenant] -= amount
            if not self._held[tenant]:
                del self._held[tenant]
