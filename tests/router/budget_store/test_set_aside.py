"""Amounts that a budget file sets aside: a kill at any moment makes no request free."""

import random
from operator import ge

import pytest

from llmkube.router.budget_store import set_aside
from llmkube.router.budget_store.set_aside import Holds
from llmkube.router.budgets.ledger import Amount
from llmkube.router.budgets.meter import Charge

KEYS = (("tokens", "red"), ("tokens", "blue"), ("dollars", ""))
ONE = {KEYS[0]: Amount(10, 1)}


def seconds(_key):
    return 60.0


def charge(amount, key=KEYS[0]):
    return Charge(key=key, ends=60.0, window_seconds=60.0, amount=amount)


def write(aside, **changes):
    plan = aside.plan(**changes)
    aside.written(plan)
    return {held.key: held.amount for held in plan.held}, {one.key: one.amount for one in plan.charges}


def test_a_request_alone_is_written_as_it_is():
    """The request waits for the write, which sets aside its maximum and no more."""
    aside = Holds()
    assert not aside.reserve(ONE, seconds)
    assert write(aside) == (ONE, {})
    assert aside.is_written


def test_under_load_requests_wait_for_no_write():
    """Twice the recent consumption is set aside; without requests nothing is."""
    aside = Holds()
    aside.reserve(ONE, seconds)
    write(aside)
    aside.settle(ONE, Amount(4, 1), [charge(Amount(4, 1))])
    assert not aside.is_written
    assert write(aside) == ({KEYS[0]: Amount(20, 2)}, {KEYS[0]: Amount(4, 1)})
    assert aside.reserve(ONE, seconds)
    assert not aside.reserve({KEYS[0]: Amount(11, 0)}, seconds)
    for amount in (10, 11):
        aside.settle({KEYS[0]: Amount(amount, 0)}, Amount(), [])
    aside.settle({KEYS[0]: Amount(0, 1)}, Amount(), [])
    write(aside)
    write(aside)
    assert write(aside)[0] == {}
    assert aside.is_written
    assert aside._shares == {}


def test_the_last_write_leaves_no_room():
    """The next process is charged for consumption and for requests that never ended."""
    aside = Holds()
    aside.reserve(ONE, seconds)
    aside.reserve(ONE, seconds)
    aside.settle(ONE, None, [charge(Amount(10, 1))])
    assert write(aside, is_last=True) == (ONE, ONE)


def test_after_a_failed_write_both_files_are_respected():
    """The smaller of the old and the new amount is available, and the next write has the full state."""
    aside = Holds()
    aside.reserve(ONE, seconds)
    aside.failed(aside.plan())
    assert not aside.is_written
    assert write(aside)[0] == ONE


class File:
    """A budget file that a kill may leave before or after the current write."""

    def __init__(self):
        self.held, self.taken = {}, {}

    def take(self, plan):
        self.held |= {one.key: one.amount for one in plan.held}
        self.taken |= {one.key: one.amount for one in plan.charges}

    def charges(self, key):
        return self.taken.get(key, Amount()) + self.held.get(key, Amount())


class Play:
    """Random requests and failing writes, with a kill at every step."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.aside, self.file, self.taken = Holds(), File(), dict.fromkeys(KEYS, Amount())
        self.sent, self.waiting = [], []
        self.under_way = None  # The write in progress: its plan, and the requests that wait for it

    def begin(self):
        keys = self.rng.sample(KEYS, self.rng.randint(1, 3))
        accounts = {key: Amount(self.rng.randint(1, 50), self.rng.randint(0, 9)) for key in keys}
        (self.sent if self.aside.reserve(accounts, seconds) else self.waiting).append(accounts)

    def end(self):
        if not self.sent:
            return
        accounts = self.sent.pop(self.rng.randrange(len(self.sent)))
        least = Amount(min(one.tokens for one in accounts.values()), 0)
        took = None if self.rng.random() < 0.2 else least
        for key, reserved in accounts.items():
            self.taken[key] += reserved if took is None else took
        self.aside.settle(accounts, took, [charge(self.taken[key], key) for key in accounts])

    def write(self):
        if self.under_way is None:
            self.under_way = self.aside.plan(), list(self.waiting)
            return
        (plan, batch), self.under_way = self.under_way, None
        failed = self.rng.random() < 0.3
        if not failed or self.rng.random() < 0.3:  # a write that fails at its very end may have reached the disk
            self.file.take(plan)
        (self.aside.failed if failed else self.aside.written)(plan)
        for accounts in batch:
            self.waiting.remove(accounts)
            if failed:
                self.aside.settle(accounts, Amount(), [])
            else:
                self.sent.append(accounts)

    def kill(self):
        """Raise if the next process would charge less than the consumption, or than sent requests may consume."""
        after = File()
        after.held, after.taken = dict(self.file.held), dict(self.file.taken)
        if self.under_way is not None:
            after.take(self.under_way[0])
        for key in KEYS:
            owed = self.taken[key] + sum((one.get(key, Amount()) for one in self.sent), Amount())
            assert all(map(ge, self.file.charges(key), owed)), "killed before the write"
            assert all(map(ge, after.charges(key), owed)), "killed after the write"


def play(*seeds, steps=400):
    for seed in seeds:
        one = Play(seed)
        for _ in range(steps):
            one.rng.choices((one.begin, one.end, one.write), (4, 4, 1 + one.rng.random() * 3))[0]()
            one.kill()


@pytest.mark.parametrize("seed", range(40))
def test_a_kill_at_any_moment_charges_at_least_what_was_taken(seed):
    """Kills happen before, during and after writes that succeed, fail, or seem to fail."""
    play(seed)


def _sends_all(monkeypatch):
    real = Holds.reserve

    def reserve(self, accounts, window_seconds):
        real(self, accounts, window_seconds)
        return True

    monkeypatch.setattr(Holds, "reserve", reserve)


def _holds_what_is_not_written_yet(monkeypatch):
    monkeypatch.setattr(Amount, "at_most", Amount.at_least)


def _forgets_that_a_write_failed(monkeypatch):
    monkeypatch.setattr(Holds, "failed", Holds.written)


def _counts_reservations_alone(monkeypatch):
    real = Holds.settle

    def settle(self, accounts, took, charges):
        real(self, accounts, took, charges)
        for key in accounts:
            share = self._shares[key]
            share.in_use -= share.unwritten
            share.unwritten = Amount()

    monkeypatch.setattr(Holds, "settle", settle)


def _drops_charges_that_came_meanwhile(monkeypatch):
    real = Holds.written

    def written(self, plan):
        self._charges = {(one.key, one.ends): one for one in plan.charges}
        real(self, plan)

    monkeypatch.setattr(set_aside.Holds, "written", written)


@pytest.mark.soak
@pytest.mark.parametrize(
    "mutate",
    [
        _sends_all,
        _holds_what_is_not_written_yet,
        _forgets_that_a_write_failed,
        _counts_reservations_alone,
        _drops_charges_that_came_meanwhile,
    ],
)
def test_deliberate_bugs_are_caught(monkeypatch, mutate):
    """The simulation above fails for each."""
    mutate(monkeypatch)
    with pytest.raises((AssertionError, KeyError)):
        play(*range(40))
