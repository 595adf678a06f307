"""How much of each account a budget's file sets aside for requests, so that most of them wait for no write. Pure.

```
file:    taken ─┬─ set aside ──────────────────────────────┐
memory:  taken ─┴─ taken since the last write ─ reserved ──┴─ room for the next requests
```
A request may be sent while what is in use, taken since the last write or reserved, is within what the file sets aside:
a process that is killed then is charged by the next one with at least what its requests took. What is set aside
follows the load: what was in use beyond the reservations, twice, and without requests nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import attrs

from llmkube.router.budgets.ledger import Amount
from llmkube.router.budgets.meter import AccountKey, Charge, Hold

_NOTHING: Final = Amount()


@attrs.define(eq=False)
class _Share:
    """One account.

    Attributes:
        window_seconds: How long counts what is taken.
        in_use: What is reserved, and what was taken and is not written.
        unwritten: The latter alone.
        most: The most that was in use since the last write.
        stored: What the file sets aside; None where a write has failed, and may have come through.
        held: What the file sets aside at least, also while it is written to.
    """

    window_seconds: float
    in_use: Amount = _NOTHING
    unwritten: Amount = _NOTHING
    most: Amount = _NOTHING
    stored: Amount | None = _NOTHING
    held: Amount = _NOTHING

    @property
    def reserved(self) -> Amount:
        """What requests under way may take."""
        return self.in_use - self.unwritten


@attrs.frozen(kw_only=True)
class Plan:
    """What is to be written next, all of it or nothing.

    Attributes:
        held: What is set aside from then on, by account; nothing is none.
        charges: Steps in which something was taken since the last write.
    """

    held: tuple[Hold, ...]
    charges: tuple[Charge, ...]
    _unwritten: Mapping[AccountKey, Amount]


@attrs.define(eq=False)
class Holds:
    """What the file sets aside, and what of it is in use."""

    _shares: dict[AccountKey, _Share] = attrs.field(factory=dict)
    _charges: dict[tuple[AccountKey, float], Charge] = attrs.field(factory=dict)

    def reserve(self, accounts: Mapping[AccountKey, Amount], window_seconds: Callable[[AccountKey], float]) -> bool:
        """Take up a request, and return whether it may be sent at once; otherwise once the next plan is written."""
        is_held = True
        for key, amount in accounts.items():
            share = self._shares.setdefault(key, _Share(window_seconds(key)))
            share.window_seconds = window_seconds(key)
            share.in_use += amount
            share.most = share.most.at_least(share.in_use)
            is_held = is_held and share.held.covers(share.in_use)
        return is_held

    def settle(self, accounts: Mapping[AccountKey, Amount], spent: Amount | None, charges: Sequence[Charge]) -> None:
        """Take note that a request has ended.

        Args:
            accounts: What was reserved for it.
            spent: What it is charged under each; None is what was reserved.
            charges: The steps that it is charged to, with all that was taken in them.
        """
        for key, reserved in accounts.items():
            share, amount = self._shares[key], reserved if spent is None else spent
            share.unwritten += amount
            share.in_use += amount - reserved
            share.most = share.most.at_least(share.in_use)
        for charge in charges:
            self._charges[charge.key, charge.ends] = charge

    @property
    def is_written(self) -> bool:
        """Whether the file says what is: another write would change nothing."""
        return not self._charges and all(share.stored == share.in_use for share in self._shares.values())

    def plan(self, *, is_last: bool = False) -> Plan:
        """Return what is to be written; `written` or `failed` has to follow before the next one.

        Args:
            is_last: Whether no request comes any more, so that room is left for none.
        """
        held, unwritten = [], {}
        for key, share in self._shares.items():
            spare = _NOTHING if is_last else share.most - share.reserved
            amount = share.reserved + spare + spare
            unwritten[key] = share.unwritten
            if amount != share.stored:
                share.held = share.held.at_most(amount)  # until it is known which of the two the file has
                held.append(Hold(key=key, window_seconds=share.window_seconds, amount=amount))
        return Plan(held=tuple(held), charges=tuple(self._charges.values()), unwritten=unwritten)

    def written(self, plan: Plan) -> None:
        """Take note that the file has it."""
        for held in plan.held:
            share = self._shares[held.key]
            share.stored = share.held = held.amount
        for charge in plan.charges:
            if self._charges[charge.key, charge.ends] is charge:
                del self._charges[charge.key, charge.ends]
        for key, amount in plan._unwritten.items():  # noqa: SLF001 (of this module)
            share = self._shares[key]
            share.unwritten -= amount
            share.in_use -= amount
            share.most = share.in_use
            if share.in_use == _NOTHING == share.stored:
                del self._shares[key]

    def failed(self, plan: Plan) -> None:
        """Take note that the file may have it, and may not: what both set aside is held."""
        for held in plan.held:
            self._shares[held.key].stored = None
