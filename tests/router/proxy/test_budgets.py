"""Budgets of a router: refusals, charges, and invariants."""

import random
from decimal import Decimal

import pytest
import trio

from llmkube.router.config.routing_config import Budget, Prices
from router.proxy import router_lab as rl

SMALL = {"max_tokens": 10}


def budget(**changes):
    return Budget(**{"name": "b", "scope": "router", "window_seconds": 3600, "max_tokens": 400} | changes)


def limited(**changes):
    prices = Prices(prompt_usd=Decimal(1), completion_usd=Decimal(1))
    return rl.config_of(rl.local("a", prices=prices), budgets=(budget(**changes),))


def taken(lab):
    return lab.router.budgets()[0]["tokensUsed"]


async def test_a_full_budget_refuses_with_a_time(autojump_clock):
    """It is 429 in OpenAI's shape, with Retry-After; the backend is not asked until then."""
    config = limited(max_tokens=100 + len(b'{"model": "m"}'))
    async with rl.open_lab(
        config, a=rl.answer(body=rl.ANSWER | {"usage": {"prompt_tokens": 60, "completion_tokens": 30}})
    ) as lab:
        assert (await lab.ask(rl.ASKED | SMALL)).status == 200
        refused = await lab.ask(rl.ASKED | SMALL)
        assert refused.status == 429
        assert b'"budget_exhausted"' in refused.body
        assert len(lab.players["a"].asked) == 1
        await trio.sleep(float(refused.headers.get("retry-after")) + 1)
        assert (await lab.ask(rl.ASKED | SMALL)).status == 200
        assert lab.audit[1]["outcome"] == "budget_exhausted"


@pytest.mark.ci
async def test_teams_that_are_idle_leave_their_accounts_to_new_ones(autojump_clock, monkeypatch):
    """At the maximum number of accounts, expired ones are removed, so that no new team shares one."""
    monkeypatch.setattr("llmkube.router.budgets.meter.MAX_ACCOUNTS", 3)
    took = rl.answer(body=rl.ANSWER | {"usage": {"prompt_tokens": 60, "completion_tokens": 30}})
    async with rl.open_lab(limited(scope="team", max_tokens=120), a=took) as lab:

        async def statuses(*teams):
            return [(await lab.ask(rl.ASKED | SMALL, headers={"x-llmkube-team": team})).status for team in teams]

        assert await statuses("a", "b", "c", "c") == [200, 200, 200, 429]
        await trio.sleep(2 * 3600)
        assert await statuses("d", "e", "e") == [200, 200, 429]


async def test_what_an_answer_took_is_charged(autojump_clock):
    """The charge comes from `usage`, from llama.cpp's `timings`, or is the reservation if both are missing."""
    took = [{"usage": {"prompt_tokens": 3, "completion_tokens": 5}}, {"timings": {"prompt_n": 2, "predicted_n": 4}}, {}]
    plain = {name: value for name, value in rl.ANSWER.items() if name != "usage"}
    scripts = tuple(rl.answer(body=plain | each) for each in took)
    async with rl.open_lab(limited(), a=scripts) as lab:
        for wanted in (8, 6):
            before = taken(lab)
            await lab.ask(rl.ASKED | SMALL)
            assert taken(lab) - before == wanted
        before = taken(lab)
        await lab.ask(rl.ASKED | SMALL)
        assert taken(lab) - before > 10


async def test_each_of_several_answers_of_llama_cpp_is_charged(autojump_clock):
    """llama.cpp's server counts only one of them, in `usage` and `timings`; other servers count all."""
    took = {"usage": {"prompt_tokens": 3, "completion_tokens": 5}}
    timed = took | {"timings": {"prompt_n": 3, "predicted_n": 5, "prompt_ms": 1.0, "predicted_ms": 1.0}}
    async with rl.open_lab(limited(), a=(rl.answer(body=rl.ANSWER | timed), rl.answer(body=rl.ANSWER | took))) as lab:
        for wanted in (3 + 4 * 5, 3 + 5):
            before = taken(lab)
            await lab.ask(rl.ASKED | SMALL | {"n": 4})
            assert taken(lab) - before == wanted


async def test_a_request_that_got_nothing_costs_nothing(autojump_clock):
    """No backend has answered, or it has refused."""
    async with rl.open_lab(limited(), a=(rl.error(400, "no"), rl.error(500))) as lab:
        await lab.ask(rl.ASKED | SMALL)
        await lab.ask(rl.ASKED | SMALL)
        assert taken(lab) == 0


async def test_a_disconnected_client_is_charged(autojump_clock):
    """Otherwise a client could have long answers generated for free, again and again."""

    async def slow(connection):
        await trio.sleep(60)

    async with rl.open_lab(limited(), a=slow) as lab:
        with trio.move_on_after(1):
            await lab.ask(rl.ASKED | SMALL)
        await trio.sleep(1)
        assert taken(lab) > 10
        with trio.move_on_after(1):
            await lab.ask(rl.ASKED | SMALL)


async def test_a_stream_that_breaks_is_charged_as_reserved(autojump_clock):
    """It has written an unknown number of tokens."""
    async with rl.open_lab(limited(), a=rl.saying(rl.SSE + rl.chunk(rl.piece("one")))) as lab:
        await lab.read(rl.STREAMED | SMALL)
        assert taken(lab) > 10


async def test_a_request_without_a_limit_is_given_one(autojump_clock):
    """The backend gets the limit too, so that the reservation is the maximum."""
    async with rl.open_lab(limited(max_tokens=10_000), a=rl.answer()) as lab:
        await lab.ask()
        await lab.ask(rl.ASKED | {"max_tokens": 3, "n_predict": -1})
        for body in lab.players["a"].bodies:
            assert body["max_tokens"] == 4096
            assert "n_predict" not in body


@pytest.mark.ci
async def test_a_thousand_streams_and_crashes_admit_no_more_than_is_reserved(autojump_clock):
    """Random ends, breaks, silences, refusals and disconnects at two backends never exceed the limit.

    All computed tokens, including those of disconnected clients, are charged.
    """
    rng, most, computed = random.Random(5), 20_000, 0
    usage = rl.piece("", "stop", usage={"prompt_tokens": 20, "completion_tokens": 5})

    async def backend(connection):
        nonlocal computed
        kind = rng.random()
        if kind < 0.1:
            await connection.send_all(rl.error(rng.choice((429, 500))))
            return
        computed += 21  # a prompt and a token, however it ends
        await trio.sleep(rng.uniform(0, 5))
        if kind < 0.3:
            return
        if kind < 0.4:
            await rl.until_gone(connection)
        await connection.send_all(rl.SSE + rl.chunk(rl.piece("one")))
        await trio.sleep(rng.uniform(0, 5))
        if kind < 0.5:
            return
        await connection.send_all(rl.stream(usage, rl.DONE)[len(rl.SSE) :])

    counts = {200: 0, 429: 0, "other": 0}
    backends = [rl.local(name, first_byte_seconds=8) for name in "ab"]
    async with rl.open_lab(rl.config_of(*backends, budgets=(budget(max_tokens=most),)), a=backend, b=backend) as lab:

        async def client():
            await trio.sleep(rng.uniform(0, 60))
            patience = rng.choice((2.0, 1000.0))
            with trio.move_on_after(patience):
                status, _, _ = await lab.read(rl.STREAMED | {"max_tokens": rng.randint(1, 200)})
                counts[status if status in counts else "other"] += 1

        async def watch():
            while True:
                assert taken(lab) <= most
                await trio.sleep(0.5)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            async with trio.open_nursery() as clients:
                for _ in range(1000):
                    clients.start_soon(client)
            await trio.sleep(10)
            assert computed <= taken(lab)
            nursery.cancel_scope.cancel()
        assert sum(line["outcome"] == "budget_exhausted" for line in lab.audit) > 0
        assert counts[200] > 30
        assert sum(len(line["attempts"]) > 1 and line["status"] == 200 for line in lab.audit) > 0
        await trio.sleep(2 * 3600)
        assert taken(lab) == 0
