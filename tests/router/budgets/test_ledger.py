"""A rolling window: no window exceeds the limit."""

import random

import pytest

from llmkube.router.budgets.ledger import STEPS, Account, Amount, Limit

HOUR = 3600.0


def account(tokens=100, nano_usd=None, window_seconds=HOUR):
    return Account(Limit(tokens=tokens, nano_usd=nano_usd, window_seconds=window_seconds))


def take(of, tokens, now):
    """Reserve and settle at once; return whether it fit."""
    if of.wait_seconds(Amount(tokens), now) != 0.0:
        return False
    of.reserved += Amount(tokens)
    of.settle(Amount(tokens), Amount(tokens), now)
    return True


def test_a_reservation_is_held_until_it_is_settled():
    """A second request sees the first one's reservation, and later what it consumed."""
    one = account()
    one.reserved += Amount(80)
    assert one.wait_seconds(Amount(30), 0.0) != 0.0
    one.settle(Amount(80), Amount(10), 1.0)
    assert one.wait_seconds(Amount(90), 1.0) == 0.0
    assert one.taken(1.0) == Amount(10)


def test_what_was_taken_leaves_with_its_window():
    """It expires no earlier and at most a sixtieth later; the reported wait is sufficient."""
    one = account()
    assert take(one, 100, 10.0)
    wait = one.wait_seconds(Amount(1), 10.0)
    assert HOUR - 10 - HOUR / STEPS <= wait <= HOUR + HOUR / STEPS
    assert not take(one, 1, 10.0 + wait - 1)
    assert take(one, 1, 10.0 + wait)


def test_what_never_fits_is_not_waited_for():
    """The wait is None, not a time after which it is refused again."""
    assert account().wait_seconds(Amount(101), 0.0) is None


def test_dollars_and_tokens_both_count():
    """The limit that is reached first decides."""
    one = account(tokens=100, nano_usd=50)
    one.reserved += Amount(10, 40)
    assert one.wait_seconds(Amount(10, 10), 0.0) == 0.0
    assert one.wait_seconds(Amount(10, 11), 0.0) != 0.0


def test_a_budget_reserved_by_running_requests_is_retried_after_a_step():
    """Their end is not known."""
    one = account()
    one.reserved += Amount(100)
    assert one.wait_seconds(Amount(1), 0.0) == HOUR / STEPS


@pytest.mark.parametrize("seed", range(20))
def test_no_window_holds_more_than_the_limit(seed):
    """Requests are random, some long; the limit holds in each window."""
    rng, one, now = random.Random(seed), account(), 0.0
    open_requests, took = [], []
    for _ in range(2000):
        now += rng.expovariate(1 / 60)
        if open_requests and rng.random() < 0.5:
            reserved = open_requests.pop(rng.randrange(len(open_requests)))
            used = rng.randint(0, reserved)
            one.settle(Amount(reserved), Amount(used), now)
            took.append((now, used))
        elif one.wait_seconds(Amount(asked := rng.randint(1, 40)), now) == 0.0:
            one.reserved += Amount(asked)
            open_requests.append(asked)
        assert one.taken(now).tokens + one.reserved.tokens <= 100
    for start, _ in took:
        assert sum(used for at, used in took if start <= at < start + HOUR) <= 100
    assert one.reserved.tokens == sum(open_requests)


def test_an_idle_account_may_be_forgotten():
    """An account is idle once all its charges have expired."""
    one = account()
    assert one.is_idle(0.0)
    assert take(one, 1, 0.0)
    assert not one.is_idle(1.0)
    assert one.is_idle(3 * HOUR)
