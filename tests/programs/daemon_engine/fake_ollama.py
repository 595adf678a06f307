"""A fake Ollama with the API of its docs (docs/api.md, server/routes.go, 0.17.4), and with observed faults.

It has a store, a library, a process for each loaded model, and the process table that a machine shows. Time is Trio's.
"""

import hashlib
import json
import math
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio

from http_lab import MemoryListener
from llmkube.base.http.client import HttpClient
from llmkube.base.http.limits import Limits
from llmkube.base.http.message import NO_HEADERS, Headers, Response
from llmkube.base.http.server import run_server
from llmkube.programs.daemon_engine.ollama_api import OllamaApi
from llmkube.programs.daemon_engine.ollama_program import OllamaModel
from llmkube.programs.daemon_engine.ollama_weights import LibraryModel
from llmkube.programs.daemon_engine.processes import Process
from llmkube.programs.daemon_engine.server import Server
from llmkube.weights.formats.gguf import read_header
from programs.daemon_engine.stage import keep_loaded

URL = "http://127.0.0.1:11434"
NAME = "llmkube/default_chat"
SERVER_PID = 100
KEEP_SECONDS = 300.0


def blob_of(content):
    return "sha256-" + hashlib.sha256(content).hexdigest()


LIBRARY_BLOB = blob_of(b"of the library")


@attrs.define(eq=False)
class FakeDaemon:
    """One server and its processes.

    Attributes:
        version: The release that it reports.
        library: The models that can be pulled: name to file.
        blobs: The files of its store.
        store: The models of its store: name to file.
        parameters: The parameters of the store's models.
        loaded: The models that it lists: name to process id.
        held: Every process with a model: process id to file and parent.
        expires: The times at which listed models are unloaded.
        answers: Whether a server listens at its address.
        hangs: Whether the server never responds.
        load_seconds: The duration of a load.
        pull_seconds: The time between two lines of a pull.
        lag_seconds: The time from the removal of a model to the exit of its process.
        lies: Whether a process stays after an unload.
        hollow: Whether it reports loads without starting a process.
        hidden: Whether the kernel shows its processes.
        owned: Whether the program under test has started it.
        embeds: Whether its models are embedding models.
        pid: The server's process id.
        shows: Further fields of /api/show: by file.
        sizes: The bytes of a model in its list, by name.
        faults: The faults that the next requests of a path get.
        layers: The sizes of the files that a pull of a model fetches: by name.
        fetched_bytes: The bytes that pulls have fetched.
        free_bytes: The free bytes of its disk.
        calls: The paths of the requests received, without status checks.
        ended: The processes that were killed by the program under test.
    """

    version: str = "0.17.4"
    library: dict = attrs.field(factory=lambda: {"tiny:latest": LIBRARY_BLOB})
    blobs: set = attrs.field(factory=set)
    store: dict = attrs.field(factory=dict)
    parameters: dict = attrs.field(factory=dict)
    loaded: dict = attrs.field(factory=dict)
    held: dict = attrs.field(factory=dict)
    expires: dict = attrs.field(factory=dict)
    answers: bool = True
    hangs: bool = False
    load_seconds: float = 0.5
    pull_seconds: float = 0.1
    lag_seconds: float = 0.5
    lies: bool = False
    hollow: bool = False
    hidden: bool = False
    owned: bool = False
    embeds: bool = False
    pid: int = SERVER_PID
    shows: dict = attrs.field(factory=dict)
    sizes: dict = attrs.field(factory=dict)
    faults: dict = attrs.field(factory=dict)
    layers: dict = attrs.field(factory=dict)
    fetched_bytes: int = 0
    free_bytes: int = 1 << 40
    calls: list = attrs.field(factory=list)
    ended: list = attrs.field(factory=list)
    _next_pid: int = 200
    _going: dict = attrs.field(factory=dict)

    # -- events --------------------------------------------------------------------------------------------------------

    def drop(self, name):
        """Remove a model from the list; its process exits after `lag_seconds`, or never if the daemon `lies`."""
        pid = self.loaded.pop(name)
        self.expires.pop(name, None)
        if not self.lies:
            self._going[pid] = trio.current_time() + self.lag_seconds

    def stop(self, *, killed=False):
        """Stop the server: TERM ends the models' processes too, KILL leaves them to init."""
        self.answers = False
        self.held = {pid: (blob, 1) for pid, (blob, _) in self.held.items()} if killed else {}
        self.loaded, self.expires = {}, {}

    def start(self, version="0.17.4"):
        self.answers, self.version = True, version

    def server(self):
        """Return the server as it is when started for a front."""
        return Server(URL, SERVER_PID)

    def kill_runner(self, name):
        """End the process as the kernel would; the server still lists its model."""
        self.held.pop(self.loaded[name], None)

    def holders(self):
        self._expire()
        return sorted(self.held)

    def _expire(self):
        now = trio.current_time()
        for name in [name for name, at in self.expires.items() if now >= at]:
            self.drop(name)
        for pid in [pid for pid, at in self._going.items() if now >= at]:
            self.held.pop(pid, None)
            del self._going[pid]

    # -- process table -----------------------------------------------------------------------------------------------

    async def read(self):
        await trio.lowlevel.checkpoint()
        self._expire()
        shown = [Process(1, 0, ("/sbin/init",))]
        if self.answers:
            shown.append(Process(self.pid, 1, ("/usr/local/bin/ollama", "serve")))
        for pid, (blob, parent) in self.held.items():
            path = f"/home/me/.ollama/models/blobs/{blob}"
            shown.append(Process(pid, parent, ("/usr/local/bin/ollama", "runner", "--model", path, "--port", "1")))
        return shown[:1] if self.hidden else shown

    async def starts(self, pids):
        await trio.lowlevel.checkpoint()
        self._expire()
        alive = {self.pid} if self.answers else set()
        alive |= {pid for pid, (_, parent) in self.held.items() if parent == self.pid}
        return tuple(f"start of {pid}" if pid in alive else "" for pid in pids)

    async def listener(self, servers, port):
        await trio.lowlevel.checkpoint()
        return self.pid if self.pid in servers else None

    async def cpu_seconds(self, pids):
        await trio.lowlevel.checkpoint()
        return trio.current_time() if pids else 0.0

    async def end(self, pids):
        await trio.lowlevel.checkpoint()
        self.ended += pids
        for pid in pids:
            self.held.pop(pid, None)

    # -- HTTP API --------------------------------------------------------------------------------------------------

    async def handle(self, exchange):
        request, path = exchange.request, exchange.request.path
        self._expire()
        if self.hangs:
            await trio.sleep_forever()
        checks = {
            "/api/version": {"version": self.version},
            "/api/ps": {"models": self._listed()},
            "/api/tags": {"models": [{"name": name, "size": size} for name, size in self.sizes.items()]},
        }
        if path not in checks:
            self.calls.append(path.partition("/sha256:")[0])
        posts = {
            "/api/show": self._show,
            "/api/create": self._create,
            "/api/pull": self._pull,
            "/api/generate": self._generate,
            "/api/embed": self._generate,
            "/v1/chat/completions": self._chat,
        }
        if self.faults.get(path):
            await self.faults[path].pop(0)(exchange)
        elif path in checks:
            await exchange.respond(Response.json(200, checks[path]))
        elif path in posts:
            await posts[path](exchange, json.loads(request.body))
        elif path.startswith("/api/blobs/sha256:"):
            await self._blob(exchange, request, path.rpartition(":")[2])
        else:
            await exchange.respond(Response.json(404, {"error": path}))

    def _listed(self):
        return [{"name": full(name), "model": full(name), "size": 1} for name in self.loaded]

    async def _show(self, exchange, body):
        name = body["model"]
        blob = self.store.get(name) or (
            self.library[name] if name in self.library and self.library[name] in self.blobs else None
        )
        if blob is None:
            await exchange.respond(Response.json(404, {"error": f"model '{name}' not found"}))
        else:
            modelfile = f"# Modelfile\nFROM /home/me/blobs/{blob}\n"
            more = self.shows.get(blob, {}) if body.get("verbose") else {}
            await exchange.respond(Response.json(200, {"modelfile": modelfile, **more}))

    async def _blob(self, exchange, request, digest):
        blob = f"sha256-{digest}"
        if request.method == "HEAD":
            await exchange.respond(Response(200 if blob in self.blobs else 404))
        elif blob_of(request.body) != blob:
            await exchange.respond(Response.json(400, {"error": "digest mismatch"}))
        else:
            self.blobs.add(blob)
            await exchange.respond(Response(201))

    async def _create(self, exchange, body):
        files = [value.replace(":", "-") for value in body.get("files", {}).values()]
        blob = files[0] if files else self.library.get(body["from"])
        if blob not in self.blobs:
            await exchange.respond(Response.json(400, {"error": "no such file"}))
            return
        self.store[body["model"]] = blob
        self.parameters[body["model"]] = body.get("parameters", {})
        await lines(exchange, {"status": "parsing GGUF"}, {"status": "success"})

    async def _pull(self, exchange, body):
        name = body["model"]
        if name not in self.library:
            await lines(exchange, {"status": "pulling manifest"}, {"error": "pull model manifest: file does not exist"})
            return
        async with exchange.stream(200, NO_HEADERS) as send:
            for number, size in enumerate(self.layers.get(name, [100])):
                for done in range(0, size, size // 10):
                    await send(line({"status": f"pulling {number}", "completed": done, "total": size}))
                    await trio.sleep(self.pull_seconds)
                    self.fetched_bytes += size // 10
                    self.free_bytes -= size // 10
            self.blobs.add(self.library[name])
            await send(line({"status": "success"}))

    async def free(self, folder):
        """Return the free bytes of its disk."""
        await trio.lowlevel.checkpoint()
        return self.free_bytes

    async def _generate(self, exchange, body):
        name, keep = body["model"], body["keep_alive"]
        if name not in self.store:
            await exchange.respond(Response.json(404, {"error": f"model '{name}' not found"}))
            return
        if keep != 0 and self.embeds is ("input" not in body):
            await exchange.respond(Response.json(400, {"error": f'"{name}" does not support generate'}))
            return
        if keep == 0:
            if name in self.loaded:
                self.drop(name)
        else:
            await self.load(name)
        await exchange.respond(Response.json(200, {"model": name, "done": True}))

    async def load(self, name):
        """Hold a model of the store in a process; a loaded one has its expiry extended."""
        blob = self.store[name]
        shared = next((other for other, pid in self.loaded.items() if self.held.get(pid, ("", 0))[0] == blob), name)
        pid = self.loaded.get(shared)
        if pid not in self.held or pid in self._going or self.held[pid][0] != blob:
            if pid in self.held and pid not in self._going:  # the name now belongs to another model
                self.drop(shared)
            self._next_pid += 1
            self.loaded[name] = self._next_pid
            if not self.hollow:
                self.held[self._next_pid] = (blob, self.pid)
            # The load continues when the client disconnects.
            self.expires[name] = trio.current_time() + self.load_seconds + KEEP_SECONDS
            await trio.sleep(self.load_seconds)
            shared = name
        if shared in self.loaded:
            self.expires[shared] = trio.current_time() + KEEP_SECONDS

    async def _chat(self, exchange, body):
        answer = {"model": body["model"], "choices": [{"message": {"content": '"model":"llmkube/default_chat"'}}]}
        if body.get("stream"):
            async with exchange.stream(200, Headers.of({"Content-Type": "text/event-stream"})) as send:
                text = b"data: " + json.dumps(answer, separators=(",", ":")).encode() + b"\n\n"
                for at in range(0, len(text), 7):
                    await send(text[at : at + 7])
                    await trio.sleep(0.01)
        else:
            usage = {"prompt_tokens": 7, "completion_tokens": 3}
            await exchange.respond(Response.json(200, answer | {"usage": usage}))


def shown_header(path):
    """Return what an Ollama shows of a GGUF file: keys of its header, and its tensors."""
    facts = read_header(path)
    shape = facts.shape
    numbers = {
        f"{shape.architecture}.{key}": found[0] if len(found) == 1 else list(found)
        for key, found in shape.numbers.items()
    }
    named = {"general.architecture": shape.architecture, "general.license": facts.license}
    tensors = [{"name": each.name, "type": each.type, "shape": list(each.sizes)} for each in shape.tensors]
    return {"model_info": named | numbers, "tensors": tensors}


def full(name):
    return name if ":" in name else f"{name}:latest"


def line(body):
    return json.dumps(body).encode() + b"\n"


async def lines(exchange, *body):
    await exchange.respond(Response(200, NO_HEADERS, b"".join(map(line, body))))


def answers(status, body):
    """Return a fault: this response in place of the regular one."""

    async def answer(exchange):
        await exchange.respond(Response(status, NO_HEADERS, body))

    return answer


async def break_off(exchange):
    """A fault: half a response."""
    async with exchange.stream(200, NO_HEADERS) as send:
        await send(line({"status": "pulling", "completed": 1, "total": 100}))
        exchange.scope.cancel(reason="the peer has gone")
        await trio.lowlevel.checkpoint()


@asynccontextmanager
async def client_of(fake):
    """Yield a client that connects to the server."""
    listener = MemoryListener()

    async def connect(host, port):
        if not fake.answers or port != 11434:
            await trio.lowlevel.checkpoint()
            raise ConnectionRefusedError(111, "Connection refused")
        return await listener.connect(host, port)

    limits = Limits(drain_seconds=0.1, max_body_bytes=math.inf, max_bodies_bytes=math.inf)
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(run_server, fake.handle, [listener], limits=limits))
        try:
            yield HttpClient(connect, max_idle=0, max_idle_per_origin=0)
        finally:
            nursery.cancel_scope.cancel(reason="the test is over")


def staged(fake):
    """Keep a model of this server's library loaded during the block."""
    weights = LibraryModel("tiny:latest", NAME, {"num_ctx": 512}, fake.free)
    server = SERVER_PID if fake.owned else None

    def make(client):
        return OllamaModel(OllamaApi(client, URL), 11434, NAME, fake, weights, fake.embeds, server=server)

    return keep_loaded(client_of(fake), make)
