"""Requests of Open WebUI's server to an OpenAI and to an Ollama connection, read as it reads the answers.

Facts: https://github.com/open-webui/open-webui, `backend/open_webui/routers/{openai,ollama}.py`,
`utils/{payload,response,task}.py` and `retrieval/utils.py`. It sends the connection's key, also to Ollama.
"""

import json
import re
from contextlib import asynccontextmanager
from datetime import datetime

import attrs
import pytest

from llmkube.base.http.client import open_http_client
from llmkube.base.http.message import Headers
from llmkube.router.config.routing_config import Auth
from router.proxy import router_lab as rl
from router.proxy.test_default_route import Engine, completion, open_world, pieces

PICTURE = "iVBORw0KGgo="
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
VECTORS = {"object": "list", "data": [{"index": at, "embedding": [at / 2]} for at in (0, 1)], "usage": {}}
RANKED = {"results": [{"index": 0, "relevance_score": 0.5}]}
USER = {"X-OpenWebUI-User-Name": "A%20B", "X-OpenWebUI-User-Id": "u", "X-OpenWebUI-User-Role": "admin"}
CALLS = [
    {"index": at, "id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": '{"x": 1}'}}
    for at, name in enumerate(("weather", "time"))
]


def calling():
    """Return the stream of two calls, as an engine writes it."""
    choice = {"index": 0, "delta": {"tool_calls": CALLS}, "finish_reason": "tool_calls"}
    usage = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
    events = [{"choices": [choice]}, {"choices": [], "usage": usage}]
    written = [json.dumps({"object": "chat.completion.chunk", "model": "e"} | each).encode() for each in events]
    return b"".join(b"data: %b\n\n" % each for each in (*written, b"[DONE]"))


def answer_of(path, body):
    """Return an engine's answer: a stream as bytes, or an object."""
    if path == "/v1/chat/completions" and body.get("stream"):
        return calling() if body.get("tools") and body["messages"][-1]["role"] == "user" else pieces("yes", " indeed")
    return {"/v1/embeddings": VECTORS, "/v1/rerank": RANKED}.get(path, completion("yes"))


@attrs.define
class Door:
    """An endpoint, and the bodies that its engines got."""

    connect: object
    bodies: object
    key: str = "sk-webui"

    async def ask(self, path, body=None, method=None):
        lines = Headers.of({"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"} | USER)
        data = b"" if body is None else json.dumps(body).encode()
        async with open_http_client(self.connect) as client:
            method = method or ("GET" if body is None else "POST")
            return await client.request(method, f"http://door{path}", headers=lines, body=data)

    async def read(self, path, body=None):
        found = await self.ask(path, body)
        assert found.status == 200, found.body
        return json.loads(found.body)


class Scripted(Engine):
    """An engine of the gateway with `answer_of`."""

    async def handle(self, exchange):
        if exchange.request.path != "/v1/chat/completions" or b'"tools"' not in exchange.body:
            await super().handle(exchange)
            return
        self.asked.append((exchange.request.path, None, exchange.body))
        async with exchange.stream(200, Headers.of({"Content-Type": "text/event-stream"})) as send:
            await send(answer_of(exchange.request.path, json.loads(exchange.body)))


@asynccontextmanager
async def open_gateway(_):
    engine = Scripted(embeddings=VECTORS, rerank=RANKED)
    async with open_world(engine) as world:
        for mode in ("embedding", "rerank"):
            world.serve(mode, mode=mode)
        yield Door(world.front.connect, lambda: [json.loads(body) for *_, body in engine.asked if body])


@asynccontextmanager
async def open_keyed_router(folder):
    async def play(connection):
        head, body = player.asked[-1]
        found = answer_of(head.split()[1], json.loads(body))
        await connection.send_all(rl.stream(found) if isinstance(found, bytes) else rl.answer(body=found))

    player = rl.Player((play,), health=rl.answer(body={"data": []}))
    (folder / "webui").write_text("sk-webui\n")
    names = ("chat", "embedding", "rerank")
    rules = [rl.Rule(name=each, match=rl.Match(models=(each,)), backends=(each,)) for each in names]
    backends = [rl.local(each, capabilities=(each,)) for each in names]
    config = rl.config_of(*backends, rules=tuple(rules), auth=Auth(keys_folder=str(folder)))
    async with rl.open_lab(config, dict.fromkeys(names, player)) as lab:
        yield Door(lab.front.connect, lambda: player.bodies)


@pytest.fixture(params=[open_gateway, open_keyed_router], ids=["gateway", "keyed router"])
async def door(request, tmp_path):
    async with request.param(tmp_path) as found:
        yield found


async def test_a_connection_is_verified_and_its_models_are_listed(door):
    """It merges the lists by id; an Ollama connection also reads when a model is unloaded."""
    listed = await door.read("/v1/models")
    ids = [each["id"] for each in listed["data"] if each.get("name", each["id"])]
    assert ("error" not in listed, ids) == (True, ["chat", "embedding", "rerank"])
    version = (await door.read("/api/version"))["version"]
    assert tuple(map(int, re.sub(r"^v|-.*", "", version).split("."))) > (0,)
    tags = {each["model"]: each["name"] for each in (await door.read("/api/tags"))["models"]}
    assert tags == {each: each for each in ids}
    loaded = (await door.read("/api/ps"))["models"]
    assert {each["name"] for each in loaded} == {*ids}
    assert all(datetime.fromisoformat(each["expires_at"]).timestamp() > 0 for each in loaded)
    for model in tags:
        shown = await door.read("/api/show", {"model": model})
        assert isinstance(shown["capabilities"], list)


CHAT = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
TASK = {"stream": False, "messages": [{"role": "user", "content": "### Task: a title, tags or follow-ups as JSON"}]}


def events_of(body):
    """Return the events up to `[DONE]`, from lines that begin with `data: `."""
    *events, last = [line.removeprefix("data: ") for line in body.decode().splitlines() if line.startswith("data: ")]
    assert last == "[DONE]"
    return [json.loads(each) for each in events]


async def test_a_chat_at_an_openai_connection(door):
    """It asks for usage, sends tools and pictures, and gives the results of calls back; a task is not streamed."""
    asked = CHAT | {"stream": True, "stream_options": {"include_usage": True}, "tools": [WEATHER]}
    found = await door.ask("/v1/chat/completions", asked)
    assert (found.status, "text/event-stream" in found.headers.get("content-type")) == (200, True)
    events = events_of(found.body)
    calls = events[0]["choices"][0]["delta"]["tool_calls"]
    assert ([each["id"] for each in calls], calls[0]["function"]["name"]) == (["call_weather", "call_time"], "weather")
    assert [each["usage"]["total_tokens"] for each in events if each.get("usage")] == [8]
    results = [{"role": "tool", "tool_call_id": each["id"], "content": "sun"} for each in calls]
    turns = [*CHAT["messages"], {"role": "assistant", "content": "", "tool_calls": CALLS}, *results]
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}}
    turns.append({"role": "user", "content": [{"type": "text", "text": "see"}, picture]})
    found = await door.ask("/v1/chat/completions", asked | {"messages": turns, "tools": []})
    assert "".join(each["choices"][0]["delta"]["content"] for each in events_of(found.body)) == "yes indeed"
    assert door.bodies()[-1]["messages"] == turns
    task = await door.read("/v1/chat/completions", CHAT | TASK | {"max_completion_tokens": 1000})
    assert task["choices"][0]["message"]["content"] == "yes"


async def test_a_chat_at_an_ollama_connection(door):
    """Each line is an object with counts and durations; results name their call by its id, in any order."""
    asked = CHAT | {"stream": True, "tools": [WEATHER], "keep_alive": "5m", "options": {"num_ctx": 2048, "seed": 1}}
    lines = [json.loads(line) for line in (await door.ask("/api/chat", asked)).body.splitlines()]
    assert {each["model"] for each in lines} == {"chat"}
    assert [each["done"] for each in lines] == [False] * (len(lines) - 1) + [True]
    durations = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")
    assert all(isinstance(lines[-1][name], int) for name in durations)
    assert (lines[-1]["prompt_eval_count"], lines[-1]["eval_count"]) == (3, 5)
    calls = [call["function"] for each in lines for call in each["message"].get("tool_calls", ())]
    assert calls == [{"name": "weather", "arguments": {"x": 1}}, {"name": "time", "arguments": {"x": 1}}]
    given = [{"index": at, "id": f"call_{each['name']}", "function": each} for at, each in enumerate(calls)]
    results = [
        {"role": "tool", "content": f"of {name}", "tool_call_id": f"call_{name}"} for name in ("time", "weather")
    ]
    turns = [*CHAT["messages"], {"role": "assistant", "tool_calls": given, "content": ""}, *results]
    turns.append({"role": "user", "content": "see", "images": [PICTURE]})
    answer = await door.read("/api/chat", asked | {"messages": turns, "stream": False, "tools": []})
    assert (answer["message"]["content"], answer["done_reason"]) == ("yes", "stop")
    sent = door.bodies()[-1]["messages"]
    names = {each["id"]: each["function"]["name"] for each in sent[1]["tool_calls"]}
    assert [(names[each["tool_call_id"]], each["content"]) for each in sent[2:4]] == [
        ("time", "of time"), ("weather", "of weather"),
    ]  # fmt: skip
    assert sent[4]["content"][1]["image_url"]["url"] == f"data:image/png;base64,{PICTURE}"
    task = await door.read("/api/chat", CHAT | TASK | {"options": {"num_predict": 1000}})
    assert (task["message"]["content"], door.bodies()[-1]["max_tokens"]) == ("yes", 1000)
    assert (await door.read("/api/generate", {"model": "chat", "prompt": "hi", "stream": False}))["response"] == "yes"


async def test_documents_are_embedded_and_ranked(door):
    """Vectors come in the order of the texts, at each of its paths."""
    asked = {"model": "embedding", "input": ["a", "b"]}
    assert [each["embedding"] for each in (await door.read("/v1/embeddings", asked))["data"]] == [[0.0], [0.5]]
    assert (await door.read("/api/embed", asked | {"truncate": True}))["embeddings"] == [[0.0], [0.5]]
    assert (await door.read("/api/embeddings", {"model": "embedding", "prompt": "a"}))["embedding"] == [0.0]
    ranked = await door.read("/v1/rerank", {"model": "rerank", "query": "q", "documents": ["a"], "top_n": 1})
    assert [(each["index"], each["relevance_score"]) for each in ranked["results"]] == [(0, 0.5)]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/api/chat", CHAT | {"model": "gone"}, 404),
        ("POST", "/api/show", {"model": "gone"}, 404),
        ("POST", "/api/generate", {"model": "chat", "keep_alive": 0, "prompt": ""}, 400),
        ("DELETE", "/api/delete", {"model": "chat"}, 404),
        ("POST", "/api/copy", {"source": "chat", "destination": "b"}, 404),
        ("POST", "/api/create", {"model": "b"}, 404),
        ("DELETE", "/api/push", {"model": "chat"}, 404),
        ("POST", "/api/pull", {"model": "gone", "insecure": True, "stream": False}, 404),
        ("POST", "/v1/chat/completions", CHAT | {"model": "gone"}, 404),
    ],
)
async def test_it_shows_the_words_of_a_refusal(door, method, path, body, status):
    """Text below `/api/`, an object with a message elsewhere, always in JSON; an unload names the command."""
    found = await door.ask(path, body, method)
    error = json.loads(found.body)["error"]
    words = error if path.startswith("/api/") else error["message"]
    assert (found.status, bool(words)) == (status, isinstance(words, str))
    assert "keep_alive" not in body or "`llmkube scale" in words


@pytest.mark.parametrize("path", ["/v1/models", "/api/version", "/api/tags"])
async def test_a_wrong_key_is_reported_at_the_verification(tmp_path, path):
    """In the shape of the path."""
    async with open_keyed_router(tmp_path) as door:
        door.key = "sk-other"
        found = await door.ask(path)
    assert found.status == 401
    assert "key" in str(json.loads(found.body)["error"])
