"""Start-time fair queueing: a free slot goes to the tenant that has had the fewest tokens. Pure, without a clock.

A tenant's next request starts where its last one ends, in tokens, and not earlier than one request before the start of
what was admitted last: who was quiet is next, and saves up no more than the largest request that was computed of late.
Without that one, a quiet tenant that asks again soon would wait for a turn of all others: while requests of one length
wait, the starts of all are the same, and its own a few tokens later. What a request took replaces what it was taken to
take; what a tenant only claims to need lets it save up nothing.
"""

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

import attrs

MAX_WAITING: Final = 256
"""In front of one engine."""

MAX_REMEMBERED: Final = 1024
"""Tenants without a request whose tokens still count; of more, those that had the fewest are forgotten."""

DECAY: Final = 0.97
"""What of the largest request is left with each one that ends after it: a tenth after 76."""

Ticket = TypeVar("Ticket", bound=Hashable)


@attrs.define(eq=False)
class _Tenant(Generic[Ticket]):
    """What one tenant has had, and what of it waits.

    Attributes:
        finish: Where its last admitted request ends, in tokens.
        waiting: Its requests with what each is taken to take, oldest first.
        running: How many are admitted.
    """

    finish: float = 0.0
    waiting: dict[Ticket, int] = attrs.field(factory=dict)
    running: int = 0


@attrs.define(eq=False)
class FairQueue(Generic[Ticket]):
    """The requests of one engine.

    Attributes:
        slots: How many it serves at a time.
        virtual_time: Start of what was admitted last, in tokens.
        waiting: How many wait.
        running: How many are admitted.
        largest: What the largest request took, in tokens; older ones count less and less.
    """

    slots: int
    virtual_time: float = 0.0
    waiting: int = 0
    running: int = 0
    largest: float = 0.0
    _tenants: dict[str, _Tenant[Ticket]] = attrs.field(factory=dict)

    def waiting_of(self, tenant: str) -> int:
        """Return how many requests of a tenant wait."""
        return len(one.waiting) if (one := self._tenants.get(tenant)) is not None else 0

    @property
    def active(self) -> int:
        """How many tenants have a request that waits or runs."""
        return sum(1 for each in self._tenants.values() if each.waiting or each.running)

    @property
    def remembered(self) -> int:
        """How many tenants are known."""
        return len(self._tenants)

    def offer(self, tenant: str, ticket: Ticket, tokens: int) -> tuple[str, Ticket] | None:
        """Let a request wait; return the one that leaves for it, and whose: the newest of the tenant with the most."""
        one = self._tenants.setdefault(tenant, _Tenant())
        one.waiting[ticket] = tokens
        self.waiting += 1
        if self.waiting <= MAX_WAITING:
            return None
        name, longest = max(self._tenants.items(), key=lambda each: (len(each[1].waiting), each[1] is one))
        dropped = next(reversed(longest.waiting))
        self.remove(name, dropped)
        return name, dropped

    def admit(self) -> list[Ticket]:
        """Return the requests whose turn it is now."""
        admitted: list[Ticket] = []
        while self.running < self.slots and self.waiting:
            ready = [each for each in self._tenants.values() if each.waiting]
            earliest = self._earliest
            one = min(ready, key=lambda each: (max(each.finish, earliest), each.running, each.finish))
            ticket, tokens = next(iter(one.waiting.items()))
            del one.waiting[ticket]
            start = max(one.finish, earliest)
            self.virtual_time, one.finish = max(start, self.virtual_time), start + tokens
            one.running += 1
            self.waiting -= 1
            self.running += 1
            admitted.append(ticket)
        return admitted

    def remove(self, tenant: str, ticket: Ticket) -> None:
        """Forget a request that waits; one that does not is nothing."""
        one = self._tenants.get(tenant)
        if one is not None and one.waiting.pop(ticket, None) is not None:
            self.waiting -= 1
            self._prune()

    def ended(self, tenant: str, tokens: int, took: int) -> None:
        """Free the slot of an admitted request, and charge what it took; of a tenant that has none it is nothing."""
        one = self._tenants.get(tenant)
        if one is None or not one.running:
            return
        one.running -= 1
        self.running -= 1
        if took:
            self.largest = max(took, DECAY * self.largest)
        one.finish = max(self._earliest, one.finish + took - tokens)
        self._prune()

    def take_slot(self) -> bool:
        """Take a free slot without waiting, for no tenant; return whether there was one, which `return_slot` frees."""
        if self.running >= self.slots:
            return False
        self.running += 1
        return True

    def return_slot(self) -> None:
        """Free a slot that `take_slot` has taken."""
        self.running -= 1
        if self._tenants:
            self._prune()

    @property
    def _earliest(self) -> float:
        """Where a request starts of a tenant that was quiet."""
        return self.virtual_time - self.largest

    def _prune(self) -> None:
        """Forget whom nothing is held against; an engine at rest forgets all."""
        if not self.running and not self.waiting:
            self._tenants.clear()
            return
        idle = [(each.finish, name) for name, each in self._tenants.items() if not each.running and not each.waiting]
        surplus, earliest = len(idle) - MAX_REMEMBERED, self._earliest
        for place, (finish, name) in enumerate(sorted(idle)):
            if finish <= earliest or place < surplus:
                del self._tenants[name]
