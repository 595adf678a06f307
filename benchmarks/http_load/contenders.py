"""Reverse proxies in Python, each with one worker: what is received goes to one backend, its answer comes back.

    python contenders.py NAME BACKEND-PORT [HOST]     prints its port when it listens

`raw` parses nothing: one task of Trio per connection on non-blocking sockets, the least that a proxy in Trio costs.
`bare` is the data path of the gateway without JSON: the server and the client of this project. The others are what a
program in Python would take otherwise; they run in a venv of their own.
"""

# ruff: noqa: PLC0415 (each proxy runs where the packages of the others may be missing)

import asyncio
import contextlib
import logging
import socket
import sys
from typing import Any, Final

HOST: Final = sys.argv[3] if sys.argv[3:] else "127.0.0.1"
"""Where the backend is, and the proxy."""

HOP_BY_HOP: Final = {"connection", "keep-alive", "transfer-encoding", "host", "date", "server"}


def print_port(port: int) -> None:
    """Say that requests may come."""
    print(port, flush=True)


def run_raw(backend: int) -> None:
    """One task per connection, and one connection to the backend for it; what comes is passed on unseen."""
    import trio

    async def receive(one: socket.socket) -> bytes:
        await trio.lowlevel.wait_readable(one)
        return one.recv(65536)

    async def pass_answers(near: socket.socket) -> None:
        far = socket.create_connection((HOST, backend))
        for one in (near, far):
            one.setblocking(False)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with near, far, contextlib.suppress(OSError):
            while request := await receive(near):
                far.send(request)
                near.send(await receive(far))

    async def serve() -> None:
        with socket.create_server((HOST, 0), backlog=1024) as listener:
            print_port(listener.getsockname()[1])
            async with trio.open_nursery() as nursery:
                while True:
                    await trio.lowlevel.wait_readable(listener)
                    nursery.start_soon(pass_answers, listener.accept()[0])

    trio.run(serve)


def run_bare(backend: int) -> None:
    """Server and client of this project, and nothing between them."""
    import trio

    from llmkube.base.http.client import open_http_client
    from llmkube.base.http.exchange import StreamExchange
    from llmkube.base.http.forward import forward
    from llmkube.base.http.hub import open_sockets
    from llmkube.base.http.listen import open_listeners
    from llmkube.base.http.server import run_server

    async def serve() -> None:
        async with (
            open_sockets() as sockets,
            open_http_client(sockets.connect, max_idle_per_origin=256, max_idle=512) as client,
            trio.open_nursery() as nursery,
        ):

            async def handle(exchange: StreamExchange) -> None:
                await forward(exchange, client, (HOST, backend), exchange.request.body)

            listeners = await open_listeners(HOST, 0)
            await nursery.start(run_server, handle, sockets.listen(listeners))
            print_port(listeners[0].socket.getsockname()[1])

    trio.run(serve)


def run_aiohttp(backend: int) -> None:
    """Server and client of aiohttp, on asyncio."""
    from aiohttp import ClientSession, ClientTimeout, TCPConnector, web

    async def handle(request: web.Request) -> web.StreamResponse:
        session: ClientSession = request.app["session"]
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP}
        url, body = f"http://{HOST}:{backend}{request.path_qs}", await request.read()
        async with session.request(request.method, url, headers=headers, data=body) as upstream:
            kept = {name: value for name, value in upstream.headers.items() if name.lower() not in HOP_BY_HOP}
            answer = web.StreamResponse(status=upstream.status, headers=kept)
            await answer.prepare(request)
            async for piece in upstream.content.iter_any():
                await answer.write(piece)
            await answer.write_eof()
            return answer

    async def serve() -> None:
        app = web.Application(client_max_size=64 << 20)
        app["session"] = ClientSession(connector=TCPConnector(limit=0), timeout=ClientTimeout(), auto_decompress=False)
        app.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, HOST, 0).start()
        print_port(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(serve())


def run_uvicorn(backend: int) -> None:
    """A bare ASGI application under uvicorn (uvloop, httptools), with httpx as its client."""
    import httpx
    import uvicorn

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=512)
    client = httpx.AsyncClient(limits=limits, timeout=None, base_url=f"http://{HOST}:{backend}")  # noqa: S113
    dropped = {name.encode() for name in HOP_BY_HOP}

    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        headers = [(name, value) for name, value in scope["headers"] if name not in dropped]
        async with client.stream(scope["method"], scope["path"], headers=headers, content=body) as upstream:
            kept = [(name, value) for name, value in upstream.headers.raw if name.lower() not in dropped]
            await send({"type": "http.response.start", "status": upstream.status_code, "headers": kept})
            async for piece in upstream.aiter_raw():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    listener = socket.create_server((HOST, 0), backlog=1024)
    print_port(listener.getsockname()[1])
    uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False, lifespan="off")).run(sockets=[listener])


if __name__ == "__main__":
    logging.disable()  # that a client went away during a stream is what happens here
    {"raw": run_raw, "bare": run_bare, "aiohttp": run_aiohttp, "uvicorn": run_uvicorn}[sys.argv[1]](int(sys.argv[2]))
