"""How far `llmkube fetch` is, for its log and for a controller that asks: a container's log is no terminal."""

from typing import Final, Never

import attrs
import click
import trio

from llmkube.base.http.exchange import Exchange
from llmkube.base.http.limits import Limits
from llmkube.base.http.message import Response
from llmkube.base.http.server import run_server
from llmkube.weights.download.progress import Progress

PATH: Final = "/progress"

_LINE_SECONDS: Final = 10.0
_LIMITS: Final = Limits(
    max_head_bytes=4096, max_headers=32, max_body_bytes=1024, max_connections=8, idle_seconds=5.0, drain_seconds=1.0
)


@attrs.define(eq=False)
class Gauge:
    """Hold what is known now, and write a line now and then."""

    files: int
    file: int = 1
    _now: Progress = Progress("resolving")
    _last: tuple[str, str, int] = ("", "", -1)

    def begin(self, file: int) -> None:
        """Go on to the next file, counted from 1."""
        self.file, self._now = file, Progress("resolving")

    def __call__(self, progress: Progress) -> None:
        """Take in how far it is."""
        self._now = progress
        line = (progress.stage, progress.note, int(trio.current_time() // _LINE_SECONDS))
        if line != self._last:
            self._last = line
            click.echo(str(progress), err=True)

    async def handle(self, exchange: Exchange) -> None:
        """Answer `GET /progress`: no name of a file or a source, for every pod of the cluster may ask."""
        request = exchange.request
        if (request.method, request.path) != ("GET", PATH):
            await exchange.respond(Response.json(404, {"error": f"there is nothing but GET {PATH}"}))
            return
        now = self._now
        words = {"file": self.file, "files": self.files, "stage": now.stage}
        await exchange.respond(
            Response.json(200, {**words, "doneBytes": now.done_bytes, "totalBytes": now.total_bytes})
        )


async def run_gauge(gauge: Gauge, port: int, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> Never:
    """Answer on every address of the pod until cancelled; a port that cannot be had costs the answers alone.

    Args:
        gauge: What is answered.
        port: Where; 0 takes a free one.
        task_status: Gets the port, or 0 when there is none.
    """
    try:
        listeners = await trio.open_tcp_listeners(port)
    except OSError as exc:
        click.echo(f"progress is not shown: cannot listen on port {port}: {exc.strerror or exc}", err=True)
        task_status.started(0)
        await trio.sleep_forever()
    task_status.started(listeners[0].socket.getsockname()[1])
    await run_server(gauge.handle, listeners, limits=_LIMITS)
