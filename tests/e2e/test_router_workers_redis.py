"""Budgets of `llmkube router --workers 2` at a real redis-server: one count, over crashes of either side."""

import json
import os
import signal
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from e2e.router_workers_lab import USAGE, open_lab, until
from llmkube.router.config.routing_config import Budget, RedisStore
from redis_program import PASSWORD, open_redis

pytestmark = [pytest.mark.e2e, pytest.mark.ci]

ANSWER = 100
MOST = len(json.dumps({"model": "m", "messages": [{"role": "user", "content": "go"}], "max_tokens": ANSWER})) + ANSWER
"""Tokens that are reserved for one request: its body, and the answer that it asks for."""


@pytest.fixture
async def server():
    async with open_redis() as held:
        yield held


@asynccontextmanager
async def lab_at(server, folder, max_tokens):
    """Run two workers whose one budget is at the server."""
    password = folder / "password"
    password.write_text(f"{PASSWORD}\n")
    budget = Budget(name="hour", scope="router", window_seconds=3600, max_tokens=max_tokens)
    store = RedisStore(host="127.0.0.1", port=server.port, password_file=str(password))
    async with open_lab(folder, budgets=(budget,), budget_store=store) as lab:
        yield lab


async def statuses(clients, count=1):
    """Ask with each of these connections, one after the other, so many times."""
    return [(await client.say("go", max_tokens=ANSWER))[0] for _ in range(count) for client in clients]


async def ask_into(answers, client):
    """Ask, and note what the client gets, nothing where its connection ends."""
    try:
        answers.append((client.worker, *await client.say("go", max_tokens=ANSWER)))
    except (ConnectionError, trio.BrokenResourceError):
        answers.append((client.worker, 0, {}))


async def fits(lab, count):
    """Ask once more than fits while nothing is answered; return how many the engine has got."""
    lab.engine.open, before, answers = False, len(lab.engine.asked), []
    clients = [*await lab.clients(), *await lab.crowd(2 * count - 2)]
    async with trio.open_nursery() as nursery:
        for client in clients:
            nursery.start_soon(ask_into, answers, client)
        await until(lambda: len(answers) + len(lab.engine.asked) - before >= len(clients))
        found = len(lab.engine.asked) - before
        assert {status for _, status, _ in answers} == {429}
        for _ in range(found):
            lab.engine.let_go(-1)  # those before may be of a worker that is gone
    lab.engine.open = True
    return found


async def test_two_workers_take_no_more_than_their_one_budget(server, tmp_path):
    """Of many requests at once as many are sent as fit, to the last one; what they took less is there for the next."""
    fit = 23
    async with lab_at(server, tmp_path, fit * MOST) as lab:
        await statuses(await lab.clients())  # both are connected
        lab.engine.open, answers = False, []
        clients = [*await lab.clients(), *await lab.crowd(98)]
        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(ask_into, answers, client)
            # 16 tokens are taken already: one request less
            await lab.engine.until_asked(2 + fit - 1)
            await until(lambda: len(answers) >= 100 - fit + 1)
            assert len(lab.engine.asked) == 2 + fit - 1
            assert {status for _, status, _ in answers} == {429}
            for _ in range(fit - 1):
                lab.engine.let_go()
        assert [status for _, status, _ in answers].count(200) == fit - 1
        left = (fit * MOST - (2 + fit - 1) * USAGE["total_tokens"]) // MOST
        assert await fits(lab, fit) == left


async def test_what_a_killed_worker_had_reserved_stays_charged(server, tmp_path):
    """The other worker and the one in its place have as much less; nothing of it is given back."""
    async with lab_at(server, tmp_path, 10 * MOST) as lab:
        doomed, _ = lab.workers()
        lab.engine.open, answers = False, []
        clients = [await lab.connect(doomed) for _ in range(4)]
        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(ask_into, answers, client)
            await lab.engine.until_asked(4)
            os.kill(doomed, signal.SIGKILL)
        assert [status for _, status, _ in answers] == [0] * 4
        await until(lambda: len(lab.workers()) == 2 and doomed not in lab.workers())
        await until(partial(is_ready, lab))
        assert await fits(lab, 10) == 6


async def test_a_server_that_goes_away_and_returns(server, tmp_path):
    """Neither worker sends what it cannot count; when it is back both go on, and settle what ended meanwhile."""
    async with lab_at(server, tmp_path, 4 * MOST) as lab:
        clients, answers = await lab.clients(), []
        assert await statuses(clients) == [200, 200]
        lab.engine.open = False
        under_way = await lab.clients()
        async with trio.open_nursery() as nursery:
            for client in under_way:
                nursery.start_soon(ask_into, answers, client)
            await lab.engine.until_asked(4)
            server.signal(signal.SIGSTOP)
            lost = []
            for client in clients:
                nursery.start_soon(ask_into, lost, client)
            await until(lambda: len(lost) >= 2)
            assert [(status, said["error"]["code"]) for _, status, said in lost] == [(503, "budget_not_kept")] * 2
            for _ in range(2):
                lab.engine.let_go()
        assert [status for _, status, _ in answers] == [200, 200]
        assert len(lab.engine.asked) == 4
        lab.engine.open = True
        server.signal(signal.SIGCONT)
        for client in clients:
            await until_counts(client)
        server.signal(signal.SIGKILL)
        assert await statuses(clients) == [503, 503]
        status, ready = await lab.operator("/readyz")
        assert (status, f"127.0.0.1:{server.port}" in ready["reason"]) == (200, True), (
            ready
        )  # all without a budget go on
        await server.start()
        for client in clients:
            await until_counts(client)


async def is_ready(lab):
    return (await lab.operator("/readyz")) == (200, {"status": "ok", "reason": ""})


async def until_counts(client):
    async def answers():
        return (await client.say("go", max_tokens=ANSWER))[0] == 200

    await until(answers)
