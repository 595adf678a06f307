"""`llmkube router --workers 2` between an engine that a test plays and clients that know which worker answers them."""

import inspect
import json
import os
import signal
from contextlib import asynccontextmanager, suppress

import attrs
import psutil
import trio

from e2e.up_process import command_line, open_program
from llmkube.base.http.message import Response
from llmkube.base.http.server import run_server
from llmkube.cli.commands.router import worker
from llmkube.router.config.routing_config import Auth, Backend, RoutingConfig
from llmkube.router.config.written_form import encode_config

CHAT = "/v1/chat/completions"
USAGE = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}


def said(text):
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return {"object": "chat.completion", "model": "x", "choices": [choice], "usage": USAGE}


async def until(condition):
    """Return when something is so."""
    with trio.fail_after(60):
        while True:
            found = condition()
            if await found if inspect.isawaitable(found) else found:
                return
            await trio.sleep(0.02)


@attrs.define(eq=False)
class Engine:
    """Answers each request when the test lets it.

    Attributes:
        port: Where it is.
        asked: The bodies, in the order in which they came.
        status: Of its answers.
        open: Whether it answers at once.
    """

    port: int
    asked: list = attrs.field(factory=list)
    status: int = 200
    open: bool = True
    _turns: list = attrs.field(factory=list)

    async def answer(self, exchange):
        if exchange.head.method == "GET":  # whether it lives
            await exchange.respond(Response.json(200, {"status": "ok"}))
            return
        self.asked.append(json.loads(exchange.body))
        if not self.open:
            turn = trio.Event()
            self._turns.append(turn)
            await turn.wait()
        await exchange.respond(Response.json(self.status, said("yes") if self.status == 200 else {"error": "no"}))

    def let_go(self, place=0):
        """Answer one of those that wait, the oldest first."""
        self._turns.pop(place).set()

    async def until_asked(self, count):
        await until(lambda: len(self.asked) >= count)

    def words(self):
        """The last message of each request."""
        return [body["messages"][-1]["content"] for body in self.asked]


@attrs.define(eq=False)
class Client:
    """One connection, and the worker that has accepted it."""

    stream: trio.SocketStream
    worker: int
    key: str = ""

    async def ask(self, body, path=CHAT, method="POST"):
        """Return status and object of one answer."""
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n"
        head += f"Authorization: Bearer {self.key}\r\n" if self.key else ""
        await self.stream.send_all(head.encode() + b"\r\n" + data)
        got = b""
        while b"\r\n\r\n" not in got:
            got += await self._receive()
        first, _, rest = got.partition(b"\r\n\r\n")
        lines = first.decode().split("\r\n")
        length = next(int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length:"))
        while len(rest) < length:
            rest += await self._receive()
        return int(lines[0].split()[1]), json.loads(rest)

    async def say(self, text, **more):
        return await self.ask({"model": "m", "messages": [{"role": "user", "content": text}], **more})

    async def _receive(self):
        piece = await self.stream.receive_some()
        if not piece:
            raise ConnectionError("the router has ended the connection")
        return piece


@attrs.define(eq=False)
class Lab:
    """A router of several processes."""

    program: object
    engine: Engine
    port: int
    admin: int
    manifest: object
    _streams: list = attrs.field(factory=list)

    def workers(self):
        """Return the processes that answer now, by their ids."""
        return {
            each.pid: each
            for each in psutil.Process(self.program.process.pid).children()
            if worker.__name__ in command_line(each)
        }

    async def connect(self, wanted=None, key=""):
        """Open a connection; to this worker, if one is wanted."""
        with trio.fail_after(60):
            while True:
                stream = await trio.open_tcp_stream("127.0.0.1", self.port)
                found = await self._acceptor(stream.socket.getsockname()[1])
                if wanted in (None, found):
                    self._streams.append(stream)
                    return Client(stream, found, key)
                await stream.aclose()

    async def clients(self, key=""):
        """Open a connection to each of the two workers."""
        return [await self.connect(pid, key) for pid in self.workers()]

    async def crowd(self, count):
        """Open many connections, and say which workers have them."""
        streams = [await trio.open_tcp_stream("127.0.0.1", self.port) for _ in range(count)]
        self._streams += streams
        ports = {each.socket.getsockname()[1] for each in streams}
        await until(lambda: ports <= set(self._acceptors()))
        found = self._acceptors()
        return [Client(each, found[each.socket.getsockname()[1]]) for each in streams]

    async def _acceptor(self, client_port):
        await until(lambda: client_port in self._acceptors())
        return self._acceptors()[client_port]

    def _acceptors(self):
        """Return who has each connection, by the client's port."""
        found = {}
        for pid, process in self.workers().items():
            with suppress(psutil.Error):
                found |= {
                    each.raddr.port: pid
                    for each in process.net_connections("tcp")
                    if each.raddr and each.laddr.port == self.port
                }
        return found

    async def operator(self, path):
        """Return what the port for the operator says."""
        client = Client(await trio.open_tcp_stream("127.0.0.1", self.admin), 0)
        async with client.stream:
            return await client.ask(None, path, "GET")

    async def metrics(self):
        """Return the samples, as text."""
        async with await trio.open_tcp_stream("127.0.0.1", self.admin) as stream:
            await stream.send_all(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            return b"".join([piece async for piece in stream]).decode()

    def write(self, config):
        new = self.manifest.with_suffix(".new")
        new.write_bytes(encode_config(config))
        new.replace(self.manifest)


def backend(port, **changes):
    return Backend(
        **{"name": "mac", "model_id": "mac", "base_url": f"http://127.0.0.1:{port}/v1", "local": True} | changes
    )


@asynccontextmanager
async def open_lab(folder, *, teams=(), engine_changes=None, workers=2, **config):
    """Run a router with one backend that the test plays; each of the teams has its name as its key."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    engine = Engine(listeners[0].socket.getsockname()[1])
    keys = folder / "teams"
    if teams:
        keys.mkdir()
        config["auth"] = Auth(keys_folder=str(keys))
    for team in teams:
        (keys / team).write_text(f"key-of-{team}\n")
    one = backend(engine.port, **(engine_changes or {}))
    manifest = folder / "config.json"
    lab = Lab(None, engine, 0, 0, manifest)
    lab.write(RoutingConfig(name="default/many", backends={"mac": one}, default_backend="mac", **config))
    args = ("router", "-f", str(manifest), "--port", "0", "--admin-port", "0", "--workers", str(workers))
    async with trio.open_nursery() as nursery:
        await nursery.start(run_server, engine.answer, listeners)
        async with open_program(folder, *args, "--state-dir", str(folder / "state")) as program:
            lab.program = program
            lab.port = int((await program.wait_for("err", r"OpenAI-compatible API on http://127.0.0.1:(\d+)/v1\n"))[1])
            lab.admin = int((await program.wait_for("err", r'"admin":"http://127.0.0.1:(\d+)"'))[1])
            try:
                yield lab
            finally:
                for stream in lab._streams:
                    stream.socket.close()
                for process in lab.workers().values() if program.process.returncode is None else ():
                    if process.status() == psutil.STATUS_STOPPED:
                        os.kill(process.pid, signal.SIGCONT)
        nursery.cancel_scope.cancel()
