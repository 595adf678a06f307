"""What a Redis or Valkey server computes for budgets, in one step each; and how it is asked. Pure.

An account is a hash. A field is the end of a step of its window, in milliseconds since 1970 by the server's clock, with
`t` for tokens or `n` for billionths of a dollar: `1795656509000:t`. What a request may take is added to its step when
it is reserved, and set right there when it is settled. So a router that dies leaves its requests charged as reserved,
and nothing has to be found out about it. A hash goes once all of it has left the window.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from llmkube.base.package_data import read_text
from llmkube.router.budgets.ledger import STEPS, Amount, Limit
from llmkube.router.budgets.meter import AccountKey

RESERVE: Final = read_text(__package__, "reserve.lua")
"""Reserves in all accounts and returns 0 and the ends of the steps; or in none, and returns the place of the account
without room, and in how many milliseconds there is some, -1 for never."""

SETTLE: Final = read_text(__package__, "settle.lua")
"""Sets right what was reserved; what has left its window meanwhile counts no more.

The first key marks for a day that this call has counted: one whose answer is lost is made again.
"""

USED: Final = read_text(__package__, "used.lua")
"""Returns tokens and billionths of a dollar of each account."""


@attrs.frozen(kw_only=True)
class Call:
    """One run of a script.

    Attributes:
        keys: Names of hashes.
        args: Further arguments.
    """

    keys: Sequence[str]
    args: Sequence[str | int]


@attrs.frozen(kw_only=True)
class FullAccount:
    """An account has no room.

    Attributes:
        key: Which.
        wait_seconds: When there is some at the earliest; None for never.
    """

    key: AccountKey
    wait_seconds: float | None


@attrs.frozen(kw_only=True)
class Settlement:
    """How an account's step is set right.

    Attributes:
        key: The account.
        ends: When the step ends, in milliseconds since 1970.
        change: What was taken, less what was reserved.
    """

    key: AccountKey
    ends: int
    change: Amount


def hash_key(router: str, key: AccountKey) -> str:
    """Return the name of an account's hash; those of a router are in one slot of a Redis cluster."""
    budget, team = key
    return f"llmkube:{{{router}}}:budget:{budget}:{team}"


def reserve_call(router: str, most: Amount, limits: Mapping[AccountKey, Limit]) -> Call:
    """Return how to reserve so much in these accounts."""
    args: list[str | int] = [most.tokens, most.nano_usd]
    for limit in limits.values():
        window = round(limit.window_seconds * 1000)
        args += [window, -(-window // STEPS)]
        args += ["" if each is None else each for each in (limit.tokens, limit.nano_usd)]
    return Call(keys=[hash_key(router, key) for key in limits], args=args)


def parse_reserved(answer: Sequence[int], accounts: Sequence[AccountKey]) -> Mapping[AccountKey, int] | FullAccount:
    """Read what `RESERVE` has returned: the ends of the steps, or which account has no room."""
    index, *rest = answer
    if index == 0:
        return dict(zip(accounts, rest, strict=True))
    return FullAccount(key=accounts[index - 1], wait_seconds=None if rest[0] < 0 else rest[0] / 1000)


def settle_call(router: str, name: str, settlements: Sequence[Settlement]) -> Call:
    """Return how to set these right; a call counts once, however often it is made under its name."""
    args: list[str | int] = []
    for one in settlements:
        args += [one.ends, one.change.tokens, one.change.nano_usd]
    mark = f"llmkube:{{{router}}}:settled:{name}"
    return Call(keys=[mark, *(hash_key(router, one.key) for one in settlements)], args=args)


def used_call(router: str, windows: Mapping[AccountKey, float]) -> Call:
    """Return how to ask what is taken in these accounts, whose windows have so many seconds."""
    return Call(
        keys=[hash_key(router, key) for key in windows], args=[round(seconds * 1000) for seconds in windows.values()]
    )


def used(answer: Sequence[int], accounts: Sequence[AccountKey]) -> Mapping[AccountKey, Amount]:
    """Read what `USED` has returned."""
    pairs = zip(answer[::2], answer[1::2], strict=True)
    return {key: Amount(int(tokens), int(dollars)) for key, (tokens, dollars) in zip(accounts, pairs, strict=True)}
