"""A frozen engine is abandoned within ten seconds, a long prefill never: timelines with scripted engines."""

import json
import math

import attrs
import pytest
import trio
import trio.testing

from llmkube.router.health import engine_watch
from llmkube.router.health.engine_watch import FROZEN, WaitingRequest
from llmkube.router.policy.permits import permits_for
from llmkube.router.policy.request_facts import RequestFacts
from router.proxy import router_lab as rl

LLAMA = [b"Server: llama.cpp"]
LLAMA_200 = b"HTTP/1.1 200 OK\r\nServer: llama.cpp"
ALIVE = rl.answer(200, {"status": "ok"}, LLAMA)
FIRST = rl.answer(lines=LLAMA)
TWO = rl.config_of(rl.local("a"), rl.cloud("b"))


def after(seconds, response):
    """Return a script: this many seconds of silence, then an answer."""
    return rl.saying(b"", response, seconds=seconds)


def engine(*scripts, health=ALIVE):
    return rl.Player(scripts, health)


async def backend_of(lab, **asked):
    began = trio.current_time()
    response = await lab.ask(**asked)
    return response.headers.get("x-llmkube-backend"), trio.current_time() - began


async def test_a_frozen_engine_is_abandoned_within_ten_seconds(autojump_clock):
    """The next permitted backend answers; the circuit opens, and closes only when the engine answers again."""
    there = {"a": engine(FIRST, rl.until_gone, FIRST), "b": rl.Player((rl.answer(),))}
    async with rl.open_lab(TWO, there) as lab:
        assert (await backend_of(lab))[0] == "a"
        there["a"].health = None
        name, seconds = await backend_of(lab)
        assert name == "b"
        assert 8 <= seconds <= 10
        assert lab.audit[-1]["attempts"][0]["result"] == "frozen"
        assert lab.metric("llmkube_router_attempts_total", backend="a", result="frozen") == 1
        assert lab.router.states()["a"] == FROZEN
        for _ in range(5):
            await trio.sleep(60)
            assert await backend_of(lab) == ("b", 0)
        assert len(there["a"].asked) == 2
        there["a"].health = ALIVE
        await trio.sleep(5)
        assert lab.router.states()["a"] == ""
        assert await backend_of(lab) == ("a", 0)


@pytest.mark.ci
async def test_a_long_prefill_is_never_abandoned(autojump_clock):
    """An hour without a byte passes under a limit of two minutes: the engine answers a health query every second."""
    config = attrs.evolve(TWO, first_byte_seconds=7200.0)
    there = {"a": engine(after(3600, FIRST)), "b": rl.Player((rl.answer(),))}
    async with rl.open_lab(config, there) as lab:
        assert await backend_of(lab) == ("a", 3600)
        assert there["b"].asked == []
        assert 3500 < sum(path == "/health" for _, path in there["a"].probed) < 3700


@pytest.mark.ci
@pytest.mark.parametrize(("prefill", "name", "seconds"), [(3000, "a", 3000), (4000, "b", 3600)])
async def test_where_no_spec_gives_a_limit_an_engine_that_lives_is_waited_for(autojump_clock, prefill, name, seconds):
    """The wait exceeds the router's two minutes, up to an hour."""
    config = attrs.evolve(TWO, first_byte_extends=True)
    there = {"a": engine(after(prefill, FIRST)), "b": rl.Player((rl.answer(),))}
    async with rl.open_lab(config, there) as lab:
        found = await backend_of(lab)
    assert found == (name, pytest.approx(seconds, abs=1))


@pytest.mark.parametrize(
    ("backend", "health"),
    [
        (rl.local("a", first_byte_seconds=60.0), ALIVE),
        (rl.local("a"), rl.answer(200, {})),
        (rl.local("a"), None),
        (rl.local("a", is_replicated=True), ALIVE),
        (rl.local("a"), rl.answer(500, {}, LLAMA)),
    ],
)
async def test_a_limit_holds_where_the_spec_gives_it_or_nothing_shows_life(autojump_clock, backend, health):
    """A minute of silence ends the attempt."""
    config = attrs.evolve(rl.config_of(backend, rl.cloud("b")), first_byte_seconds=60.0, first_byte_extends=True)
    there = {"a": engine(rl.until_gone, health=health), "b": rl.Player((rl.answer(),))}
    async with rl.open_lab(config, there) as lab:
        assert await backend_of(lab) == ("b", 60)
        assert lab.audit[-1]["attempts"][0]["result"] == "timeout"


async def test_an_engine_that_begins_is_held_to_the_time_between_two_events(autojump_clock):
    """Evidence of life before the first byte extends no limit after it."""
    config = attrs.evolve(TWO, first_byte_extends=True)
    half = rl.saying(b"", rl.stream(rl.piece("one"), end=b""), seconds=300, then=rl.until_gone)
    async with rl.open_lab(config, {"a": engine(half), "b": rl.Player((rl.answer(),))}) as lab:
        began = trio.current_time()
        status, body, _ = await lab.read(rl.STREAMED)
        assert (status, b"stream_backend_silent" in body) == (200, True)
        assert trio.current_time() - began == pytest.approx(300 + 120, abs=1)


async def test_a_stream_that_has_not_started_is_abandoned_too(autojump_clock):
    """Its client gets the whole stream of the next backend."""
    there = {"a": engine(FIRST, rl.until_gone), "b": rl.Player((rl.stream(rl.WHOLE_STREAM),))}
    async with rl.open_lab(TWO, there) as lab:
        await lab.ask()
        there["a"].health = None
        began = trio.current_time()
        status, body, clean = await lab.read(rl.STREAMED)
        assert (status, body, clean) == (200, rl.WHOLE_STREAM, True)
        assert trio.current_time() - began <= 10


def flowing(seconds, pieces=60):
    """Return a script: a stream with an event at this interval, and then silence."""
    first, more = rl.stream(rl.piece("one"), end=b""), rl.chunk(rl.piece(" more"))
    return rl.saying(first, *[more] * pieces, seconds=seconds, then=rl.until_gone)


async def test_an_engine_that_freezes_in_a_stream_is_abandoned(autojump_clock):
    """Within ten seconds an identical engine continues, long before the two minutes between two events are over."""
    twins = rl.config_of(*(rl.local(name, model_digest="x") for name in "ab"))
    half = rl.stream(rl.piece("one"), end=b"").replace(b"HTTP/1.1 200 OK", LLAMA_200)
    there = {"a": engine(rl.saying(half, then=rl.until_gone)), "b": engine(rl.stream(rl.WHOLE_STREAM))}
    async with rl.open_lab(twins, there) as lab:
        there["a"].health = None
        began = trio.current_time()
        _, body, clean = await lab.read(rl.STREAMED)
        assert trio.current_time() - began <= 10
    assert (clean, b" two" in body, len(there["b"].asked)) == (True, True, 1)
    assert lab.audit[0]["continuations"] == 1
    assert there["a"].gone_at[0] - began <= 10


async def test_a_hanging_decode_is_continued_once_its_agent_ends_it(autojump_clock):
    """The server answers, so only the agent can distinguish it from a long prefill, by its progress counters."""
    twins = rl.config_of(*(rl.local(name, model_digest="x") for name in "ab"))
    half = rl.stream(rl.piece("one"), end=b"").replace(b"HTTP/1.1 200 OK", LLAMA_200)
    there = {"a": engine(rl.saying(half, b"", seconds=60)), "b": engine(rl.stream(rl.WHOLE_STREAM))}
    async with rl.open_lab(twins, there) as lab:
        began = trio.current_time()
        _, body, clean = await lab.read(rl.STREAMED)
        assert trio.current_time() - began == pytest.approx(60, abs=1)
    assert (clean, b" two" in body, lab.audit[0]["continuations"]) == (True, True, 1)


async def test_the_client_gets_an_error_where_no_other_engine_continues(autojump_clock):
    """A request with tools gets an error event within ten seconds, and no clean end."""
    response = rl.stream(rl.piece("one"), end=b"").replace(b"HTTP/1.1 200 OK", LLAMA_200)
    there = {"a": engine(rl.saying(response, then=rl.until_gone), health=None)}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    async with rl.open_lab(rl.config_of(rl.local("a")), there) as lab:
        began = trio.current_time()
        _, body, clean = await lab.read(rl.STREAMED | {"tools": [tool]})
        assert trio.current_time() - began <= 10
        assert (clean, b"stream_backend_silent" in body) == (False, True)
        assert lab.router.states()["a"] == FROZEN


async def test_a_stream_that_flows_costs_no_questions(autojump_clock):
    """Its events are the evidence; it is queried only after a second of silence."""
    there = {"a": engine(flowing(0.5))}
    async with rl.open_lab(rl.config_of(rl.local("a")), there) as lab, trio.open_nursery() as nursery:
        nursery.start_soon(lab.read, rl.STREAMED)
        await trio.sleep(29)
        assert [path for _, path in there["a"].probed if path == "/health"] == []
        await trio.sleep(11)
        assert 8 <= sum(path == "/health" for _, path in there["a"].probed) <= 11
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("backend", [rl.local("a"), rl.cloud("a"), rl.local("a", is_replicated=True)])
async def test_in_a_stream_the_silence_of_another_server_is_no_evidence(autojump_clock, backend):
    """Such a server computes in the thread that answers: only the limit between two events applies."""
    there = {"a": engine(rl.saying(rl.stream(rl.piece("one"), end=b""), then=rl.until_gone), health=None)}
    async with rl.open_lab(rl.config_of(backend), there) as lab:
        began = trio.current_time()
        await lab.read(rl.STREAMED)
        assert trio.current_time() - began == pytest.approx(120, abs=1)


async def test_a_slow_client_loses_no_half_of_a_piece(autojump_clock):
    """An engine is found frozen while the client reads nothing; it then reads whole events, and the error."""
    big = rl.stream(*[rl.piece("x" * 60_000)] * 40, end=b"").replace(b"HTTP/1.1 200 OK", LLAMA_200)
    there = {"a": engine(rl.saying(big, then=rl.until_gone), health=None)}
    async with rl.open_lab(rl.config_of(rl.local("a")), there, make_pair=trio.testing.lockstep_stream_pair) as lab:
        connection = await lab.front.connect("router", 80)
        data = json.dumps(rl.STREAMED).encode()
        await connection.send_all(b"POST /v1/chat/completions HTTP/1.1\r\nHost: r\r\n")
        await connection.send_all(b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(data), data))
        received = b""
        while received.count(b"data: ") < 3:
            received += await connection.receive_some(1000)
        await trio.sleep(15)
        while some := await connection.receive_some():
            received += some
    events = [each.partition(b"data: ")[2] for each in received.split(b"\n\n") if b"data: " in each]
    assert "error" in json.loads(events[-1])
    assert all(json.loads(each)["choices"][0]["delta"]["content"] == "x" * 60_000 for each in events[:-1])


async def test_an_engine_that_freezes_while_it_computes_is_abandoned(autojump_clock):
    """It is abandoned ten seconds after it froze, no matter how long it has computed before."""
    there = {"a": engine(rl.until_gone), "b": rl.Player((rl.answer(),))}
    async with rl.open_lab(TWO, there) as lab, trio.open_nursery() as nursery:
        found = []

        async def ask():
            found.append(await backend_of(lab))

        nursery.start_soon(ask)
        await trio.sleep(100.5)
        there["a"].health = None
        nursery.cancel_scope.deadline = trio.current_time() + 20
        await trio.sleep(10.1)
        assert [name for name, _ in found] == ["b"]
        nursery.cancel_scope.cancel()


async def test_without_another_backend_the_client_gets_an_error(autojump_clock):
    """The client gets 504 within ten seconds, and not after the limit of the first byte."""
    there = {"a": engine(FIRST, rl.until_gone)}
    async with rl.open_lab(rl.config_of(rl.local("a")), there) as lab:
        await lab.ask()
        there["a"].health = None
        response = await lab.ask()
        assert (response.status, json.loads(response.body)["error"]["code"]) == (504, "backend_timeout")


@pytest.mark.parametrize(
    ("backend", "health", "first"),
    [
        (rl.local("a"), None, rl.answer()),  # another server, which computes in the thread that answers
        (rl.local("a"), None, rl.answer(lines=[b"Server: uvicorn"])),
        (rl.cloud("a"), None, FIRST),
        (rl.local("a", is_replicated=True), None, FIRST),
        (rl.local("a"), rl.answer(404, {}), FIRST),
        (rl.local("a"), rl.answer(502, {}), FIRST),  # the proxy in front answers, the engine is unknown
    ],
)
async def test_where_silence_is_no_evidence_the_limit_of_the_first_byte_holds(autojump_clock, backend, health, first):
    """The client waits a minute."""
    there = {"a": engine(first, after(60, first), health=health), "b": rl.Player((rl.answer(),))}
    async with rl.open_lab(rl.config_of(backend, rl.cloud("b")), there) as lab:
        await lab.ask()
        assert await backend_of(lab) == ("a", 60)


async def test_many_requests_are_asked_for_by_one_task(autojump_clock):
    """A hundred waiting requests cost one query a second, and all are abandoned together."""
    there = {"a": engine(FIRST, rl.until_gone), "b": rl.Player((rl.answer(),))}
    async with rl.open_lab(TWO, there) as lab:
        await lab.ask()
        there["a"].health = None
        found = []

        async def ask():
            found.append(await backend_of(lab))

        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(ask)
        assert {name for name, _ in found} == {"b"}
        assert max(seconds for _, seconds in found) <= 10
        assert len(there["a"].probed) <= 4


@pytest.mark.ci
async def test_quick_requests_cost_no_questions(autojump_clock):
    """At most one query a second is sent for any number of them."""
    there = {"a": engine(after(0.01, FIRST))}
    async with rl.open_lab(rl.config_of(rl.local("a")), there) as lab:
        for _ in range(1000):
            await lab.ask()
        assert len(there["a"].probed) <= 11


async def test_a_reload_forgets_an_engine_that_changed(autojump_clock):
    """Its circuit is closed at once, and the old address is no longer queried."""
    there = {"a": engine(FIRST, rl.until_gone, FIRST), "b": rl.Player((rl.answer(),))}
    async with rl.open_lab(TWO, there) as lab:
        await lab.ask()
        there["a"].health = None
        assert (await backend_of(lab))[0] == "b"
        lab.config, lab.stamp = rl.config_of(rl.local("a", weight=7), rl.cloud("b")), (2, 0, 0)
        await lab.router.live.reload_if_changed()
        assert lab.router.states()["a"] == ""
        await trio.sleep(5)
        asked = len(there["a"].probed)
        await trio.sleep(60)
        assert len(there["a"].probed) == asked
        assert await backend_of(lab) == ("a", 0)


async def test_what_a_client_leaves_is_watched_no_longer(autojump_clock):
    """The task ends with the last request."""
    there = {"a": engine(rl.until_gone)}
    async with rl.open_lab(rl.config_of(rl.local("a")), there) as lab:
        with trio.move_on_after(30):
            await lab.ask()
        await trio.sleep(5)
        asked = len(there["a"].probed)
        await trio.sleep(60)
        assert len(there["a"].probed) == asked > 20


# -- mutants ----------------------------------------------------------------------------------------------------------


def never_frozen(patch):
    patch.setattr(engine_watch.Silence, "is_frozen", lambda self, now: False)


def frozen_by_time_alone(patch):
    patch.setattr(engine_watch.Silence, "is_frozen", lambda self, now: True)


def believes_every_server(patch):
    plain = engine_watch.Silence.responded
    patch.setattr(engine_watch.Silence, "responded", lambda self, server: plain(self, engine_watch.LLAMA_SERVER))


def forgets_what_it_is(patch):
    patch.setattr(engine_watch.Silence, "responded", lambda self, server: engine_watch.Silence())


def opens_no_circuit(patch):
    plain = engine_watch.EngineWatch.__attrs_post_init__

    def init(self):
        plain(self)
        self.on_change = lambda name, why: None

    patch.setattr(engine_watch.EngineWatch, "__attrs_post_init__", init)


def leaves_no_stream(patch):
    plain = engine_watch.WaitingRequest.freeze
    patch.setattr(
        engine_watch.WaitingRequest, "freeze", lambda self: self.last_received_at == -math.inf and plain(self)
    )


def breaks_off_a_write(patch):
    patch.setattr(engine_watch.WaitingRequest, "freeze", lambda self: self.silence.cancel())


def asks_whatever_flows(patch):
    patch.setattr(engine_watch._Engine, "is_silent", lambda self, now: True)


SHOWN = {
    leaves_no_stream: test_an_engine_that_freezes_in_a_stream_is_abandoned,
    breaks_off_a_write: test_a_slow_client_loses_no_half_of_a_piece,
    asks_whatever_flows: test_a_stream_that_flows_costs_no_questions,
    never_frozen: test_a_frozen_engine_is_abandoned_within_ten_seconds,
    frozen_by_time_alone: test_a_long_prefill_is_never_abandoned,
    forgets_what_it_is: test_a_frozen_engine_is_abandoned_within_ten_seconds,
    opens_no_circuit: test_a_frozen_engine_is_abandoned_within_ten_seconds,
}


@pytest.mark.soak
@pytest.mark.parametrize("mutant", SHOWN, ids=lambda each: each.__name__)
async def test_each_deliberate_bug_is_seen(autojump_clock, monkeypatch, mutant):
    """One of the timelines above fails."""
    mutant(monkeypatch)
    with pytest.raises(Exception):  # noqa: B017 (a nursery wraps it or not)
        await SHOWN[mutant](None)


@pytest.mark.ci
async def test_a_watch_that_believes_every_server_is_seen(autojump_clock, monkeypatch):
    """It abandons an engine that computes in the thread that answers."""
    believes_every_server(monkeypatch)
    with pytest.raises(Exception):  # noqa: B017 (a nursery wraps it or not)
        await test_where_silence_is_no_evidence_the_limit_of_the_first_byte_holds(
            None, rl.local("a"), None, rl.answer()
        )


async def test_a_request_that_goes_out_to_a_frozen_engine_waits_for_nothing():
    """The engine may be found frozen before or during the wait."""
    early, late = WaitingRequest(extends=False, began_at=0.0), WaitingRequest(extends=False, began_at=0.0)
    early.freeze()
    with trio.CancelScope() as first:
        early.begin(first)
        await trio.sleep_forever()
    with trio.CancelScope() as second:
        late.begin(second)
        late.freeze()
        await trio.sleep_forever()
    assert first.cancelled_caught
    assert second.cancelled_caught


async def test_a_request_that_outlives_the_watch_is_no_error(autojump_clock):
    """While a router stops, requests may still begin to wait for an engine."""
    watch = engine_watch.EngineWatch(send=None, on_change=lambda *_: None)
    async with trio.open_nursery() as nursery:
        await nursery.start(watch.run)
        nursery.cancel_scope.cancel()
    permit = permits_for(TWO, RequestFacts(model="m")).allowed["a"]
    with watch.watching(permit, WaitingRequest(extends=False, began_at=0.0)):
        pass
