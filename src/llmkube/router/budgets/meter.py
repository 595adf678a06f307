"""Which budgets a request is under, the most that it may take, and what it took. Pure; the clock is an argument.

What a request may take is bounded before it is sent: its prompt has at most one token for each byte of its body, its
answer at most as many as it asks for. One that asks for no limit is given `DEFAULT_TOKENS` where a budget counts. Each
backend is told this limit in one field that all read: of several, one reads this and another that.
Reserved is the dearest backend that may answer, and one more for each copy to a shadow. An answer whose backend says
nothing of its tokens is charged what was reserved.
"""

import functools
import math
from collections.abc import Iterable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final, TypeGuard

import attrs

from llmkube.base.errors import ExternalError
from llmkube.router.budgets.ledger import Account, Amount, Limit
from llmkube.router.budgets.usage import Usage
from llmkube.router.config.routing_config import Budget, Prices, RoutingConfig
from llmkube.router.policy.decision import Decision
from llmkube.router.policy.request_facts import RequestFacts


class BudgetsNotKeptError(ExternalError):
    """What a request may take cannot be written down where it would hold, so the request is not sent."""


DEFAULT_TOKENS: Final = 4096
"""The longest answer to a request that asks for no limit, where a budget counts."""

MAX_ACCOUNTS: Final = 10_000
"""Teams that are told apart under one budget; those beyond share one account."""

_OTHER_TEAMS: Final = "\0others"
_NANO_PER_MILLION: Final = 1000
_NANO: Final = Decimal(1_000_000_000)
_LIMIT_FIELDS: Final = ("max_completion_tokens", "max_tokens", "max_output_tokens", "n_predict")
_ANSWER_COUNT_FIELDS: Final = ("n", "n_cmpl", "best_of")
"""How many answers a request asks for; llama.cpp's server reads `n_cmpl` before `n`."""

AccountKey = tuple[str, str]
"""Name of a budget, and the team under scope team."""


@attrs.frozen(kw_only=True)
class TokenDemand:
    """One request, for what it may take.

    Attributes:
        body: The object.
        body_bytes: How long it is.
        writes: Whether the model writes an answer; for vectors and ranks only the prompt counts.
    """

    body: Mapping[str, Any]
    body_bytes: int
    writes: bool


@attrs.frozen(kw_only=True)
class UsageBound:
    """What a request may take before it is known what it takes.

    Attributes:
        budgets: The budgets that it counts in.
        most: The most that it may take.
        copies: How often that may be taken: once, and for each shadow.
        cap: What each backend is told as the longest answer; None where the model writes none.
    """

    budgets: tuple[Budget, ...]
    most: Amount
    copies: int
    cap: int | None


@attrs.frozen(kw_only=True)
class Reservation:
    """What a request that is under way may take.

    Attributes:
        accounts: Where it is reserved, with how much.
        copies: How often that may be taken: once, and for each shadow.
        cap: What each backend is told as the longest answer; None where the model writes none.
        steps: For accounts that a server keeps: when the step ends that it counts in, in milliseconds since 1970.
    """

    accounts: Mapping[AccountKey, Amount]
    copies: int
    cap: int | None
    steps: Mapping[AccountKey, int] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Charge:
    """What was taken under one budget within one step of its window.

    Attributes:
        key: The account.
        ends: When the step ends.
        window_seconds: How long it counts after that.
        amount: All that was taken in this step.
    """

    key: AccountKey
    ends: float
    window_seconds: float
    amount: Amount


@attrs.frozen(kw_only=True)
class Hold:
    """What a process has set aside for its requests, which a process after it is charged with.

    Attributes:
        key: The account.
        window_seconds: How long it counts.
        amount: How much.
    """

    key: AccountKey
    window_seconds: float
    amount: Amount


NO_RESERVATION: Final = Reservation(accounts={}, copies=0, cap=None)
"""Of a request that no budget is about."""


@attrs.frozen(kw_only=True)
class Consumption:
    """What a request took.

    Attributes:
        prompt: Tokens of its prompt.
        answer: Tokens of its answer.
        prices: Those of the backend that answered.
    """

    prompt: int = 0
    answer: int = 0
    prices: Prices | None = None


@attrs.frozen(kw_only=True)
class ExhaustedBudget:
    """No room in a budget.

    Attributes:
        budget: Its name.
        wait_seconds: When to ask again at the earliest; None where this request never fits.
        message: For the client.
    """

    budget: str
    wait_seconds: int | None
    message: str


@attrs.define(eq=False)
class Meter:
    """The budgets of one router, in this process."""

    _accounts: dict[AccountKey, Account] = attrs.field(factory=dict)
    _budgets: dict[str, Budget] = attrs.field(factory=dict)

    def reserve(self, bound: UsageBound, facts: RequestFacts, *, now: float) -> Reservation | ExhaustedBudget:
        """Reserve a claim in every budget that it is under, or nothing in any.

        Args:
            bound: What a request may take.
            facts: Who asks.
            now: The clock.
        """
        if len(self._accounts) >= MAX_ACCOUNTS:
            self.forget_idle(now)
        found: dict[AccountKey, Account] = {}
        for budget in bound.budgets:
            key = (budget.name, account_team(budget, facts, self._accounts))
            account = self._account(key, budget)
            wait = account.wait_seconds(bound.most, now)
            if wait != 0.0:
                return exhausted_budget(budget, bound.most, wait)
            found[key] = account
        for account in found.values():
            account.reserve(bound.most)
        accounts = dict.fromkeys(found, bound.most)
        return Reservation(accounts=accounts, copies=bound.copies, cap=bound.cap)

    def settle(self, reservation: Reservation, spent: Consumption | None, *, now: float) -> tuple[Charge, ...]:
        """Charge what a request took; None charges what was reserved. Returns the steps that it is charged to."""
        charges, charged = [], None if spent is None else charged_amount(spent, reservation.copies)
        for key, reserved in reservation.accounts.items():
            amount = reserved if charged is None else charged
            account = self._accounts[key]
            if (step := account.settle(reserved, amount, now)) is not None:
                charges.append(_charge(key, account, step))
        return tuple(charges)

    def window_seconds(self, key: AccountKey) -> float:
        """Return how long counts what is taken in an account that something is reserved in."""
        return self._accounts[key].limit.window_seconds

    def restore(self, charges: Iterable[Charge], held: Iterable[Hold], *, now: float) -> tuple[Charge, ...]:
        """Go on from what an earlier process has left; what it had reserved is charged now, as if it had been taken.

        Returns:
            The steps that this is charged to.
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
        """Return an account; what it limits is said by the config, with the first request."""
        limit = Limit(tokens=None, nano_usd=None, window_seconds=window_seconds)
        return self._accounts.setdefault(key, Account(limit))

    def used(self, config: RoutingConfig, now: float) -> list[dict[str, Any]]:
        """Return of each budget how much is taken; under scope team, of the team that has taken most."""
        taken = {key: account.taken(now) + account.reserved for key, account in self._accounts.items()}
        return budget_usage(config.budgets, taken)

    def _account(self, key: AccountKey, budget: Budget) -> Account:
        known = self._budgets.get(budget.name)
        if known is not budget and known != budget:  # an edited budget keeps what was taken, a restored one as well
            for (name, _), account in self._accounts.items():
                if name == budget.name:
                    account.limit = limit_of(budget)
        self._budgets[budget.name] = budget
        return self._accounts.setdefault(key, Account(limit_of(budget)))

    def forget_idle(self, now: float) -> None:
        """Drop accounts under which nothing is taken or reserved, so that teams that came once cost nothing."""
        for key in [key for key, account in self._accounts.items() if account.is_idle(now)]:
            del self._accounts[key]


def usage_bound(config: RoutingConfig, decision: Decision, demand: TokenDemand) -> UsageBound | None:
    """Return the most that a request may take, and where it counts; None where no budget is about it."""
    budgets = tuple(each for each in config.budgets if _applies_to(each, decision))
    if not budgets:
        return None
    cap = (requested_tokens(demand.body) or DEFAULT_TOKENS) if demand.writes else None
    copies = 1 + len(decision.shadows)
    answers = (cap or 0) * max(1, *(_at_least_one(demand.body.get(name)) for name in _ANSWER_COUNT_FIELDS))
    backends = [permit.backend for permit in (*decision.order, *decision.shadows)]
    most = Amount(
        copies * (demand.body_bytes + answers),
        copies * max(nano_usd(each.prices, demand.body_bytes, answers) for each in backends),
    )
    return UsageBound(budgets=budgets, most=most, copies=copies, cap=cap)


def account_team(budget: Budget, facts: RequestFacts, accounts: Mapping[AccountKey, Any]) -> str:
    """Return whose account of a budget counts, of those that are told apart: a new one only while there is room."""
    if budget.scope != "team":
        return ""
    team = facts.principal.team or facts.headers.get(budget.team_header, "")
    return team if (budget.name, team) in accounts or len(accounts) < MAX_ACCOUNTS else _OTHER_TEAMS


def charged_amount(spent: Consumption, copies: int) -> Amount:
    """Return what a request is charged for so many copies of it."""
    return Amount(copies * (spent.prompt + spent.answer), copies * nano_usd(spent.prices, spent.prompt, spent.answer))


def budget_usage(budgets: Iterable[Budget], taken: Mapping[AccountKey, Amount]) -> list[dict[str, Any]]:
    """Return of each budget how much is taken and reserved; under scope team, of the team that has taken most."""
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


def _charge(key: AccountKey, account: Account, step: tuple[float, Amount]) -> Charge:
    ends, amount = step
    return Charge(key=key, ends=ends, window_seconds=account.limit.window_seconds, amount=amount)


def limit_of(budget: Budget) -> Limit:
    """Return what a budget limits."""
    dollars = None if budget.max_usd is None else int(budget.max_usd * _NANO)
    return Limit(tokens=budget.max_tokens, nano_usd=dollars, window_seconds=float(budget.window_seconds))


def nano_usd(prices: Prices | None, prompt: int, answer: int) -> int:
    """Return what tokens cost, rounded up; 0 without prices: a budget in dollars is refused for such a backend."""
    if prices is None:
        return 0
    of_prompt, of_answer, parts = _integer_prices(prices)
    return -((-of_prompt * prompt - of_answer * answer) // parts)


@functools.lru_cache(maxsize=1024)
def _integer_prices(prices: Prices) -> tuple[int, int, int]:
    """Return what a token costs in and out, in equal parts of a billionth of a dollar, and how many parts that has."""
    of_prompt, of_answer = (Fraction(each) * _NANO_PER_MILLION for each in (prices.prompt_usd, prices.completion_usd))
    parts = math.lcm(of_prompt.denominator, of_answer.denominator)
    return int(of_prompt * parts), int(of_answer * parts), parts


def _applies_to(budget: Budget, decision: Decision) -> bool:
    return budget.scope != "rule" or (decision.rule is not None and decision.rule.name == budget.rule)


def requested_tokens(body: Mapping[str, Any]) -> int | None:
    """Return the longest answer that a request asks for, in tokens; None if it does not say, or asks for no end."""
    requested = [each for name in _LIMIT_FIELDS if _is_number(each := body.get(name))]
    return max(1, math.ceil(max(requested))) if requested and min(requested) >= 0 else None


def with_max_tokens(body: Mapping[str, Any], most: int) -> Mapping[str, Any]:
    """Return a body that asks for so many tokens at most, in a field that each backend reads, and in no other."""
    given = [name for name in _LIMIT_FIELDS if name in body]
    name = given[0] if len(given) == 1 and given[0] in _common_limit_fields(body) else "max_tokens"
    if given == [name] and body[name] == most:
        return body
    return {each: value for each, value in body.items() if each not in _LIMIT_FIELDS} | {name: most}


def _common_limit_fields(body: Mapping[str, Any]) -> tuple[str, ...]:
    return ("max_completion_tokens", "max_tokens") if "messages" in body else ("max_tokens",)


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _at_least_one(value: object) -> int:
    return max(1, math.ceil(value)) if _is_number(value) else 1


def usage_of_all_answers(usage: Usage | None, body: Mapping[str, Any]) -> Usage | None:
    """Return the tokens of all answers that a request asked for: llama.cpp's server counts those of one of them."""
    count = _at_least_one(body.get("n_cmpl") or body.get("n"))
    if usage is None or usage.prefill_ms is None or count == 1:  # others give no times, and count all
        return usage
    return attrs.evolve(usage, completion=usage.completion * count)


def _share(budget: Budget, amount: Amount) -> float:
    limit = limit_of(budget)
    tokens = amount.tokens / limit.tokens if limit.tokens else 0.0
    dollars = amount.nano_usd / limit.nano_usd if limit.nano_usd else 0.0
    return max(tokens, dollars)


def exhausted_budget(budget: Budget, most: Amount, wait: float | None) -> ExhaustedBudget:
    """Return that a budget has no room for so much, and in how many seconds to ask again; None for never."""
    if wait is None:
        cause = f"this request may take {most.tokens} tokens, which is more than budget {budget.name} allows at all"
        return ExhaustedBudget(budget=budget.name, wait_seconds=None, message=f"{cause}: ask for fewer with max_tokens")
    seconds = max(1, math.ceil(wait))
    cause = f"budget {budget.name} has no room for the {most.tokens} tokens that this request may take"
    return ExhaustedBudget(budget=budget.name, wait_seconds=seconds, message=f"{cause}; ask again in {seconds} s")
