"""What a Redis or Valkey server computes for budgets, in one step each; and how it is asked. Pure.

An account is a hash. A field is the end of a step of its window, in milliseconds since 1970 by the server's clock, with
`t` for tokens or `n` for billionths of a dollar: `1795656509000:t`. What a request may take is added to its step when
it is reserved, and set right there when it is settled. So a router that dies leaves its requests charged as reserved,
and nothing has to be found out about it. A hash goes once all of it has left the window.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from llmkube.router.budgets.ledger import STEPS, Amount, Limit
from llmkube.router.budgets.meter import AccountKey

RESERVE: Final = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local tokens, dollars = tonumber(ARGV[1]), tonumber(ARGV[2])
local ends = {}
for place, key in ipairs(KEYS) do
  local window, step = tonumber(ARGV[4 * place - 1]), tonumber(ARGV[4 * place])
  local most_tokens, most_dollars = tonumber(ARGV[4 * place + 1]), tonumber(ARGV[4 * place + 2])
  local function fits(t, n)
    return (not most_tokens or t <= most_tokens) and (not most_dollars or n <= most_dollars)
  end
  local taken, order, t, n = {}, {}, 0, 0
  local fields = redis.call('HGETALL', key)
  for i = 1, #fields, 2 do
    local at, kind = string.match(fields[i], '^(%d+):(%a)$')
    at = tonumber(at)
    if at + window <= now then
      redis.call('HDEL', key, fields[i])
    else
      if not taken[at] then
        taken[at] = {t = 0, n = 0}
        table.insert(order, at)
      end
      taken[at][kind] = tonumber(fields[i + 1])
      if kind == 't' then t = t + tonumber(fields[i + 1]) else n = n + tonumber(fields[i + 1]) end
    end
  end
  if not fits(tokens, dollars) then return {place, -1} end
  if not fits(t + tokens, n + dollars) then
    table.sort(order)
    for _, at in ipairs(order) do
      t, n = t - taken[at].t, n - taken[at].n
      if fits(t + tokens, n + dollars) then return {place, at + window - now} end
    end
  end
  ends[place] = (math.floor(now / step) + 1) * step
end
for place, key in ipairs(KEYS) do
  local at = string.format('%d', ends[place])
  redis.call('HINCRBY', key, at .. ':t', ARGV[1])
  redis.call('HINCRBY', key, at .. ':n', ARGV[2])
  redis.call('PEXPIRE', key, ends[place] + tonumber(ARGV[4 * place - 1]) - now)
end
return {0, unpack(ends)}
"""
"""Reserves in all accounts and returns 0 and the ends of the steps; or in none, and returns the place of the account
without room, and in how many milliseconds there is some, -1 for never."""

SETTLE: Final = """
if not redis.call('SET', KEYS[1], '', 'NX', 'PX', 86400000) then return 0 end
for place = 2, #KEYS do
  local key, at = KEYS[place], ARGV[3 * place - 5]
  if redis.call('HEXISTS', key, at .. ':t') == 1 then
    redis.call('HINCRBY', key, at .. ':t', ARGV[3 * place - 4])
    redis.call('HINCRBY', key, at .. ':n', ARGV[3 * place - 3])
  end
end
return 0
"""
"""Sets right what was reserved; what has left its window meanwhile counts no more.

The first key marks for a day that this call has counted: one whose answer is lost is made again.
"""

USED: Final = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local said = {}
for place, key in ipairs(KEYS) do
  local t, n = 0, 0
  local fields = redis.call('HGETALL', key)
  for i = 1, #fields, 2 do
    local at, kind = string.match(fields[i], '^(%d+):(%a)$')
    if tonumber(at) + tonumber(ARGV[place]) > now then
      if kind == 't' then t = t + tonumber(fields[i + 1]) else n = n + tonumber(fields[i + 1]) end
    end
  end
  table.insert(said, t)
  table.insert(said, n)
end
return said
"""
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
class NoRoom:
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


def hash_of(router: str, key: AccountKey) -> str:
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
    return Call(keys=[hash_of(router, key) for key in limits], args=args)


def reserved(answer: Sequence[int], accounts: Sequence[AccountKey]) -> Mapping[AccountKey, int] | NoRoom:
    """Read what `RESERVE` has returned: the ends of the steps, or which account has no room."""
    place, *rest = answer
    if place == 0:
        return dict(zip(accounts, rest, strict=True))
    return NoRoom(key=accounts[place - 1], wait_seconds=None if rest[0] < 0 else rest[0] / 1000)


def settle_call(router: str, name: str, settlements: Sequence[Settlement]) -> Call:
    """Return how to set these right; a call counts once, however often it is made under its name."""
    args: list[str | int] = []
    for one in settlements:
        args += [one.ends, one.change.tokens, one.change.nano_usd]
    mark = f"llmkube:{{{router}}}:settled:{name}"
    return Call(keys=[mark, *(hash_of(router, one.key) for one in settlements)], args=args)


def used_call(router: str, windows: Mapping[AccountKey, float]) -> Call:
    """Return how to ask what is taken in these accounts, whose windows have so many seconds."""
    return Call(
        keys=[hash_of(router, key) for key in windows], args=[round(seconds * 1000) for seconds in windows.values()]
    )


def used(answer: Sequence[int], accounts: Sequence[AccountKey]) -> Mapping[AccountKey, Amount]:
    """Read what `USED` has returned."""
    pairs = zip(answer[::2], answer[1::2], strict=True)
    return {key: Amount(int(tokens), int(dollars)) for key, (tokens, dollars) in zip(accounts, pairs, strict=True)}
