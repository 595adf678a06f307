"""A router in memory, between clients and backends that a script plays byte by byte; many tests import it as `rl`."""

import datetime
import json
import random
import re
import socket
from contextlib import asynccontextmanager

import attrs
import trio
import trio.testing
from prometheus_client import CollectorRegistry

from http_lab import GONE, MemoryListener
from llmkube.base.http.client import open_http_client
from llmkube.base.http.egress import DIRECTLY
from llmkube.base.http.message import Headers
from llmkube.base.http.server import run_server
from llmkube.router.config.routing_config import Backend, Match, RoutingConfig, Rule
from llmkube.router.origin_policy import cors_lines
from llmkube.router.proxy.live_config import Source
from llmkube.router.proxy.router import LIMITS, open_router

NOW = datetime.datetime(2026, 11, 24, tzinfo=datetime.UTC)
CHAT = "/v1/chat/completions"
ASKED = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAMED = ASKED | {"stream": True}
MESSAGE = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}


def local(name, **changes):
    """Return a local engine."""
    return Backend(**{"name": name, "model_id": name, "base_url": f"http://{name}/v1", "local": True} | changes)


def cloud(name, **changes):
    """Return a provider."""
    given = {"name": name, "model_id": name, "base_url": f"http://{name}/v1", "local": False, "provider": "openai"}
    return Backend(**given | {"model": "gpt"} | changes)


def config_of(*backends, rules=None, **changes):
    """Return a config whose one rule, unless others are given, tries these backends in order."""
    names = tuple(each.name for each in backends)
    rules = (Rule(name="all", match=Match(), backends=names),) if rules is None else rules
    return RoutingConfig(name="default/r", backends={each.name: each for each in backends}, rules=rules, **changes)


MAC = config_of(local("mac"))
"""One local engine for all requests."""


def piece(text, finish=None, **more):
    """Return one event of a chat stream."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return (
        b"data: %b\n\n"
        % json.dumps({"object": "chat.completion.chunk", "model": "m", "choices": [choice]} | more).encode()
    )


_TIMING = re.compile(rb": server-timing ([^\n]*)\n")
DONE = b"data: [DONE]\n\n"
WHOLE_STREAM = piece("one") + piece(" two", "stop") + DONE
SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
ANSWER = {
    "object": "chat.completion",
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8},
}


def chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


def stream(*pieces, end=b"0\r\n\r\n"):
    """Return the bytes of a stream in chunks."""
    return SSE + b"".join(chunk(each) for each in pieces) + end


def answer(status=200, body=ANSWER, lines=()):
    """Return the bytes of a whole answer."""
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"".join(each + b"\r\n" for each in lines) + b"\r\n" + body


def without_times(data):
    """Return a stream without the comment that has the timing."""
    return _TIMING.sub(b"", data)


def events_of(data):
    """Return the data of a stream's events."""
    return [json.loads(each.partition(b"data: ")[2]) for each in data.split(b"\n\n") if b"data: " in each]


def error(status, message="no", lines=(), **more):
    return answer(status, {"error": {"message": message} | more}, lines)


@attrs.define(eq=False)
class Player:
    """A backend: each request gets the next of these scripts, and the last one from then on.

    A script is the bytes of an answer, after which the connection ends unless it can carry another request, or a
    function of the connection. GET requests are stored separately, and get `health`, or no answer if that is None.
    """

    scripts: tuple
    health: object = None
    probed: list = attrs.field(factory=list)
    asked: list = attrs.field(factory=list)
    gone_at: list = attrs.field(factory=list)
    listener: MemoryListener = attrs.field(factory=MemoryListener)

    @property
    def bodies(self):
        return [json.loads(body) for _, body in self.asked]

    @property
    def heads(self):
        return [head for head, _ in self.asked]

    async def run(self, *, task_status=trio.TASK_STATUS_IGNORED):
        async with trio.open_nursery() as nursery:
            task_status.started()
            while True:
                nursery.start_soon(self._serve, await self.listener.accept())

    async def _serve(self, connection):
        asks_health = False
        async with connection:
            try:
                while (asked := await _receive(connection)) is not None:
                    if asks_health := asked[0].startswith("GET "):
                        self.probed.append((trio.current_time(), asked[0].split()[1]))
                        if self.health is None:
                            await until_gone(connection)
                            return
                        await connection.send_all(self.health)
                        continue
                    self.asked.append(asked)
                    script = self.scripts[min(len(self.asked), len(self.scripts)) - 1]
                    if callable(script):
                        await script(connection)
                        return
                    await connection.send_all(script)
            except GONE:
                pass
            finally:
                if not asks_health:
                    self.gone_at.append(trio.current_time())


async def _receive(connection):
    data = b""
    while b"\r\n\r\n" not in data:
        piece = await connection.receive_some()
        if not piece:
            return None
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    length = lengths[0] if lengths else 0
    while len(body) < length:
        body += await connection.receive_some()
    return head.decode(), body


async def until_gone(connection):
    """Wait for the other side to end the connection."""
    while await connection.receive_some():
        pass


def saying(*pieces, seconds=0.0, then=None):
    """Return a script: these bytes, with this many seconds before each but the first; then the connection ends."""

    async def script(connection):
        for at, each in enumerate(pieces):
            if at:
                await trio.sleep(seconds)
            await connection.send_all(each)
        if then is not None:
            await then(connection)

    return script


class Lab:
    """A router, its backends and a client."""

    def __init__(self, config, players, registry, lines, make_pair=trio.testing.memory_stream_pair):
        self.config = config
        self.front = MemoryListener(make_pair)
        self.players = players
        self.registry = registry
        self.lines = lines
        self.router = None
        self.stamp = (1, 0, 0)
        self.timings = []

    async def ask(self, body=ASKED, path=CHAT, headers=None, method="POST"):
        """Send a request, and return the answer; a truncated one raises."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode() if method == "POST" else b""
        async with open_http_client(self.front.connect) as client:
            return await client.request(method, f"http://router{path}", headers=Headers.of(headers or {}), body=data)

    async def read(self, body=STREAMED, path=CHAT, headers=None):
        """Return status, body without timing comments (see `timings`), and whether the end was clean."""
        connection = await self.front.connect("router", 80)
        data = json.dumps(body).encode()
        lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        head = (
            f"POST {path} HTTP/1.1\r\nHost: router\r\n{lines}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        )
        async with connection:
            await connection.send_all(head.encode() + data)
            received = b""
            while some := await connection.receive_some():
                received += some
        head, _, rest = received.partition(b"\r\n\r\n")
        body = _unchunked(rest)
        self.timings = [each.decode() for each in _TIMING.findall(body)]
        return int(head.split()[1]), without_times(body), received.endswith(b"0\r\n\r\n")

    @property
    def audit(self):
        return [line for line in map(json.loads, self.lines) if line["kind"] == "decision"]

    def metric(self, name, **labels):
        return self.registry.get_sample_value(name, {"router": "default/r"} | labels)


def _unchunked(data):
    body = b""
    while data:
        size, _, rest = data.partition(b"\r\n")
        try:
            length = int(size, 16)
        except ValueError:
            return body + data
        body, data = body + rest[:length], rest[length + 2 :]
    return body


@asynccontextmanager
async def open_lab(
    config,
    players=None,
    *,
    connect=None,
    egress=DIRECTLY,
    limits=LIMITS,
    budgets_folder=None,
    make_pair=trio.testing.memory_stream_pair,
    holds=None,
    traces=None,
    **scripts,
):
    """Run a router over backends: `name=script` or `name=(script, script)`, by the host in their URL."""
    players = dict(players or {}) | {
        name: Player(script if isinstance(script, tuple) else (script,)) for name, script in scripts.items()
    }
    registry, lines = CollectorRegistry(), []
    lab = Lab(config, players, registry, lines, make_pair)

    async def dial(host, port):
        if host not in players:
            raise socket.gaierror(-2, "Name or service not known")
        if players[host] is None:
            raise ConnectionRefusedError(111, "Connection refused")
        return await players[host].listener.connect(host, port)

    async def write(batch):
        lines.extend(batch)
        await trio.lowlevel.checkpoint()

    source = Source(lambda: lab.config, lambda: lab.stamp)
    async with (
        trio.open_nursery() as nursery,
        open_router(
            source,
            registry=registry,
            utcnow=lambda: NOW,
            rng=random.Random(7),
            connect=connect or dial,
            egress=egress,
            write=write,
            budgets_folder=budgets_folder,
            holds=holds,
            traces=traces,
        ) as router,
    ):
        lab.router = router
        for player in players.values():
            if player is not None:
                await nursery.start(player.run)
        serve = trio.CancelScope()

        async def run(*, task_status):
            with serve:
                await run_server(
                    router.handler,
                    [lab.front],
                    limits=limits,
                    judge=router.request_filter,
                    stamp=cors_lines,
                    unread=router.listed_fields.refuse_malformed,
                    task_status=task_status,
                )

        await nursery.start(run)
        yield lab
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
