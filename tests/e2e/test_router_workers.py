"""`llmkube router --workers 2`: what one process promises holds over two, also while they are killed."""

import json
import os
import signal
from decimal import Decimal
from functools import partial

import attrs
import psutil
import pytest
import trio

from e2e.router_workers_lab import USAGE, open_lab, until
from e2e.up_process import run_program
from llmkube.router.config.routing_config import Audit, Budget, Prices
from llmkube.router.config.written_form import decode_config

pytestmark = [pytest.mark.e2e, pytest.mark.ci]

AT_ONCE = 200


def budget(**limits):
    return Budget(name="hour", scope="router", window_seconds=3600, **limits)


def ask_many(nursery, clients, text, answers=None):
    """Ask with each of these connections at once."""

    async def ask(client):
        found = await client.say(text, max_tokens=100)
        if answers is not None:
            answers.append(found)

    for client in clients:
        nursery.start_soon(ask, client)


@pytest.mark.parametrize("quiet_place", [0, 1])
async def test_the_next_slot_is_a_quiet_tenants_whichever_worker_it_asks(tmp_path, quiet_place):
    """A flood through both workers waits in one queue, with the slots of the engine, and not with twice as many."""
    changes = {"slots": 1}
    async with (
        open_lab(tmp_path, teams=("loud", "quiet"), engine_changes=changes) as lab,
        trio.open_nursery() as nursery,
    ):
        lab.engine.open = False
        pids = list(lab.workers())
        flood = [await lab.connect(pid, "key-of-loud") for pid in pids for _ in range(4)]
        quiet = await lab.connect(pids[quiet_place], "key-of-quiet")
        ask_many(nursery, flood, "loud")
        await until(partial(waiting, lab, 7))
        ask_many(nursery, [quiet], "quiet")
        await until(partial(waiting, lab, 8))
        await lab.engine.until_asked(1)
        assert lab.engine.words() == ["loud"]
        for count in range(2, 10):
            lab.engine.let_go()
            await lab.engine.until_asked(count)
        lab.engine.let_go()
    assert lab.engine.words() == ["loud", "quiet", *["loud"] * 7]


async def waiting(lab, count):
    text = await lab.metrics()
    return f'llmkube_router_queue_depth{{backend="mac",router="default/many"}} {float(count)}\n' in text


@pytest.mark.parametrize("unit", ["tokens", "usd"])
async def test_many_at_once_over_two_workers_take_no_more_than_their_budget(tmp_path, unit):
    """What both have reserved together fits, to the last request, and the rest gets 429."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "go"}], "max_tokens": 100})
    most, fit = len(body) + 100, 37
    price = Prices(prompt_usd=Decimal(1), completion_usd=Decimal(1))
    limits = {"max_tokens": fit * most} if unit == "tokens" else {"max_usd": Decimal(fit * most) / 1_000_000}
    async with open_lab(tmp_path, engine_changes={"prices": price}, budgets=(budget(**limits),)) as lab:
        lab.engine.open = False
        pids, answers = list(lab.workers()), []
        clients = await lab.crowd(AT_ONCE)
        assert {client.worker for client in clients} == set(pids)

        async with trio.open_nursery() as nursery:
            ask_many(nursery, clients, "go", answers)

            await lab.engine.until_asked(fit)
            await until(lambda: len(answers) >= AT_ONCE - fit)
            assert len(lab.engine.asked) == fit
            assert {status for status, _ in answers} == {429}
            (before,) = (await lab.operator("/backends"))[1]["budgets"]
            assert before["utilization"] == "1.00"
            for _ in range(fit):
                lab.engine.let_go()
        assert [status for status, _ in answers].count(200) == fit
        (after,) = (await lab.operator("/backends"))[1]["budgets"]
        assert after["tokensUsed"] == fit * USAGE["total_tokens"]


async def test_a_backend_that_fails_at_one_worker_is_left_alone_by_the_other_and_one_request_tries_it(tmp_path):
    """The other one asks it nothing; when the pause is over, of requests at both one goes through."""
    async with open_lab(tmp_path, circuit_seconds=2.0) as lab, trio.open_nursery() as nursery:
        lab.engine.status = 500
        first, second = await lab.clients()
        for _ in range(3):
            assert (await first.say("a"))[0] in (502, 503)
        assert len(lab.engine.asked) == 3
        one = {"healthy": True}
        with trio.fail_after(60):
            while one["healthy"]:  # what a worker has seen is told to the parent, and by that to the other one
                (one,) = (await lab.operator("/backends"))[1]["backends"]
        assert "left alone" in one["message"]
        status, answer = await second.say("b")
        assert (status, len(lab.engine.asked)) == (503, 3), answer
        await trio.sleep(2.1)  # the pause
        lab.engine.status, lab.engine.open, answers = 200, False, []
        clients = [await lab.connect(pid) for pid in lab.workers() for _ in range(5)]
        ask_many(nursery, clients, "c", answers)
        await until(lambda: len(answers) >= 9)
        assert (len(lab.engine.asked), {status for status, _ in answers}) == (4, {503})
        lab.engine.let_go()
        await until(lambda: len(answers) >= 10)
        lab.engine.open = True
        for client in await lab.clients():
            assert (await client.say("d"))[0] == 200


async def test_a_conversation_goes_on_at_the_other_worker(tmp_path):
    """At once, again and again; what is deleted at one is not there at the other."""
    async with open_lab(tmp_path, teams=("a", "b")) as lab:
        clients, previous = await lab.clients("key-of-a"), None
        stranger = await lab.connect(clients[0].worker, "key-of-b")
        for place in range(20):
            body = {"model": "m", "input": f"question {place}", "previous_response_id": previous}
            status, answer = await clients[place % 2].ask(body, "/v1/responses")
            assert (status, answer.get("store")) == (200, True), answer
            previous = answer["id"]
        asked = [each["content"] for each in lab.engine.asked[-1]["messages"] if each["role"] == "user"]
        assert [text if isinstance(text, str) else text[0]["text"] for text in asked] == [
            f"question {place}" for place in range(20)
        ]
        path = f"/v1/responses/{previous}"
        assert (await clients[0].ask(None, path, "GET"))[0] == 200
        assert (await stranger.ask(None, path, "GET"))[0] == 404
        assert (await clients[0].ask(None, path, "DELETE"))[0] == 200
        assert (await clients[1].ask(None, path, "GET"))[0] == 404
        status, answer = await clients[1].ask(
            {"model": "m", "input": "x", "previous_response_id": previous}, "/v1/responses"
        )
        assert (status, answer["error"]["code"]) == (404, "previous_response_not_found")


async def test_a_killed_worker_costs_its_own_requests_alone(tmp_path):
    """Its slots are the others' at once, its reservations stay charged, and another process takes its place."""
    limits = budget(max_tokens=1_000_000)
    audit = tmp_path / "audit.log"
    changes = {"slots": 2}
    async with open_lab(
        tmp_path, engine_changes=changes, budgets=(limits,), audit=Audit(sink="file", path=str(audit))
    ) as lab:
        lab.engine.open = False
        doomed, other = list(lab.workers())
        lost, answers = [await lab.connect(doomed) for _ in range(3)], []
        async with trio.open_nursery() as nursery:
            for client in lost:
                nursery.start_soon(_ask_in_vain, client)
            await until(partial(waiting, lab, 1))
            alive = [await lab.connect(other) for _ in range(2)]
            ask_many(nursery, alive, "alive", answers)
            await until(partial(waiting, lab, 3))
            assert lab.engine.words() == ["doomed"] * 2
            os.kill(doomed, signal.SIGKILL)
            await lab.engine.until_asked(4)
            assert lab.engine.words() == ["doomed"] * 2 + ["alive"] * 2
            for _ in range(2):
                lab.engine.let_go(-1)
        assert [status for status, _ in answers] == [200, 200]
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "doomed"}], "max_tokens": 100})
        (used,) = (await lab.operator("/backends"))[1]["budgets"]
        assert used["tokensUsed"] == 3 * (len(body) + 100) + 2 * USAGE["total_tokens"]
        await until(partial(_replaced, lab, doomed))
        lab.engine.open = True
        for client in await lab.clients():
            assert (await client.say("again"))[0] == 200
        await until(partial(_ready, lab))
        lab.program.process.terminate()
        await lab.program.process.wait()
    code, out, err = await run_program(tmp_path, "router", "verify", str(audit))
    assert (code, out.count("whole, with its end"), "3 chains" in out) == (0, 2, True), out + err


async def _ask_in_vain(client):
    with pytest.raises((ConnectionError, trio.BrokenResourceError)):
        await client.say("doomed", max_tokens=100)


def _replaced(lab, pid):
    return len(lab.workers()) == 2 and pid not in lab.workers()


async def _ready(lab):
    return (await lab.operator("/readyz")) == (200, {"status": "ok", "reason": ""})


async def test_without_their_parent_no_worker_is_left(tmp_path):
    """Killed in the middle of requests, one worker stopped: all end."""
    async with open_lab(tmp_path) as lab, trio.open_nursery() as nursery:
        lab.engine.open = False
        for client in await lab.clients():
            nursery.start_soon(_ask_in_vain, client)
        await lab.engine.until_asked(2)
        workers = list(lab.workers().values())
        workers[0].suspend()
        lab.program.process.kill()
        gone, left = await trio.to_thread.run_sync(partial(psutil.wait_procs, workers, timeout=60))
        assert (len(gone), left) == (2, [])


async def test_a_stop_lets_requests_at_all_workers_end(tmp_path):
    """Both answer what they have, nobody gets in any more, and each chain of receipts has its end."""
    audit = tmp_path / "audit.log"
    limits = budget(max_tokens=1_000_000)
    async with open_lab(tmp_path, budgets=(limits,), audit=Audit(sink="file", path=str(audit))) as lab:
        lab.engine.open, answers = False, []
        clients = await lab.clients()
        async with trio.open_nursery() as nursery:
            ask_many(nursery, clients, "last", answers)
            await lab.engine.until_asked(2)
            lab.program.process.terminate()
            await until(partial(_closed, lab))
            assert not answers
            lab.engine.let_go()
            lab.engine.let_go()
        assert [status for status, _ in answers] == [200, 200]
        assert await lab.program.process.wait() == 0
    assert "Traceback" not in lab.program.err
    code, out, _ = await run_program(tmp_path, "router", "verify", str(audit))
    assert (code, out.count("whole, with its end")) == (0, 2)


async def _closed(lab):
    try:
        await (await trio.open_tcp_stream("127.0.0.1", lab.port)).aclose()
    except OSError:
        return True
    return False


async def test_a_stopped_worker_is_named_and_the_other_answers(tmp_path):
    """Nobody who comes now waits for it; `/metrics` has each worker's own counts."""
    async with open_lab(tmp_path) as lab:
        for client in await lab.clients():
            assert (await client.say("hi"))[0] == 200
        counts = [line for line in (await lab.metrics()).splitlines() if "llmkube_router_requests_total{" in line]
        assert sorted(line.rpartition('worker="')[2] for line in counts) == ['1"} 1.0', '2"} 1.0']
        stopped, other = lab.workers()
        os.kill(stopped, signal.SIGSTOP)
        for _ in range(5):
            assert (await lab.connect(other)).worker == other
        status, ready = await lab.operator("/readyz")
        assert (status, ready["reason"][:7], ready["reason"][8:]) == (200, "worker ", " does not answer")
        os.kill(other, signal.SIGSTOP)
        status, _ = await lab.operator("/readyz")
        assert status == 503
        os.kill(other, signal.SIGCONT)
        os.kill(stopped, signal.SIGCONT)
        await until(partial(_ready, lab))


async def test_another_config_counts_for_all_workers_without_a_lost_request(tmp_path):
    """What is under way goes on; the new names are there at both."""
    async with open_lab(tmp_path) as lab, trio.open_nursery() as nursery:
        lab.engine.open, answers = False, []
        clients = await lab.clients()
        ask_many(nursery, clients, "slow", answers)
        await lab.engine.until_asked(2)
        config = decode_config(lab.manifest.read_bytes())
        one = attrs.evolve(config.backends["mac"], model_id="renamed")
        lab.write(attrs.evolve(config, backends={"mac": one}))
        for client in await lab.clients():

            async def is_renamed(client=client):
                return (await client.ask(None, "/v1/models", "GET"))[1]["data"][0]["id"] == "renamed"

            await until(is_renamed)
        lab.engine.let_go()
        lab.engine.let_go()
        await until(lambda: len(answers) >= 2)
        assert [status for status, _ in answers] == [200, 200]


async def test_what_cannot_hold_is_refused_at_the_start(tmp_path):
    """Standard input, which each process would have to read; a budget's file that another router has."""
    code, _, err = await run_program(
        tmp_path, "router", "-f", "-", "--workers", "2", "--state-dir", str(tmp_path / "s")
    )
    assert code != 0
    assert "2 workers cannot share standard input" in " ".join(err.split())
    async with open_lab(tmp_path, budgets=(budget(max_tokens=1000),)) as lab:
        args = ("router", "-f", str(lab.manifest), "--port", "0", "--admin-port", "0", "--workers", "2")
        code, _, err = await run_program(tmp_path, *args, "--state-dir", str(tmp_path / "state"))
        assert code != 0
        assert "another process keeps the budgets" in " ".join(err.split())
        assert "Traceback" not in err
