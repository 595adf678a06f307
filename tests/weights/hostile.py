"""A web server that does what a script says, byte by byte, over streams in memory."""

import datetime
import random
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import attrs
import trio
import trio.testing

from llmkube.base.http.egress import DIRECTLY
from llmkube.weights.address_policy import AddressPolicy
from llmkube.weights.download.downloader import open_downloader
from llmkube.weights.download.guarded_transport import open_transport_with
from llmkube.weights.download.retry import DownloadLimits
from llmkube.weights.source import engine_source, parse_source
from llmkube.weights.store.blobs import open_store

NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
HUB = "http://hub.example"
NO_TRUST = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # reading the real certificates for each test takes long
FROM_OBJECT = AddressPolicy()
PATIENCE = DownloadLimits()
PUBLIC = "93.184.216.34"


@attrs.frozen
class Request:
    """A received request."""

    host: str  # as it was dialled by name
    target: str
    headers: dict[str, str]

    @classmethod
    def read(cls, received: bytes) -> "Request":
        first, *lines = received.decode("latin-1").rstrip().split("\r\n")
        fields = [line.partition(":") for line in lines]
        headers = {name.lower(): value.strip() for name, _, value in fields}
        return cls(headers["host"], first.split(" ")[1], headers)

    @property
    def start(self) -> int | None:
        """Where the range that was asked for begins."""
        text = self.headers.get("range", "")
        return int(text.removeprefix("bytes=").partition("-")[0]) if text else None


class Wire:
    """One connection, seen from the server."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def head(self, status: int, **headers: object) -> None:
        lines = [f"HTTP/1.1 {status} Whatever"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        await self.send("\r\n".join([*lines, "", ""]).encode("latin-1"))

    async def answer(self, status: int, body: bytes = b"", **headers: object) -> None:
        await self.head(status, **{"content_length": len(body), **headers})
        await self.send(body)

    async def file(self, request: Request, data: bytes, *, etag: str = '"v1"', cut: int | None = None) -> None:
        """Serve a file as an honest server does, but break off once `cut` bytes of the file are out."""
        start = request.start
        if start is not None and request.headers.get("if-range", etag) == etag:
            if start >= len(data):
                return await self.answer(416, content_range=f"bytes */{len(data)}")
            where = f"bytes {start}-{len(data) - 1}/{len(data)}"
            await self.head(206, content_length=len(data) - start, etag=etag, content_range=where)
        else:
            start = 0
            await self.head(200, content_length=len(data), etag=etag, accept_ranges="bytes")
        await self.send(data[start:] if cut is None else data[start : max(start, cut)])
        return None


Script = Callable[[Wire, Request], Awaitable[None]]


@attrs.define(eq=False)
class Network:
    """Names, addresses, and one script for all servers; the requests are recorded."""

    script: Script
    addresses: dict[str, list[str]] = attrs.field(factory=dict)
    requests: list[Request] = attrs.field(factory=list)
    dialled: list[str] = attrs.field(factory=list)
    refusing: set[str] = attrs.field(factory=set)
    open_connections: int = 0
    _nursery: trio.Nursery | None = None

    async def resolve(self, host: str, port: int) -> list[str]:
        await trio.lowlevel.checkpoint()
        if host not in self.addresses and host.endswith(".invalid"):
            raise OSError(-2, "Name or service not known")
        return self.addresses.get(host, [PUBLIC])

    async def dial(self, address: str, port: int) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        self.dialled.append(address)
        if address in self.refusing:
            raise ConnectionRefusedError(111, "Connection refused")
        client, server = trio.testing.memory_stream_pair()
        assert self._nursery is not None
        self._nursery.start_soon(self._serve, server)
        return client

    async def _serve(self, stream: trio.abc.Stream) -> None:
        self.open_connections += 1
        try:
            async with stream:
                received = b""
                while not received.endswith(b"\r\n\r\n"):
                    piece = await stream.receive_some()
                    if not piece:
                        raise trio.BrokenResourceError
                    received += piece
                request = Request.read(received)
                self.requests.append(request)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._until_gone, stream, nursery.cancel_scope)
                    await self.script(Wire(stream), request)
                    nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the client has had enough
        finally:
            self.open_connections -= 1

    async def _until_gone(self, stream, scope):
        await stream.receive_some()
        scope.cancel()

    @asynccontextmanager
    async def open(self):
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            yield
            nursery.cancel_scope.cancel()


async def inline(fn):
    """Blocking work where virtual time is watched: a thread would let it jump."""
    await trio.lowlevel.checkpoint()
    return fn()


@attrs.define(eq=False)
class Bench:
    """A downloader over the hostile network, and its store."""

    store: object
    downloader: object
    network: Network
    seen: list

    async def get(
        self,
        text,
        *,
        sha256=None,
        token=None,
        policy=FROM_OBJECT,
        progress=None,
        access=None,
        registry=None,
        fresh=False,
        files=(),
        namespace=None,
        weights_format="gguf",
    ):
        async def find_token():
            await trio.lowlevel.checkpoint()
            return token

        return await self.downloader.fetch(
            engine_source(parse_source(text), files, weights_format),
            sha256=sha256,
            token=find_token,
            access=access,
            registry=registry,
            policy=policy,
            progress=progress or self.seen.append,
            fresh=fresh,
            namespace=namespace,
        )

    def files(self) -> list[str]:
        """Everything in the store but its lock, by path."""
        paths = (path for path in self.store.root.rglob("*") if not path.is_dir() and path.name != "lock")
        return sorted(str(path.relative_to(self.store.root)) for path in paths)

    def visible(self) -> list[str]:
        """Return the files that an engine could be given."""
        return [name for name in self.files() if name.startswith(("blobs", "sets"))]


@asynccontextmanager
async def open_bench(
    root, script, *, limits=PATIENCE, addresses=None, free=lambda _: 1 << 50, run_sync=inline, egress=DIRECTLY
):
    """Open everything; the store may have been used before."""
    network = Network(script, addresses or {})
    store = open_store(root)
    async with (
        network.open(),
        open_downloader(
            store,
            limiter=trio.CapacityLimiter(1),
            utcnow=lambda: NOW,
            rng=random.Random(1),
            endpoint=HUB,
            limits=limits,
            open_transport=open_transport_with(
                resolve=network.resolve, dial=network.dial, ssl_context=NO_TRUST, egress=egress
            ),
            run_sync=run_sync,
            free=free,
        ) as downloader,
    ):
        yield Bench(store, downloader, network, [])


def answers(status: int, body: bytes = b"", **headers: object) -> Script:
    """Answer every request alike."""

    async def script(wire: Wire, _: Request) -> None:
        await wire.answer(status, body, **headers)

    return script


def serves(data: bytes, *, etag: str = '"v1"', cut: int | None = None) -> Script:
    """Serve a file to every request."""

    async def script(wire: Wire, request: Request) -> None:
        await wire.file(request, data, etag=etag, cut=cut)

    return script


def steps(*scripts: Script) -> Script:
    """Do one after another, one per request; the last one again and again."""
    waiting: Iterator[Script] = iter(scripts)
    last: list[Script] = []

    async def script(wire: Wire, request: Request) -> None:
        last[:] = [next(waiting, *last)]
        await last[0](wire, request)

    return script


def gguf(size: int, seed: int = 1) -> bytes:
    """Bytes that begin like a model."""
    return b"GGUF" + random.Random(seed).randbytes(size - 4)
