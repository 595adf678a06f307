"""An Ollama that all services of a simulated host share, and the fronts that agents start before it.

A front is the real one without its sockets: what it decides, looks at and does is `llmkube.cli.daemon_engine`. It
borrows the daemon of the machine's owner, or starts one where none answers; that one ends with it.
"""

import hashlib
import itertools
import math
from contextlib import asynccontextmanager

import attrs
import trio

from cli.daemon_engine.ollama.fake_daemon import FakeDaemon
from llmkube.base.waiting import wait_any
from llmkube.cli.daemon_engine.counters import Counters
from llmkube.cli.daemon_engine.daemon_http import ASK_SECONDS, DaemonError, DaemonLateError
from llmkube.cli.daemon_engine.keeper import GivenUpError, Keeper
from llmkube.cli.daemon_engine.ollama.model import OllamaModel
from llmkube.cli.daemon_engine.ollama.options import parse
from llmkube.cli.daemon_engine.ollama.witness import Witness
from llmkube.cli.daemon_engine.server_process import NoDaemonError, Server, borrowed_or_own
from llmkube.runtimes.process.ollama import MODULE

PORT = 11434
OWN_PORT = 50_000


def is_front(argv):
    """Whether a command line is that of a service on Ollama."""
    return MODULE in argv


@attrs.define(eq=False)
class SimDaemon(FakeDaemon):
    """One server at one port.

    Attributes:
        port: Where it listens.
        services: Whose file is which: file to service.
        lied_at: When it has last kept a process that it should have ended.
    """

    port: int = PORT
    load_seconds: float = 3.0
    services: dict = attrs.field(factory=dict)
    lied_at: float = -math.inf

    def drop(self, name):
        super().drop(name)
        if self.lies:
            self.lied_at = trio.current_time()

    @property
    def is_odd(self):
        """Whether only its owner can mend it."""
        held_by_none = any(parent == 1 for _, parent in self.held.values())
        return self.lies or self.hangs or not self.answers or self.port != PORT or held_by_none or self.lied_at > 0

    def restart(self):
        """Its owner quits it and starts it again: its processes end with it."""
        self.stop()
        self.held, self.lied_at = {}, -math.inf
        self.lies = self.hangs = self.hollow = False
        self.port = PORT
        self.start(self.version)


@attrs.define(eq=False)
class Door:
    """`DaemonApi` without HTTP.

    Attributes:
        daemons: The servers of the host.
        url: Which of them is asked.
    """

    daemons: list
    url: str

    async def _server(self):
        await trio.lowlevel.checkpoint()
        port = int(self.url.rpartition(":")[2])
        daemon = next((each for each in self.daemons if each.answers and each.port == port), None)
        if daemon is None:
            raise DaemonError(f"no Ollama answers at {self.url}", gone=True)
        if daemon.hangs:
            await trio.sleep(ASK_SECONDS)
            raise DaemonLateError("it has not answered in time")
        daemon.holders()  # what has expired is gone
        return daemon

    async def _model(self, name):
        daemon = await self._server()
        if name not in daemon.store:
            raise DaemonError(f"model '{name}' not found", 404)
        return daemon

    async def version(self):
        return (await self._server()).version

    async def loaded(self):
        return tuple(name if ":" in name else f"{name}:latest" for name in (await self._server()).loaded)

    async def load(self, name, keep_alive, *, embeds=False):
        daemon = await self._model(name)
        await daemon.load(name)
        if not daemon.answers:
            raise DaemonError("Ollama broke off", gone=True)

    async def renew(self, name, keep_alive, *, embeds=False):
        await self.load(name, keep_alive)

    async def unload(self, name):
        daemon = await self._model(name)
        if name in daemon.loaded:
            daemon.drop(name)

    async def make(self, name, blob, service):
        """Have a model of a file, as `create` does."""
        daemon = await self._server()
        daemon.services[blob] = service
        daemon.store[name] = blob


@attrs.define(eq=False)
class Processes:
    """What the kernel of the host shows of its servers and their models."""

    daemons: list

    async def read(self):
        return tuple({one.pid: one for each in self.daemons for one in await each.read()}.values())

    async def starts(self, pids):
        seen = [await each.starts(pids) for each in self.daemons]
        return tuple(next(filter(None, column), "") for column in zip(*seen, strict=True))

    async def listener(self, servers, port):
        await trio.lowlevel.checkpoint()
        return next((each.pid for each in self.daemons if each.pid in servers and each.port == port), None)

    async def cpu_seconds(self, pids):
        await trio.lowlevel.checkpoint()
        return trio.current_time() if pids else 0.0

    async def end(self, pids):
        for each in self.daemons:
            await each.end(pids)


@attrs.frozen
class FileOf:
    """The weights of a service, in whichever store is asked."""

    service: str
    model: str
    name: str

    async def prepare(self, api):
        blob = "sha256-" + hashlib.sha256(self.model.encode()).hexdigest()
        await api.make(self.name, blob, self.service)
        return blob


@attrs.define(eq=False)
class Ollama:
    """All of Ollama on one host.

    Attributes:
        daemons: The servers: the owner's first, then those that fronts have started.
        fronts: What keeps the model of each front, by the pid of the front.
    """

    daemons: list = attrs.field(factory=lambda: [SimDaemon()])
    fronts: dict = attrs.field(factory=dict)
    _numbers: itertools.count = attrs.field(factory=lambda: itertools.count(1))

    @property
    def shared(self):
        """The one of the host's owner."""
        return self.daemons[0]

    def held(self):
        """Whose files are in memory: for each process the service, its file, its server's pid, and the server."""
        for daemon in self.daemons:
            for pid in daemon.holders():
                blob, parent = daemon.held[pid]
                yield pid, daemon.services.get(blob, ""), blob, parent, daemon

    def holders(self, child):
        """The processes that have a front's model and that the front can know: of the server that it asks, and of none.

        Nothing of a front that has not got as far as a model.
        """
        keeper = self.fronts.get(child.pid)
        blob, port = (keeper.adapter.witness.blob, keeper.adapter.witness.port) if keeper is not None else ("", 0)
        return [
            pid
            for pid, _, held, parent, daemon in self.held()
            if blob and held == blob and (parent == 1 or daemon.port == port)
        ]

    def leftovers(self, children, now):
        """Processes of models that no front keeps: each with the model's name, and when it should have gone.

        One that was ended in order unloads; what a killed one leaves expires. What a daemon lies about, or a killed one
        has left, is its owner's to end.
        """
        fronts = [child for child in children if child.keeper is not None]
        kept = {child.keeper.adapter.witness.blob for child in fronts if child.exit is None}
        for pid, _, blob, parent, daemon in self.held():
            name = next((name for name, of in daemon.loaded.items() if of == pid), "")
            ours = [child for child in fronts if child.keeper.adapter.witness.name == name]
            taken_up = any(child.exit is None for child in ours)  # by one that has not got as far as the file
            if ours and not taken_up and blob not in kept and parent != 1:
                in_order = ours[-1].told_to_end.is_set() and ours[-1].exit.code == 0
                yield pid, name, now if in_order else daemon.expires.get(name, now)

    @asynccontextmanager
    async def started(self):
        """A server of a front's own, during the block."""
        number = next(self._numbers)
        daemon = SimDaemon(pid=7_000 + number, port=OWN_PORT + number)
        daemon._next_pid = 100_000 * number
        self.daemons.append(daemon)
        try:
            yield Server(f"http://127.0.0.1:{daemon.port}", daemon.pid)
        finally:
            self.daemons.remove(daemon)

    async def live(self, child):
        """A front, from its start to its end: killed, told to stop, or giving up."""
        options = parse(child.argv[child.argv.index(MODULE) + 1 :], {})
        why, named = "", Door(self.daemons, options.daemon)
        try:
            async with borrowed_or_own("Ollama", named.url, named.version, self) as server:
                weights = FileOf(child.name, options.model, options.store_name)
                door, table = Door(self.daemons, server.url), Processes(self.daemons)
                witness = Witness(door, server.port, options.store_name, table, server.pid)
                keeper = self.fronts[child.pid] = child.keeper = Keeper(OllamaModel(witness, weights), Counters())
                try:
                    await wait_any(child.ended.wait, child.told_to_end.wait, keeper.run)
                except* GivenUpError as group:
                    why = str(group.exceptions[0])
                back = child.exit is None and await keeper.unload()
        except* NoDaemonError as group:
            why, back = str(group.exceptions[0]), True
        if why:
            child.script = attrs.evolve(child.script, words=(f"ollama: {why}",))
        child.end(0 if back and not why else 1)
