"""Daemons that all services of a simulated host share, and the fronts that agents start for them.

A front is the real one without its sockets: its decisions and actions are `llmkube.programs.daemon_engine`. It borrows
the daemon of the machine's owner, or starts one, which it also stops. `daemon_ollama` and `daemon_omlx` have the parts
of Ollama and oMLX, an `Engine` each.
"""

import itertools
import math
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Protocol
from urllib.parse import urlsplit

import attrs
import trio

from llmkube.base.http.errors import ConnectError, ConnectionLostError
from llmkube.base.http.message import NO_HEADERS, Request, Response
from llmkube.base.waiting import wait_any
from llmkube.programs.daemon_engine.keeper import GivenUpError
from llmkube.programs.daemon_engine.model_lock import RETRY_SECONDS, ModelLock
from llmkube.programs.daemon_engine.server import NoDaemonError, Server, no_server
from llmkube.programs.daemon_engine.serving import kept

OWN_PORT = 50_000
LOAD_SECONDS = 3.0


@attrs.frozen
class LoadedModel:
    """A model in memory.

    Attributes:
        pid: The process that holds it.
        name: Name in the list of models; "" if it is not listed.
        file: Its weights.
        until: Time at which it is unloaded without further requests.
        orphan: Whether its server has exited.
        known_to: Start time of the latest front that can know of it.
    """

    pid: int
    name: str
    file: str
    until: float = math.inf
    orphan: bool = False
    known_to: float = math.inf

    @property
    def is_kept(self):
        """Whether it is not listed, and not being unloaded."""
        return not self.name and self.until == math.inf


class Engine(Protocol):
    """The parts of one engine. A stand-in (`fake`) answers requests, and provides the kernel's data about it."""

    runtime: str
    module: str
    port: int

    def parse(self, argv) -> Any:
        """Return the options of a front."""

    def file_of(self, options) -> str:
        """Return the weights that a front serves."""

    def known_file(self, adapter) -> str:
        """Return the weights that a front knows as its model's; "" while it knows none."""

    def opened(self, options, starter, daemons) -> Any:
        """Run a server during the block; yield the adapter of the model in it."""

    def made(self, number, options=None) -> Any:
        """Return the stand-in of the owner's server, or of a server that a front has started."""

    def held(self, fake) -> Any:
        """Yield each model in memory."""

    def forget(self, fake) -> None:
        """Remove its models while it does not run."""

    def replace_model(self, fake, name) -> None:
        """Give the name of a model to another model, and load that."""

    def repair(self, fake) -> None:
        """Restore its owner's settings."""

    def is_changed(self, fake) -> bool:
        """Return whether its settings differ from its owner's."""


@attrs.define(eq=False)
class SimServer:
    """One server at one port.

    Attributes:
        engine: Its engine.
        fake: The stand-in.
        port: Its port.
        requests: Requests in flight; they are aborted when it exits.
    """

    engine: Engine
    fake: Any
    port: int
    requests: set = attrs.field(factory=set)

    @property
    def answers(self):
        """Whether it runs."""
        return self.fake.answers and self.fake.pid not in self.fake.ended

    @property
    def is_odd(self):
        """Whether only its owner can fix it."""
        fake = self.fake
        wrong = fake.lies or fake.hangs or fake.hollow or not self.answers or self.port != self.engine.port
        return wrong or self.engine.is_changed(fake) or any(each.is_kept for each in self.engine.held(fake))

    def stop(self, **how):
        """Stop its process; see the stand-in."""
        self.fake.stop(**how)
        for scope in self.requests:
            scope.cancel(reason="the server has ended")

    def start(self, version=None):
        """Start it again, perhaps in another release."""
        self.fake.start(version or self.fake.version)

    def restart(self):
        """Restart it as its owner would, with the owner's settings: all its models are unloaded."""
        self.stop()
        self.fake.lies = self.fake.hangs = self.fake.hollow = False
        self.fake.ended.clear()
        self.port = self.engine.port
        self.engine.repair(self.fake)
        self.start()


@attrs.frozen
class _Exchange:
    """One request to a stand-in, and its response."""

    request: Request
    answers: list = attrs.field(factory=list)

    async def respond(self, response: Response):
        await trio.lowlevel.checkpoint()
        self.answers.append(response)


@attrs.frozen(eq=False)
class Wire:
    """`HttpClient` to the servers of a host, without bytes."""

    servers: list

    async def request(self, method, url, *, headers=NO_HEADERS, body=b"", max_body_bytes=0):
        await trio.lowlevel.checkpoint()
        at = urlsplit(url)
        server = next((each for each in self.servers if each.answers and each.port == at.port), None)
        if server is None:
            raise ConnectError("connection refused")
        exchange = _Exchange(Request(method, at.path, headers, body))
        with trio.CancelScope() as scope:
            server.requests.add(scope)
            try:
                while server.fake.hangs:  # noqa: ASYNC110 - pending requests are answered afterwards
                    await trio.sleep(1.0)
                await server.fake.handle(exchange)
            finally:
                server.requests.discard(scope)
        if not exchange.answers:
            raise ConnectionLostError("the server has ended")
        return exchange.answers[0]


@attrs.frozen(eq=False)
class Processes:
    """`ProcessTable` of a host: the servers and their child processes."""

    servers: list

    async def read(self):
        return tuple({one.pid: one for each in self.servers for one in await each.fake.read()}.values())

    async def starts(self, pids):
        seen = [await each.fake.starts(pids) for each in self.servers]
        return tuple(next(filter(None, column), "") for column in zip(*seen, strict=True))

    async def listener(self, servers, port):
        await trio.lowlevel.checkpoint()
        return next((each.fake.pid for each in self.servers if each.fake.pid in servers and each.port == port), None)

    async def cpu_seconds(self, pids):
        await trio.lowlevel.checkpoint()
        return trio.current_time() if pids else 0.0

    async def footprints(self, pids):
        found = [await each.fake.footprints(pids) for each in self.servers]
        return {pid: held for each in found for pid, held in each.items()}

    async def end(self, pids):
        for each in self.servers:
            theirs = {one.pid for one in await each.fake.read()}
            if mine := [pid for pid in pids if pid in theirs and pid > 1]:
                await each.fake.end(mine)


@attrs.define(eq=False)
class SimLock:
    """A `ModelLock` of one front."""

    locks: "SimLocks"
    model: str

    async def share(self):
        while self.locks.exclusive.get(self.model, self) is not self:  # noqa: ASYNC110 - as the real one
            await trio.sleep(RETRY_SECONDS)
        self.release()
        self.locks.shared.append(self)
        self.locks.marked.add(self.model)

    async def exclusive(self):
        await trio.lowlevel.checkpoint()
        self.release()
        if self.model in self.locks.exclusive or any(each.model == self.model for each in self.locks.shared):
            return False
        self.locks.exclusive[self.model] = self
        return True

    async def has_leftover(self):
        return await self.exclusive() and self.model in self.locks.marked

    async def clear(self):
        await trio.lowlevel.checkpoint()
        self.locks.marked.discard(self.model)

    def release(self):
        self.locks.shared = [each for each in self.locks.shared if each is not self]
        if self.locks.exclusive.get(self.model) is self:
            del self.locks.exclusive[self.model]


@attrs.define(eq=False)
class SimLocks:
    """The locks of models on one host: shared and exclusive holders, and models not unloaded by the last holder."""

    shared: list = attrs.field(factory=list)
    exclusive: dict = attrs.field(factory=dict)
    marked: set = attrs.field(factory=set)

    @asynccontextmanager
    async def open(self, model):
        lock = SimLock(self, model) if model else ModelLock()
        try:
            yield lock
        finally:
            if model:
                lock.release()


@attrs.define(eq=False)
class Daemons:
    """All daemons of one engine on one host.

    Attributes:
        engine: The engine.
        servers: The owner's server first, then those that fronts have started.
        services: The last service that requested each file.
        locks: Locks of the owner's models.
    """

    engine: Engine
    servers: list = attrs.field(init=False)
    services: dict = attrs.field(factory=dict)
    locks: SimLocks = attrs.field(factory=SimLocks)
    _numbers: itertools.count = attrs.field(factory=lambda: itertools.count(1))

    def __attrs_post_init__(self):
        self.servers = [SimServer(self.engine, self.engine.made(0), self.engine.port)]

    @property
    def shared(self):
        """The server of the host's owner."""
        return self.servers[0]

    @property
    def wire(self):
        """A client that reaches all servers."""
        return Wire(self.servers)

    @property
    def processes(self):
        """The process table with all servers."""
        return Processes(self.servers)

    def is_front(self, child):
        """Return whether a process is a front of one of these servers, and has started that far."""
        return child.keeper is not None and self.engine.module in child.argv

    def held(self):
        """Yield every model in memory, with the server that has loaded it."""
        for server in self.servers:
            for held in self.engine.held(server.fake):
                yield server, held

    def held_bytes(self, sizes):
        """Return the bytes of all models; `sizes` has the size of each service's model."""
        return sum(sizes(self.services.get(held.file, "")) for _, held in self.held())

    def file_of(self, child):
        """Return the weights that a front knows as its model's."""
        return self.engine.known_file(child.keeper.adapter)

    def holders(self, child):
        """Return the processes with a front's model, as far as the front can know: in the server that it uses."""
        file, port = self.file_of(child), urlsplit(child.keeper.adapter.url).port
        return [
            held.pid
            for server, held in self.held()
            if file and held.file == file and (held.orphan or server.port == port) and _knows(child, held)
        ]

    def leftovers(self, children, now):
        """Yield models in memory that no front uses, and the time by which they should be unloaded.

        A front that was stopped in order has unloaded its model; the model of a killed front stays until the engine
        unloads it. Models that a daemon wrongly reports as unloaded, or that a killed one leaves, are its owner's.
        """
        fronts = [child for child in children if self.is_front(child)]
        kept = {self.file_of(child) for child in fronts if child.exit is None}
        for _, held in self.held():
            ours = [child for child in fronts if _knows(child, held) and self._is_of(child, held)]
            taken_up = any(child.exit is None for child in ours)  # by a front that does not know the file yet
            stays = not held.orphan and (held.name or held.is_kept)
            if ours and stays and not taken_up and held.file not in kept:
                last = {child.name: child for child in sorted(ours, key=lambda child: child.ended_at)}.values()
                in_order = all(child.stop_requested.is_set() and child.exit.code == 0 for child in last)
                yield held, now if in_order else held.until

    def _is_of(self, child, held):
        file, name = self.file_of(child), child.keeper.adapter.name
        if held.name and name:  # one file may have several names, and a name may have moved to another file
            return held.name == name and file in ("", held.file)
        return held.file == file != ""

    @asynccontextmanager
    async def started(self, options):
        """Run a server of a front's own during the block."""
        number = next(self._numbers)
        fake = self.engine.made(number, options)
        server = SimServer(self.engine, fake, OWN_PORT + number)
        self.servers.append(server)
        try:
            yield Server(f"http://127.0.0.1:{server.port}", fake.pid, getattr(fake, "key", ""))
        finally:
            server.stop()
            self.servers.remove(server)

    async def live(self, child):
        """Run a front until it is killed, stopped, or gives up."""
        options = self.engine.parse(child.argv[child.argv.index(self.engine.module) + 1 :])
        self.services[self.engine.file_of(options)] = child.name
        reason, released = "", False
        try:
            opened = self.engine.opened(options, partial(self.started, options), self)
            async with kept(opened, self.locks.open) as keeper:
                child.keeper = keeper
                try:
                    await wait_any(child.ended.wait, child.stop_requested.wait, keeper.run)
                except* GivenUpError as group:
                    reason = str(group.exceptions[0])
                released = child.exit is None and await keeper.unload()
        except* NoDaemonError as group:
            reason = str(group.exceptions[0])
        if reason:
            child.script = attrs.evolve(child.script, words=(f"{self.engine.runtime}: {reason}",))
        child.end(0 if released and not reason else 1)

    async def unload_leftover(self, argv):
        """Run a program that only unloads the model of a killed front; return its exit code."""
        options = self.engine.parse(argv[argv.index(self.engine.module) + 1 :])
        try:
            async with kept(self.engine.opened(options, no_server, self), self.locks.open) as keeper:
                return 0 if await keeper.unload_leftover() else 1
        except NoDaemonError:
            return 1


def _knows(child, held):
    return child.spawned_at <= held.known_to
