"""Set aside an amount of each account in the budget file, so that most requests need not wait for a write. Pure.

```
file:    spent ─┬─ set aside ──────────────────────────────┐
memory:  spent ─┴─ spent since the last write ─ reserved ──┴─ free for the next requests
```
A request may be sent while the amount in use (spent since the last write, or reserved) is within what the file sets
aside: if the process is killed, the next one charges at least what its requests have spent. The amount set aside
follows the load: the reservations, and twice what was in use beyond them; without requests it is zero.
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
        window_seconds: Length of the window.
        in_use: Amount that is reserved, or spent and not written yet.
        unwritten: The part of it that is spent.
        most: Largest amount in use since the last write.
        stored: Amount that the file sets aside; None after a failed write, which may have reached the file.
        held: Least amount that the file sets aside, even during a write.
    """

    window_seconds: float
    in_use: Amount = _NOTHING
    unwritten: Amount = _NOTHING
    most: Amount = _NOTHING
    stored: Amount | None = _NOTHING
    held: Amount = _NOTHING


@attrs.frozen(kw_only=True)
class Plan:
    """The next write, which is atomic.

    Attributes:
        held: Amounts to set aside, by account; zero removes the row.
        charges: Steps with spending since the last write.
    """

    held: tuple[Hold, ...]
    charges: tuple[Charge, ...]
    _unwritten: Mapping[AccountKey, Amount]


@attrs.define(eq=False)
class Holds:
    """Amounts that the file sets aside, and how much of each is in use."""

    _shares: dict[AccountKey, _Share] = attrs.field(factory=dict)
    _charges: dict[tuple[AccountKey, float], Charge] = attrs.field(factory=dict)

    def reserve(self, accounts: Mapping[AccountKey, Amount], window_seconds: Callable[[AccountKey], float]) -> bool:
        """Reserve for a request; return whether it may be sent at once, not only after the next plan is written."""
        is_held = True
        for key, amount in accounts.items():
            seconds = window_seconds(key)
            if (share := self._shares.get(key)) is None:
                share = self._shares[key] = _Share(seconds)
            share.window_seconds = seconds
            share.in_use = in_use = share.in_use + amount
            if in_use[0] > share.most[0] or in_use[1] > share.most[1]:
                share.most = Amount(*map(max, share.most, in_use))
            is_held = is_held and in_use[0] <= share.held[0] and in_use[1] <= share.held[1]
        return is_held

    def settle(self, accounts: Mapping[AccountKey, Amount], spent: Amount | None, charges: Sequence[Charge]) -> None:
        """Settle a finished request.

        Args:
            accounts: Its reservation.
            spent: Its charge in each account; None charges the reservation.
            charges: The steps to which it is charged, with all spending in them.
        """
        for key, reserved in accounts.items():
            share, amount = self._shares[key], reserved if spent is None else spent
            share.unwritten += amount
            share.in_use = Amount(share.in_use[0] + amount[0] - reserved[0], share.in_use[1] + amount[1] - reserved[1])
            if amount[0] > reserved[0] or amount[1] > reserved[1]:
                share.most = Amount(*map(max, share.most, share.in_use))
        for charge in charges:
            self._charges[charge.key, charge.ends] = charge

    @property
    def is_written(self) -> bool:
        """Whether the file is up to date, so that a write would change nothing."""
        return not self._charges and all(share.stored == share.in_use for share in self._shares.values())

    def plan(self, *, is_last: bool = False) -> Plan:
        """Return the next write; `written` or `failed` must be called before the next plan.

        Args:
            is_last: Whether no further requests are expected, so that nothing is set aside for them.
        """
        held, unwritten = [], {}
        for key, share in self._shares.items():
            reserved = share.in_use - share.unwritten
            spare = _NOTHING if is_last else share.most - reserved
            amount = reserved + spare + spare
            unwritten[key] = share.unwritten
            if amount != share.stored:
                share.held = Amount(*map(min, share.held, amount))  # until it is known which of the two the file has
                held.append(Hold(key=key, window_seconds=share.window_seconds, amount=amount))
        return Plan(held=tuple(held), charges=tuple(self._charges.values()), unwritten=unwritten)

    def written(self, plan: Plan) -> None:
        """Record that the plan is in the file."""
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
        """Record that the plan may or may not be in the file: only what both versions set aside is held."""
        for held in plan.held:
            self._shares[held.key].stored = None
