"""How far `llmkube fetch` is, for its log and for a controller that asks: a container's log is no terminal."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Never

import attrs
import click
import trio

from llmkube.base.errors import LLMKubeError
from llmkube.base.http.exchange import Exchange
from llmkube.base.http.limits import Limits
from llmkube.base.http.message import Response
from llmkube.base.http.server import run_server
from llmkube.k8s.wire.termination_message import cut, to_bytes
from llmkube.supervisor.cluster.status import fetch_reason, gguf_status
from llmkube.weights.download.progress import Progress
from llmkube.weights.formats.shape import GGUFFacts

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


_TEXT_BYTES: Final = 256  # of each text of the header
_SENTENCE_BYTES: Final = 3000


def told_gguf(facts: GGUFFacts) -> dict[str, Any]:
    """Return `status.gguf` with its texts cut to what there is room for."""
    named = gguf_status(facts).items()
    return {name: cut(value, _TEXT_BYTES) if isinstance(value, str) else value for name, value in named}


def told_failure(error: LLMKubeError) -> dict[str, Any]:
    """Return the reason and the sentence of a failure."""
    return {"reason": fetch_reason(error), "message": cut(str(error), _SENTENCE_BYTES)}


def tell(log: Path, message: Mapping[str, Any]) -> None:
    """Write the message; a machine without such a file is no pod, and nothing reads it there."""
    with contextlib.suppress(OSError):
        log.write_bytes(to_bytes(message))
