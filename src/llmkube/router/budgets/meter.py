"""Reserve and settle what requests use of their budgets. Pure; the clock is an argument.

Usage is bounded before a request is sent: its prompt has at most one token for each byte of its body, its answer at
most as many as it requests. Under a budget, a request without a limit gets `DEFAULT_TOKENS`. The limit is sent in one
field that every backend reads, because backends differ in which of several fields they obey. The reservation is the
price of the most expensive backend that may answer, and as much again for each copy to a shadow. If the backend does
not report tokens, the whole reservation is charged.
"""

import math
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, Final, TypeGuard

import attrs

from llmkube.base.errors import ExternalError
from llmkube.router.budgets.ledger import Account, Amount, Limit
from llmkube.router.budgets.usage import Usage
from llmkube.router.config.routing_config import Budget, Prices, RoutingConfig
from llmkube.router.policy.decision import Decision
from llmkube.router.policy.request_facts import RequestFacts


class BudgetStoreError(ExternalError):
    """A reservation cannot be stored durably, so the request is not sent."""


DEFAULT_TOKENS: Final = 4096
"""Longest answer to a request that sets no limit, if a budget applies."""

MAX_ACCOUNTS: Final = 10_000
"""Accounts of one router; under scope team, further teams share one account."""

_OTHER_TEAMS: Final = "\0others"
_NANO: Final = Decimal(1_000_000_000)
LIMIT_FIELDS: Final = ("max_completion_tokens", "max_tokens", "max_output_tokens", "n_predict")
ANSWER_COUNT_FIELDS: Final = frozenset({"n", "n_cmpl", "best_of"})
"""Fields with the number of answers; llama.cpp's server prefers `n_cmpl` to `n`."""

PROMPT_FIELDS: Final = ("prompt", "input", "documents", "texts", "content")

AccountKey = tuple[str, str]
"""Name of a budget, and the team under scope team, else ""."""


@attrs.frozen(kw_only=True)
class UsageBound:
    """Upper bound of a request's usage.

    Attributes:
        budgets: Budgets that apply to it.
        most: The most that it may use, in all copies.
        copies: Backends that may compute it: one, and each shadow.
        cap: Longest answer in tokens, sent to each backend; None if the model generates no text.
    """

    budgets: tuple[Budget, ...]
    most: Amount
    copies: int
    cap: int | None


@attrs.frozen(kw_only=True)
class Reservation:
    """Amounts reserved for a request under way.

    Attributes:
        accounts: Reserved amount by account.
        copies: Backends that may compute it: one, and each shadow.
        cap: Longest answer in tokens, sent to each backend; None if the model generates no text.
        steps: For accounts at a server: end of the step to which it is charged, in milliseconds since 1970.
    """

    accounts: Mapping[AccountKey, Amount]
    copies: int
    cap: int | None
    steps: Mapping[AccountKey, int] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Charge:
    """Spending in one account within one step of its window.

    Attributes:
        key: The account.
        ends: End of the step, in seconds of the caller's clock.
        window_seconds: Length of the window; the spending leaves it that long after the end of the step.
        amount: All spending in this step.
    """

    key: AccountKey
    ends: float
    window_seconds: float
    amount: Amount


@attrs.frozen(kw_only=True)
class Hold:
    """An amount that a process has set aside in an account for its requests; the next process charges what it finds."""

    key: AccountKey
    window_seconds: float
    amount: Amount


NO_RESERVATION: Final = Reservation(accounts={}, copies=0, cap=None)
"""Reservation of a request to which no budget applies."""


@attrs.frozen(kw_only=True)
class Consumption:
    """Tokens that a request used, and the prices of the backend that answered."""

    usage: Usage = Usage(0, 0)
    prices: Prices | None = None

    @property
    def nano_usd(self) -> int:
        """Cost in billionths of a dollar, rounded up; 0 without prices, which any budget in dollars requires."""
        if self.prices is None:
            return 0
        (of_prompt, of_answer, of_read, of_short, of_long), parts = self.prices.integers
        used, read, short, long = self.usage, self.usage.cached, self.usage.written_5m, self.usage.written_1h
        of_cache = of_read * read + of_short * short + of_long * long
        rest = max(0, used.prompt - read - short - long)
        return -((-of_cache - of_prompt * rest - of_answer * used.completion) // parts)


@attrs.frozen(kw_only=True)
class ExhaustedBudget:
    """A budget cannot admit a request.

    Attributes:
        wait_seconds: Earliest time to retry; None if the request can never fit.
        message: For the client.
    """

    wait_seconds: int | None
    message: str


@attrs.define(eq=False)
class Meter:
    """The budgets of one router, in this process."""

    _accounts: dict[AccountKey, Account] = attrs.field(factory=dict)
    _budgets: dict[str, Budget] = attrs.field(factory=dict)

    def reserve(self, bound: UsageBound, facts: RequestFacts, *, now: float) -> Reservation | ExhaustedBudget:
        """Reserve the bound of a request in every budget that applies to it, or in none."""
        if len(self._accounts) >= MAX_ACCOUNTS:
            self.forget_idle(now)
        found: dict[AccountKey, Account] = {}
        most = bound.most
        for budget in bound.budgets:
            key = (budget.name, account_team(budget, facts, self._accounts))
            account = self._account(key, budget)
            wait = account.wait_seconds(most, now)
            if wait != 0.0:
                return exhausted_budget(budget, most, wait)
            found[key] = account
        for account in found.values():
            account.reserved += most
        return Reservation(accounts=dict.fromkeys(found, most), copies=bound.copies, cap=bound.cap)

    def settle(self, reservation: Reservation, charged: Amount | None, *, now: float) -> list[Charge]:
        """Charge a request an amount; None charges the reservation. Return the steps to which it is charged."""
        charges = []
        for key, reserved in reservation.accounts.items():
            account = self._accounts[key]
            step = account.settle(reserved, reserved if charged is None else charged, now)
            if step is not None:
                charges.append(_charge(key, account, step))
        return charges

    def window_seconds(self, key: AccountKey) -> float:
        """Return the length of an account's window; the account must hold a reservation."""
        return self._accounts[key].limit.window_seconds

    def restore(self, charges: Iterable[Charge], held: Iterable[Hold], *, now: float) -> tuple[Charge, ...]:
        """Restore the accounts of an earlier process; what it had set aside is charged now, as if it had been spent.

        Returns:
            The steps to which this is charged.
        """
        for charge in sorted(charges, key=lambda one: one.ends):
            self._restored_account(charge.key, charge.window_seconds).restore(charge.ends, charge.amount)
        charged: dict[AccountKey, Charge] = {}
        for one in held:
            account = self._restored_account(one.key, one.window_seconds)
            if (step := account.settle(Amount(), one.amount, now)) is not None:
                charged[one.key] = _charge(one.key, account, step)
        return tuple(charged.values())

    def _restored_account(self, key: AccountKey, window_seconds: float) -> Account:
        """Return an account; the first request sets its limit, from the config."""
        limit = Limit(tokens=None, nano_usd=None, window_seconds=window_seconds)
        return self._accounts.setdefault(key, Account(limit))

    def used(self, config: RoutingConfig, now: float) -> list[dict[str, Any]]:
        """Return the usage of each budget; under scope team, that of the team that has used most."""
        taken = {key: account.taken(now) + account.reserved for key, account in self._accounts.items()}
        return budget_usage(config.budgets, taken)

    def _account(self, key: AccountKey, budget: Budget) -> Account:
        if self._budgets.get(budget.name) is not budget:  # an edited or restored budget retains its spending
            for (name, _), account in self._accounts.items():
                if name == budget.name:
                    account.limit = limit_of(budget)
            self._budgets[budget.name] = budget
        if (found := self._accounts.get(key)) is None:
            found = self._accounts[key] = Account(limit_of(budget))
        return found

    def forget_idle(self, now: float) -> None:
        """Drop empty accounts, so that teams that are seen once do not use memory for ever."""
        for key in [key for key, account in self._accounts.items() if account.is_idle(now)]:
            del self._accounts[key]


def usage_bound(
    config: RoutingConfig, decision: Decision, body: Mapping[str, Any], size: int, *, writes: bool
) -> UsageBound | None:
    """Return the most that a request may use, and the budgets that apply; None if no budget applies.

    Args:
        config: Has the budgets.
        decision: Backends that may compute it.
        body: The JSON object.
        size: Length of the body in bytes.
        writes: Whether the model generates text; embeddings and rankings use only prompt tokens.
    """
    rule = decision.rule
    budgets = tuple([each for each in config.budgets if each.scope != "rule" or (rule and rule.name == each.rule)])
    if not budgets:
        return None
    cap = (requested_tokens(body) or DEFAULT_TOKENS) if writes else None
    prompt, copies = prompt_bytes(body, size), 1 + len(decision.shadows)
    answers = (cap or 0) * answer_count(body)
    permits = (*decision.order, *decision.shadows)
    dearest = max([_most_nano_usd(each.backend.charged_prices, prompt, answers) for each in permits])
    most = Amount(copies * (prompt + answers), copies * dearest)
    return UsageBound(budgets=budgets, most=most, copies=copies, cap=cap)


def account_team(budget: Budget, facts: RequestFacts, accounts: Mapping[AccountKey, Any]) -> str:
    """Return the team whose account is charged; the shared team of all others if there are too many accounts."""
    if budget.scope != "team":
        return ""
    team = facts.principal.team or facts.headers.get(budget.team_header, "")
    return team if (budget.name, team) in accounts or len(accounts) < MAX_ACCOUNTS else _OTHER_TEAMS


def charged_amount(spent: Consumption, copies: int) -> Amount:
    """Return the charge for a request that was computed in this many copies."""
    return Amount(copies * (spent.usage.prompt + spent.usage.completion), copies * spent.nano_usd)


def budget_usage(budgets: Iterable[Budget], taken: Mapping[AccountKey, Amount]) -> list[dict[str, Any]]:
    """Return the usage of each budget, spent and reserved; under scope team, that of the team that has used most."""
    usage = []
    for budget in budgets:
        amounts = (amount for (name, _), amount in taken.items() if name == budget.name)
        most = max(amounts, key=lambda one: _share(budget, one), default=Amount())
        usage.append(
            {
                "name": budget.name,
                "tokensUsed": most.tokens,
                "usdUsed": f"{Decimal(most.nano_usd) / _NANO:.6f}",
                "utilization": f"{_share(budget, most):.2f}",
            }
        )
    return usage


def limit_of(budget: Budget) -> Limit:
    """Return the limit of a budget."""
    dollars = None if budget.max_usd is None else int(budget.max_usd * _NANO)
    return Limit(tokens=budget.max_tokens, nano_usd=dollars, window_seconds=float(budget.window_seconds))


def _most_nano_usd(prices: Prices | None, prompt: int, answer: int) -> int:
    """Return the highest cost of tokens, whatever part of the prompt is read from a cache or written to it."""
    if prices is None:
        return 0
    (of_prompt, of_answer, *of_cache), parts = prices.integers
    return -((-max(of_prompt, *of_cache) * prompt - of_answer * answer) // parts)


def requested_tokens(body: Mapping[str, Any]) -> int | None:
    """Return the longest answer that a request asks for, in tokens; None if it sets no limit or a negative one."""
    requested = [body[name] for name in LIMIT_FIELDS if name in body and _is_number(body[name])]
    return max(1, math.ceil(max(requested))) if requested and min(requested) >= 0 else None


def with_max_tokens(body: Mapping[str, Any], most: int) -> Mapping[str, Any]:
    """Return a body that limits the answer to `most` tokens in the one field that every backend reads."""
    given = [name for name in LIMIT_FIELDS if name in body]
    name = "max_completion_tokens" if given == ["max_completion_tokens"] and "messages" in body else "max_tokens"
    if given == [name] and body[name] == most:
        return body
    return {each: value for each, value in body.items() if each not in LIMIT_FIELDS} | {name: most}


def with_most_tokens(body: Mapping[str, Any], most: int) -> Mapping[str, Any]:
    """Return a body in which no limit of the answer exceeds `most`; without a limit, the engine's own applies."""
    exceeds = any(_is_number(each := body.get(name)) and each > most for name in LIMIT_FIELDS)
    return with_max_tokens(body, most) if exceeds else body


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _at_least_one(value: object) -> int:
    return max(1, math.ceil(value)) if _is_number(value) else 1


def prompt_count(body: Mapping[str, Any]) -> int:
    """Return the number of prompts, texts or documents of a request; a list of tokens is one prompt."""
    if body.keys().isdisjoint(PROMPT_FIELDS):
        return 1
    given: list[Any] = next((body[name] for name in PROMPT_FIELDS if isinstance(body.get(name), list)), [])
    return max(1, len(given)) if not any(isinstance(each, int | float) for each in given) else 1


def answer_count(body: Mapping[str, Any]) -> int:
    """Return the number of answers to a request: to each of its prompts as many as it asks for."""
    return prompt_count(body) * max(map(_at_least_one, map(body.get, ANSWER_COUNT_FIELDS & body.keys())), default=1)


def prompt_bytes(body: Mapping[str, Any], body_bytes: int) -> int:
    """Return the bytes of all prompts: a ranker reads the query once for each document."""
    query = body.get("query")
    return body_bytes + (len(query.encode()) * (prompt_count(body) - 1) if isinstance(query, str) else 0)


def usage_of_all_answers(usage: Usage | None, body: Mapping[str, Any]) -> Usage | None:
    """Return the tokens of all answers to a request: llama.cpp's server reports those of only one of them.

    Those of several prompts are unknown: they differ in length.
    """
    if usage is None or usage.prefill_ms is None:  # other backends report all tokens, and no times
        return usage
    if prompt_count(body) > 1:
        return None
    count = _at_least_one(body.get("n_cmpl") or body.get("n"))
    return usage if count == 1 else attrs.evolve(usage, completion=usage.completion * count)


def _share(budget: Budget, amount: Amount) -> float:
    limit = limit_of(budget)
    tokens = amount.tokens / limit.tokens if limit.tokens else 0.0
    dollars = amount.nano_usd / limit.nano_usd if limit.nano_usd else 0.0
    return max(tokens, dollars)


def exhausted_budget(budget: Budget, most: Amount, wait: float | None) -> ExhaustedBudget:
    """Return the refusal of a budget that cannot admit `most` for `wait` seconds; None means never."""
    if wait is None:
        cause = f"this request may use {most.tokens} tokens, more than budget {budget.name} allows in total"
        return ExhaustedBudget(wait_seconds=None, message=f"{cause}; set a lower max_tokens")
    seconds = max(1, math.ceil(wait))
    cause = f"budget {budget.name} cannot cover the {most.tokens} tokens that this request may use"
    return ExhaustedBudget(wait_seconds=seconds, message=f"{cause}; retry in {seconds} s")


def _charge(key: AccountKey, account: Account, step: tuple[float, Amount]) -> Charge:
    return Charge(key=key, ends=step[0], window_seconds=account.limit.window_seconds, amount=step[1])
