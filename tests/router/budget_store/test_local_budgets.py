"""Budgets in a router's file: written before a request is sent, and read after a restart."""

import itertools
import random
from datetime import UTC, datetime
from functools import partial

import pytest
import trio

from llmkube.base.errors import UserError
from llmkube.router.budget_store import budget_file, local_budgets
from llmkube.router.budget_store.budget_file import budget_file_of
from llmkube.router.budgets.ledger import Amount
from llmkube.router.budgets.meter import BudgetStoreError, Reservation, usage_bound
from llmkube.router.policy.decision import decide
from llmkube.router.policy.permits import permits_for
from llmkube.router.policy.request_facts import RequestFacts
from router.proxy.router_lab import ASKED, open_lab, until_gone
from router.proxy.router_lab import answer as answered
from router.proxy.test_budgets import SMALL, limited, taken


def lab(tmp_path, script=None, **changes):
    return open_lab(limited(**changes), budgets_folder=tmp_path, a=script or answered())


async def test_charges_survive_a_restart(tmp_path):
    async with lab(tmp_path) as one:
        assert (await one.ask(ASKED | SMALL)).status == 200
        assert taken(one) == 8
    async with lab(tmp_path) as other:
        assert taken(other) == 8


async def still_under_way(tmp_path):
    """Send a request to a silent backend; return a copy of the files that a killed process would leave."""
    reached = trio.Event()

    async def script(connection):
        reached.set()
        await until_gone(connection)

    async with lab(tmp_path / "one", script) as one, trio.open_nursery() as nursery:
        nursery.start_soon(one.ask, ASKED | SMALL)
        await reached.wait()
        for each in (tmp_path / "one").iterdir():
            (tmp_path / each.name).write_bytes(each.read_bytes())
        reserved = taken(one)
        nursery.cancel_scope.cancel()
    return reserved


async def test_a_request_is_in_the_file_before_it_is_sent(tmp_path):
    """Killing the router makes no request free: it is charged as reserved."""
    reserved = await still_under_way(tmp_path)
    assert reserved > 10
    async with lab(tmp_path) as other:
        assert taken(other) == reserved
        assert (await other.ask(ASKED | {"max_tokens": 390})).status == 429


@pytest.mark.soak
async def test_a_deliberate_bug_is_caught(tmp_path, monkeypatch):
    """The timeline above fails for a router that sends first."""

    async def at_once(self):
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(local_budgets.LocalBudgets, "_next_write", at_once)
    reserved = await still_under_way(tmp_path)
    async with lab(tmp_path) as other:
        assert taken(other) < reserved


async def test_what_cannot_be_written_is_refused(tmp_path, monkeypatch):
    """The answer is 503, nothing is sent or stays reserved, and `/readyz` has the reason; later requests succeed."""
    real = budget_file.BudgetFile.write

    def full(self, held, charges, windows, now):
        raise BudgetStoreError("the disk is full")

    async with lab(tmp_path) as one:
        monkeypatch.setattr(budget_file.BudgetFile, "write", full)
        refused = await one.ask(ASKED | SMALL)
        assert (refused.status, b"budget_not_kept" in refused.body) == (503, True)
        assert one.players["a"].asked == []
        assert taken(one) == 0
        assert "the disk is full" in one.router.ready()[1]
        labels = {"rule": "all", "backend": "none", "classification": "none", "outcome": "budget_not_kept"}
        assert one.metric("llmkube_router_requests_total", **labels) == 1
        monkeypatch.setattr(budget_file.BudgetFile, "write", real)
        assert (await one.ask(ASKED | SMALL)).status == 200
        assert one.router.ready() == (True, "")


async def test_a_damaged_file_keeps_a_router_with_budgets_from_starting(tmp_path):
    """It would admit the full budget again. A router without budgets does not read the file."""
    file = budget_file_of(tmp_path, "default/r")
    file.path.write_bytes(b"no database" * 1000)
    with pytest.RaisesGroup(pytest.RaisesExc(UserError, match="damaged"), flatten_subgroups=True):
        async with lab(tmp_path):
            pass


async def test_under_load_few_requests_wait_for_the_disk(tmp_path, monkeypatch):
    """Hundreds of requests share a few writes, and a kill right after them charges at least what they consumed."""
    writes, real = [], budget_file.BudgetFile.write

    def counted(self, *arguments, **named):
        writes.append(arguments)
        real(self, *arguments, **named)

    monkeypatch.setattr(budget_file.BudgetFile, "write", counted)
    async with lab(tmp_path / "one", max_tokens=1_000_000) as one:

        async def client():
            for _ in range(50):
                assert (await one.ask(ASKED | SMALL)).status == 200

        async with trio.open_nursery() as clients:
            for _ in range(8):
                clients.start_soon(client)
        for each in (tmp_path / "one").iterdir():
            (tmp_path / each.name).write_bytes(each.read_bytes())
        assert taken(one) == 400 * 8
    assert len(writes) < 200
    async with lab(tmp_path, max_tokens=1_000_000) as other:
        assert 400 * 8 <= taken(other) <= 800 * 8


async def test_without_requests_the_file_has_the_consumed_amount(tmp_path, monkeypatch):
    """Amounts set aside for further requests are released a moment after the last one."""
    real, rests = budget_file.BudgetFile.write, trio.Event()

    def record_write(self, held, *more, **named):
        real(self, held, *more, **named)
        if held and all(one.amount == Amount() for one in held):
            trio.from_thread.run_sync(rests.set)

    monkeypatch.setattr(budget_file.BudgetFile, "write", record_write)
    async with lab(tmp_path / "one") as one:
        await one.ask(ASKED | SMALL)
        with trio.fail_after(60):
            await rests.wait()
        for each in (tmp_path / "one").iterdir():
            (tmp_path / each.name).write_bytes(each.read_bytes())
    async with lab(tmp_path) as other:
        assert taken(other) == 8


async def test_what_was_taken_while_the_disk_failed_is_written_afterwards(tmp_path, monkeypatch):
    """It is written a second later without a request; `/readyz` is ready again."""
    real, failed = budget_file.BudgetFile.write, trio.Event()

    def only_reserves(self, held, charges, windows, now):
        if charges:
            trio.from_thread.run_sync(failed.set)
            raise BudgetStoreError("the disk is full")
        real(self, held, charges, windows, now)

    async with lab(tmp_path) as one:
        monkeypatch.setattr(budget_file.BudgetFile, "write", only_reserves)
        assert (await one.ask(ASKED | SMALL)).status == 200
        await failed.wait()
        while one.router.ready() == (True, ""):  # noqa: ASYNC110 (a state of another task)
            await trio.sleep(0.01)
        assert taken(one) == 8
        monkeypatch.setattr(budget_file.BudgetFile, "write", real)
        with trio.fail_after(60):
            while one.router.ready() != (True, ""):  # noqa: ASYNC110 (a state of another task)
                await trio.sleep(0.01)
    async with lab(tmp_path) as other:
        assert taken(other) == 8


async def test_a_first_budget_by_reload_opens_its_file_by_itself(tmp_path, monkeypatch, autojump_clock):
    """Requests are refused while the file is in use; once it is free they are answered without another reload."""
    file = budget_file_of(tmp_path, "default/r")
    attempts, real = [], budget_file.BudgetFile.open

    def in_use(self):
        attempts.append(trio.from_thread.run_sync(trio.current_time))
        if len(attempts) < 9:
            raise UserError("another process keeps the budgets")
        return real(self)

    monkeypatch.setattr(budget_file.BudgetFile, "open", in_use)
    kept = local_budgets.LocalBudgets(file, lambda: datetime(2026, 8, 1, tzinfo=UTC), random.Random(1))
    config, facts = limited(), RequestFacts(model="")
    decision = decide(config, facts, permits_for(config, facts), first_byte_seconds={}, pick=0.0, load={})
    bound = usage_bound(config, decision, {}, 5, writes=False)
    ask = partial(kept.admit, bound, facts)
    async with trio.open_nursery() as nursery:
        await nursery.start(kept.run)
        await kept.reload(limited())
        with pytest.raises(BudgetStoreError, match="another process"):
            await ask()
        while kept.problem:  # noqa: ASYNC110 (a state of another task)
            await trio.sleep(1)
        assert isinstance(await ask(), Reservation)
        nursery.cancel_scope.cancel()
    waits = [later - earlier for earlier, later in itertools.pairwise(attempts)]
    assert len(attempts) == 9
    assert min(waits) >= 0.8
    assert max(waits) <= 61
    saved = real(file)
    file.close()
    assert [each.amount for each in saved.held] == [Amount(5, 5000)]
