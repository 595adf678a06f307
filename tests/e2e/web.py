"""A small web server for model files, in the test's own process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

import attrs
import trio

from weights.hostile import Request, Wire


@attrs.define(eq=False)
class Web:
    """A web server that may hold back half of a file until `resume` is set.

    Attributes:
        url: Base URL.
        files: Content by name; a test may change it.
        names: Additional paths of files.
        held: Names of which only half is sent until `resume`.
        credentials: Requests need one of these in the target or in Authorization; if empty, they need none.
        requests: All requests so far.
    """

    url: str
    files: dict[str, bytes]
    names: dict[str, str] = attrs.field(factory=dict)
    held: set[str] = attrs.field(factory=set)
    credentials: tuple[str, ...] = ()
    resume: trio.Event = attrs.field(factory=trio.Event)
    requests: list[Request] = attrs.field(factory=list)

    @property
    def downloads(self) -> list[Request]:
        """Requests for more than a part, without those that read a file's header before the download."""
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
        await self.resume.wait()
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
