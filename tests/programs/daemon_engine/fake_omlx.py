"""A fake oMLX with the API of its sources (`omlx/server.py`, `omlx/engine_pool.py`), and with observed faults.

One process has all of its models. It runs in a test's memory, and as a process of its own (`omlx_program.py`).
"""

import json
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio

from http_lab import MemoryListener
from llmkube.base.http.client import HttpClient
from llmkube.base.http.limits import Limits
from llmkube.base.http.message import Headers, Response
from llmkube.base.http.server import run_server
from llmkube.programs.daemon_engine.omlx_api import OmlxApi
from llmkube.programs.daemon_engine.omlx_model import OmlxModel
from llmkube.programs.daemon_engine.processes import Process
from llmkube.programs.daemon_engine.server import Server
from programs.daemon_engine.stage import keep_loaded

URL = "http://127.0.0.1:8000"
FOLDER = "/Users/me/models/tiny-4bit"
NAME = "tiny-4bit"
PID = 100
GIB = 1024**3
OWN_BYTES = GIB // 2


@attrs.define(eq=False)
class FakeOmlx:
    """One server, and what the kernel shows of it.

    Attributes:
        version: The release that it reports.
        folders: The models that it has found: id to folder.
        sizes: The bytes of each model.
        loaded: The models that it lists as loaded.
        held: The bytes that its process holds for models: by id.
        kept: Further memory, of models that it has falsely reported as unloaded: id, bytes and time.
        loading: The models that are about to be loaded.
        key: The key that it requires; "" for none.
        default: The model that answers for unknown names; "" for none.
        answers: Whether a server listens at its address.
        hangs: Whether the server never responds.
        load_seconds: The duration of a load.
        lag_seconds: The time from the removal of a model until its memory is free.
        lies: Whether an unload never frees the memory.
        hollow: Whether it answers without loading the model.
        owned: Whether the program under test has started it.
        embeds: Whether its model is an embedding model.
        hidden: Whether the kernel shows its process.
        unloads: The path prefixes that accept an unload: `/v1`, `/admin/api`.
        next: The model that another client loads as soon as one is unloaded; "" for none.
        pid: Its process id.
        faults: The responses that the next requests of a path get.
        calls: The paths of the requests received, without status checks.
        ended: The processes that were killed by the program under test.
    """

    version: str = "0.6.3"
    folders: dict = attrs.field(factory=lambda: {NAME: FOLDER, "other": "/Users/me/models/other"})
    sizes: dict = attrs.field(factory=lambda: {NAME: 4 * GIB, "other": 2 * GIB})
    loaded: set = attrs.field(factory=set)
    held: dict = attrs.field(factory=dict)
    kept: list = attrs.field(factory=list)
    loading: set = attrs.field(factory=set)
    key: str = ""
    default: str = ""
    answers: bool = True
    hangs: bool = False
    load_seconds: float = 0.5
    lag_seconds: float = 0.5
    lies: bool = False
    hollow: bool = False
    owned: bool = False
    embeds: bool = False
    hidden: bool = False
    unloads: tuple = ("/v1", "/admin/api")
    next: str = ""
    pid: int = PID
    faults: dict = attrs.field(factory=dict)
    calls: list = attrs.field(factory=list)
    ended: list = attrs.field(factory=list)
    _going: dict = attrs.field(factory=dict)

    # -- events --------------------------------------------------------------------------------------------------------

    def drop(self, name):
        """Remove a model from the list; its memory is free after `lag_seconds`, or never if the server `lies`."""
        self.loaded.discard(name)
        if not self.lies:
            self._going[name] = trio.current_time() + self.lag_seconds
        elif name in self.held:
            self.kept.append((name, self.held.pop(name), trio.current_time()))
        if self.next:
            self.put(self.next)

    def put(self, name):
        """List a model as loaded, and hold its memory."""
        self.loaded.add(name)
        self.held[name] = self.sizes[name]
        self._going.pop(name, None)

    def stop(self, *, killed=False):
        """Stop the process; all the memory that it held is free."""
        self.answers = False
        self.loaded, self.held, self.kept, self._going = set(), {}, [], {}

    def start(self, version="0.6.3"):
        self.answers, self.version, self.pid = True, version, self.pid + 1

    def server(self):
        """Return the server as it is when started for a front."""
        return Server(URL, self.pid, self.key)

    @property
    def alive(self):
        return self.answers and self.pid not in self.ended

    def holding(self):
        """Return the bytes that its process holds for models."""
        now = trio.current_time()
        for name in [name for name, at in self._going.items() if now >= at]:
            self.held.pop(name, None)
            del self._going[name]
        return sum(self.held.values()) + sum(size for _, size, _ in self.kept)

    # -- process table -----------------------------------------------------------------------------------------------

    async def read(self):
        await trio.lowlevel.checkpoint()
        argv = ("/opt/homebrew/bin/python3.11", "/opt/homebrew/bin/omlx", "serve")
        return [Process(1, 0, ("/sbin/launchd",)), *([Process(self.pid, 1, argv)] if self._shown else [])]

    @property
    def _shown(self):
        return self.alive and not self.hidden

    async def starts(self, pids):
        await trio.lowlevel.checkpoint()
        return tuple(f"start of {pid}" if self.alive and pid == self.pid else "" for pid in pids)

    async def listener(self, servers, port):
        await trio.lowlevel.checkpoint()
        return self.pid if self.pid in servers else None

    async def cpu_seconds(self, pids):
        await trio.lowlevel.checkpoint()
        return trio.current_time() if pids else 0.0

    async def footprints(self, pids):
        await trio.lowlevel.checkpoint()
        return {pid: OWN_BYTES + self.holding() for pid in pids if pid == self.pid and self.alive}

    async def end(self, pids):
        await trio.lowlevel.checkpoint()
        self.ended += pids
        self.stop()

    # -- HTTP API --------------------------------------------------------------------------------------------------

    async def handle(self, exchange):
        request, path = exchange.request, exchange.request.path
        if self.hangs:
            await trio.sleep_forever()
        checks = {"/health": self._health, "/api/status": self._status, "/v1/models/status": self._models}
        if path not in checks:
            self.calls.append(path)
        if self.faults.get(path):
            await exchange.respond(self.faults[path].pop(0))
        elif path == "/health":
            await exchange.respond(Response.json(200, self._health()))
        elif self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            await exchange.respond(refusal(401, "Invalid API key"))
        elif path in checks:
            await exchange.respond(Response.json(200, checks[path]()))
        elif path.endswith("/unload"):
            await self._unload(exchange, path)
        elif path in ("/v1/chat/completions", "/v1/embeddings"):
            await self._answer(exchange, json.loads(request.body))
        else:
            await exchange.respond(refusal(404, "Not Found"))

    def _health(self):
        pool = {"model_count": len(self.folders), "loaded_count": len(self.loaded), "max_model_memory": None}
        return {"status": "healthy", "default_model": self.default or None, "engine_pool": pool, "mcp": None}

    def _status(self):
        return {"status": "ok", "version": self.version, "loaded_models": sorted(self.loaded)}

    def _models(self):
        self.holding()
        return {"models": [self._entry(name, folder) for name, folder in sorted(self.folders.items())]}

    def _entry(self, name, folder):
        loads = {"loaded": name in self.loaded, "is_loading": name in self.loading}
        return {"id": name, "model_path": folder, "estimated_size": self.sizes[name], "actual_size": None, **loads}

    async def _unload(self, exchange, path):
        prefix, _, rest = path.partition("/models/")
        name = rest.removesuffix("/unload")
        if prefix not in self.unloads:
            await exchange.respond(refusal(404, "Not Found"))
        elif prefix == "/admin/api":  # it needs the session cookie of the admin pages
            await exchange.respond(Response.json(401, {"detail": "Not authenticated"}))
        elif name not in self.folders:
            await exchange.respond(refusal(404, f"Model not found: {name}"))
        elif name not in self.loaded:
            await exchange.respond(refusal(400, f"Model not loaded: {name}"))
        else:
            self.drop(name)
            await exchange.respond(Response.json(200, {"status": "ok", "model_id": name}))

    async def _answer(self, exchange, body):
        asked = body["model"]
        name = asked if asked in self.folders else self.default
        if name not in self.folders:
            await exchange.respond(refusal(404, f"Model '{asked}' not found. Available models: other"))
            return
        if name not in self.loaded and not self.hollow:
            self.loading.add(name)
            try:
                await trio.sleep(self.load_seconds)
            finally:
                self.loading.discard(name)
            self.put(name)
        content = f'"model":"{NAME}" of {name}'
        answer = {"model": asked, "choices": [{"message": {"content": content}}]}
        usage = {"prompt_tokens": 7, "completion_tokens": 3}
        if body.get("stream"):
            text = b"data: " + json.dumps(answer | {"usage": usage}).encode() + b"\n\n"  # with a space after colons
            async with exchange.stream(200, Headers.of({"Content-Type": "text/event-stream"})) as send:
                await send(b": keep-alive\n\n")
                for at in range(0, len(text), 7):
                    await send(text[at : at + 7])
        else:
            await exchange.respond(Response.json(200, answer | {"usage": usage}))


def refusal(status, message):
    return Response.json(status, {"error": {"message": message, "type": "server_error", "param": None, "code": None}})


async def same_path(path):
    await trio.lowlevel.checkpoint()
    return path


@asynccontextmanager
async def client_of(fake):
    """Yield a client that connects to the server."""
    listener = MemoryListener()

    async def connect(host, port):
        if not fake.alive or port != 8000:
            await trio.lowlevel.checkpoint()
            raise ConnectionRefusedError(111, "Connection refused")
        return await listener.connect(host, port)

    async with trio.open_nursery() as nursery:
        await nursery.start(partial(run_server, fake.handle, [listener], limits=Limits(drain_seconds=0.1)))
        try:
            yield HttpClient(connect, max_idle=0, max_idle_per_origin=0)
        finally:
            nursery.cancel_scope.cancel(reason="the test is over")


def staged(fake):
    """Keep a model of this server loaded during the block."""
    server = fake.pid if fake.owned else None

    def make(client):
        api = OmlxApi(client, URL, fake.key)
        return OmlxModel(api, 8000, FOLDER, fake, fake.embeds, resolve=same_path, server=server)

    return keep_loaded(client_of(fake), make)
