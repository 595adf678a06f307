"""An Ollama as its routes describe it (server/routes.go, 0.17.4), with the faults that were reported or seen of it."""

import json
from functools import partial

import attrs
import trio

from http_lab import MemoryListener
from llmkube.base.http.client import HttpClient
from llmkube.base.http.limits import Limits
from llmkube.base.http.message import NO_HEADERS, Response
from llmkube.base.http.server import run_server
from llmkube.cli.commands.doctor.ollama import look_at
from llmkube.programs.daemon_engine.processes import Process, runners_in

SERVER_PID = 100
URL = "http://127.0.0.1:11434"
GIB = 1 << 30


@attrs.define(eq=False)
class FakeOllama:
    """One server, and the process that it starts for each loaded model.

    Attributes:
        alive: Whether its server runs.
        answers: Whether that answers.
        version: What it says of itself.
        loaded: Model to the number of its process.
        left: Processes of models that it says are unloaded.
        orphans: Processes whose server has ended.
        lag_seconds: So long a process lives after its model is no longer listed.
        odd: What it answers instead of JSON objects; None for its own words.
        hangs: Whether it accepts connections, and answers nothing.
    """

    alive: bool = True
    answers: bool = True
    version: str = "0.17.4"
    loaded: dict[str, int] = attrs.field(factory=dict)
    left: list[int] = attrs.field(factory=list)
    orphans: list[int] = attrs.field(factory=list)
    lag_seconds: float = 0.0
    odd: bytes | None = None
    hangs: bool = False
    _next_pid: int = 200
    _going: dict[int, float] = attrs.field(factory=dict)

    def load(self, name):
        self._next_pid += 1
        self.loaded[name] = self._next_pid

    def unload(self, name, *, lies=False):
        """It is not listed any more; its process ends after a moment, or never."""
        pid = self.loaded.pop(name)
        if lies:
            self.left.append(pid)
        elif self.lag_seconds:
            self._going[pid] = trio.current_time() + self.lag_seconds

    def end_server(self, *, killed):
        """TERM takes its models along; KILL leaves them, as seen of 0.17.4."""
        self.alive = self.answers = False
        if killed:
            self.orphans += [*self.loaded.values(), *self.left]
        self.loaded, self.left = {}, []

    def restart(self):
        """Another server, which knows of nothing that the one before has loaded."""
        self.alive = self.answers = True

    def processes(self):
        now = trio.current_time()
        going = [pid for pid, until in self._going.items() if now < until]
        served = [*self.loaded.values(), *self.left, *going]
        yield Process(1, 0, ("/sbin/init",))
        if self.alive:
            yield Process(SERVER_PID, 1, ("/usr/local/bin/ollama", "serve"))
        for pid, parent in (*((pid, SERVER_PID) for pid in served), *((pid, 1) for pid in self.orphans)):
            yield Process(
                pid, parent, ("/usr/local/bin/ollama", "runner", "--model", "/m/blobs/sha256-0", "--port", "1")
            )

    async def handle(self, exchange):
        path = exchange.request.path
        body = {
            "/api/version": {"version": self.version},
            "/api/ps": {"models": [{"name": name, "size": GIB} for name in self.loaded]},
        }
        if self.hangs:
            await trio.sleep_forever()
        if self.odd is not None:
            await exchange.respond(Response(200, NO_HEADERS, self.odd))
        elif path in body:
            await exchange.respond(Response.json(200, body[path]))
        else:
            await exchange.respond(Response.json(404, {"error": json.dumps(path)}))

    async def find_runners(self):
        await trio.lowlevel.checkpoint()
        return runners_in(self.processes())

    async def measure(self, pids):
        await trio.lowlevel.checkpoint()
        return dict.fromkeys(pids, GIB)

    async def look(self):
        """What the probe finds here."""
        listener = MemoryListener()
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(run_server, self.handle, [listener], limits=Limits(drain_seconds=0.1)))

            async def connect(host, port):
                if not self.answers:
                    await trio.lowlevel.checkpoint()
                    raise ConnectionRefusedError(111, "Connection refused")
                return await listener.connect(host, port)

            found = await look_at(HttpClient(connect), URL, self.find_runners, self.measure)
            nursery.cancel_scope.cancel(reason="looked at")
        return found
