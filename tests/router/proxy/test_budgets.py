"""Budgets of a router: refusals, charges, and invariants."""

import json
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


USAGES = {
    "read and written": (
        {"prompt_tokens": 100, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 60},
         "cache_creation_input_tokens": 30,
         "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20}},
        10 * 100 + 10 * 500 + 60 * 10 + 10 * 125 + 20 * 200,
    ),
    "the total has more": ({"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 50}, 10 * 100 + 40 * 500),
    "zeros": ({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}, None),
    "negative": ({"prompt_tokens": 10, "completion_tokens": -1, "total_tokens": 9}, None),
    "no answer, but a text": ({"prompt_tokens": 10, "completion_tokens": 0, "total_tokens": 10}, None),
    "no prompt": ({"prompt_tokens": 0, "completion_tokens": 10, "total_tokens": 10}, None),
}  # fmt: skip
"""A usage, and its price in microdollars; None for the reservation."""

ALL_PRICES = Prices(
    prompt_usd=Decimal(100),
    completion_usd=Decimal(500),
    cache_read_usd=Decimal(10),
    cache_write5m_usd=Decimal(125),
    cache_write1h_usd=Decimal(200),
)


def spent(lab):
    return round(float(lab.router.budgets()[0]["usdUsed"]) * 1_000_000)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("name", USAGES)
async def test_each_token_has_its_price_and_what_is_not_counted_is_charged_as_reserved(name, streams, autojump_clock):
    """Zeros and negative numbers are no counts, and hidden tokens are in the total."""
    usage, price = USAGES[name]
    last = rl.piece("", "stop", usage=usage)
    script = rl.stream(rl.piece("one"), last, rl.DONE) if streams else rl.answer(body=rl.ANSWER | {"usage": usage})
    config = rl.config_of(rl.local("a", prices=ALL_PRICES), budgets=(budget(max_tokens=None, max_usd=Decimal(1)),))
    async with rl.open_lab(config, a=script) as lab:
        await lab.read((rl.STREAMED if streams else rl.ASKED) | SMALL)
        await trio.sleep(1)
        if price is None:
            assert spent(lab) > 10 * 500 + 20 * 200  # its answer, and each byte of its body at the highest price
        else:
            assert spent(lab) == price


@pytest.mark.parametrize(("prices", "price"), [
    ({}, 10 * 100 + 8 * 500 + 60 * 100 + 10 * 125 + 20 * 200),
    ({"cache_read_usd": Decimal(10), "cache_write5m_usd": Decimal(300), "cache_write1h_usd": Decimal(0)},
     10 * 100 + 8 * 500 + 60 * 10 + 10 * 300),
])  # fmt: skip
async def test_anthropic_s_caches_are_charged_and_reported(prices, price, autojump_clock):
    """Without prices, writes cost Anthropic's multiples of the prompt; its clients see the same usage."""
    usage = {
        "input_tokens": 10,
        "cache_read_input_tokens": 60,
        "cache_creation_input_tokens": 30,
        "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20},
        "output_tokens": 8,
    }
    body = {"id": "m", "type": "message", "role": "assistant", "model": "opus", "stop_reason": "end_turn",
            "content": [{"type": "text", "text": "yes"}], "usage": usage}  # fmt: skip
    found = Prices(prompt_usd=Decimal(100), completion_usd=Decimal(500), **prices)
    claude = rl.cloud("claude", provider="anthropic", dialect="anthropic", model="opus", prices=found)
    config = rl.config_of(claude, budgets=(budget(max_tokens=None, max_usd=Decimal(1)),))
    async with rl.open_lab(config, claude=rl.answer(body=body)) as lab:
        answer = await lab.ask(rl.MESSAGE, "/v1/messages")
        assert spent(lab) == price
        assert json.loads(answer.body)["usage"].items() >= usage.items()
