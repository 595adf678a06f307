"""The HTTP front of a model on Ollama, for clients and for the agent."""

import json
from functools import partial
from itertools import pairwise

import attrs
import orjson
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from http_lab import MemoryListener
from llmkube.base.http.client import HttpClient
from llmkube.base.http.message import NO_HEADERS, Headers
from llmkube.base.http.server import run_server
from llmkube.programs.daemon_engine.decisions import UNKNOWN_RELEASE
from llmkube.programs.daemon_engine.front import ModelNameRewriter, RequestBodyError, handler_of, judge_of, with_model
from llmkube.programs.daemon_engine.serving import read_keys
from llmkube.runtimes.plan import LaunchPlan
from llmkube.supervisor.engine.health import Engine, bearer
from programs.daemon_engine.fake_ollama import NAME, FakeDaemon, answers, staged

KEY = "CanaryKey"
URL = "http://127.0.0.1:8001"
ASK = json.dumps({"model": "chat", "messages": [{"role": "user", "content": "hi"}]}).encode()


@pytest.fixture
def fake(request):
    return FakeDaemon(**getattr(request, "param", {}))


@pytest.fixture
async def stage(fake):
    async with staged(fake) as stage:
        yield stage


@pytest.fixture
async def client(stage, nursery):
    """A client of the front."""
    listener = MemoryListener()
    handler = handler_of(stage.keeper, stage.client, "chat", stage.keeper.counters)
    await nursery.start(partial(run_server, handler, [listener], judge=judge_of({KEY})))
    return HttpClient(listener.connect, max_idle=0, max_idle_per_origin=0)


@pytest.mark.parametrize("fake", [{"load_seconds": 30}], indirect=True)
async def test_health_is_llama_servers(autojump_clock, client, stage):
    """503 with llama-server's message until the model is verified, then 200; no key is required."""
    await trio.sleep(10)
    early = await client.request("GET", f"{URL}/health")
    assert early.status == 503
    assert json.loads(early.body)["error"] == {"code": 503, "message": "Loading model", "type": "unavailable_error"}
    await trio.sleep(40)
    late = await client.request("GET", f"{URL}/health")
    assert (late.status, json.loads(late.body)) == (200, {"status": "ok"})
    assert stage.keeper.ready


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/metrics", "/slots", "/props", "/v1/embeddings"])
async def test_without_the_key_nothing_is_answered(autojump_clock, path, client):
    await trio.sleep(10)
    method = "GET" if path in ("/metrics", "/slots", "/props") else "POST"
    for headers in (NO_HEADERS, Headers.of({"Authorization": "Bearer other"})):
        answer = await client.request(method, f"{URL}{path}", headers=headers, body=b"" if method == "GET" else ASK)
        assert answer.status == 401
        assert KEY not in str(answer)


async def test_the_build_follows_an_upgrade_of_the_server(autojump_clock, fake, client, stage):
    engine = Engine(client, URL, LaunchPlan((), (), "ollama", "chat"), bearer(KEY))
    assert await engine.build() == ""
    await trio.sleep(10)
    assert await engine.build() == "0.17.4"
    fake.stop()
    fake.start("0.18.0")
    await trio.sleep(6)
    assert await engine.build() == "0.18.0"
    stage.keeper.state = attrs.evolve(stage.keeper.state, version=UNKNOWN_RELEASE)
    assert await engine.build() == ""


async def test_a_chat_is_answered_under_the_clients_name(autojump_clock, client, stage):
    """Whole or as a stream; the model's text is not changed."""
    await trio.sleep(10)
    answer = await client.request("POST", f"{URL}/v1/chat/completions", headers=bearer(KEY), body=ASK)
    content = json.loads(answer.body)
    assert content["model"] == "chat"
    assert content["choices"][0]["message"]["content"] == f'"model":"{NAME}"'
    asked = json.dumps(json.loads(ASK) | {"stream": True}).encode()
    answer = await client.request("POST", f"{URL}/v1/chat/completions", headers=bearer(KEY), body=asked)
    assert answer.headers.get("content-type") == "text/event-stream"
    assert json.loads(answer.body.removeprefix(b"data: "))["model"] == "chat"
    counters = stage.keeper.counters
    assert (counters.prompt_tokens, counters.predicted_tokens, counters.processing) == (7, 3, 0)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/pull"),
        ("DELETE", "/api/delete"),
        ("POST", "/api/generate"),
        ("POST", "/v1/images/generations"),
        ("GET", "/v1/chat/completions"),
        ("POST", "/v1/chat/../api/pull"),
        ("POST", "/v1/%2e%2e/api/delete"),
    ],
)
async def test_other_paths_do_not_reach_ollama(autojump_clock, method, path, fake, client):
    """A key of this engine cannot pull, delete or use the other models of the machine's owner."""
    await trio.sleep(10)
    before = list(fake.calls)
    answer = await client.request(method, URL + path, headers=bearer(KEY), body=b"" if method == "GET" else ASK)
    assert answer.status == 404
    assert fake.calls == before


async def test_a_body_without_our_model_is_refused_by_the_front(autojump_clock, fake, client):
    await trio.sleep(10)
    answer = await client.request("POST", f"{URL}/v1/chat/completions", headers=bearer(KEY), body=b"[]")
    assert answer.status == 400
    assert "/v1/chat/completions" not in fake.calls


async def test_requests_get_503_with_retry_after_while_the_model_is_unloaded(autojump_clock, fake, client, stage):
    """A server that has gone is noticed by the first request that it does not answer."""
    await trio.sleep(10)
    fake.stop()
    answer = await client.request("POST", f"{URL}/v1/chat/completions", headers=bearer(KEY), body=ASK)
    assert answer.status == 502
    await trio.sleep(0.5)
    assert not stage.keeper.ready
    answer = await client.request("POST", f"{URL}/v1/chat/completions", headers=bearer(KEY), body=ASK)
    assert (answer.status, answer.headers.get("retry-after")) == (503, "1")


async def test_a_refusal_of_ollama_is_passed_on(autojump_clock, fake, client):
    """The client gets Ollama's status and message."""
    await trio.sleep(10)
    fake.faults["/v1/chat/completions"] = [answers(400, b'{"error":{"message":"no tools"}}')]
    answer = await client.request("POST", f"{URL}/v1/chat/completions", headers=bearer(KEY), body=ASK)
    assert (answer.status, json.loads(answer.body)) == (400, {"error": {"message": "no tools"}})


async def test_the_agent_reads_work_progress_and_name(autojump_clock, fake, client, stage):
    """Its reader of engines finds them as it does those of llama-server."""
    hold = trio.Event()

    async def wait(exchange):
        await hold.wait()
        await answers(200, b"{}")(exchange)

    await trio.sleep(10)
    engine = Engine(client, URL, LaunchPlan((), (), "ollama", "chat"), bearer(KEY))
    assert await engine.model_names() == {"chat"}
    at_rest = await engine.counters()
    assert (at_rest.health, at_rest.work) == ("ok", 0)
    fake.faults["/v1/chat/completions"] = [wait]
    async with trio.open_nursery() as nursery:
        ask = partial(client.request, "POST", headers=bearer(KEY), body=ASK)
        nursery.start_soon(ask, f"{URL}/v1/chat/completions")
        await trio.sleep(6)
        first = await engine.counters()
        await trio.sleep(6)  # a long prompt: only the runner's CPU time increases
        second = await engine.counters()
        assert (first.work, second.work) == (1, 1)
        assert first.counters != second.counters
        hold.set()
    assert await engine.in_flight() == 0
    assert (await engine.one_token()).token
    assert stage.keeper.ready


# -- rewriting of names ------------------------------------------------------------------------------------------------


OLLAMAS, OURS = "llmkube/default_chat", "chat"


@pytest.mark.parametrize(
    "asked", [{"model": "secret"}, {"Model": "secret"}, {"MODEL": "secret", "model": "other"}, {"model": {"a": 1}}, {}]
)
def test_a_request_asks_for_our_model_whatever_it_names(asked):
    """Go's JSON decoder accepts a key in any case: no such key is left that could name another model."""
    body = json.loads(with_model(json.dumps(asked | {"messages": []}).encode(), OLLAMAS))
    assert {key: value for key, value in body.items() if key.lower() == "model"} == {"model": OLLAMAS}
    assert body["messages"] == []


def test_a_repeated_key_is_removed():
    """JSON may repeat a key, and parsers differ in which value they take."""
    body = with_model(b'{"model":"a","model":"b","mOdel":"c","n":1}', OLLAMAS)
    assert orjson.loads(body) == {"model": OLLAMAS, "n": 1}
    assert b'"b"' not in body


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b'{"a"', b"\xff", b'"x"'])
def test_a_body_that_is_no_object_is_refused(body):
    with pytest.raises(RequestBodyError):
        with_model(body, OLLAMAS)


@given(cuts=st.lists(st.integers(0, 200), max_size=12), text=st.text(max_size=30))
def test_a_split_answer_has_the_clients_name(cuts, text):
    """The model's text is not changed, even where it contains a name."""
    content = {"model": OLLAMAS, "content": f'"model":"{OLLAMAS}" {text}'}
    data = b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"
    edges = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
    names = ModelNameRewriter.between(OLLAMAS, OURS)
    passed = b"".join(names.edit(data[start:end]) for start, end in pairwise(edges))
    assert passed.endswith(b"\n\n")  # an event is never held back
    assert json.loads((passed + names.edit(b"")).removeprefix(b"data: ")) == content | {"model": OURS}


def test_a_partial_name_at_the_end_of_an_answer_is_not_lost():
    names = ModelNameRewriter.between(OLLAMAS, OURS)
    assert names.edit(b'{"mod') + names.edit(b"") == b'{"mod'


def test_keys_are_read_as_llama_server_reads_them(tmp_path):
    """One key per line; lines that begin with # are comments."""
    path = tmp_path / "keys"
    path.write_text("# two\na\n\n b \n")
    assert read_keys(path) == {"a", "b"}
    path.write_text("\n# none\n")
    with pytest.raises(ValueError, match="contains no key"):
        read_keys(path)
