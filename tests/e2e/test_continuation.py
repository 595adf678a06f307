"""Answers that survive their engine: a real llama-server is killed after a token, and the client reads one stream."""

import contextlib
import json
import sys
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio

from e2e.many_models import manifests
from e2e.router_lab import DEMO, healthy, open_router
from e2e.up_process import ANSWER, FREE_PORTS, engines_in, open_up
from free_ports import free_port
from lengths import SOAK
from llmkube.base.http.client import open_http_client
from llmkube.router.config.config_json import encode_config
from llmkube.router.config.routing_config import Backend, Match, RoutingConfig, Rule
from padded_models import PaddedModel

pytestmark = [pytest.mark.e2e, pytest.mark.ci]

USUAL = {"model": "m", "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
ASKED = USUAL | {"messages": [{"role": "user", "content": "What is LLMKube?"}]}
PROMPT = USUAL | {"prompt": "<|user|>What is LLMKube?<|end|><|assistant|>"}
KILLS = 6
"""Tokens after which an engine is killed, besides the first and the last ones; `make soak` kills after every token."""

PARTS = range(10) if SOAK else (None,)
"""Each part kills after every tenth token, to stay below the deadline of a test."""


@attrs.define(eq=False)
class Engine:
    """A real llama-server behind a connection that ends, with the server, after a number of pieces of text.

    Attributes:
        log: File for its output.
        port: Its own port, behind the connection.
        kill_after: Pieces of text of the next answer; None lets it live.
    """

    log: Path
    port: int = 0
    kill_after: int | None = None
    process: trio.Process | None = None
    dead: trio.Event = attrs.field(factory=trio.Event)

    async def start(self):
        command = [f"{sys.prefix}/bin/llmkube-llama-server", "--model", str(DEMO), "--host", "127.0.0.1"]
        with self.log.open("ab") as log:
            command += ["--port", str(self.port), "--threads", "1"]
            self.process = await trio.lowlevel.open_process(command, stdout=log, stderr=log)
        self.dead = trio.Event()
        await healthy(self.port)

    async def kill(self):
        if self.process is not None:
            self.process.kill()
            await self.process.wait()
            self.process = None

    async def connect(self, client):
        """Forward one connection until its answer has its pieces."""
        async with client:
            try:
                server = await trio.open_tcp_stream("127.0.0.1", self.port)
            except OSError:  # not the end of the connection: an engine would have exited with the request
                await client.send_all(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
                return
            async with server, trio.open_nursery() as nursery:
                nursery.start_soon(self._forth, client, server)
                await self._back(server, client)
                nursery.cancel_scope.cancel()

    async def _forth(self, client, server):
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for some in client:
                await server.send_all(some)

    async def _back(self, server, client):
        passed = b""
        with contextlib.suppress(trio.BrokenResourceError):
            async for some in server:
                before, passed = len(passed), passed + some
                end = None if self.kill_after is None else end_of_piece(passed, self.kill_after)
                await client.send_all(passed[before:end])
                if end is not None:
                    self.kill_after = None
                    await self.kill()
                    self.dead.set()
                    return


def end_of_piece(data, number):
    """Return the end of the n-th piece of text in a stream, or None before it has arrived."""
    at = -1
    for _ in range(number):
        at = max(data.find(b'"content":"', at + 1), data.find(b'"text":"', at + 1))
        if at < 0:
            return None
    end = data.find(b"\n\n\r\n", at)
    return None if end < 0 else end + 4


@contextlib.asynccontextmanager
async def open_engines(folder, names):
    """Run engines behind their connections, and a router in front of them."""
    async with trio.open_nursery() as nursery:
        engines, backends = {}, {}
        for name in names:
            port = free_port()
            engines[name] = Engine(folder / f"{name}.log", port)
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/v1"
            backends[name] = Backend(name=name, model_id=name, base_url=url, local=True, model_digest="demo")
            await nursery.start(trio.serve_listeners, engines[name].connect, listeners)
        rules = (Rule(name="all", match=Match(), backends=tuple(names)),)
        config = encode_config(RoutingConfig(name="default/r", backends=backends, rules=rules)).decode()
        try:
            async with open_router(folder, config) as router:
                async with trio.open_nursery() as starting:
                    for engine in engines.values():
                        starting.start_soon(engine.start)
                yield router.url, engines
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 10):
                for engine in engines.values():
                    await engine.kill()
            nursery.cancel_scope.cancel()


async def post(url, path, body, then=None):
    """Return the whole response; call `then` once it has a piece of text."""
    host, _, port = url.removeprefix("http://").partition(":")
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    received = b""
    async with await trio.open_tcp_stream(host, int(port)) as connection:
        await connection.send_all(head.encode() + data)
        async for some in connection:
            received += some
            if then is not None and b'"content":"' in received:
                then()
                then = None
    return received


def events_of(received):
    return [each.partition(b"data: ")[2] for each in received.split(b"\n\n") if b"data: " in each]


async def read(url, body, path="/v1/chat/completions"):
    """Return the events of a stream, and whether its end was clean."""
    received = await post(url, path, body)
    assert received.startswith(b"HTTP/1.1 200"), received
    return events_of(received), received.endswith(b"0\r\n\r\n")


def content_of(events):
    """Return the choices and the usage, without what differs between runs: ids, times and cached tokens."""
    assert events[-1].startswith(b"[DONE]")
    chunks = [json.loads(each) for each in events[:-1]]
    usages = [one["usage"] for one in chunks if "usage" in one]
    kept = [{name: each for name, each in usage.items() if "details" not in name} for usage in usages]
    return [one["choices"] for one in chunks], kept


def text_of(events):
    found = ""
    for each in events:
        if each.startswith(b"{"):
            for choice in json.loads(each).get("choices", []):
                found += choice.get("text") or choice.get("delta", {}).get("content") or ""
    return found


def ids(events):
    return {(each["id"], each["model"]) for each in map(json.loads, events[:-1])}


def kills(events, part, most):
    """Return the pieces after which an engine is killed: those of a part, or a few from the first to the last."""
    pieces = len(text_of(events))  # the demo's tokens are letters
    if part is not None:
        return range(1 + part, pieces + 1, len(PARTS))
    return sorted({1, 2, *range(3, pieces, pieces // most), pieces})


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("body", [ASKED, ASKED | {"max_tokens": 40}, PROMPT], ids=["chat", "limit", "prompt"])
async def test_after_a_kill_at_any_token_the_answer_continues_on_the_other_engine(tmp_path, body, part):
    """At temperature 0 each event, the end and the usage are those of the undisturbed answer, under one id."""
    path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
    async with open_engines(tmp_path, "ab") as (url, engines):
        whole, clean = await read(url, body, path)
        assert clean
        assert text_of(whole).strip() == ANSWER[:40].strip() if "max_tokens" in body else ANSWER
        for number in kills(whole, part, KILLS if body is ASKED else 1):
            engines["a"].kill_after = number
            events, clean = await read(url, body, path)
            assert (clean, text_of(events)) == (True, text_of(whole)), number
            assert content_of(events) == content_of(whole), number
            assert len(ids(events)) == 1
            if engines["a"].process is None:
                await engines["a"].start()


@pytest.mark.parametrize("part", PARTS)
async def test_a_restarted_engine_continues_its_own_answer(tmp_path, part):
    async with open_engines(tmp_path, "a") as (url, engines), trio.open_nursery() as nursery:
        engine = engines["a"]
        whole, _ = await read(url, ASKED)

        async def revive():
            while True:
                await engine.dead.wait()
                await engine.start()

        nursery.start_soon(revive)
        for number in kills(whole, part, 1):
            engine.kill_after = number
            events, clean = await read(url, ASKED)
            assert (clean, content_of(events)) == (True, content_of(whole)), number
        nursery.cancel_scope.cancel()


async def test_an_answer_with_a_grammar_ends_with_an_error(tmp_path):
    """No other engine continues it, and the stream's end is not clean, so half an answer cannot look complete."""
    body = ASKED | {"grammar": "root ::= [A-Za-z ]{20,60}", "max_tokens": 60}
    async with open_engines(tmp_path, "ab") as (url, engines):
        engines["a"].kill_after = 5
        events, clean = await read(url, body)
        assert engines["a"].process is None
    assert not clean
    assert json.loads(events[-1].partition(b"\r\n")[0])["error"]["code"] in {"stream_broken_off", "stream_cut_short"}


ROUTER = """
---
apiVersion: inference.llmkube.dev/v1alpha1
kind: ModelRouter
metadata: {name: r}
spec:
  backends: [{name: mac, inferenceServiceRef: {name: demo}}]
  defaultRoute: mac
"""
LAYERS = 160
"""Layers of zeros, with which an answer takes about a second: the engine is killed during it."""


async def test_an_answer_continues_after_llmkube_up_restarts_its_engine(tmp_path):
    """After SIGKILL during an answer the agent restarts the engine, and the client reads the rest of its stream."""
    model, manifest = PaddedModel("demo", LAYERS, has_letter=False), tmp_path / "router.yaml"
    manifest.write_text(manifests(model, model.write(tmp_path)) + ROUTER)
    flags = ("--allow-local-sources", str(tmp_path), "-f", str(manifest))
    async with open_up(tmp_path, *flags, *FREE_PORTS) as program, open_http_client() as http:
        _, gateway, probes = await program.urls()
        ask = partial(post, gateway, "/routers/default/r/v1/chat/completions")
        while b"200" not in (await ask(ASKED | {"max_tokens": 1}))[:20]:  # noqa: ASYNC110
            await trio.sleep(0.2)
        received = await ask(ASKED, then=lambda: [each.kill() for each in engines_in(tmp_path)])
        assert (text_of(events_of(received)), received.endswith(b"0\r\n\r\n")) == (ANSWER, True)
        metrics = (await http.request("GET", f"{probes}/metrics")).body
    assert b'llmkube_router_continuations_total{outcome="continued"' in metrics
