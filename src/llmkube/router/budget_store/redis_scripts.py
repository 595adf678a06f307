"""Atomic scripts for budgets at a Redis or Valkey server, and the calls that run them. Pure.

An account is a hash. Each field is the end of a step of its window, in milliseconds since 1970 by the server's clock,
with `t` for tokens or `n` for billionths of a dollar: `1795656509000:t`. A reservation is added to its step, and
settlement corrects the same step. If a router dies, its requests stay charged as reserved, and no clean-up is needed.
A hash expires once all of it has left the window.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from llmkube.base.package_data import read_text
from llmkube.router.budgets.ledger import STEPS, Amount, Limit
from llmkube.router.budgets.meter import AccountKey

RESERVE: Final = read_text(__package__, "reserve.lua")
"""Reserves in all accounts, and returns 0 and the ends of the steps; or in none, and returns the 1-based index of the
full account and the milliseconds until it has room, -1 for never."""

SETTLE: Final = read_text(__package__, "settle.lua")
"""Corrects reserved amounts; a step that has left its window is ignored.

The first key marks the call as applied for a day, so that a call whose response was lost can be repeated.
"""

USED: Final = read_text(__package__, "used.lua")
"""Returns the tokens and billionths of a dollar used in each account."""


@attrs.frozen(kw_only=True)
class Call:
    """KEYS and ARGV of one run of a script."""

    keys: Sequence[str]
    args: Sequence[str | int]


@attrs.frozen(kw_only=True)
class FullAccount:
    """An account that cannot admit a request; `wait_seconds` is the least time until it can, None for never."""

    key: AccountKey
    wait_seconds: float | None


@attrs.frozen(kw_only=True)
class Settlement:
    """A correction of an account's step.

    Attributes:
        key: The account.
        ends: End of the step, in milliseconds since 1970.
        change: Spending minus reservation.
    """

    key: AccountKey
    ends: int
    change: Amount


def hash_key(router: str, key: AccountKey) -> str:
    """Return the name of an account's hash; all hashes of a router are in one slot of a Redis cluster."""
    budget, team = key
    return f"llmkube:{{{router}}}:budget:{budget}:{team}"


def reserve_call(router: str, most: Amount, limits: Mapping[AccountKey, Limit]) -> Call:
    """Return the call that reserves an amount in each of these accounts."""
    args: list[str | int] = [most.tokens, most.nano_usd]
    for limit in limits.values():
        window = round(limit.window_seconds * 1000)
        args += [window, -(-window // STEPS)]
        args += ["" if each is None else each for each in (limit.tokens, limit.nano_usd)]
    return Call(keys=[hash_key(router, key) for key in limits], args=args)


def parse_reserved(answer: Sequence[int], accounts: Sequence[AccountKey]) -> Mapping[AccountKey, int] | FullAccount:
    """Parse the result of `RESERVE`: the ends of the steps, or the full account."""
    index, *rest = answer
    if index == 0:
        return dict(zip(accounts, rest, strict=True))
    return FullAccount(key=accounts[index - 1], wait_seconds=None if rest[0] < 0 else rest[0] / 1000)


def settle_call(router: str, name: str, settlements: Sequence[Settlement]) -> Call:
    """Return the call that applies settlements; calls with the same name are applied only once."""
    args: list[str | int] = []
    for one in settlements:
        args += [one.ends, one.change.tokens, one.change.nano_usd]
    mark = f"llmkube:{{{router}}}:settled:{name}"
    return Call(keys=[mark, *(hash_key(router, one.key) for one in settlements)], args=args)


def used_call(router: str, windows: Mapping[AccountKey, float]) -> Call:
    """Return the call that queries the usage of accounts, given with the seconds of their windows."""
    keys = [hash_key(router, key) for key in windows]
    return Call(keys=keys, args=[round(seconds * 1000) for seconds in windows.values()])


def used(answer: Sequence[int], accounts: Sequence[AccountKey]) -> Mapping[AccountKey, Amount]:
    """Parse the result of `USED`."""
    pairs = zip(answer[::2], answer[1::2], strict=True)
    return {key: Amount(int(tokens), int(dollars)) for key, (tokens, dollars) in zip(accounts, pairs, strict=True)}
