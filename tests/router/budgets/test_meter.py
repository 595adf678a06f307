"""Budgets of a request, its reservation, and its charge."""

import random
from decimal import ROUND_CEILING, Decimal, localcontext

import pytest

from llmkube.router.budgets.ledger import Amount
from llmkube.router.budgets.meter import (
    DEFAULT_TOKENS,
    NO_RESERVATION,
    Consumption,
    ExhaustedBudget,
    Hold,
    Meter,
    charged_amount,
    usage_bound,
    with_max_tokens,
)
from llmkube.router.budgets.usage import Usage
from llmkube.router.config.routing_config import Backend, Budget, Match, Prices, RoutingConfig, Rule
from llmkube.router.policy.decision import decide
from llmkube.router.policy.permits import permits_for
from llmkube.router.policy.request_facts import Principal, RequestFacts

PRICES = Prices(prompt_usd=Decimal(1), completion_usd=Decimal(10))
CACHE_PRICES = ("cache_read_usd", "cache_write5m_usd", "cache_write1h_usd")


def backend(name, **changes):
    given = {"name": name, "model_id": name, "base_url": f"http://{name}/v1", "local": True, "prices": PRICES}
    return Backend(**given | changes)


def config_of(*budgets, rules=None, prices=PRICES):
    rules = rules or (Rule(name="all", match=Match(), backends=("a", "b")),)
    backends = {name: backend(name, prices=prices) for name in "ab"}
    return RoutingConfig(name="ml/r", backends=backends, rules=rules, budgets=budgets)


def budget(name="b", **changes):
    return Budget(**{"name": name, "scope": "router", "window_seconds": 3600, "max_tokens": 1000} | changes)


def reserve(meter, config, *, body=None, body_bytes=100, team="", headers=None, writes=True, now=0.0):
    facts = RequestFacts(model="m", principal=Principal(team=team), headers=headers or {})
    decision = decide(config, facts, permits_for(config, facts), first_byte_seconds={}, pick=0.0, load={})
    asked = {"max_tokens": 100} if body is None else body
    bound = usage_bound(config, decision, asked, body_bytes, writes=writes)
    return NO_RESERVATION if bound is None else meter.reserve(bound, facts, now=now)


def used(meter, config, now=0.0):
    return {one["name"]: one["tokensUsed"] for one in meter.used(config, now)}


@pytest.mark.parametrize("seed", range(5))
def test_a_price_is_exact_and_rounded_up(seed):
    """The price equals the decimal one to a billionth of a dollar, for any prices and numbers of tokens."""
    rng = random.Random(seed)
    with localcontext(prec=100):
        for _ in range(200):
            given = [Decimal(rng.randint(0, 10**9)).scaleb(-rng.randint(0, 12)) for _ in range(2)]
            prompt, answer = rng.randint(0, 10**7), rng.randint(0, 10**7)
            exact = (given[0] * prompt + given[1] * answer) * 1000
            prices = Prices(prompt_usd=given[0], completion_usd=given[1])
            assert Consumption(usage=Usage(prompt, answer), prices=prices).nano_usd == int(
                exact.to_integral_value(ROUND_CEILING)
            )


@pytest.mark.parametrize("seed", range(5))
def test_every_token_of_a_prompt_has_one_price_and_the_reservation_covers_it(seed):
    """Prices that are not set are those of the prompt; whatever a cache has, no more is charged than was reserved."""
    rng = random.Random(seed)
    for _ in range(100):
        given = {name: rng.choice((None, Decimal(rng.randint(0, 40)) / 8)) for name in CACHE_PRICES}
        prices = Prices(prompt_usd=Decimal(rng.randint(0, 40)) / 8, completion_usd=Decimal(3), **given)
        counts = [rng.randint(0, 30) for _ in CACHE_PRICES]
        plain, answer = rng.randint(0, 30), rng.randint(0, 30)
        read, short, long = given.values()
        short = prices.prompt_usd if short is None else short
        long = short if long is None else long
        read = prices.prompt_usd if read is None else read
        exact = 1000 * sum(
            each * count
            for each, count in zip(
                (prices.prompt_usd, Decimal(3), read, short, long), (plain, answer, *counts), strict=True
            )
        )
        prompt = plain + sum(counts)
        used = Usage(prompt, answer, cached=counts[0], written_5m=counts[1], written_1h=counts[2])
        spent = Consumption(usage=used, prices=prices)
        assert spent.nano_usd == int(exact.to_integral_value(ROUND_CEILING))
        config = config_of(budget(max_tokens=None, max_usd=Decimal(9)), prices=prices)
        reserved = reserve(Meter(), config, body={"max_tokens": answer or 1}, body_bytes=prompt)
        assert reserved.accounts["b", ""].nano_usd >= spent.nano_usd


def test_without_a_budget_nothing_is_reserved_or_capped():
    assert reserve(Meter(), config_of()) is NO_RESERVATION


def test_prompt_and_answer_are_reserved_and_settled():
    """One token per byte of the body plus the requested maximum is reserved; the actual usage is charged."""
    meter, config = Meter(), config_of(budget())
    found = reserve(meter, config)
    assert used(meter, config) == {"b": 200}
    meter.settle(found, Amount(50), now=1.0)
    assert used(meter, config) == {"b": 50}


def test_a_request_that_asks_for_no_limit_gets_one():
    """The reservation needs a limit, which the backend gets as well."""
    config = config_of(budget(max_tokens=DEFAULT_TOKENS + 100))
    found = reserve(Meter(), config, body={})
    assert found.cap == DEFAULT_TOKENS
    assert reserve(Meter(), config, body={"max_completion_tokens": 5}).cap == 5


@pytest.mark.parametrize(
    ("asked", "cap"),
    [
        ({"max_tokens": 3, "n_predict": -1}, DEFAULT_TOKENS),
        ({"max_tokens": 3, "max_completion_tokens": -1}, DEFAULT_TOKENS),
        ({"max_tokens": 3, "n_predict": 40.5}, 41),
        ({"max_tokens": 0}, 1),
        ({"max_tokens": None, "n_predict": 7}, 7),
        ({"max_tokens": True, "n_predict": "9"}, DEFAULT_TOKENS),
    ],
)
def test_no_limit_hides_behind_a_smaller_one(asked, cap):
    """llama.cpp's server reads `n_predict` first, and -1 as unlimited: it would write more than was reserved."""
    meter, config = Meter(), config_of(budget(max_tokens=10 * DEFAULT_TOKENS))
    assert reserve(meter, config, body=asked).cap == cap
    assert used(meter, config) == {"b": 100 + cap}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"max_tokens": 5}, {"max_tokens": 5}),
        ({"max_tokens": 5, "n_predict": -1, "max_output_tokens": 9}, {"max_tokens": 9}),
        ({"messages": [], "max_completion_tokens": 9}, {"messages": [], "max_completion_tokens": 9}),
        ({"prompt": "", "max_completion_tokens": 9}, {"prompt": "", "max_tokens": 9}),
        ({"n_predict": 9}, {"max_tokens": 9}),
        ({"max_tokens": -1}, {"max_tokens": 9}),
        ({}, {"max_tokens": 9}),
    ],
)
def test_a_backend_gets_one_limit(asked, expected):
    """The field is one that the backend reads: a field that is dropped or unknown would limit nothing."""
    assert with_max_tokens(asked, expected.get("max_tokens") or expected["max_completion_tokens"]) == expected


@pytest.mark.parametrize("name", ["n", "n_cmpl", "best_of"])
def test_each_of_several_answers_is_reserved(name):
    """This applies to each field that a server reads as the number of answers."""
    meter, config = Meter(), config_of(budget())
    reserve(meter, config, body={"max_tokens": 10, name: 2.0})
    assert used(meter, config) == {"b": 100 + 20}


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "n_predict"])
def test_the_longest_limit_applies(name):
    """This applies to each field name and to any number of answers."""
    meter, config = Meter(), config_of(budget())
    reserve(meter, config, body={"max_tokens": 10, name: 50, "n": 3})
    assert used(meter, config) == {"b": 100 + 150}


def test_vectors_have_no_answer():
    """Only the prompt is charged."""
    meter, config = Meter(), config_of(budget())
    assert reserve(meter, config, body={}, writes=False).cap is None
    assert used(meter, config) == {"b": 100}


def test_what_its_backend_does_not_count_is_charged_as_reserved():
    """Without usage or timings the reservation is charged."""
    meter, config = Meter(), config_of(budget())
    meter.settle(reserve(meter, config), None, now=1.0)
    assert used(meter, config, 1.0) == {"b": 200}


def test_an_exhausted_budget_reports_a_correct_wait():
    """429 has the time to wait, after which the request fits."""
    meter, config = Meter(), config_of(budget())
    for _ in range(5):
        meter.settle(reserve(meter, config), None, now=0.0)
    found = reserve(meter, config, now=10.0)
    assert isinstance(found, ExhaustedBudget)
    assert "budget b" in found.message
    assert not isinstance(reserve(meter, config, now=10.0 + found.wait_seconds), ExhaustedBudget)


def test_a_request_that_never_fits_is_reported_as_such():
    """The refusal has no wait, but a fix."""
    found = reserve(Meter(), config_of(budget(max_tokens=50)))
    assert found.wait_seconds is None
    assert "max_tokens" in found.message


def test_dollars_are_those_of_the_dearest_backend_until_one_has_answered():
    """The most expensive backend is reserved, and the one that answered is charged."""
    meter, config = Meter(), config_of(budget(max_tokens=None, max_usd=Decimal("0.01")))
    found = reserve(meter, config)
    assert meter.used(config, 0.0)[0]["usdUsed"] == "0.001100"
    meter.settle(found, charged_amount(Consumption(usage=Usage(10, 10), prices=PRICES), 1), now=1.0)
    assert meter.used(config, 1.0)[0]["usdUsed"] == "0.000110"


def test_a_rule_s_budget_is_about_its_requests_alone():
    """Requests of another rule do not use it."""
    rules = (
        Rule(name="x", match=Match(headers={"x": "1"}), backends=("a",)),
        Rule(name="y", match=Match(), backends=("a",)),
    )
    meter, config = Meter(), config_of(budget(scope="rule", rule="x"), rules=rules)
    assert reserve(meter, config) is NO_RESERVATION
    reserve(meter, config, headers={"x": "1"})
    assert used(meter, config) == {"b": 200}


def test_teams_have_a_budget_each():
    """The team is the key's; without keys it is the header's; one team cannot use another's budget."""
    meter, config = Meter(), config_of(budget(scope="team", max_tokens=200))
    assert not isinstance(reserve(meter, config, team="red"), ExhaustedBudget)
    assert isinstance(reserve(meter, config, team="red"), ExhaustedBudget)
    assert not isinstance(reserve(meter, config, headers={"x-llmkube-team": "blue"}), ExhaustedBudget)
    assert isinstance(reserve(meter, config, headers={"x-llmkube-team": "blue"}), ExhaustedBudget)
    assert isinstance(reserve(meter, config, team="red", headers={"x-llmkube-team": "green"}), ExhaustedBudget)


def test_a_request_is_under_all_of_its_budgets_or_reserves_nothing():
    """The full budget refuses, and the other one reserves nothing."""
    meter, config = Meter(), config_of(budget("wide"), budget("narrow", max_tokens=10))
    assert isinstance(reserve(meter, config), ExhaustedBudget)
    assert used(meter, config) == {"wide": 0, "narrow": 0}


def test_an_edited_budget_keeps_what_was_taken():
    """A lower limit applies at once, and an edit does not reset the budget."""
    meter = Meter()
    meter.settle(reserve(meter, config_of(budget())), None, now=0.0)
    lower = config_of(budget(max_tokens=300))
    assert isinstance(reserve(meter, lower, now=1.0), ExhaustedBudget)
    assert used(meter, lower, 1.0) == {"b": 200}


def test_teams_that_make_up_names_do_not_fill_memory(monkeypatch):
    """Teams beyond the limit share one account, and idle accounts are removed."""
    monkeypatch.setattr("llmkube.router.budgets.meter.MAX_ACCOUNTS", 3)
    meter, config = Meter(), config_of(budget(scope="team", max_tokens=400))
    for number in range(5):
        reserve(meter, config, headers={"x-llmkube-team": f"t{number}"})
    assert isinstance(reserve(meter, config, headers={"x-llmkube-team": "t9"}), ExhaustedBudget)
    meter = Meter()
    meter.settle(reserve(meter, config, team="red"), None, now=0.0)
    meter.forget_idle(3 * 3600.0)
    assert used(meter, config, 3 * 3600.0) == {"b": 0}


def test_charges_of_an_earlier_process_apply():
    """Charges stay until they expire; reservations become charges. The limit is the config's."""
    config, before = config_of(budget(max_tokens=300)), Meter()
    charges = before.settle(reserve(before, config, now=0.0), Amount(50), now=0.0)
    held = Hold(key=("b", ""), window_seconds=3600.0, amount=Amount(200))
    meter = Meter()
    charged = meter.restore(charges, [held], now=1800.0)
    assert used(meter, config, 1800.0) == {"b": 250}
    assert isinstance(reserve(meter, config, now=1800.0), ExhaustedBudget)
    assert used(meter, config, 3700.0) == {"b": 200}
    assert [(one.ends, one.amount) for one in charged] == [(1860.0, Amount(200))]


@pytest.mark.parametrize(("window", "left"), [(60, 0), (36_000, 200)])
def test_an_edited_window_counts_what_was_taken_within_it(window, left):
    """The time of a charge decides, not the step length at that time."""
    meter = Meter()
    meter.settle(reserve(meter, config_of(budget())), None, now=0.0)
    other = config_of(budget(window_seconds=window))
    reserve(meter, other, body_bytes=1, body={"max_tokens": 1}, now=600.0)
    assert used(meter, other, 600.0) == {"b": left + 2}
    assert used(meter, other, 36_061.0) == {"b": 2}
