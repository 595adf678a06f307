"""Arguments of the Redis scripts for budgets, and their results."""

from llmkube.router.budget_store.redis_budgets import (
    FullAccount,
    Settlement,
    hash_key,
    parse_reserved,
    reserve_call,
    settle_call,
    used,
    used_call,
)
from llmkube.router.budgets.ledger import Amount, Limit

ONE, TEAM = ("b", ""), ("per-team", "blue")


def test_a_reservation_names_amount_windows_steps_and_limits():
    """Times are milliseconds; a missing limit is empty; a step is a sixtieth, rounded up."""
    limits = {
        ONE: Limit(tokens=400, nano_usd=None, window_seconds=3600.0),
        TEAM: Limit(tokens=None, nano_usd=5, window_seconds=1.0),
    }
    call = reserve_call("ns/r", Amount(7, 9), limits)
    assert call.keys == ["llmkube:{ns/r}:budget:b:", "llmkube:{ns/r}:budget:per-team:blue"]
    assert call.args == [7, 9, 3_600_000, 60_000, 400, "", 1000, 17, "", 5]


def test_an_answer_has_the_steps_or_the_account_without_room():
    """Steps are in the order of the accounts; -1 means never."""
    assert parse_reserved([0, 100, 200], [ONE, TEAM]) == {ONE: 100, TEAM: 200}
    assert parse_reserved([2, 1500], [ONE, TEAM]) == FullAccount(key=TEAM, wait_seconds=1.5)
    assert parse_reserved([1, -1], [ONE, TEAM]) == FullAccount(key=ONE, wait_seconds=None)


def test_a_settlement_changes_the_step_that_was_reserved_in():
    """The step changes by the charged minus the reserved amount."""
    call = settle_call("ns/r", "a1", [Settlement(key=ONE, ends=100, change=Amount(-3, 4))])
    assert (call.keys, call.args) == (["llmkube:{ns/r}:settled:a1", hash_key("ns/r", ONE)], [100, -3, 4])


def test_what_is_used_comes_in_pairs():
    """Each account has tokens and billionths of a dollar."""
    assert used_call("ns/r", {ONE: 60.0}).args == [60_000]
    assert used([5, 6, 7, 8], [ONE, TEAM]) == {ONE: Amount(5, 6), TEAM: Amount(7, 8)}
