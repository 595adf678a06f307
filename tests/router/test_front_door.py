"""The gateway: the engine for each request, and the client's error if there is none."""

import datetime
import json
import os
import sys
from contextlib import AsyncExitStack
from functools import partial
from types import SimpleNamespace

import attrs
import pytest
import structlog.testing
import trio
import trio.testing

from http_lab import MemoryListener, always, converse, receive_until, serve_connection
from llmkube.base.http.client import open_http_client
from llmkube.base.http.errors import ConnectionLostError
from llmkube.base.http.heads import read_request
from llmkube.base.http.hub import open_sockets
from llmkube.base.http.limits import Limits
from llmkube.base.http.listen import open_listeners
from llmkube.base.http.message import Headers, Response
from llmkube.base.http.server import run_server
from llmkube.router import front_door, model_field
from llmkube.router.backends import Backend, State, UnavailableModel
from llmkube.router.front_door import PassThrough, passing_door
from llmkube.router.origin_policy import cors_lines, refuse_foreign_pages
from llmkube.router.refusals import RefusedError

BORN = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
GATEWAY = "http://gateway:8080"
CHAT = "/v1/chat/completions"


class Models:
    """A directory from a dict."""

    def __init__(self, **entries):
        self.entries = entries

    def aliases(self):
        return ()

    def model_ids(self):
        return list(self.entries)

    def lookup(self, model_id):
        return self.entries.get(model_id)


class Engine:
    """An engine at one port that records requests and answers through `handler`."""

    def __init__(self, handler=None):
        self.listener = MemoryListener()
        self.requests = []
        self._handler = handler

    async def handle(self, exchange):
        self.requests.append(exchange.request)
        if self._handler is not None:
            await self._handler(exchange)
        else:
            headers = Headers.of({"X-Engine": "yes", "Keep-Alive": "timeout=5"})
            await exchange.respond(Response.json(200, {"answer": 42}, headers=headers))


class World:
    """A gateway in memory, and a client."""

    def __init__(self, directory):
        self.directory = directory
        self.front = MemoryListener()

    async def ask(self, method, path, body=None, headers=None):
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        async with open_http_client(self.front.connect) as client:
            return await client.request(method, GATEWAY + path, headers=Headers.of(headers or {}), body=data)


@pytest.fixture
async def world(nursery):
    """Start a gateway over the given engines."""
    by_port = {}

    async def dial(host, port):
        if port not in by_port:
            raise ConnectionRefusedError(111, "Connection refused")
        return await by_port[port].listener.connect(host, port)

    async with open_http_client(dial) as upstream:

        async def make(directory=None, **engines):
            by_port.update({int(name.removeprefix("port")): engine for name, engine in engines.items()})
            world = World(directory or TWO)
            for engine in by_port.values():
                await nursery.start(run_server, engine.handle, [engine.listener])
            handler = passing_door(PassThrough(world.directory, upstream), lambda: BORN)
            serve = partial(run_server, handler, [world.front], judge=refuse_foreign_pages, stamp=cors_lines)
            await nursery.start(serve)
            return world

        yield make


TWO = Models(
    chat=Backend("127.0.0.1", 1, "chat"),
    embed=Backend("::1", 2, "embed-alias"),
    slow=UnavailableModel("Loading", "the engine loads its weights", retry_after_seconds=7),
)
OFF = UnavailableModel("ScaledToZero", "it was stopped", None, State.UNLOADED)
TWO.entries |= {"talk": Backend("127.0.0.1", 3, "talk", mode="chat"), "off": OFF}
ONE = Models(only=Backend("127.0.0.1", 1, "only"))
NONE = Models()


class RestartingModels(Models):
    """An engine that has another port at each request, as after a restart."""

    def lookup(self, model_id):
        found = self.entries["only"] = attrs.evolve(self.entries["only"], port=self.entries["only"].port + 1)
        return found


@pytest.mark.parametrize(
    ("directory", "body", "port", "forwarded"),
    [
        (TWO, b'{"model": "chat" , "x":1}', 1, b'{"model": "chat" , "x":1}'),
        (TWO, b'{"model": "embed", "x": 1}', 2, b'{"model": "embed-alias", "x": 1}'),
        (TWO, rb'{"model": "chat", "x": "\ud83d\ude00 \ud83d"}', 1, rb'{"model": "chat", "x": "\ud83d\ude00 \ufffd"}'),
        (ONE, b'{"model": "only"}', 1, b'{"model": "only"}'),
        (ONE, b'{"x": 1.5}', 1, b'{"model":"only","x": 1.5}'),
        (ONE, b'{"model": null}', 1, b'{"model": "only"}'),
    ],
)
async def test_model_chooses_the_engine(world, directory, body, port, forwarded):
    """The model's engine gets the request, unchanged unless the engine has another name for it."""
    engines = {"port1": Engine(), "port2": Engine()}
    gateway = await world(directory, **engines)
    answer = await gateway.ask("POST", CHAT, body)
    assert (answer.status, json.loads(answer.body)) == (200, {"answer": 42})
    asked = {name: [request.body for request in engine.requests] for name, engine in engines.items()}
    assert asked == {"port1": [], "port2": [], f"port{port}": [forwarded]}


@pytest.mark.parametrize("sent", [b'{"model":"embed-alias","x":[1]}', b'data: {"x":1, "model": "embed-alias"}\n\n'])
async def test_an_answer_has_the_name_in_the_request(world, sent):
    """The engine's own name is replaced in a body of any framing; without another name, the body is unchanged."""

    async def in_bytes(exchange):
        async with exchange.stream(200, Headers()) as send:
            for each in sent:
                await send(bytes([each]))

    async def whole(exchange):
        await exchange.respond(Response(200, Headers(), sent))

    for handler in (whole, in_bytes):
        gateway = await world(TWO, port1=Engine(handler), port2=Engine(handler))
        renamed = await gateway.ask("POST", CHAT, {"model": "embed"})
        assert renamed.body == sent.replace(b': "embed-alias', b':"embed-alias').replace(b"embed-alias", b"embed")
        assert (await gateway.ask("POST", CHAT, {"model": "chat"})).body == sent


@pytest.mark.parametrize(
    ("directory", "method", "path", "body", "status", "code", "words"),
    [
        (TWO, "POST", CHAT, {"model": "gone"}, 404, "model_not_found", "'gone'; available: 'chat', 'embed', 'slow'"),
        (NONE, "POST", CHAT, {"model": "gone"}, 404, "model_not_found", "no model is served yet"),
        (TWO, "POST", CHAT, {"messages": []}, 400, "model_required", "available: 'chat', 'embed', 'slow'"),
        (NONE, "POST", CHAT, {"messages": []}, 400, "model_required", "no model is served yet"),
        (TWO, "POST", CHAT, {"model": 7}, 400, "invalid_model", "must be a string"),
        (TWO, "POST", CHAT, b"", 400, "invalid_json", "JSON object"),
        (TWO, "POST", CHAT, b"{", 400, "invalid_json", "JSON object"),
        (TWO, "POST", CHAT, b"\xff", 400, "invalid_json", "JSON object"),
        (TWO, "POST", CHAT, b"[1]", 400, "invalid_json", "JSON object"),
        (TWO, "POST", CHAT, b"[" * 100_000, 400, "invalid_json", "JSON object"),
        (TWO, "POST", CHAT, {"model": "slow"}, 503, "model_not_ready", "(Loading): the engine loads its weights"),
        (TWO, "POST", CHAT, {"model": "chat"}, 502, "engine_failed", "127.0.0.1:1"),
        (TWO, "GET", CHAT, None, 405, "method_not_allowed", "GET"),
        (TWO, "POST", "/v1/models", {}, 405, "method_not_allowed", "POST"),
        (TWO, "GET", "/v1/models/gone", None, 404, "model_not_found", "'chat'"),
        (TWO, "POST", "/props", {"model": "chat"}, 404, "not_found", "/v1/chat/completions"),
        (TWO, "POST", "/health", {}, 404, "not_found", "/v1"),
        (TWO, "POST", "/", {}, 404, "not_found", "/v1"),
        (TWO, "POST", "/v1", {}, 404, "not_found", "/v1/chat/completions"),
        (TWO, "POST", "/v1/v1/chat/completions", {"model": "talk"}, 404, "not_found", "the API is under /v1"),
        (TWO, "POST", "/v1/embeddings", {"model": "talk"}, 501, "mode_not_served", "needs spec.mode: embedding"),
        (TWO, "POST", "/v1/rerank", {"model": "talk"}, 501, "mode_not_served", "needs spec.mode: rerank"),
        (TWO, "POST", CHAT, {"model": "off"}, 503, "model_not_ready", "(ScaledToZero): it was stopped"),
        (TWO, "GET", "/favicon.ico", None, 404, "not_found", "/v1"),
    ],
)
async def test_refusals_are_shaped_like_openai(  # noqa: PLR0917 (a table's columns, not an interface)
    world, directory, method, path, body, status, code, words
):
    """Each error has a status, a code and a message with a fix, in the shape that clients parse."""
    gateway = await world(directory)
    answer = await gateway.ask(method, path, body)
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["code"]) == (status, code)
    assert words in error["message"]
    assert set(error) == {"message", "type", "code"} | ({"reason"} if code == "model_not_ready" else set())
    assert (error["type"] == "invalid_request_error") is (status < 500)
    stopped = "ScaledToZero" in error["message"]
    assert answer.headers.get("retry-after") == ("7" if status == 503 and not stopped else None)
    assert answer.headers.get("x-should-retry") == ("false" if stopped else None)  # U4: only a user can start it
    assert ("allow" in answer.headers) is (status == 405)


@pytest.mark.parametrize(("peer", "path"), [("192.168.1.9", "/slots"), ("fe80::1%eth0", "/slots/"), ("x", "/slots")])
async def test_slots_are_for_this_machine_alone(peer, path):
    """Older engines show the prompts of all clients there."""
    head = read_request(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(), Limits())
    exchange = SimpleNamespace(head=head, peer=peer)
    with pytest.raises(RefusedError) as caught:
        await PassThrough(ONE, None)(exchange)
    assert (caught.value.response.status, caught.value.code) == (403, "slots_closed")


async def test_models_are_listed_from_the_directory(world):
    """`/v1/models` lists every model, ready or not, and returns one by its id with namespace."""
    directory = Models(**{"a": Backend("h", 1, "a"), "ns/b": UnavailableModel("Loading", "")})
    gateway = await world(directory)
    listed = json.loads((await gateway.ask("GET", "/v1/models")).body)
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["a", "ns/b"]
    status = {"value": "loading", "reason": "Loading", "message": ""}
    made = {"object": "model", "created": int(BORN.timestamp()), "owned_by": "llmkube"}
    one = {"id": "ns/b", **made, "status": status}
    assert json.loads((await gateway.ask("GET", "/v1/models/ns/b")).body) == one
    assert json.loads((await gateway.ask("GET", "/v1/models/ns%2Fb")).body) == one


@pytest.mark.parametrize(
    ("origin", "host", "status"),
    [
        (None, "evil.example:8080", 200),  # a program behind a tunnel
        ("http://localhost:3000", "127.0.0.1:8080", 200),
        ("http://127.0.0.1:8080", "127.0.0.1:8080", 200),
        ("http://[::1]:3000", "localhost:8080", 200),
        ("http://192.168.1.5", "192.168.1.5", 200),
        ("http://mac-studio:8080", "mac-studio:8080", 200),
        ("http://mac-studio.local", "127.0.0.1:8080", 200),
        ("http://host.docker.internal:3000", "host.docker.internal:8080", 200),
        ("https://ai.example:8443", "ai.example:8443", 200),
        ("https://ai.example:8443", "ai.example", 403),
        ("https://evil.example", "evil.example:8080", 403),  # its name was moved to 127.0.0.1
        ("file://", "127.0.0.1:8080", 403),
        ("app://obsidian.md", "127.0.0.1:8080", 200),
        ("vscode-webview://x", "127.0.0.1:8080", 200),
        ("https://evil.example", "127.0.0.1:8080", 403),
        ("http://evil.example:8080", "evil.example:8080", 403),  # its name was moved to 127.0.0.1
        ("http://localhost.evil.example", "127.0.0.1:8080", 403),
        ("http://100.64.0.9:3000", "100.64.0.9:8080", 200),  # over a VPN
        ("http://[fd00::5]", "[fd00::5]:8080", 200),
        ("http://8.8.8.8", "127.0.0.1:8080", 403),
        ("http://198.18.0.1", "127.0.0.1:8080", 403),  # special by its registry, but not a network around us
        ("http://[2001::1]", "127.0.0.1:8080", 403),  # Teredo
        ("http://[2606:4700::1111]", "127.0.0.1:8080", 403),
        ("null", "127.0.0.1:8080", 403),
        ("http://[", "127.0.0.1:8080", 403),
        ("", "127.0.0.1:8080", 403),
    ],
)
async def test_web_pages_from_elsewhere_are_refused(world, origin, host, status):
    """A page of the internet reaches no engine, even by a name that resolves to here; near pages and programs do."""
    engine = Engine()
    gateway = await world(ONE, port1=engine)
    headers = {"Host": host, "Content-Type": "application/json"} | ({} if origin is None else {"Origin": origin})
    answer = await gateway.ask("POST", CHAT, {"model": "only"}, headers)
    assert (answer.status, len(engine.requests)) == (status, 1 if status == 200 else 0)
    if status == 403:
        assert json.loads(answer.body)["error"]["code"] == "origin_refused"


FORM = (
    '--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\r\n--c\r\n'
    '--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n%s\r\n--b--\r\n'
)


async def test_a_form_with_a_file_reaches_the_engine_that_its_model_names(world):
    """OpenAI's clients send audio as a form: only its `model` is read and replaced."""
    engine = Engine()
    gateway = await world(TWO, port2=engine)
    kind = {"Content-Type": 'multipart/form-data; boundary="b"'}
    path = "/v1/audio/transcriptions"
    assert (await gateway.ask("POST", path, (FORM % "embed").encode(), kind)).status == 200
    assert engine.requests[0].body == (FORM % "embed-alias").encode()
    assert engine.requests[0].headers.get("content-type") == kind["Content-Type"]
    refused = await gateway.ask("POST", path, (FORM % "gone").encode(), kind)
    assert (refused.status, json.loads(refused.body)["error"]["code"]) == (404, "model_not_found")
    refused = await gateway.ask("POST", path, b"--b\r\n", kind)
    assert (refused.status, json.loads(refused.body)["error"]["code"]) == (400, "invalid_form")


@pytest.mark.parametrize("path", ["/infill", "/tokenize", "/detokenize", "/apply-template"])
async def test_what_editors_ask_of_llama_cpp_goes_through(world, path):
    """llama.cpp's paths outside /v1 reach the only model without its name, and with it."""
    engine = Engine()
    gateway = await world(ONE, port1=engine)
    assert (await gateway.ask("POST", path, {"content": "x"})).status == 200
    assert (await gateway.ask("POST", path, {"model": "only"})).status == 200
    assert [request.target for request in engine.requests] == [path, path]
    assert (await gateway.ask("GET", path)).status == 405


GRANT = "access-control-allow-origin"
PAGES = ("http://localhost:3977", "app://obsidian.md", "vscode-webview://0cd1", "tauri://localhost")
ASKED = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,x-stainless-os"}


@pytest.mark.parametrize("origin", PAGES)
async def test_a_page_reads_every_answer_and_every_refusal(world, origin):
    """An engine's answer, in any framing, and each error of the gateway allow a near page's origin, once."""

    async def handler(exchange):
        loose = Headers.of({"Access-Control-Allow-Origin": "*", "Access-Control-Allow-Credentials": "true"})
        if exchange.request.headers.get("x-stream"):
            async with exchange.stream(200, loose) as send:
                await send(b"x")
        else:
            await exchange.respond(Response.json(200, {}, headers=loose))

    gateway = await world(ONE, port1=Engine(handler))
    page = {"Origin": origin}
    answers = {
        200: await gateway.ask("POST", CHAT, {"model": "only"}, page),
        404: await gateway.ask("POST", CHAT, {"model": "gone"}, page),
        405: await gateway.ask("PUT", CHAT, {"model": "only"}, page),
        417: await gateway.ask("POST", CHAT, {"model": "only"}, page | {"Expect": "miracles"}),
    }
    streamed = await gateway.ask("POST", CHAT, {"model": "only"}, page | {"X-Stream": "1"})
    for status, answer in [*answers.items(), (200, streamed)]:
        assert (answer.status, answer.headers.get_all(GRANT)) == (status, (origin,))
        assert (answer.headers.get("vary"), "access-control-allow-credentials" in answer.headers) == ("Origin", False)
    assert GRANT not in (await gateway.ask("POST", CHAT, {"model": "gone"})).headers


async def test_an_unreachable_engine_is_reported_to_a_page(world):
    """The 502 of the gateway is readable for the page."""
    gateway = await world(ONE)
    answer = await gateway.ask("POST", CHAT, {"model": "only"}, {"Origin": PAGES[0]})
    assert (answer.status, answer.headers.get(GRANT)) == (502, PAGES[0])


@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/health", "/nothing"])
async def test_a_preflight_allows_what_the_page_will_send(world, path):
    """OPTIONS with a near Origin needs no engine: the answer has only the methods and the requested headers."""
    engine = Engine()
    gateway = await world(ONE, port1=engine)
    answer = await gateway.ask("OPTIONS", path, None, ASKED | {"Origin": PAGES[0]})
    assert (answer.status, answer.headers.get(GRANT), engine.requests) == (204, PAGES[0], [])
    assert answer.headers.get("access-control-allow-methods") == "GET, HEAD, POST"
    assert answer.headers.get("access-control-allow-headers") == "authorization,x-stainless-os"
    assert "access-control-allow-private-network" not in answer.headers
    requested = ASKED | {"Origin": PAGES[1], "Access-Control-Request-Private-Network": "true"}
    answer = await gateway.ask("OPTIONS", path, None, requested | {"Access-Control-Request-Headers": "a b; c"})
    assert answer.headers.get("access-control-allow-private-network") == "true"
    assert "access-control-allow-headers" not in answer.headers


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "ftp://evil.example", "", "wss://evil.example"])
async def test_a_page_from_elsewhere_is_granted_nothing(world, origin):
    """A foreign page's preflight gets 403, as its request does, and no CORS header."""
    gateway = await world(ONE, port1=Engine())
    for method, headers in (("OPTIONS", ASKED), ("POST", {}), ("GET", {})):
        answer = await gateway.ask(method, CHAT, None, headers | {"Origin": origin})
        assert (answer.status, [name for name, _ in answer.headers if name.lower().startswith("access")]) == (403, [])


@pytest.mark.parametrize("path", ["/", "/v1"])
async def test_the_root_describes_the_gateway(world, path):
    """A browser at the gateway's address or base URL gets the paths to use."""
    answer = await (await world()).ask("GET", path)
    assert answer.status == 200
    assert b"/v1/chat/completions" in answer.body


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings", "/v1/rerank?x=%20y", "/v1/responses"])
async def test_every_v1_path_goes_through(world, path):
    """The gateway has no list of the engine's paths: target and query are forwarded as sent."""
    engine = Engine()
    gateway = await world(ONE, port1=engine)
    assert (await gateway.ask("POST", path, {"model": "only"})).status == 200
    assert engine.requests[0].target == path


async def test_a_clients_credentials_reach_no_engine(world):
    """An engine without a key gets none, either: the client's key is for the gateway, or for another service."""
    engine = Engine()
    gateway = await world(ONE, port1=engine)
    await gateway.ask("POST", CHAT, {"model": "only"}, {"Authorization": "Bearer k", "X-Api-Key": "k"})
    seen = engine.requests[0].headers
    assert (seen.get("authorization"), seen.get("x-api-key")) == (None, None)


async def test_hop_by_hop_headers_stay_on_their_hop(world):
    """Headers of one connection are forwarded in neither direction; all others are."""
    engine = Engine()
    gateway = await world(ONE, port1=engine)
    headers = {"TE": "trailers", "X-Id": "7"}
    answer = await gateway.ask("POST", CHAT, {"model": "only"}, headers)
    seen = engine.requests[0].headers
    assert (seen.get("x-id"), seen.get("host")) == ("7", "127.0.0.1:1")
    assert (answer.headers.get("x-engine"), answer.headers.get("keep-alive")) == ("yes", None)
    # our test client drops `Connection` itself, so this request is handwritten
    body = b'{"model": "only"}'
    wire = (
        b"POST /v1/x HTTP/1.1\r\nHost: g\r\nConnection: close, X-Private\r\nX-Private: 1\r\n"
        b"Content-Length: %d\r\n\r\n%b"
    )
    client = await gateway.front.connect("g", 1)
    await client.send_all(wire % (len(body), body))
    await receive_until(client, b'{"answer":42}')
    assert "x-private" not in engine.requests[1].headers
    assert "connection" not in engine.requests[1].headers


@pytest.mark.parametrize("status", [200, 400, 404, 500, 503])
async def test_the_engines_own_words_pass_unchanged(world, status):
    """Status and body of an engine's answer are forwarded, errors too."""

    async def handler(exchange):
        await exchange.respond(Response.json(status, {"error": {"message": "own words"}}))

    gateway = await world(ONE, port1=Engine(handler))
    answer = await gateway.ask("POST", CHAT, {"model": "only"})
    assert (answer.status, json.loads(answer.body)) == (status, {"error": {"message": "own words"}})


async def test_streams_pass_unbuffered(world):
    """The client has the first event before the engine has made the second."""
    first_seen = trio.Event()

    async def handler(exchange):
        async with exchange.stream(200, Headers.of({"Content-Type": "text/event-stream"})) as send:
            await send(b"data: one\n\n")
            await first_seen.wait()
            await send(b"data: [DONE]\n\n")

    gateway = await world(ONE, port1=Engine(handler))
    with trio.fail_after(60):
        async with (
            open_http_client(gateway.front.connect) as client,
            client.open_stream("POST", GATEWAY + CHAT, body=b'{"stream": true}') as answer,
        ):
            assert answer.headers.get("content-type") == "text/event-stream"
            assert await answer.receive_some() == b"data: one\n\n"
            first_seen.set()
            assert await answer.receive_some() == b"data: [DONE]\n\n"
            assert await answer.receive_some() == b""


@pytest.mark.parametrize("begun", [False, True])
async def test_a_client_that_leaves_stops_its_generation(world, begun):
    """If the client disconnects, the engine's connection is closed, before and during the answer."""
    asked, cancelled = trio.Event(), trio.Event()

    async def handler(exchange):
        try:
            if begun:
                async with exchange.stream(200, Headers()) as send:
                    await send(b"x")
                    asked.set()
                    await trio.sleep_forever()
            asked.set()
            await trio.sleep_forever()
        finally:
            cancelled.set()

    gateway = await world(ONE, port1=Engine(handler))
    with trio.fail_after(60):
        client = await gateway.front.connect("g", 1)
        await client.send_all(b"POST /v1/x HTTP/1.1\r\nHost: g\r\nContent-Length: 2\r\n\r\n{}")
        await asked.wait()
        await client.aclose()
        await cancelled.wait()


async def dying(stream, answer):
    """Close an engine's connection after these bytes."""
    await receive_until(stream, b"}")
    await stream.send_all(answer)
    await stream.aclose()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Le", b"what?\r\n\r\n"])
async def test_an_engine_that_dies_before_its_answer_is_a_502(nursery, answer):
    """The client gets a 502 that states the cause if the engine's head is incomplete."""
    listener = MemoryListener()

    async def accept():
        await dying(await listener.accept(), answer)

    nursery.start_soon(accept)
    body = b'{"model": "only"}'
    wire = b"POST /v1/x HTTP/1.1\r\nHost: g\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    with structlog.testing.capture_logs() as logs:
        async with open_http_client(listener.connect) as upstream:
            received = await converse(passing_door(PassThrough(ONE, upstream), lambda: BORN), wire)
    assert received.startswith(b"HTTP/1.1 502 ")
    assert json.loads(received.partition(b"\r\n\r\n")[2])["error"]["code"] == "engine_failed"
    assert [log["event"] for log in logs] == ["engine request failed"]


async def converse_with_dying(nursery, directory, answer):
    """Send a request three times to an engine that exits after this answer.

    Return what the client receives, and the number of connections to the engine.
    """
    listener, accepted = MemoryListener(), []

    async def accept():
        while True:
            accepted.append(await listener.accept())
            await dying(accepted[-1], answer)

    nursery.start_soon(accept)
    body = b'{"model": "only"}'
    wire = b"POST /v1/x HTTP/1.1\r\nHost: g\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    async with open_http_client(listener.connect) as upstream:
        door = passing_door(PassThrough(directory, upstream), lambda: BORN)
        return [await converse(door, wire) for _ in range(3)], len(accepted)


async def test_a_stream_that_ends_its_engine_twice_is_refused(nursery):
    """The engine is restarted; a client that repeats the request once more gets the cause."""
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n"
    received, connections = await converse_with_dying(nursery, RestartingModels(**ONE.entries), answer)
    assert ([each[9:12] for each in received], connections) == ([b"200", b"200", b"400"], 2)
    assert json.loads(received[2].partition(b"\r\n\r\n")[2])["error"]["code"] == "ended_engines"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\none",
    ],
)
async def test_half_an_answer_is_never_passed_on_as_a_whole(nursery, answer):
    """An incomplete answer ends the client's connection without a clean end, and logs one warning."""
    listener = MemoryListener()

    async def accept():
        await dying(await listener.accept(), answer)

    nursery.start_soon(accept)
    with structlog.testing.capture_logs() as logs:
        async with open_http_client(listener.connect) as upstream:
            front, back = trio.testing.memory_stream_pair()
            nursery.start_soon(serve_connection, passing_door(PassThrough(ONE, upstream), lambda: BORN), back)
            async with open_http_client(always(front)) as client:
                with pytest.raises(ConnectionLostError):
                    await client.request("POST", GATEWAY + CHAT, body=b'{"model": "only"}')
            await trio.testing.wait_all_tasks_blocked()
    assert [(log["event"], log["log_level"]) for log in logs] == [("request failed", "warning")]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_probe_of_the_gateway_succeeds(world, method):
    """`/health` answers 200 as an engine's does, even without a model."""
    answer = await (await world(NONE)).ask(method, "/health")
    assert (answer.status, answer.body) == (200, b'{"status":"ok"}' if method == "GET" else b"")


# -- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ({"code": 500, "message": "image input is not supported", "type": "server_error"}, 400),
        ({"code": 500, "message": "Unknown reasoning format: bogus", "type": "server_error"}, 400),
        ({"code": 501, "message": "Infill is not supported by this model", "type": "not_supported_error"}, 400),
        ({"code": 500, "message": "Compute error.", "type": "server_error"}, 500),
    ],
)
async def test_an_error_in_the_request_has_status_400_and_the_words_of_the_engine(nursery, error, status):
    """Other errors stay as they came, and are reported as evidence against the engine."""
    faulty, reported, front = [], [], MemoryListener()
    engine = MemoryListener()

    async def fail(exchange):
        faulty.append(exchange.body)
        await exchange.respond(Response.json(error["code"], {"error": error}, headers=Headers.of({"X-Build": "b1"})))

    await nursery.start(run_server, fail, [engine])
    async with open_http_client(engine.connect) as upstream:
        door = passing_door(PassThrough(ONE, upstream, on_error=reported.append), lambda: BORN)
        await nursery.start(run_server, door, [front])
        async with open_http_client(front.connect) as client:
            answer = await client.request("POST", GATEWAY + CHAT, body=b"{}")
    found = json.loads(answer.body)["error"]
    assert (answer.status, found["message"], found["code"]) == (status, error["message"], status)
    assert reported == ([] if status == 400 else [ONE.entries["only"].service])
    assert (answer.headers.get("x-build"), len(faulty)) == (None if status == 400 else "b1", 1)


async def test_a_request_that_ends_its_engine_twice_is_refused(nursery):
    """Each exit closes the connection without a response; another request is not refused."""
    requests, front, engine = [], MemoryListener(), MemoryListener()

    async def end(stream):
        async with stream:
            requests.append(await stream.receive_some())

    async def accept():
        while True:
            nursery.start_soon(end, await engine.accept())

    nursery.start_soon(accept)
    async with open_http_client(engine.connect) as upstream:
        await nursery.start(
            run_server, passing_door(PassThrough(RestartingModels(**ONE.entries), upstream), lambda: BORN), [front]
        )
        async with open_http_client(front.connect) as client:
            found = [(await client.request("POST", GATEWAY + CHAT, body=b'{"x": 1}')).status for _ in range(4)]
            other = await client.request("POST", GATEWAY + CHAT, body=b'{"x": 2}')
    assert (found, other.status, len(requests)) == ([502, 400, 400, 400], 502, 3)


async def test_a_connection_to_an_exiting_engine_is_no_second_exit(nursery):
    """A process that exits may still accept connections; it has not ended twice."""
    received, connections = await converse_with_dying(nursery, ONE, b"")
    assert ([each[9:12] for each in received], connections) == ([b"502", b"502", b"502"], 3)


async def test_slots_do_not_show_what_clients_have_sent(nursery):
    """Every user of this machine may read them at the gateway."""
    slot = {
        "id": 0,
        "is_processing": True,
        "n_ctx": 512,
        "prompt": "a secret",
        "generated": "a",
        "params": {"stop": []},
    }
    engine, front = MemoryListener(), MemoryListener()
    await nursery.start(run_server, lambda exchange: exchange.respond(Response.json(200, [slot])), [engine])
    async with open_http_client(engine.connect) as upstream:
        await nursery.start(run_server, passing_door(PassThrough(ONE, upstream), lambda: BORN), [front])
        async with open_http_client(front.connect) as client:
            answer = await client.request("GET", f"{GATEWAY}/slots?model=only")
    assert json.loads(answer.body) == [{"id": 0, "is_processing": True, "n_ctx": 512}]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no second loopback address")
async def test_large_chats_of_one_client_delay_a_small_one_of_another_by_a_few_steps(nursery, mock_clock, monkeypatch):
    """Ten bodies of 400 KB and a small one have arrived: few of the steps that take long come before it."""
    order = []

    def note(function, *args, **kwargs):
        if len(args[0]) > 100_000:
            order.append("step")
            mock_clock.jump(0.002)
        return function(*args, **kwargs)

    async def engine(exchange):
        order.append(len(exchange.body))
        await exchange.respond(Response(200))

    async def serve(handler):
        listeners = await open_listeners("127.0.0.1", 0)
        await nursery.start(run_server, handler, sockets.listen(listeners))
        return listeners[0].socket.getsockname()[1]

    finder = SimpleNamespace(finditer=partial(note, model_field._MEMBER.finditer))
    monkeypatch.setattr(model_field, "_MEMBER", finder)
    monkeypatch.setattr(model_field, "parsed", partial(note, model_field.parsed))
    monkeypatch.setattr(front_door, "encoded_for_engine", partial(note, front_door.encoded_for_engine))
    turn = {"role": "user", "content": [{"type": "text", "text": 'a "word" ' * 32}]}
    bodies = [json.dumps({"model": "only", "messages": [turn] * count}).encode() for count in (*[1000] * 10, 1)]
    async with open_sockets() as sockets, open_http_client(sockets.connect) as upstream, AsyncExitStack() as stack:
        directory = Models(only=Backend("127.0.0.1", await serve(engine), "only"))
        port = await serve(passing_door(PassThrough(directory, upstream), lambda: BORN))
        clients = []
        for body in bodies:
            host = "127.0.0.1" if body is bodies[-1] else "127.0.0.2"
            clients.append(await trio.open_tcp_stream("127.0.0.1", port, local_address=host))
            await stack.enter_async_context(clients[-1])
            head = b"POST %b HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(body))
            await clients[-1].send_all(head + body[:-1])
        await trio.testing.wait_all_tasks_blocked(0.05)
        for client in clients:
            os.write(client.socket.fileno(), b"}")
        with trio.fail_after(60):
            while order.count(len(bodies[0])) < 10 or len(bodies[-1]) not in order:
                order.append("round")
                mock_clock.jump(0.0005)
                await trio.lowlevel.checkpoint()
        assert order[: order.index(len(bodies[-1]))].count("step") <= 4
        assert order.count("step") == 30
        steps = "".join(each[0] if isinstance(each, str) else "" for each in order)
        assert "ss" not in steps
        nursery.cancel_scope.cancel()
