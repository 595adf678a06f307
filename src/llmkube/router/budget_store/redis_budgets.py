"""Budgets that several processes of one router share: each request is reserved at a Redis or Valkey server.

A request is sent only after the server has confirmed its reservation. If a router dies, its requests stay charged as
reserved. When a request finishes, the unused part is released, with retries while the server is down.

```
 run ┬ connect                     again after each change of the store in the config
     └ settle, and refresh usage
 admit                             in the task of each request
```

Each call is one atomic script. An account is a hash: each field is the end of a step of its window, in milliseconds
since 1970 by the server's clock, with `t` for tokens or `n` for billionths of a dollar: `1795656509000:t`. A
reservation is added to its step, and settlement corrects the same step. A hash expires once all of it has left the
window.
"""

import random
import secrets
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Never

import attrs
import structlog
import trio

from llmkube.base.backoff import Backoff
from llmkube.base.errors import first_leaf
from llmkube.base.package_data import read_text
from llmkube.router.budgets.ledger import STEPS, Amount, Limit
from llmkube.router.budgets.meter import (
    AccountKey,
    BudgetStoreError,
    Consumption,
    ExhaustedBudget,
    Reservation,
    UsageBound,
    account_team,
    budget_usage,
    charged_amount,
    exhausted_budget,
    limit_of,
)
from llmkube.router.config.routing_config import RedisStore, RoutingConfig
from llmkube.router.policy.request_facts import RequestFacts

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


if TYPE_CHECKING:
    import coredis

TIMEOUT_SECONDS: Final = 5.0
"""Longest wait of a request for the server; then it is refused."""

REFRESH_SECONDS: Final = 10.0
"""Greatest age of the amounts in status and metrics."""

MAX_UNSETTLED: Final = 10_000
"""Settlements that wait while the server is down; beyond that, the oldest are dropped and stay charged as reserved."""

BATCH_SIZE: Final = 100
"""Accounts in one call, so that no call blocks the server for long."""

RECONNECT_BACKOFF: Final = Backoff(base_seconds=0.5, cap_seconds=30.0)

_log: structlog.stdlib.BoundLogger = structlog.get_logger()


@attrs.define(eq=False)
class RedisBudgets:
    """The accounts at the server that the config names; idle if it names none.

    Attributes:
        read_password: Returns the password in a file.
        tls: Returns the TLS context.
        rng: Jitter of the attempts to connect.
        problem: Why nothing can be reserved; "" while it can.
    """

    read_password: Callable[[str], str]
    tls: Callable[[], ssl.SSLContext]
    rng: random.Random
    problem: str = ""
    _config: RoutingConfig | None = None
    _changed: trio.Event = attrs.field(factory=trio.Event)  # the config, or the settlements
    _ready: trio.Event = attrs.field(factory=trio.Event)  # the server has responded
    _client: "coredis.Redis[str] | None" = None
    _unsettled: deque[Settlement] = attrs.field(factory=deque)
    _in_flight: list[Settlement] = attrs.field(factory=list)  # sent, but not confirmed by the server
    _in_flight_id: str = ""
    _taken: dict[AccountKey, Amount] = attrs.field(factory=dict)  # only accounts that this process has used
    _failures: int = 0

    def reload(self, config: RoutingConfig) -> None:
        """Apply a config."""
        self._config = config
        self._changed.set()

    async def admit(self, router: str, bound: UsageBound, facts: RequestFacts) -> Reservation | ExhaustedBudget:
        """Reserve the bound of a request in every budget that applies to it, or in none.

        Raises:
            BudgetStoreError: The server did not confirm it. If it was reserved, it stays charged until it leaves
                the window.
        """
        budgets = {(each.name, account_team(each, facts, self._taken)): each for each in bound.budgets}
        limits = {key: limit_of(budget) for key, budget in budgets.items()}
        answer = await self._run_confirmed(RESERVE, reserve_call(router, bound.most, limits))
        found = parse_reserved(answer, list(limits))
        if isinstance(found, FullAccount):
            return exhausted_budget(budgets[found.key], bound.most, found.wait_seconds)
        for key in found:
            self._taken[key] = self._taken.get(key, Amount()) + bound.most
        accounts = dict.fromkeys(found, bound.most)
        return Reservation(accounts=accounts, copies=bound.copies, cap=bound.cap, steps=found)

    def settle(self, reservation: Reservation, spent: Consumption | None) -> None:
        """Release what a request did not use; None keeps the whole reservation charged."""
        if spent is None:
            return
        amount = charged_amount(spent, reservation.copies)
        for key, most in reservation.accounts.items():
            if amount == most:
                continue
            self._taken[key] = self._taken.get(key, Amount()) - most + amount
            self._unsettled.append(Settlement(key=key, ends=reservation.steps[key], change=amount - most))
        if len(self._unsettled) > MAX_UNSETTLED:
            _log.error("settlements dropped, requests stay charged as reserved", error=self.problem)
            while len(self._unsettled) > MAX_UNSETTLED:
                self._unsettled.popleft()
        self._changed.set()

    def used(self, config: RoutingConfig) -> list[dict[str, Any]]:
        """Return the usage of each budget, seconds old, in the accounts that this process has used."""
        return budget_usage(config.budgets, self._taken)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> Never:
        """Stay connected to the store in the config and settle until cancelled, then settle what is left."""
        task_status.started()
        try:
            while True:
                await self._serve_config()
        finally:
            with trio.move_on_after(TIMEOUT_SECONDS, shield=True):
                await self._settle_remaining()

    async def _serve_config(self) -> None:
        """Serve the store in the config until the config changes or the store fails."""
        config = self._config
        if config is None or (store := _store_of(config)) is None:
            self.problem = ""
            await self._wait_for_change()
            return
        try:
            async with self._connected(store) as client:
                await self._serve(client, config.name, store)
        except* _errors() as group:
            self._record_failure(store, group)
            self._failures += 1
            pause = RECONNECT_BACKOFF.delay(self._failures, self.rng)
        else:
            pause = 0.0
        await trio.sleep(pause)

    async def _serve(self, client: "coredis.Redis[str]", router: str, store: RedisStore) -> None:
        refresh_at = trio.current_time()
        while self._config is not None and _store_of(self._config) == store:
            if self.problem or trio.current_time() >= refresh_at:
                await self._refresh_used(client, self._config)
                self._failures, self.problem = 0, ""
                self._ready.set()
                refresh_at = trio.current_time() + REFRESH_SECONDS
            await self._settle(client, router)
            with trio.move_on_at(refresh_at):
                await self._wait_for_change()

    async def _wait_for_change(self) -> None:
        """Return when the config has changed, or there is something to settle."""
        await self._changed.wait()
        self._changed = trio.Event()

    async def _settle(self, client: "coredis.Redis[str]", router: str) -> None:
        while self._in_flight or self._unsettled:
            if not self._in_flight:
                self._in_flight_id = secrets.token_hex(16)  # unique among the processes of this router
                self._in_flight = [self._unsettled.popleft() for _ in range(min(BATCH_SIZE, len(self._unsettled)))]
            # A call whose response was lost may have been applied: repeated with the same id, it has no second effect.
            with trio.fail_after(TIMEOUT_SECONDS):
                await _run(client, SETTLE, settle_call(router, self._in_flight_id, self._in_flight))
            self._in_flight = []

    async def _settle_remaining(self) -> None:
        config = self._config
        if not (self._in_flight or self._unsettled) or config is None or (store := _store_of(config)) is None:
            return
        try:
            async with self._connected(store) as client:
                await self._settle(client, config.name)
        except* _errors() as group:
            self._record_failure(store, group)

    async def _refresh_used(self, client: "coredis.Redis[str]", config: RoutingConfig) -> None:
        windows = {budget.name: float(budget.window_seconds) for budget in config.budgets}
        accounts = {key: windows[key[0]] for key in self._taken if key[0] in windows}
        found: dict[AccountKey, Amount] = {}
        keys = list(accounts)
        for at in range(0, max(1, len(keys)), BATCH_SIZE):  # without accounts, one empty call checks the server
            batch = keys[at : at + BATCH_SIZE]
            call = used_call(config.name, {key: accounts[key] for key in batch})
            with trio.fail_after(TIMEOUT_SECONDS):
                found |= used(await _run(client, USED, call), batch)
        # Accounts that requests have opened meanwhile were not part of the query.
        opened = {key: amount for key, amount in self._taken.items() if key not in accounts and key[0] in windows}
        self._taken = opened | {key: amount for key, amount in found.items() if amount != Amount()}

    async def _run_confirmed(self, script: str, call: Call) -> Sequence[int]:
        """Run a script for a request.

        Raises:
            BudgetStoreError: The script may have run or not.
        """
        try:
            with trio.fail_after(TIMEOUT_SECONDS):
                if not self.problem:  # the first requests may arrive before the connection is ready
                    await self._ready.wait()
                if self._client is None:
                    raise BudgetStoreError(self.problem or "the budget store is being changed")
                return await _run(self._client, script, call)
        except _errors() as exc:
            if self._config is not None and (store := _store_of(self._config)) is not None:
                self._record_failure(store, exc)
            self._changed.set()
            raise BudgetStoreError(self.problem or _describe(exc)) from exc

    @asynccontextmanager
    async def _connected(self, store: RedisStore) -> AsyncIterator["coredis.Redis[str]"]:
        # The import takes half a second and 20 MiB, which a router without a budget store should not pay.
        import coredis  # noqa: PLC0415 - see above
        from coredis.retry import NoRetryPolicy  # noqa: PLC0415 - see above

        client = coredis.Redis(
            store.host,
            store.port,
            store.database,
            username=store.username or None,
            password=self.read_password(store.password_file) or None if store.password_file else None,
            ssl_context=await trio.to_thread.run_sync(self.tls) if store.tls else None,
            ssl=store.tls,
            connect_timeout=TIMEOUT_SECONDS,
            decode_responses=True,
            retry_policy=NoRetryPolicy(),  # a retried reservation would be charged twice
            client_name="llmkube-router",
        )
        async with client:
            self._client = client
            try:
                yield client
            finally:
                self._client = None
                self._ready = trio.Event()

    def _record_failure(self, store: RedisStore, group: BaseException) -> None:
        problem = f"the budget store {store.host}:{store.port} is unavailable: {_describe(group)}"
        if problem != self.problem:
            _log.error("budget store failed, requests under a budget refused", error=problem)
        self.problem = problem


def _store_of(config: RoutingConfig) -> RedisStore | None:
    return config.budget_store if config.budgets else None


async def _run(client: "coredis.Redis[str]", script: str, call: Call) -> Sequence[int]:
    answer: object = await client.register_script(script)(keys=list(call.keys), args=list(call.args))
    return [int(each) for each in answer] if isinstance(answer, list) else []


def _errors() -> tuple[type[Exception], ...]:
    """Return the errors of a server that is unreachable, slow, or refuses a call."""
    import anyio  # noqa: PLC0415 - as `_connected`
    from coredis.exceptions import RedisError  # noqa: PLC0415 - as `_connected`

    lost = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream)
    return (RedisError, OSError, trio.TooSlowError, *lost)


def _describe(error: BaseException) -> str:
    error = first_leaf(error)
    if isinstance(error, trio.TooSlowError):
        return f"no response within {TIMEOUT_SECONDS:g} s"
    return str(error) or type(error).__name__
