"""Requests that wait for a slot of an engine: their order, the clients' comments, and the errors of a full queue."""

import json

import pytest
import trio
import trio.testing

from llmkube.router import fair_queue
from llmkube.router.config.routing_config import Auth
from router.proxy import router_lab as rl

ONE = rl.local("mac", slots=1)
SLOW = rl.saying(b"", rl.answer(), seconds=12)
FULL = "llmkube_router_queue_depth"


async def keep(results, ask, *args):
    results.append(await ask(*args))


async def test_an_engine_gets_as_many_requests_as_it_has_slots(autojump_clock):
    """The others wait in the router, are shown there, and are sent one by one."""
    answers = []
    async with rl.open_lab(rl.config_of(ONE), mac=SLOW) as lab, trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(keep, answers, lab.ask)
        await trio.sleep(1)
        assert (len(lab.players["mac"].asked), lab.metric(FULL, backend="mac")) == (1, 2)
        assert lab.metric("llmkube_router_in_flight", backend="mac") == 3
        of_picker = ("vllm:num_requests_running", "vllm:num_requests_waiting")
        assert [lab.registry.get_sample_value(name) for name in of_picker] == [1, 2]
        await trio.sleep(12)
        assert (len(lab.players["mac"].asked), lab.metric(FULL, backend="mac")) == (2, 1)
    assert [json.loads(each.body) for each in answers] == [rl.ANSWER] * 3
    assert lab.metric(FULL, backend="mac") == 0


async def test_a_slot_is_held_to_the_end_of_a_stream(autojump_clock):
    """The second request is sent after the first client's last byte; until then its client gets comments."""
    long = rl.saying(rl.stream(b": x\n\n", end=b""), rl.chunk(rl.WHOLE_STREAM) + b"0\r\n\r\n", seconds=12)
    results = []
    async with rl.open_lab(rl.config_of(ONE), mac=long) as lab, trio.open_nursery() as nursery:
        nursery.start_soon(keep, results, lab.read)
        await trio.sleep(0.5)
        nursery.start_soon(keep, results, lab.read)
        await trio.sleep(11)
        assert len(lab.players["mac"].asked) == 1
    (status, first, clean), (status_, second, clean_) = results
    assert (status, clean, status_, clean_) == (200, True, 200, True)
    assert b"waits for its turn" not in first
    assert second.startswith(b": the request waits for its turn\n\n")
    # at 5 and 10 seconds of the queue, and again of the engine's silence
    assert second.count(b"waits for its turn") == 4
    assert b"loading" not in second
    assert b" two" in second


async def test_an_engine_whose_slots_are_not_known_has_no_queue():
    """A provider has none, either: each request is sent at once."""
    async with rl.open_lab(rl.MAC, mac=rl.saying(b"", then=rl.until_gone)) as lab, trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(lab.ask)
        await trio.testing.wait_all_tasks_blocked()
        assert len(lab.players["mac"].asked) == 5
        nursery.cancel_scope.cancel()


async def test_a_client_that_goes_away_leaves_the_queue(autojump_clock):
    """Its request never reaches the engine, and the next one does."""
    answers = []
    async with rl.open_lab(rl.config_of(ONE), mac=SLOW) as lab, trio.open_nursery() as nursery:
        nursery.start_soon(keep, answers, lab.ask)
        await trio.sleep(1)
        with trio.move_on_after(2):
            await lab.ask(rl.ASKED | {"user": "gone"})
        await trio.testing.wait_all_tasks_blocked()
        assert lab.metric(FULL, backend="mac") == 0
        await lab.ask(rl.ASKED | {"user": "next"})
        assert [each.get("user") for each in lab.players["mac"].bodies] == [None, "next"]
    assert sorted(line["outcome"] for line in lab.audit) == ["client_gone", "ok", "ok"]


@pytest.mark.parametrize(("own", "status", "code"), [(2, 429, "tenant_queue_full"), (1, 503, "queue_full")])
async def test_a_request_whose_turn_never_comes_gets_retry_after(autojump_clock, own, status, code):
    """The status is 429 if the same tenant has more requests, else 503; the backend's circuit does not count it."""
    results = []
    events = [rl.chunk(b": x\n\n"), *[rl.chunk(rl.WHOLE_STREAM[: rl.WHOLE_STREAM.index(b"\n\n") + 2])] * 9]
    long = rl.saying(rl.stream(rl.WHOLE_STREAM[: rl.WHOLE_STREAM.index(b"\n\n") + 2], end=b""), *events, seconds=10)
    async with rl.open_lab(rl.config_of(ONE, first_byte_seconds=25), mac=long) as lab, trio.open_nursery() as nursery:
        nursery.start_soon(lab.read)
        await trio.sleep(1)
        for _ in range(own):
            nursery.start_soon(keep, results, lab.ask)
            await trio.sleep(3)
        await trio.sleep(25.5 - 3 * own)
        assert len(results) == 1
        assert (results[0].status, json.loads(results[0].body)["error"]["code"]) == (status, code)
        assert results[0].headers.get("retry-after") == "5"
        assert lab.router.states() == {"mac": ""}
        assert lab.metric("llmkube_router_attempts_total", backend="mac", result="queue") == 1
        nursery.cancel_scope.cancel()


async def test_a_full_queue_refuses_the_newest_of_the_busiest_tenant(autojump_clock, monkeypatch):
    """It gets 429 with Retry-After at once; earlier requests keep waiting."""
    monkeypatch.setattr(fair_queue, "MAX_WAITING", 2)
    answers = []
    async with rl.open_lab(rl.config_of(ONE), mac=SLOW) as lab, trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(keep, answers, lab.ask)
        await trio.sleep(1)
        response = await lab.ask()
        assert (response.status, json.loads(response.body)["error"]["code"]) == (429, "tenant_queue_full")
        assert int(response.headers.get("retry-after")) >= 1
        assert trio.current_time() < 2
    assert [each.status for each in answers] == [200] * 3
    outcome = {"rule": "all", "backend": "none", "classification": "none", "outcome": "tenant_queue_full"}
    assert lab.metric("llmkube_router_requests_total", **outcome) == 1


async def test_a_full_queue_leads_to_the_next_backend(autojump_clock, monkeypatch):
    monkeypatch.setattr(fair_queue, "MAX_WAITING", 0)
    async with (
        rl.open_lab(rl.config_of(ONE, rl.cloud("b")), mac=SLOW, b=rl.answer()) as lab,
        trio.open_nursery() as nursery,
    ):
        response = await lab.ask()
        assert response.status == 200
        assert [each["result"] for each in lab.audit[0]["attempts"]] == ["queue", "answered"]
        nursery.cancel_scope.cancel()


async def test_an_open_circuit_is_not_waited_for(monkeypatch):
    """No request is queued for it."""
    async with rl.open_lab(rl.config_of(ONE), mac=rl.error(500)) as lab:
        for _ in range(3):
            await lab.ask()
        monkeypatch.setattr(fair_queue, "MAX_WAITING", 0)
        response = await lab.ask()
        assert (response.status, json.loads(response.body)["error"]["code"]) == (503, "no_backend_available")
        assert lab.metric("llmkube_router_attempts_total", backend="mac", result="circuit_open") == 1


async def test_a_tenant_is_charged_what_an_answer_took_and_nothing_while_the_engine_loads(autojump_clock, monkeypatch):
    """The charge is the uncached prompt and the answer; the engine is free between two attempts."""
    charged, ended = [], fair_queue.FairQueue.ended

    def spy(queue, tenant, tokens, took, *more):
        charged.append(took)
        ended(queue, tenant, tokens, took, *more)

    monkeypatch.setattr(fair_queue.FairQueue, "ended", spy)
    loading = rl.error(503, "Loading model", code=503, type="unavailable_error")
    usage = {"prompt_tokens": 30, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 20}}
    async with rl.open_lab(
        rl.config_of(ONE), mac=(*[loading] * 3, rl.answer(body=rl.ANSWER | {"usage": usage}))
    ) as lab:
        assert (await lab.ask()).status == 200
    assert charged == [0, 0, 0, 15]


async def test_a_light_team_is_next_before_any_backlog_of_another(autojump_clock, tmp_path):
    """Turns belong to teams, not to keys or connections."""
    (tmp_path / "flood").write_text("k1\nk2\n")
    (tmp_path / "quiet").write_text("k3\n")
    config = rl.config_of(ONE, auth=Auth(keys_folder=str(tmp_path)))
    async with rl.open_lab(config, mac=SLOW) as lab, trio.open_nursery() as nursery:
        for number in range(4):
            key = {"authorization": f"Bearer k{1 + number % 2}"}
            nursery.start_soon(lab.ask, rl.ASKED | {"user": "flood"}, "/v1/chat/completions", key)
        await trio.sleep(1)
        await lab.ask(rl.ASKED | {"user": "quiet"}, headers={"authorization": "Bearer k3"})
        assert [each["user"] for each in lab.players["mac"].bodies] == ["flood", "quiet"]
        nursery.cancel_scope.cancel()
