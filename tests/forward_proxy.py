"""An HTTP proxy on this machine that resolves names itself, tunnels and forwards, and records what it was asked."""

import base64
import contextlib
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio

USER, PASSWORD = "me", "s3cr:t/"
CREDENTIALS = b"Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode())


@attrs.define(eq=False)
class ForwardProxy:
    """A proxy that needs a password.

    Attributes:
        ports: Ports of the servers, by `host:port`; it answers 502 for all others.
        asked: First lines of the requests that it accepted.
        refused: First lines of requests without the password.
    """

    ports: dict[str, int]
    url: str = ""
    plain_url: str = ""
    asked: list[str] = attrs.field(factory=list)
    refused: list[str] = attrs.field(factory=list)
    changed: trio.Event = attrs.field(factory=trio.Event)

    async def until_asked(self, first_line):
        """Wait for a request."""
        while first_line not in self.asked:
            await self.changed.wait()

    async def serve(self, client):
        head = b""
        while b"\r\n\r\n" not in head:
            piece = await client.receive_some()
            if not piece:
                return
            head += piece
        first = head.split(b"\r\n")[0].decode()
        if b"\r\nProxy-Authorization: " + CREDENTIALS + b"\r\n" not in head:
            self.refused.append(first)
            await client.send_all(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            return
        self.asked.append(first)
        self.changed.set()
        self.changed = trio.Event()
        method, target, _ = first.split(" ")
        authority = target if method == "CONNECT" else target.split("/")[2]
        port = self.ports.get(authority)
        if port is None:
            await client.send_all(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
            return
        server = await trio.open_tcp_stream("127.0.0.1", port)
        if method == "CONNECT":
            await client.send_all(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            await server.send_all(head)
        async with server, trio.open_nursery() as both:
            both.start_soon(self.copy, client, server, both.cancel_scope)
            both.start_soon(self.copy, server, client, both.cancel_scope)

    async def copy(self, source, sink, scope):
        with contextlib.suppress(trio.BrokenResourceError):
            async for piece in source:
                await sink.send_all(piece)
        scope.cancel()


@asynccontextmanager
async def open_forward_proxy(ports, *, context=None, host="127.0.0.1"):
    """Run a proxy; with a TLS context it is an https proxy."""
    proxy = ForwardProxy(ports)

    async def handle(client):
        async with client:
            with contextlib.suppress(trio.BrokenResourceError):
                await proxy.serve(client)

    serve = partial(trio.serve_tcp, handle, 0, host="127.0.0.1")
    if context is not None:
        serve = partial(trio.serve_ssl_over_tcp, handle, 0, context, host="127.0.0.1", https_compatible=True)
    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(serve)
        socket = listener.transport_listener.socket if context is not None else listener.socket
        address = f"{host}:{socket.getsockname()[1]}"
        scheme = "http" if context is None else "https"
        proxy.plain_url = f"{scheme}://{address}"
        proxy.url = f"{scheme}://{USER}:s3cr%3At%2F@{address}"
        yield proxy
        nursery.cancel_scope.cancel()
