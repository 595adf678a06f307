"""A small web server for model files, in the test's own process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

import attrs
import trio

from weights.hostile import Request, Wire


@attrs.define(eq=False)
class Web:
    """What it serves; a file may be held back in the middle until `go_on` is set.

    Attributes:
        url: Where it is.
        files: Content by name; a test may change it.
        names: Of paths at which a file is found besides its own.
        held: Names that are only sent by half until `go_on`.
        credentials: What a request has to show one of, in its target or in Authorization; nothing where there is none.
        requests: What was asked for.
    """

    url: str
    files: dict[str, bytes]
    names: dict[str, str] = attrs.field(factory=dict)
    held: set[str] = attrs.field(factory=set)
    credentials: tuple[str, ...] = ()
    go_on: trio.Event = attrs.field(factory=trio.Event)
    requests: list[Request] = attrs.field(factory=list)

    @property
    def downloads(self) -> list[Request]:
        """Who asked for more than a part: the header of a file is read before it is worth a download."""
        return [each for each in self.requests if not each.headers.get("range", "")[-1:].isdigit()]

    async def serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            received = b""
            while not received.endswith(b"\r\n\r\n"):
                piece = await stream.receive_some()
                if not piece:
                    return
                received += piece
            request, wire = Request.read(received), Wire(stream)
            self.requests.append(request)
            with suppress(trio.BrokenResourceError):
                await self._answer(wire, request)

    async def _answer(self, wire: Wire, request: Request) -> None:
        shown = request.target + request.headers.get("authorization", "")
        if self.credentials and not any(each in shown for each in self.credentials):
            return await wire.answer(401)
        name = self.names.get(request.target) or request.target.partition("?")[0].lstrip("/")
        data = self.files.get(name)
        if data is None:
            return await wire.answer(404)
        if name not in self.held:
            return await wire.file(request, data)
        half = max(len(data) // 2, request.start or 0)
        await wire.file(request, data, cut=half)
        await self.go_on.wait()
        await wire.send(data[half:])
        return None


@asynccontextmanager
async def open_web(address: str = "127.0.0.1", port: int = 0, /, **files: bytes) -> AsyncIterator[Web]:
    """Serve files by name, each as `NAME.gguf`, on an address of this machine."""
    web = Web("", {f"{name}.gguf": data for name, data in files.items()})
    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, web.serve, port, host=address))
        web.url = f"http://{address}:{listener.socket.getsockname()[1]}"
        yield web
        nursery.cancel_scope.cancel()
