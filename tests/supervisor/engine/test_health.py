import errno
import json
from contextlib import asynccontextmanager
from itertools import pairwise

import attrs
import pytest
import trio

from http_lab import MemoryListener
from llmkube.base.http.client import open_http_client
from llmkube.base.http.errors import BodyTooLargeError, ConnectError, ProtocolError
from llmkube.base.http.message import Response
from llmkube.base.http.server import run_server
from llmkube.k8s.wire.reasons import Reason
from llmkube.runtimes.plan import LaunchPlan
from llmkube.supervisor.engine import health
from llmkube.supervisor.service.attempt import watch_failure
from llmkube.supervisor.values.lifecycle import Failure
from llmkube.supervisor.values.liveness import EngineStats, Limits, ProbeResult

LIMITS = Limits()


class Engine:
    """An engine's HTTP side: each answer is a field."""

    def __init__(self, pages=None):
        self.listener = MemoryListener()
        self.pages = pages  # by path; all others are not found
        self.paths, self.bodies = [], []
        self.status = 503
        self.delay_seconds = 0.0
        self.listening = True
        self.asked = 0

    async def connect(self, host, port):
        await trio.lowlevel.checkpoint()
        if not self.listening:
            raise ConnectionRefusedError(111, "refused")
        return await self.listener.connect(host, port)

    async def answer(self, exchange):
        self.asked += 1
        self.paths.append(exchange.request.path)
        self.bodies.append(exchange.request.body)
        await trio.sleep(self.delay_seconds)
        if self.pages is not None:
            found = self.pages.get(exchange.request.path)
            await exchange.respond(Response.text(404 if found is None else 200, found or ""))
            return
        await exchange.respond(Response.json(self.status, {}))


URL = "http://127.0.0.1:1/health"


@asynccontextmanager
async def served(engine):
    """The engine answers; yields a client and a nursery that ends with the block."""
    async with open_http_client(engine.connect) as http, trio.open_nursery() as nursery:
        await nursery.start(run_server, engine.answer, [engine.listener])
        yield http, nursery
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("seconds", "late"), [(0.01, 0.02), (0.3, 0.02), (1.0, 0.05), (30.0, 0.3), (600.0, 2.0)])
async def test_readiness_is_noticed_soon(autojump_clock, seconds, late):
    """An engine is ready soon after it first answers 200, compared with the time that its load took."""
    engine = Engine()
    async with served(engine) as (http, nursery):

        async def load():
            await trio.sleep(seconds)
            engine.status = 200

        nursery.start_soon(load)
        await health.wait_ready(http, URL)
        assert seconds <= trio.current_time() <= seconds + late


async def test_an_engine_that_accepts_and_never_answers_does_not_hang_the_caller(autojump_clock):
    """Each request has a deadline of its own, so that the caller's is met."""
    engine = Engine()
    engine.delay_seconds = 1e9
    async with served(engine) as (http, _):
        with trio.move_on_after(60) as deadline:
            await health.wait_ready(http, URL)
        assert deadline.cancelled_caught
        assert engine.asked > 5


async def watched(engine, http, changes, look=None, limits=LIMITS, *, read_stats_nowait=None):
    """Watch the engine as a service does; return why it hangs, if it does."""

    async def still():
        await trio.lowlevel.checkpoint()
        return EngineStats("S", 1.0)

    plan = LaunchPlan((), (), "llamacpp", "chat")
    asked = health.Engine(http, "http://127.0.0.1:1", plan)
    return await health.watch(asked, look or still, changes.append, limits, read_stats_nowait=read_stats_nowait)


async def test_a_busy_engine_stays_in_service(autojump_clock):
    """Late answers and 503s do not make a working engine unready, however long they last."""
    engine, changes = Engine(), []
    engine.delay_seconds = 20

    async def look():
        await trio.lowlevel.checkpoint()
        return EngineStats("S", trio.current_time())

    async with served(engine) as (http, _):
        with trio.move_on_after(3600) as deadline:
            await watched(engine, http, changes, look)
        assert deadline.cancelled_caught
        assert changes == []


async def test_a_port_without_a_listener_makes_the_engine_unready(autojump_clock):
    """Two samples without a listener make it unready within twenty seconds; one 200 makes it ready again."""
    engine, changes = Engine(), []
    engine.status = 200

    async def look():
        await trio.lowlevel.checkpoint()
        return EngineStats("S", trio.current_time(), listening=engine.listening)

    async with served(engine) as (http, nursery):
        nursery.start_soon(watched, engine, http, changes, look)
        await trio.sleep(15)
        engine.listening = False
        await http.aclose()
        await trio.sleep(20)
        assert changes == [False]
        engine.listening = True
        await trio.sleep(20)
        assert changes == [False, True]


async def test_a_request_without_a_response_does_not_delay_the_next_sample(autojump_clock):
    """While a request waits for its response, the process is sampled on every tick."""
    engine, times = Engine(), []
    engine.delay_seconds = 1e9

    async def look():
        await trio.lowlevel.checkpoint()
        times.append(trio.current_time())
        return EngineStats("S", trio.current_time())

    async with served(engine) as (http, _):
        with trio.move_on_after(600):
            await watched(engine, http, [], look)
        assert engine.asked > 10
        assert max(after - before for before, after in pairwise(times)) == LIMITS.tick_seconds


async def test_a_stopped_process_is_reported_within_seconds(autojump_clock):
    """A process in state T is sampled again 4 s after the first time: at most 9 s."""
    engine = Engine()
    async with served(engine) as (http, _):
        for moment in (0.001, 2.5, 4.999):
            stopped_at = trio.current_time() // LIMITS.tick_seconds * LIMITS.tick_seconds + 20 + moment

            async def look(stopped_at=stopped_at):
                await trio.lowlevel.checkpoint()
                return EngineStats("T" if trio.current_time() >= stopped_at else "S", 1.0)

            assert "stopped (state T)" in await watched(engine, http, [], look)
            assert trio.current_time() - stopped_at <= LIMITS.tick_seconds + health.RECHECK_SECONDS < 10


async def test_an_idle_engine_is_sampled_without_waking_its_task(autojump_clock):
    """Each tick takes a cheap sample; the task takes a full one only when it has something to do."""
    engine, glances, looks, start = Engine(), [], [], trio.current_time()
    engine.status = 200

    def glance():
        glances.append(trio.current_time())
        return EngineStats("S", 1.0, listening=True, waiting=False)

    async def look():
        await trio.lowlevel.checkpoint()
        looks.append(trio.current_time())
        return EngineStats("S", 1.0, listening=True, waiting=False)

    async with served(engine) as (http, _):
        with trio.move_on_after(3600):
            await watched(engine, http, [], look, read_stats_nowait=glance)
    ticks = int((trio.current_time() - start) / LIMITS.tick_seconds)
    assert len({*glances, *looks}) == pytest.approx(ticks, abs=1)
    assert len(looks) < ticks / 20


async def test_a_stopped_process_is_reported_within_seconds_by_cheap_samples(autojump_clock):
    """A stopped process is reported within 9 s by cheap samples, too."""
    engine = Engine()
    engine.status = 200
    async with served(engine) as (http, _):
        stopped_at = trio.current_time() // LIMITS.tick_seconds * LIMITS.tick_seconds + 100.001

        def glance():
            return EngineStats("T" if trio.current_time() >= stopped_at else "S", 1.0)

        async def look():
            await trio.lowlevel.checkpoint()
            return glance()

        assert "stopped (state T)" in await watched(engine, http, [], look, read_stats_nowait=glance)
        assert trio.current_time() - stopped_at <= LIMITS.tick_seconds + health.RECHECK_SECONDS < 10


async def test_a_watch_ends_when_the_engine_hangs(autojump_clock):
    """An engine without progress, response or token is reported with the counters that do not move."""
    engine = Engine()
    engine.delay_seconds = 1e9
    async with served(engine) as (http, _):
        with trio.fail_after(300):
            assert "no CPU time, no log line and no token" in await watched(engine, http, [])
        assert "/v1/completions" in engine.paths


async def test_a_process_that_cannot_be_sampled_is_not_reported(autojump_clock):
    """A sample without a process reports nothing: the exit is an event of its own."""

    async def look():
        await trio.lowlevel.checkpoint()

    async with open_http_client(Engine().connect) as http:
        with trio.move_on_after(3600) as deadline:
            await watched(None, http, [], look)
        assert deadline.cancelled_caught


METRICS = """\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed
llamacpp:prompt_tokens_total 120
llamacpp:tokens_predicted_total 7
llamacpp:n_decode_total 9
llamacpp:requests_processing 1
llamacpp:requests_deferred 2
"""


@pytest.mark.parametrize(
    ("pages", "answer"),
    [
        ({}, ProbeResult("busy", work=None)),
        ({"/health": "{}"}, ProbeResult("ok", work=None)),
        (
            {"/metrics": METRICS.replace(" 1\n", " 0\n").replace(" 2\n", " 0\n")},
            ProbeResult("ok", work=0, counters=(9, 120, 7), tokens=7),
        ),
        ({"/health": "{}", "/slots": '[{"is_processing": false}]'}, ProbeResult("ok", work=0, counters=(0, 0, 0, 1))),
        (
            {"/health": "{}", "/metrics": "vllm:requests 3", "/slots": "[]"},
            ProbeResult("ok", work=0, counters=(0, 0, 0, 1)),
        ),
    ],
)
async def test_an_engines_counters_are_read(autojump_clock, pages, answer):
    """Work and counters are read from metrics, else from slots, and unknown if neither has them."""
    engine = Engine(pages)
    async with served(engine) as (http, _):
        result = await health.Engine(http, "http://127.0.0.1:1", LaunchPlan((), (), "llamacpp", "chat")).counters()
        if result.counters and len(result.counters) == 4:
            result = attrs.evolve(result, counters=(*result.counters[:3], 1))
        assert result == answer


@pytest.mark.parametrize(("flag", "tokens"), [("--ctx-size", 7.0), ("--embedding", 120.0), ("--reranking", 120.0)])
async def test_tokens_are_counted_as_they_come(autojump_clock, flag, tokens):
    """The watch reports tokens written, and for an engine that only reads, tokens read."""
    engine, on_tokens = Engine({"/metrics": METRICS.replace(" 1\n", " 0\n").replace(" 2\n", " 0\n")}), []

    async def look():
        await trio.lowlevel.checkpoint()
        return EngineStats("S", trio.current_time())

    async with served(engine) as (http, _):
        asked = health.Engine(http, "http://127.0.0.1:1", LaunchPlan((flag,), (), "llamacpp", "chat"))
        with trio.move_on_after(2.5 * LIMITS.probe_seconds):
            await health.watch(asked, look, lambda _: None, LIMITS, on_tokens=on_tokens.append)
    assert set(on_tokens) == {tokens}


@pytest.mark.parametrize(
    ("lack", "result"),
    [
        (errno.EMFILE, None),
        (errno.ENOBUFS, None),
        (errno.EADDRNOTAVAIL, None),
        (errno.ECONNREFUSED, ProbeResult("gone")),
    ],
)
async def test_a_lack_of_descriptors_is_not_the_engines_failure(autojump_clock, lack, result):
    """An engine that could not be queried for lack of descriptors is unknown; one that refuses is gone."""

    async def connect(host, port):
        await trio.lowlevel.checkpoint()
        raise OSError("all attempts to connect failed") from ExceptionGroup("tried", [OSError(lack, "no")])

    async with open_http_client(connect) as http:
        engine = health.Engine(http, "http://127.0.0.1:1", LaunchPlan((), (), "llamacpp", "chat"))
        assert await engine.counters() == result
        assert await engine.one_token() == (result and attrs.evolve(result, token=False))


@pytest.mark.parametrize("error", [ProtocolError("no HTTP"), BodyTooLargeError("5 MiB of metrics")])
async def test_an_invalid_response_is_a_response(error):
    """An engine whose metrics are too long or not HTTP is alive: its health is queried."""

    class Odd:
        async def request(self, method, url, **_):
            await trio.lowlevel.checkpoint()
            if url.endswith("/health"):
                return Response.json(200, {})
            raise error

    engine = health.Engine(Odd(), "http://127.0.0.1:1", LaunchPlan((), (), "llamacpp", "chat"))
    assert await engine.counters() == ProbeResult("ok")
    assert await engine.one_token() == ProbeResult("busy", token=False)
    assert await health.probe(Odd(), "http://127.0.0.1:1/x") == "busy"
    assert await engine.in_flight() == 0


async def test_progress_within_a_prompt_is_seen(autojump_clock):
    """While requests are in flight the slots are part of the counters: a build without batch counters moves there."""
    engine = Engine({"/metrics": METRICS, "/slots": '[{"n_prompt_tokens_processed": 512}]'})
    plan = LaunchPlan((), (), "llamacpp", "chat")
    async with served(engine) as (http, _):
        before = await health.Engine(http, "http://127.0.0.1:1", plan).counters()
        engine.pages["/slots"] = '[{"n_prompt_tokens_processed": 1024}]'
        after = await health.Engine(http, "http://127.0.0.1:1", plan).counters()
        assert before.work == after.work == 3
        assert before.counters != after.counters


@pytest.mark.parametrize(
    ("argv", "asked"),
    [
        ((), ("/v1/completions", "max_tokens")),
        (("--embedding",), ("/v1/embeddings", "input")),
        (("--embedding", "--reranking"), ("/v1/rerank", "documents")),
    ],
)
@pytest.mark.parametrize(("status", "given"), [(200, True), (400, True), (503, False)])
async def test_a_token_is_requested_by_the_engines_own_endpoint(autojump_clock, argv, asked, status, given):
    """A chat engine gets a prompt, an embedding engine an input, a reranker a document; a failure is not a token."""
    engine = Engine()
    engine.status = status
    plan = LaunchPlan(argv, (), "llamacpp", "chat")
    async with served(engine) as (http, _):
        asked_engine = health.Engine(http, "http://127.0.0.1:1", plan)
        result = await asked_engine.one_token()
        assert result.token is given
        path, field = asked
        assert engine.paths == [path]
        assert field in json.loads(engine.bodies[0])
        refused = f"it answers {status} to a request for one token" if status >= 500 else ""
        assert (await asked_engine.token_error()).startswith(refused)


async def test_an_engine_of_the_owners_is_asked_for_no_token(autojump_clock):
    """It may compute none: its health path shows whether it answers, and an error names that path."""
    engine = Engine()
    plan = LaunchPlan((), (), "generic", "speech", engine="speech", ready_path="/ready")
    engine.status = 200
    async with served(engine) as (http, _):
        asked_engine = health.Engine(http, "http://127.0.0.1:1", plan)
        assert (await asked_engine.one_token()).token
        engine.status = 503
        assert (await asked_engine.token_error()).startswith("it answers 503 to GET /ready")
        assert engine.paths == ["/ready"] * 2


async def test_a_refused_connection_is_gone(autojump_clock):
    """A refused connection is a different result from a busy engine."""

    async def refuse(host, port):
        await trio.lowlevel.checkpoint()
        raise ConnectError("refused")

    async with open_http_client(refuse) as http:
        assert await health.probe(http, URL) == "gone"


VLLM = LaunchPlan(argv=("vllm",), env=(), runtime="vllm-metal", alias="chat")
UNKNOWN = LaunchPlan(argv=("x",), env=(), runtime="of-a-newer-agent", alias="chat")
VLLM_METRICS = (
    'vllm:num_requests_running{m="a"} 1.0\nvllm:num_requests_waiting{m="a"} 2.0\nvllm:generation_tokens_total 7\n'
)
IN_FLIGHT = "/llmkube/in-flight"


@pytest.mark.parametrize(
    ("plan", "pages", "proxy", "work"),
    [
        (VLLM, {"/metrics": VLLM_METRICS}, "", 3),
        (VLLM, {"/metrics": "llamacpp:requests_processing 5\n"}, "", 0),  # another engine's metric
        (UNKNOWN, {"/metrics": VLLM_METRICS, "/slots": '[{"is_processing": true}]'}, "", 0),
        (UNKNOWN, {IN_FLIGHT: "4"}, "http://127.0.0.1:1", 4),
        (UNKNOWN, {IN_FLIGHT: "what?"}, "http://127.0.0.1:1", 0),
    ],
)
async def test_each_runtime_has_its_own_metrics(autojump_clock, plan, pages, proxy, work):
    """Requests in flight come from its metrics, else from its proxy; another runtime's metrics are ignored."""
    engine = Engine({"/health": "ok", **pages})
    async with served(engine) as (http, _):
        asked = health.Engine(http, "http://127.0.0.1:1", plan, proxy_url=proxy)
        assert await asked.in_flight() == work
        answer = await asked.counters()
        assert answer.health == "ok"
        assert (answer.work or 0) == work
        assert answer.counters is None or plan is VLLM
        assert plan is VLLM or not {"/metrics", "/slots"} & set(engine.paths)


@pytest.mark.parametrize(
    ("found", "reason", "message"),
    [
        (
            "it answers 500 to a request for one token: Compute error.",
            Reason.COMPUTE_FAILED,
            "clients get errors, and it answers 500 to a request for one token: Compute error.",
        ),
        ("nothing has answered on its port", Reason.HUNG, "the engine hangs: nothing has answered on its port"),
    ],
)
def test_an_engine_that_answers_errors_does_not_hang(found, reason, message):
    assert watch_failure(found) == Failure(reason, message)
