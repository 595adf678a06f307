"""Dialects that engines do not support, at the default route: the gateway's router translates and asks the engine."""

import json
import random
import re
from collections import Counter
from contextlib import asynccontextmanager
from functools import partial

import attrs
import pytest
import trio

from controller.cluster import utcnow
from http_lab import MemoryListener
from llmkube.base.http.client import open_http_client
from llmkube.base.http.message import Headers, Response
from llmkube.base.http.server import run_server
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.programs.one_machine import AgentDirectory
from llmkube.router.dialects.inbound import in_dialect
from llmkube.router.fair_queue import MAX_WAITING
from llmkube.router.origin_policy import cors_lines, refuse_foreign_pages
from llmkube.router.policy.request_facts import Principal
from llmkube.router.proxy.default_route import Services, default_config, run_default_route
from llmkube.router.proxy.router import LIMITS
from llmkube.router.turns import Turns
from llmkube.runtimes.llama_fields import additional_ids
from router.continuation import llama_script

CHAT = "/v1/chat/completions"
HELLO = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
MESSAGE = HELLO | {"max_tokens": 9}
MODEL = decode(Model, {"metadata": {"name": "phi", "namespace": "ml", "uid": "u"}, "spec": {"source": "hf://a/b"}})
LIMITED = Principal(tenant="t", name="ann", models=("chat",))


@attrs.frozen
class View:
    """The agent's state of a service."""

    port: int = 1
    ready: bool = True
    reason: str = ""
    message: str = ""
    host: str = "engine"
    alias: str = "engine-alias"
    api_key: str = "engine-key"
    mode: str = "chat"
    aliases: tuple[str, ...] = ()
    on_request: bool = False
    load_seconds: float = 0.0
    hold_seconds: float | None = None
    delayed_until: float = 0.0
    closed: str = ""
    adapters: tuple[tuple[str, float], ...] = ()


def service(name, namespace="ml", **spec):
    meta = {"name": name, "namespace": namespace}
    return decode(InferenceService, {"metadata": meta, "spec": {"modelRef": "phi"} | spec})


def completion(text):
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    return {"id": "x", "object": "chat.completion", "model": "engine-alias", "choices": [choice], "usage": usage}


def pieces(*texts):
    """Return the stream of a chat, as an engine writes it."""
    choices = [{"index": 0, "delta": {"content": text}, "finish_reason": None} for text in texts]
    choices[-1]["finish_reason"] = "stop"
    events = [json.dumps({"object": "chat.completion.chunk", "choices": [each]}).encode() for each in choices]
    return b"".join(b"data: %b\n\n" % each for each in (*events, b"[DONE]"))


class Engine:
    """An engine that has chat completions and the paths in `more`; others are 404."""

    def __init__(self, **more):
        self.listener = MemoryListener()
        self.asked = []
        self.more = more
        self.at_once = self.most_at_once = 0
        self.pause = 0.0
        self.handle_chat = None

    async def handle(self, exchange):
        request = exchange.request
        self.asked.append((request.path, request.headers.get("authorization"), exchange.body))
        if request.path == CHAT:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            await trio.sleep(self.pause)
            self.at_once -= 1
        if request.path == CHAT and self.handle_chat is not None:
            await self.handle_chat(exchange)
            return
        if request.path == CHAT and json.loads(exchange.body).get("stream"):
            async with exchange.stream(200, Headers.of({"Content-Type": "text/event-stream"})) as send:
                await send(pieces("yes", " indeed"))
        elif request.path == CHAT:
            await exchange.respond(Response.json(200, completion("yes")))
        else:
            body = self.more.get(request.path.rpartition("/")[2])
            await exchange.respond(Response.json(200 if body else 404, body or {"detail": "Not Found"}))


class Mortal(Engine):
    """An engine with llama.cpp's script that dies after this many events of its first answer."""

    def __init__(self, events):
        super().__init__()
        self.events = events

    async def handle(self, exchange):
        self.asked.append((exchange.request.path, None, exchange.body))
        if exchange.request.path != CHAT:
            await exchange.respond(Response.json(200, {}))
            return
        events = list(llama_script.answer(llama_script.CHAT, json.loads(exchange.body)))
        lives = self.events is None
        sent, self.events = events if lives else events[: self.events], None
        framing = b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in sent)
        await exchange.send(exchange.begin(200, framing) + chunks + (b"0\r\n\r\n" if lives else b""))
        exchange.complete = exchange.keep_alive = lives


class World:
    """A gateway over services, and a client."""

    def __init__(self, engines):
        self.engines = dict(enumerate(engines, 1))
        self.services = {}
        self.views = {}
        self.version = 0
        self.front = MemoryListener()
        self.turns = Turns()
        self.client = None
        self.model = MODEL
        self.directory = AgentDirectory(lambda: self.views, lambda: self.version)

    def serve(self, name, namespace="ml", spec=None, **view):
        """Add a service, or replace it."""
        found = service(name, namespace, **spec or {})
        self.services[found.key] = found
        self.views[found.key] = View(aliases=additional_ids(name, found.spec), **view)
        self.version += 1

    @property
    def there(self):
        return Services(
            directory=self.directory,
            get=self.services.get,
            all=self.services.values,
            model_of=lambda _: self.model,
            url="http://gw",
            connect=self.connect,
            utcnow=utcnow,
            rng=random.Random(1),
            turns=self.turns,
        )

    async def connect(self, host, port):  # only this address: no request returns to the gateway
        assert host == "engine"
        return await self.engines[port].listener.connect(host, port)

    async def ask(self, path, body=None, method="POST", **headers):
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        async with open_http_client(self.front.connect) as client:
            return await client.request(method, f"http://gw{path}", headers=Headers.of(headers), body=data)

    async def answer(self, path, body=None, method="POST"):
        answer = await self.ask(path, body, method)
        assert answer.status == 200, answer.body
        return json.loads(answer.body)


@asynccontextmanager
async def open_world(*engines):
    """Run a gateway with its router and the service `chat`."""
    world = World(engines or (Engine(),))
    world.serve("chat")
    async with run_world(world):
        yield world


@asynccontextmanager
async def run_world(world):
    """Run the gateway of a world."""
    async with open_http_client(world.connect) as client, trio.open_nursery() as nursery:
        route = await nursery.start(run_default_route, world.there, client)

        async def handler(exchange):
            exchange.owner, exchange.client = exchange.head.lines.get("x-owner") or "", world.client
            await route(exchange)

        for engine in world.engines.values():
            await nursery.start(run_server, engine.handle, [engine.listener])
        await nursery.start(
            partial(run_server, handler, [world.front], judge=in_dialect(refuse_foreign_pages), stamp=cors_lines)
        )
        yield
        nursery.cancel_scope.cancel()


async def test_ollama_s_clients_are_answered_whatever_the_engine():
    """The engine gets a chat completion with its own id and key; the client reads Ollama's lines."""
    engine = Engine()
    async with open_world(engine) as world:
        answer = await world.ask("/api/chat", HELLO, authorization="Bearer client")
        lines = [json.loads(line) for line in answer.body.splitlines()]
        assert answer.headers.get("content-type") == "application/x-ndjson"
        assert [line["message"]["content"] for line in lines[:2]] == ["yes", " indeed"]
        assert (lines[-1]["done"], lines[-1]["model"]) == (True, "chat")
        assert (await world.answer("/api/generate", {"model": "chat", "prompt": "hi", "stream": False}))[
            "response"
        ] == "yes"
    assert [(path, key) for path, key, _ in engine.asked] == [(CHAT, "Bearer engine-key")] * 2
    assert {json.loads(body)["model"] for _, _, body in engine.asked} == {"engine-alias"}


async def test_what_an_engine_speaks_itself_passes_as_it_is():
    """The request and the answer are unchanged byte for byte, including unknown fields."""
    engine = Engine(completions={"by": "the engine"})
    written = b'{"model":  "engine-alias", "odd": [1.0], "max_tokens": "many"}'
    async with open_world(engine) as world:
        world.serve("engine-alias", alias="engine-alias")
        for path in ("/v1/completions", CHAT):
            answer = await world.ask(path, written)
            assert answer.status == 200
            assert path == CHAT or answer.body == b'{"by":"the engine"}'
    assert engine.asked == [(path, "Bearer engine-key", written) for path in ("/v1/completions", CHAT)]


async def test_messages_are_translated_whatever_the_engine():
    """The engine gets a chat completion; errors have the dialect's shape."""
    engine = Engine()
    async with open_world(engine) as world:
        answer = await world.answer("/v1/messages", MESSAGE)
        assert (answer["type"], answer["content"][0]["text"]) == ("message", "yes")
        assert [path for path, _, _ in engine.asked] == [CHAT]
        missing = await world.ask("/v1/messages", MESSAGE | {"model": "none"})
    assert missing.status == 404
    assert json.loads(missing.body)["type"] == "error"
    assert "no model 'none'; available: 'chat'" in missing.body.decode()


@pytest.mark.parametrize("client", [None, LIMITED])
async def test_responses_are_kept_whatever_the_engine(client):
    """The next response continues it, and it can be read and deleted."""
    engine = Engine()
    async with open_world(engine) as world:
        world.client = client
        first = await world.answer("/v1/responses", {"model": "chat", "input": "one"})
        await world.answer("/v1/responses", {"model": "chat", "input": "two", "previous_response_id": first["id"]})
        asked = [turn["content"] for turn in json.loads(engine.asked[-1][2])["messages"]]
        assert len(asked) == 3
        path = f"/v1/responses/{first['id']}"
        assert (await world.answer(path, method="GET"))["id"] == first["id"]
        assert (await world.ask(path, method="DELETE")).status == 200
        assert (await world.ask(path, method="GET")).status == 404


@pytest.mark.parametrize("path", ["/v1/messages/count_tokens", "/v1/audio/speech"])
async def test_what_an_engine_alone_can_do_comes_back_once(path):
    """The router supports these paths only through an engine, too: its 404 is the answer, without a loop."""
    engine = Engine()
    async with open_world(engine) as world:
        with trio.fail_after(60):
            assert (await world.ask(path, MESSAGE)).status == 404
    assert [asked for asked, _, _ in engine.asked] == [path]


@pytest.mark.parametrize(
    ("view", "header"),
    [
        ({"reason": "Loading", "message": "it loads"}, ("retry-after", "2")),
        ({"reason": "ScaledToZero", "message": "it was stopped"}, ("x-should-retry", "false")),
    ],
)
async def test_a_model_that_is_not_ready_is_reported_at_once(autojump_clock, view, header):
    """The error is the directory's, as for the other paths; a stopped model is not waited for."""
    async with open_world() as world:
        world.serve("chat", ready=False, **view)
        began = trio.current_time()
        answer = await world.ask("/api/chat", HELLO)
        assert trio.current_time() == began
    assert answer.status == 503
    assert view["message"] in json.loads(answer.body)["error"]
    assert answer.headers.get(header[0]) == header[1]


async def test_a_model_is_known_as_soon_as_the_gateway_knows_it():
    """The router's config need not be reloaded first: all concurrent requests find it."""
    async with open_world() as world:
        world.serve("new", spec={"aliases": ["org/new"]})
        answers = []

        async def ask(model):
            answers.append((await world.ask("/api/chat", HELLO | {"model": model})).status)

        async with trio.open_nursery() as nursery:
            for model in ("new", "org/new", "ml/new"):
                nursery.start_soon(ask, model)
        assert answers == [200, 200, 200]


async def test_the_lists_are_what_the_directory_knows():
    """`/api/tags` has the ids of `/v1/models`; `/api/ps` those with an engine; details have capabilities."""
    async with open_world() as world:
        world.serve("emb", mode="embedding", spec={"aliases": ["org/emb"]})
        world.serve("off", ready=False, reason="ScaledToZero")
        ids = [each["id"] for each in (await world.answer("/v1/models", method="GET"))["data"]]
        assert [each["name"] for each in (await world.answer("/api/tags", method="GET"))["models"]] == ids
        assert ids == ["chat", "emb", "off", "org/emb"]
        assert [each["name"] for each in (await world.answer("/api/ps", method="GET"))["models"]] == [
            "chat", "emb", "org/emb",
        ]  # fmt: skip
        assert (await world.answer("/api/show", {"model": "emb"}))["capabilities"] == ["embedding"]
        assert (await world.ask("/api/tags", {})).status == 405
        wrong = await world.ask("/api/embed", {"model": "chat", "input": "x"})
        assert (wrong.status, "spec.mode: embedding" in wrong.body.decode()) == (501, True)


GGUF = {"architecture": "qwen2", "contextLength": 32768, "quantization": "Q4_K_M", "embeddingSize": 1536}
PROPS = {
    "chat_template_caps": {"supports_tools": True},
    "modalities": {"vision": True},
    "default_generation_settings": {"n_ctx": 8192},
}


async def discover(world):
    """Return what VS Code Copilot computes for each model, as its provider for Ollama does."""
    version = (await world.answer("/api/version", method="GET"))["version"]
    assert tuple(map(int, version.split("."))) >= (0, 6, 4)
    found = {}
    for each in (await world.answer("/api/tags", method="GET"))["models"]:
        shown = await world.answer("/api/show", {"model": each["model"]})
        info, can = shown["model_info"], shown["capabilities"]
        context = info.get(f"{info['general.architecture']}.context_length", 4096)
        output = context // 2 if context < 4096 else 4096
        name = info["general.basename"]
        found[each["model"]] = (name, context - output, output, "tools" in can, "vision" in can)
    return found


async def test_copilot_computes_with_the_context_of_a_request():
    """A running model has the facts of its engine, a stopped one those of its file and its spec."""
    data = {"data": [{"id": "engine-alias", "meta": {"n_params": 1_540_000_000, "n_ctx": 8192, "ftype": "Q8_0"}}]}
    async with open_world(Engine(props=PROPS, models=data)) as world:
        fields = {"metadata": {"name": "phi", "namespace": "ml"}, "spec": {"source": "hf://a/b"}}
        world.model = decode(Model, fields | {"status": {"gguf": GGUF}})
        world.serve("off", ready=False, reason="ScaledToZero", spec={"contextSize": 2048})
        assert await discover(world) == {
            "chat": ("chat", 4096, 4096, True, True),
            "off": ("off", 1024, 1024, False, False),
        }
        for reads, sees in (("sound", False), ("pictures", True), ("pictures and sound", True)):
            projector = f"mmproj-pictures.gguf (gemma3: {reads})"
            world.model = decode(Model, fields | {"status": {"gguf": GGUF, "projector": projector}})
            assert (await discover(world))["off"][-1] == sees
            (off,) = [each for each in (await world.answer("/v1/models", method="GET"))["data"] if each["id"] == "off"]
            assert ("image" in off.get("architecture", {}).get("input_modalities", ())) == sees
        details = (await world.answer("/api/show", {"model": "chat"}))["details"]
        assert (details["family"], details["parameter_size"], details["quantization_level"]) == (
            "qwen2", "1.5B", "Q4_K_M",
        )  # fmt: skip
        (chat, _) = (await world.answer("/api/tags", method="GET"))["models"]
        assert chat["details"] == details


async def test_codex_finds_its_model_and_asks_for_a_response():
    """`codex --oss` lists models, compares the version, pulls a model that is not listed, and uses `/v1/responses`."""
    async with open_world() as world:
        assert [each["id"] for each in (await world.answer("/v1/models", method="GET"))["data"]] == ["chat"]
        version = (await world.answer("/api/version", method="GET"))["version"]
        assert tuple(map(int, version.split("."))) >= (0, 13, 4)
        lines = (await world.ask("/api/pull", {"model": "chat:latest", "stream": True})).body.splitlines()
        assert json.loads(lines[-1]) == {"status": "success"}
        missing = await world.ask("/api/pull", {"model": "gpt-oss:20b", "stream": True})
        assert (missing.status, "llmkube deploy" in json.loads(missing.body)["error"]) == (200, True)
        assert (await world.answer("/v1/responses", {"model": "chat:latest", "input": "hi"}))["status"] == "completed"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/chat", {"name": "chat", "messages": HELLO["messages"]}),
        ("/api/generate", {"name": "chat:latest", "prompt": "hi"}),
        ("/api/chat", HELLO | {"model": "chat:latest"}),
        ("/v1/messages", MESSAGE | {"model": "chat:latest"}),
        (CHAT, HELLO | {"model": "chat:latest"}),
        ("/chat/completions", HELLO),
        ("/responses", {"model": "chat", "input": "hi"}),
    ],
)
async def test_names_and_paths_of_ollamas_and_llama_cpps_clients(path, body):
    """The engine gets its own id, and a path that it has."""
    async with open_world() as world:
        assert (await world.ask(path, body)).status == 200
        assert (await world.ask("/v1/models/chat:latest", method="GET")).status == 200
    (engine,) = world.engines.values()
    assert {json.loads(sent)["model"] for asked, _, sent in engine.asked if asked == CHAT} == {"engine-alias"}


async def test_a_request_without_a_prompt_loads_a_model_that_runs():
    """A stopped one is reported as for the other requests; the client may name either by the older field."""
    async with open_world() as world:
        world.serve("off", ready=False, reason="ScaledToZero", message="it was stopped")
        assert (await world.answer("/api/generate", {"model": "chat"}))["done_reason"] == "load"
        assert (await world.answer("/api/chat", {"name": "chat", "messages": []}))["done_reason"] == "load"
        for named in ({"model": "off"}, {"name": "off"}):
            stopped = await world.ask("/api/generate", named)
            assert (stopped.status, "it was stopped" in json.loads(stopped.body)["error"]) == (503, True)
        unload = await world.ask("/api/generate", {"model": "chat", "keep_alive": 0})
    assert (unload.status, "llmkube scale" in json.loads(unload.body)["error"]) == (400, True)


@pytest.mark.parametrize(
    ("path", "message_of"),
    [
        ("/api/tags", lambda body: body["error"]),
        ("/v1/messages", lambda body: body["error"]["message"] if body["type"] == "error" else None),
        (CHAT, lambda body: body["error"]["message"]),
    ],
)
async def test_a_refusal_of_the_head_has_the_dialect_of_its_path(path, message_of):
    """It is sent before a route is known."""
    async with open_world() as world:
        refused = await world.ask(path, HELLO, origin="https://evil.example")
    assert (refused.status, "https://evil.example may not" in message_of(json.loads(refused.body))) == (403, True)


async def test_paths_without_v1_reach_the_engine_unchanged():
    """llama.cpp's server has them, some with answers of their own."""
    engine = Engine(embeddings=[{"by": "the engine"}], completion={"by": "the engine"})
    async with open_world(engine) as world:
        world.serve("emb", mode="embedding")
        assert (await world.answer("/embeddings", {"model": "emb", "odd": 1})) == [{"by": "the engine"}]
        assert (await world.answer("/completion", {"model": "chat", "odd": 1})) == {"by": "the engine"}
        wrong = await world.ask("/embedding", {"model": "chat"})
    assert [path for path, _, _ in engine.asked] == ["/embeddings", "/completion"]
    assert (wrong.status, "spec.mode: embedding" in wrong.body.decode()) == (501, True)


async def test_llama_cpps_router_has_its_state():
    """The query names the model, and the engine's answer is unchanged; without one `/props` are the gateway's own."""
    engine = Engine(props=PROPS, slots=[{"id": 0}])
    async with open_world(engine, Engine()) as world:
        world.serve("off", ready=False, reason="ScaledToZero", message="it was stopped")
        here = {"host": "localhost:8080"}
        for target, expected in (("/props?model=chat%3Alatest", PROPS), ("/slots?model=chat", [{"id": 0}])):
            answer = await world.ask(target, method="GET", **here)
            assert (answer.status, json.loads(answer.body)) == (200, expected)
        own = json.loads((await world.ask("/props", method="GET", **here)).body)
        assert (own["role"], own["models_autoload"]) == ("router", False)
        listed = (await world.answer("/models", method="GET"))["data"]
        assert {each["id"]: each["status"]["value"] for each in listed} == {"chat": "loaded", "off": "unloaded"}
        for target, status in (("/slots", 400), ("/slots?model=gone", 404), ("/props?model=off", 503)):
            assert (await world.ask(target, method="GET", **here)).status == status
        for target in ("/props", "/slots?model=chat"):
            for host in ("evil.example", "[::1"):
                assert (await world.ask(target, method="GET", host=host)).status in (400, 403)
    assert [(path, key) for path, key, _ in engine.asked[:2]] == [
        ("/props", "Bearer engine-key"), ("/slots", "Bearer engine-key"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("command", "model", "status", "words"),
    [
        ("load", "chat", 400, "already running"),
        ("load", "off", 501, "`llmkube scale off 1`"),
        ("load", "slow", 400, "already running"),
        ("load", "gone", 404, "available: 'chat'"),
        ("unload", "chat", 501, "`llmkube scale chat 0`"),
        ("unload", "off", 400, "not running"),
        ("unload", "gone", 404, "available: 'chat'"),
    ],
)
async def test_models_are_loaded_and_unloaded_by_their_owner(command, model, status, words):
    """The error has the model's state and the command."""
    async with open_world() as world:
        world.serve("off", ready=False, reason="ScaledToZero")
        world.serve("slow", ready=False, reason="Loading")
        answer = await world.ask(f"/models/{command}", {"model": model})
        assert (await world.ask(f"/models/{command}", method="GET")).status == 405
    assert (answer.status, words in json.loads(answer.body)["error"]["message"]) == (status, True)


async def test_two_services_of_one_name_are_two_models():
    """Ids resolve as at the gateway: an ambiguous id has no model, and a name is preferred to an alias."""
    async with open_world(Engine(), Engine()) as world:
        world.serve("chat", "other", port=2)
        assert (await world.ask("/api/chat", HELLO)).status == 404
        assert (await world.ask("/api/chat", HELLO | {"model": "other/chat"})).status == 200
        world.serve("alias", spec={"aliases": ["named"]})
        world.serve("named", port=2)
        assert (await world.ask("/api/chat", HELLO | {"model": "named"})).status == 200
        assert [len(engine.asked) for engine in world.engines.values()] == [0, 2]


async def test_requests_wait_for_a_slot(autojump_clock):
    """An engine with one slot gets one request after another."""
    engine = Engine()
    engine.pause = 1.0
    async with open_world(engine) as world:
        world.serve("chat", spec={"parallelSlots": 1})
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(world.ask, "/api/chat", HELLO)
    assert ([path for path, _, _ in engine.asked].count(CHAT), engine.most_at_once) == (3, 1)


async def test_what_passes_takes_a_slot(autojump_clock):
    """Direct and translated requests wait in one queue, in order of arrival."""
    engine, ended = Engine(), []
    engine.pause = 1.0
    async with open_world(engine) as world, trio.open_nursery() as nursery:
        world.serve("chat", spec={"parallelSlots": 1})
        assert (await world.ask("/api/tags", method="GET")).status == 200

        async def ask(name, path, seconds):
            await trio.sleep(seconds)
            await world.ask(path, HELLO)
            ended.append(name)

        nursery.start_soon(ask, "first", CHAT, 0.0)
        nursery.start_soon(ask, "second", CHAT, 0.1)
        nursery.start_soon(ask, "translated", "/api/chat", 0.2)
        nursery.start_soon(ask, "third", CHAT, 1.05)
    assert ended == ["first", "second", "translated", "third"]
    assert engine.most_at_once == 1


async def test_many_requests_of_one_user_delay_one_of_another_by_one_turn(autojump_clock):
    """Beyond the limit of a queue, requests of the user with the most are refused."""
    engine, answers = Engine(), Counter()
    engine.pause = 1.0
    async with open_world(engine) as world, trio.open_nursery() as nursery:
        world.serve("chat", spec={"parallelSlots": 1})
        assert (await world.ask("/api/tags", method="GET")).status == 200

        async def ask():
            answer = await world.ask(CHAT, HELLO, **{"x-owner": "busy"})
            answers[answer.status] += 1

        for _ in range(MAX_WAITING + 44):
            nursery.start_soon(ask)
        await trio.sleep(0.5)
        assert answers == {429: 43}  # one has the slot
        assert (await world.ask(CHAT, HELLO, **{"x-owner": "quiet"})).status == 200
        assert trio.current_time() < 2.1
        assert answers == {200: 1, 429: 44}
        nursery.cancel_scope.cancel()
    assert world.turns.queue_of(default_config(world.there).backends["ml/chat"]).queue.running == 0


async def test_long_bodies_cost_a_client_no_turns(autojump_clock):
    """A picture or a cached history has more bytes than the engine computes; the time at the engine is charged."""
    engine, ended = Engine(), []
    engine.pause = 1.0
    long = HELLO | {"pad": "x" * 1_000_000}

    async def ask(body, owner):
        await world.ask(CHAT, body, **{"x-owner": owner})
        ended.append(owner)

    async with open_world(engine) as world, trio.open_nursery() as nursery:
        world.serve("chat", spec={"parallelSlots": 1})
        assert (await world.ask("/api/tags", method="GET")).status == 200
        for _ in range(4):
            nursery.start_soon(ask, long, "long")
        await trio.sleep(0.1)
        for _ in range(12):
            nursery.start_soon(ask, HELLO, "short")
    assert max(at for at, owner in enumerate(ended) if owner == "long") <= 8, ended


async def test_a_request_that_waited_is_sent_to_the_engine_of_now(autojump_clock):
    """The port of an engine that has exited may belong to another program."""
    first, second = Engine(), Engine()
    first.pause = 1.0
    async with open_world(first, second) as world, trio.open_nursery() as nursery:
        world.serve("chat", spec={"parallelSlots": 1})
        assert (await world.ask("/api/tags", method="GET")).status == 200
        nursery.start_soon(world.ask, CHAT, HELLO)
        nursery.start_soon(world.ask, CHAT, HELLO)
        await trio.sleep(0.5)
        world.serve("chat", spec={"parallelSlots": 1}, port=2)
    assert [[path for path, _, _ in each.asked].count(CHAT) for each in (first, second)] == [1, 1]


async def test_an_answer_survives_its_engine(autojump_clock):
    """An Ollama client reads one stream with a clean end, and the same text as without a crash."""
    engine = Mortal(4)
    async with open_world(engine) as world:
        answer = await world.ask("/api/chat", HELLO | {"options": {"temperature": 0}})
    lines = [json.loads(line) for line in answer.body.splitlines()]
    assert "".join(line["message"]["content"] for line in lines) == llama_script.TEXT
    assert (lines[-1]["done"], [path for path, _, _ in engine.asked].count(CHAT)) == (True, 2)


async def test_pages_are_checked_as_elsewhere_at_the_gateway():
    """A local page gets a preflight and the answer; a foreign one is refused."""
    async with open_world() as world:
        near, far = {"origin": "http://localhost:3000"}, {"origin": "https://evil.example"}
        assert (await world.ask("/api/chat", HELLO, **far)).status == 403
        answer = await world.ask("/api/chat", HELLO, **near)
        assert (answer.status, answer.headers.get("access-control-allow-origin")) == (200, near["origin"])
        preflight = near | {"access-control-request-method": "POST"}
        assert (await world.ask("/api/tags", method="OPTIONS", **preflight)).status == 204


async def test_a_body_that_would_be_parsed_for_too_long_is_refused():
    """The gateway allows longer ones; this one is refused in the shape of its dialect."""
    async with open_world() as world:
        long = json.dumps(HELLO).encode() + b" " * LIMITS.max_body_bytes
        answer = await world.ask("/v1/messages", long[1:])  # not JSON: a body that is too long is not parsed
        assert answer.status == 413
        padded = b'{"model": "chat", "pad": "%b"}' % (b"x" * LIMITS.max_body_bytes)
        answer = await world.ask("/api/chat", padded)
    assert answer.status == 413
    assert str(LIMITS.max_body_bytes) in json.loads(answer.body)["error"]


def test_the_config_has_what_continues_an_answer():
    """Slots, digest and cache equal those of a ModelRouter's backend of the same service."""
    world = World([])
    world.serve("chat", spec={"parallelSlots": 3})
    config = default_config(world.there)
    backend = config.backends["ml/chat"]
    assert (backend.slots, backend.local, backend.model, backend.base_url) == (3, True, "ml/chat", "http://gw/v1")
    assert backend.model_digest
    assert config.first_byte_extends


LONG = HELLO | {"max_tokens": 10**9}


@pytest.mark.parametrize(
    ("spec", "asked", "sent"),
    [
        ({"maxAnswerTokens": 300}, LONG, {"max_tokens": 300}),
        ({"extraArgs": ["--context-shift"]}, LONG, {"max_tokens": 4096}),
        ({"extraArgs": ["--context-shift", "-n", "300"]}, HELLO | {"n_predict": 1e6}, {"n_predict": 300}),
        ({"maxAnswerTokens": 300}, HELLO | {"max_tokens": 20}, {"max_tokens": 20}),
        ({"maxAnswerTokens": 300}, HELLO | {"max_tokens": -1}, {"max_tokens": -1}),
        ({"maxAnswerTokens": 300}, HELLO, {}),
        ({}, LONG, {"max_tokens": 10**9}),
    ],
)
async def test_no_request_asks_for_a_longer_answer_than_the_service_has(spec, asked, sent, autojump_clock):
    """The engine's flag is only the default; without a shift, it stops at the end of its context."""
    engine = Engine()
    async with open_world(engine) as world:
        world.serve("chat", spec=spec)
        await trio.sleep(10)  # until the router has the new spec
        await world.answer(CHAT, asked)
    assert json.loads(engine.asked[-1][2]) == HELLO | {"model": "engine-alias"} | sent


async def test_a_translated_request_asks_for_no_longer_one_either():
    """Ollama's `num_predict` is such a limit."""
    engine = Engine()
    async with open_world(engine) as world:
        world.serve("chat", spec={"maxAnswerTokens": 300})
        await world.answer("/api/chat", HELLO | {"stream": False, "options": {"num_predict": 10**6}})
    assert json.loads(engine.asked[-1][2])["max_tokens"] == 300


async def test_a_direct_request_without_a_slot_in_time_gets_retry_after(autojump_clock):
    """One that was behind fewer requests than have ended since then has a slot, and is not disturbed."""
    engine = Engine()
    engine.pause = 400.0
    async with open_world(engine) as world, trio.open_nursery() as nursery:
        world.serve("chat", spec={"parallelSlots": 1})
        assert (await world.ask("/api/tags", method="GET")).status == 200
        nursery.start_soon(world.ask, CHAT, HELLO)
        await trio.sleep(1)
        refused = await world.ask(CHAT, HELLO)
        assert (refused.status, json.loads(refused.body)["error"]["code"]) == (503, "queue_full")
        assert int(refused.headers.get("retry-after")) >= 1
        assert trio.current_time() == pytest.approx(121, abs=1)
        await trio.sleep(370 - trio.current_time())
        assert (await world.ask(CHAT, HELLO)).status == 200  # gets the slot at 400 s, and answers after 120 s
    assert world.turns.queue_of(default_config(world.there).backends["ml/chat"]).queue.running == 0


PADDING = {"x": [[]] * 50_000}
"""Bodies with it are scanned, not parsed."""


@pytest.mark.parametrize(
    ("path", "asked", "status"),
    [
        ("/api/chat", {"name": "chat"}, 200),
        ("/api/chat", PADDING | {"name": "chat"}, 200),
        ("/api/chat", PADDING | {"name": "other"}, 403),
        ("/api/generate", PADDING | {"model": None, "name": "other", "prompt": "hi"}, 403),
        ("/api/chat", PADDING, 400),
        ("/v1/messages", {"": "other", "max_tokens": 9}, 400),
        ("/chat/completions", {"": "other"}, 400),
        ("/chat/completions", {"model": "chat"}, 200),
        ("/chat/completions", {"model": "other"}, 403),
    ],
)
async def test_a_limited_key_reaches_its_models_alone(path, asked, status):
    """Whichever field names the model, however long the body is, and whether or not the engine has the path."""
    async with open_world(Engine(), Engine()) as world:
        world.serve("other", port=2)
        world.client = LIMITED
        answer = await world.ask(path, {"messages": HELLO["messages"]} | asked)
    assert answer.status == status, answer.body
    assert world.engines[2].asked == []


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        (CHAT, {"repeat_last_n": 2**31 - 1}),
        (CHAT, PADDING | {"n_probs": 10**9}),
        (CHAT, {"stop": ["a"] * 10_000}),
        (CHAT, {"samplers": "k" * 10_000}),
        ("/v1/completions", {"prompt": "hi", "logit_bias": {str(at): 1 for at in range(10_001)}}),
        ("/api/chat", {"options": {"repeat_last_n": 2**31 - 1}}),
        ("/v1/messages", {"max_tokens": 9, "top_k": 10**9}),
        ("/v1/messages", {"max_tokens": 9, "stop_sequences": ["a" * 5000]}),
    ],
)
async def test_values_by_which_an_engine_would_allocate_or_loop_are_refused(path, asked):
    """The error names field, value and limits; the engine gets nothing."""
    engine = Engine()
    async with open_world(engine) as world:
        answer = await world.ask(path, HELLO | asked)
    assert answer.status == 400, answer.body
    error = json.loads(answer.body)["error"]
    message = error if isinstance(error, str) else error["message"]
    assert re.match(
        r"(repeat_last_n|n_probs|stop|samplers|logit_bias|top_k) is .*; its limits: .* \d+; change or omit", message
    )
    assert "code" not in error or error["code"] == "invalid_value"
    assert engine.asked == []


@pytest.mark.parametrize(
    ("path", "asked", "slots"),
    [
        (CHAT, {}, 1),
        (CHAT, {"n": 2}, 2),
        ("/v1/completions", {"prompt": ["a", "b", "c"]}, 3),
        ("/v1/completions", PADDING | {"prompt": ["a", "b", "c"]}, 3),
        ("/v1/completions", {"prompt": [1, 2, 3]}, 1),
        ("/v1/completions", {"prompt": ["a"] * 60}, 3),
        ("/v1/completions", {"prompt": ["a", "b", "c"], "n": 3}, 3),
        ("/v1/completions", {"prompt": list(range(60))}, 1),
        ("/tokenize", {"content": ["a", "b"]}, 0),
    ],
)
async def test_a_request_takes_a_slot_for_each_of_its_parts(path, asked, slots):
    """A router of the same process sends nothing to slots that are in use."""

    class Counting(Engine):
        async def handle(self, exchange):
            self.slots = world.turns.queue_of(default_config(world.there).backends["ml/chat"]).queue.running
            await super().handle(exchange)

    engine = Counting(completions={"a": 1}, tokenize={"a": 1})
    async with open_world(engine) as world:
        world.serve("chat", spec={"parallelSlots": 4})
        assert (await world.ask("/api/tags", method="GET")).status == 200
        await world.answer("/api/chat", HELLO | {"stream": False})  # the router reads the new spec
        await world.answer(path, HELLO | asked)
    assert engine.slots == slots


class Slotted(Engine):
    """An engine with two slots that takes a second for each prompt, in the order of arrival."""

    def __init__(self):
        super().__init__()
        self.free = trio.CapacityLimiter(2)
        self.unlike = None

    async def handle(self, exchange):
        body = json.loads(exchange.body)
        prompts = body.get("prompt", ["a chat"])
        answers = [None] * len(prompts)

        async def compute(at):
            async with self.free:
                await trio.sleep(1)
            answers[at] = {"index": at, "text": f"to {prompts[at]}"}

        async with trio.open_nursery() as nursery:
            for at in range(len(prompts)):
                nursery.start_soon(compute, at)
        self.asked.append(exchange.body)
        if self.unlike is not None and len(self.asked) > 1:
            await exchange.respond(Response.json(*self.unlike))
        elif exchange.request.path == CHAT:
            await exchange.respond(Response.json(200, completion("yes")))
        elif exchange.request.path == "/completion":
            await exchange.respond(Response.json(200, answers if len(prompts) > 1 else answers[0]))
        else:
            usage = {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
            answer = {"model": "engine-alias", "choices": answers, "usage": usage}
            await exchange.respond(Response.json(200, answer))


@asynccontextmanager
async def slotted_world(slots=2):
    engine = Slotted()
    async with open_world(engine) as world:
        world.serve("chat", spec={"parallelSlots": slots})
        await world.answer("/api/chat", HELLO | {"stream": False})  # the router reads the new spec
        engine.asked.clear()
        yield world, engine


PROMPTS = [f"p{at}" for at in range(24)]


@pytest.mark.parametrize("slots", [1, 2])
async def test_a_list_of_prompts_leaves_room_for_a_chat(autojump_clock, slots):
    """The engine gets some prompts at a time, and nothing else is changed; the client gets one answer with all."""
    body = b'{"model": "chat","odd" : [1.0], "prompt": %b , "max_tokens": 9}' % json.dumps(PROMPTS).encode()
    async with slotted_world(slots) as (world, engine), trio.open_nursery() as nursery:
        engine.free.total_tokens = slots
        answers = []

        async def ask():
            answers.append(await world.ask("/v1/completions", body))

        nursery.start_soon(ask)
        await trio.sleep(5.5)
        began = trio.current_time()
        await world.answer(CHAT, HELLO)
        assert trio.current_time() - began <= 1.5
    joined = json.loads(answers[0].body)
    assert [(each["index"], each["text"]) for each in joined["choices"]] == [
        (at, f"to {each}") for at, each in enumerate(PROMPTS)
    ]
    assert joined["model"] == "chat"
    assert joined["usage"] == {"prompt_tokens": 48, "completion_tokens": 72, "total_tokens": 120}
    sent = [each for each in engine.asked if b"odd" in each]
    assert sent == [
        b'{"model": "engine-alias","odd" : [1.0], "prompt": ["%b"] , "max_tokens": 9}' % each.encode()
        for each in PROMPTS
    ]


async def test_prompts_in_llama_cpps_own_format_are_answered_by_a_list(autojump_clock):
    """Its answer to one prompt is no list."""
    async with slotted_world() as (world, _):
        answer = await world.answer("/completion", {"model": "chat", "prompt": PROMPTS[:3]})
    assert answer == [{"index": at, "text": f"to {each}"} for at, each in enumerate(PROMPTS[:3])]


@pytest.mark.parametrize(
    ("unlike", "status", "words", "asked"),
    [
        ((503, {"error": {"message": "busy", "code": 503}}), 503, "busy", 2),
        ((200, [1]), 502, "answers to the prompts cannot be joined: choices must be a list of objects", 24),
        ((200, [{"text": "x" * (1 << 25)}]), 502, "longer than 33554432 bytes; send fewer prompts", 2),
    ],
)
async def test_an_error_in_a_part_of_the_prompts_is_the_answer(autojump_clock, unlike, status, words, asked):
    """After an error the engine gets no further part."""
    async with slotted_world() as (world, engine):
        engine.unlike = unlike
        answer = await world.ask("/v1/completions", {"model": "chat", "prompt": PROMPTS})
        assert (answer.status, words in answer.body.decode()) == (status, True), answer.body
        assert len(engine.asked) == asked


async def test_a_stream_of_more_prompts_than_slots_is_refused(autojump_clock):
    """The error has the alternatives."""
    async with slotted_world() as (world, engine):
        answer = await world.ask("/v1/completions", {"model": "chat", "prompt": PROMPTS, "stream": True})
        assert answer.status == 400
        assert json.loads(answer.body)["error"]["message"] == (
            "prompt has 24 prompts, and its engine computes 2 at a time; send fewer, or omit stream"
        )
        assert engine.asked == []
