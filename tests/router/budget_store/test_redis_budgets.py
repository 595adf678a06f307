"""Budgets that routers share in a real redis-server: one total, even if either side crashes."""

import signal
from contextlib import asynccontextmanager, contextmanager

import attrs
import pytest
import trio

from llmkube.router.budget_store import redis_budgets
from llmkube.router.config.routing_config import Budget, RedisStore
from redis_program import PASSWORD, open_redis
from router.proxy.router_lab import ANSWER, ASKED, DONE, answer, config_of, error, local, open_lab, piece, stream
from router.proxy.test_budgets import SMALL, limited, taken
from waiting import until

pytestmark = pytest.mark.e2e


@pytest.fixture
async def server():
    async with open_redis() as held:
        yield held


@asynccontextmanager
async def lab(server, tmp_path, script=None, *, config=None, password=PASSWORD):
    """Open a router whose budgets are at the server."""
    file = tmp_path / "password"
    file.write_text(f"{password}\n")
    store = RedisStore(host="127.0.0.1", port=server.port, password_file=str(file))
    config = attrs.evolve(config or limited(), budget_store=store)
    async with open_lab(config, a=script or answer()) as held:
        yield held


async def test_two_routers_have_one_count(server, tmp_path):
    """One router cannot take what the other has taken; its refusal has the correct wait."""
    never = answer(body=ANSWER | {"usage": None})  # charged as reserved: nothing is released after the refusal
    async with lab(server, tmp_path, never) as one, lab(server, tmp_path) as other:
        while (answered := await one.ask(ASKED | {"max_tokens": 100})).status == 200:
            pass
        assert answered.status == 429
        refused = await other.ask(ASKED | {"max_tokens": 300})
        assert (refused.status, b"budget_exhausted" in refused.body) == (429, True)
        assert 3500 < int(refused.headers.get("retry-after")) <= 3661
        assert other.players["a"].asked == []


@pytest.mark.ci
async def test_charges_survive_a_restart(server, tmp_path):
    """The next process reads the server; charges that the last one settled are included."""
    async with lab(server, tmp_path) as one:
        assert (await one.ask(ASKED | SMALL)).status == 200
    async with lab(server, tmp_path) as other:
        assert (await other.ask(ASKED | SMALL)).status == 200
        await until(lambda: looked(other))
        assert taken(other) == 16


def looked(held, tokens=16):
    """Return whether this amount is taken at the server, as last read."""
    return taken(held) == tokens


async def test_a_crash_leaves_what_was_reserved(server, tmp_path):
    """A request that is never settled is charged as reserved, at once and without failure detection."""
    async with lab(server, tmp_path, error(500)) as one:
        monkey = redis_budgets.RedisBudgets.settle
        redis_budgets.RedisBudgets.settle = lambda *_: None
        try:
            await one.ask(ASKED | {"max_tokens": 200})
        finally:
            redis_budgets.RedisBudgets.settle = monkey
    async with lab(server, tmp_path) as other:
        assert (await other.ask(ASKED | {"max_tokens": 200})).status == 429
        assert (await other.ask(ASKED | {"max_tokens": 20})).status == 200


async def test_never_more_is_admitted_than_the_limit(server, tmp_path):
    """With three routers and sixty concurrent clients, reservations and charges stay within the limit."""
    admitted = []

    async def ask(held):
        answered = await held.ask(ASKED | {"max_tokens": 10})
        admitted.append(answered.status)

    never = answer(body=ANSWER | {"usage": None})  # charged as reserved
    config = limited(max_tokens=2000)
    async with (
        lab(server, tmp_path, never, config=config) as one,
        lab(server, tmp_path, never, config=config) as two,
        lab(server, tmp_path, never, config=config) as three,
        trio.open_nursery() as nursery,
    ):
        for _ in range(20):
            for held in (one, two, three):
                nursery.start_soon(ask, held)
    each = len(b'{"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 10}') + 10
    assert sorted(set(admitted)) == [200, 429]
    assert admitted.count(200) == 2000 // each


async def test_a_server_that_is_away_refuses_and_is_found_again(server, tmp_path):
    """The answer is 503, nothing is sent, `/readyz` names the server; requests without a budget are not delayed."""
    async with lab(server, tmp_path) as held:
        assert (await held.ask(ASKED | SMALL)).status == 200
        server.signal(signal.SIGKILL)
        refused = await held.ask(ASKED | SMALL)
        assert (refused.status, b"budget_not_kept" in refused.body) == (503, True)
        assert len(held.players["a"].asked) == 1
        assert f"127.0.0.1:{server.port} is unavailable: " in held.router.ready()[1]
        await server.start()
        await until(lambda: not held.router.ready()[1])
        assert (await held.ask(ASKED | SMALL)).status == 200


@contextmanager
def frozen(server, monkeypatch):
    """Stop the server, with a short timeout for requests; before and after, the timeout is long.

    A lost answer may leave its amount reserved, so that a later request does not fit.
    """
    server.signal(signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(redis_budgets, "TIMEOUT_SECONDS", 0.3)
        yield
    server.signal(signal.SIGCONT)


async def test_a_server_that_hangs_refuses_within_its_time(server, tmp_path, monkeypatch):
    """A frozen server delays each request by its timeout only, and serves again once it is resumed."""
    async with lab(server, tmp_path) as held:
        assert (await held.ask(ASKED | SMALL)).status == 200
        with frozen(server, monkeypatch):
            assert (await held.ask(ASKED | SMALL)).status == 503
        await until(lambda: not held.router.ready()[1])
        assert (await held.ask(ASKED | SMALL)).status == 200


async def test_a_wrong_password_is_reported_without_its_text(server, tmp_path, capsys):
    """The log and `/readyz` have the server's error and not the password."""
    async with lab(server, tmp_path, password="opensesame") as held:
        assert (await held.ask(ASKED | SMALL)).status == 503
        text = held.router.ready()[1] + capsys.readouterr().out
        assert "127.0.0.1" in text
        assert "opensesame" not in text


async def test_settlements_wait_for_the_server(server, tmp_path, monkeypatch):
    """An answer that ended while the server was away is charged once the server is back."""
    go_on = trio.Event()

    async def script(connection):
        await go_on.wait()
        await connection.send_all(answer())

    # Capacity for one large request with the small one, which the server may have reserved, and not for two
    config = limited(max_tokens=500)
    async with lab(server, tmp_path, script, config=config) as held, trio.open_nursery() as nursery:
        nursery.start_soon(held.ask, ASKED | {"max_tokens": 250})
        await until(lambda: held.players["a"].asked)
        with frozen(server, monkeypatch):
            assert (await held.ask(ASKED | SMALL)).status == 503
            await until(lambda: f"{server.port} is unavailable: no response" in held.router.ready()[1])
            go_on.set()
            await until(lambda: "ok" in [line["outcome"] for line in held.audit])
        await until(lambda: not held.router.ready()[1])
        with trio.fail_after(60):
            status = 0
            while status != 200:
                await trio.sleep(0.05)
                status = (await held.ask(ASKED | {"max_tokens": 250})).status


async def test_a_budget_of_each_team_and_of_all(server, tmp_path):
    """A request is charged to both budgets or to none: if the team's is full, the router's is unchanged."""
    team = Budget(name="t", scope="team", window_seconds=3600, max_tokens=100)
    every = Budget(name="all", scope="router", window_seconds=60, max_tokens=250)
    config = config_of(local("a"), budgets=(every, team))
    without_usage = answer(body=ANSWER | {"usage": None})
    async with lab(server, tmp_path, without_usage, config=config) as held:
        blue, red = {"X-LLMKube-Team": "blue"}, {"X-LLMKube-Team": "red"}
        assert (await held.ask(ASKED | SMALL, headers=blue)).status == 200
        for _ in range(5):
            assert (await held.ask(ASKED | SMALL, headers=blue)).status == 429
        assert (await held.ask(ASKED | SMALL, headers=red)).status == 200


async def test_a_stream_is_settled_by_its_usage(server, tmp_path):
    """A stream is settled like an answer in one piece."""
    last = piece("yes", "stop", usage={"prompt_tokens": 3, "completion_tokens": 5})
    async with lab(server, tmp_path, stream(last, DONE)) as held:
        for _ in range(20):  # 100 tokens reserved each, 8 taken
            assert (await held.read(ASKED | SMALL | {"stream": True}))[0] == 200


@pytest.mark.ci
async def test_a_settlement_whose_answer_is_lost_is_applied_once(server, tmp_path, monkeypatch):
    """It is repeated under its name, and releases nothing twice."""
    real, call_ids = redis_budgets._run, []

    async def run(client, script, call):
        answered = await real(client, script, call)
        if script == redis_budgets.SETTLE:
            call_ids.append(call.keys[0])
            if len(call_ids) == 1:
                raise OSError("the answer is lost")
        return answered

    monkeypatch.setattr(redis_budgets, "_run", run)
    async with lab(server, tmp_path) as held:
        assert (await held.ask(ASKED | SMALL)).status == 200
        await until(lambda: len(call_ids) >= 2 and not held.router.ready()[1])
    assert call_ids[0] == call_ids[1]
    async with lab(server, tmp_path) as other:
        assert (await other.ask(ASKED | SMALL)).status == 200
        await until(lambda: looked(other, 16))


MUTANTS = {
    "the limit is not asked": ("RESERVE", "if not fits(t + tokens, n + dollars) then", "if false then"),
    "nothing is added": ("RESERVE", "redis.call('HINCRBY', key, at .. ':t', ARGV[1])", ""),
    "the window never counts": ("RESERVE", "if at + window <= now then", "if true then"),
}


@pytest.mark.soak
@pytest.mark.parametrize("name", MUTANTS)
async def test_a_deliberate_bug_is_caught(name, server, tmp_path, monkeypatch):
    """Each bug admits more than the limit in `test_never_more_is_admitted_than_the_limit`."""
    script, old, new = MUTANTS[name]
    text = getattr(redis_budgets, script)
    assert old in text
    monkeypatch.setattr(redis_budgets, script, text.replace(old, new))
    with pytest.raises(AssertionError):
        await test_never_more_is_admitted_than_the_limit(server, tmp_path)
