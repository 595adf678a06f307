"""The real `llmkube up` in a process of its own, with two services whose engines are backends of our own making."""

import re
import shlex
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import attrs
import httpx
import psutil
import trio
import yaml

from adoption import STEP_SECONDS, start
from fake import write_engine
from http_load.sse import request
from llmkube.cli.commands.tools.files import demo_manifests

PLAIN, STREAMS = "plain", "streams"
"""The service that answers at once, by nginx, and the one that streams tokens."""

_HERE: Final = Path(__file__).parent
_URLS: Final = ("API server", "gateway", "probes")


@attrs.frozen
class Up:
    """Where a running `llmkube up` is reached.

    Attributes:
        process: The program, without its engines.
        kubeconfig: How to reach its API.
        urls: The API's, the gateway's and the probes'.
    """

    process: psutil.Process
    kubeconfig: Path
    urls: dict[str, str]

    def port(self, name: str) -> int:
        """Return the port of one of its addresses."""
        return int(self.urls[name].rpartition(":")[2])


def write_engines(folder: Path, nginx: Sequence[str], reports: Path | None) -> Path:
    """Write the engine program: it becomes nginx for one service, the streaming backend for all others.

    Args:
        folder: Its folder.
        nginx: The command of nginx; without it, all are the streaming backend.
        reports: A named pipe into which each engine writes its service's name first.
    """
    report = f'echo "$alias" >{shlex.quote(str(reports))}\n' if reports else ""
    python, sse = (shlex.quote(each) for each in (sys.executable, str(_HERE / "sse.py")))
    find = (
        'host=; port=; alias=; take=; for word in "$@"; do case "$take" in --host) host=$word;; --port) port=$word;; '
    )
    find += "--alias) alias=$word;; esac; take=$word; done\n"
    plain = shlex.join([sys.executable, str(_HERE / "nginx.py")])
    become = (
        f'case "$alias" in *{PLAIN}*) exec {plain} "$port" {shlex.join([str(folder), *nginx])};; esac\n'
        if nginx
        else ""
    )
    return write_engine(folder, f'{find}{report}{become}exec {python} {sse} backend "$host" "$port"\n')


@asynccontextmanager
async def open_up(folder: Path, nginx: Sequence[str], *names: str, reports: Path | None = None) -> AsyncIterator[Up]:
    """Run it until the block ends; these services answer when it begins, and `reports` is as for `write_engines`."""
    (folder / "up").mkdir()
    model, service = (manifest.body for manifest in demo_manifests())
    manifests = [model, *({**service, "metadata": {"name": name, "namespace": "default"}} for name in names)]
    (folder / "models.yaml").write_text(yaml.safe_dump_all(manifests), "utf-8")
    ports = ("--api-port", "0", "--gateway-port", "0", "--probe-port", "0")
    engine = str(write_engines(folder, nginx, reports))
    running = await start(folder / "up", "up", *ports, "-f", str(folder / "models.yaml"), "--llama-server", engine)
    try:
        urls = {name: re.findall(r"https?://[^/\s]+", await running.line_with(name))[0] for name in _URLS}
        up = Up(psutil.Process(running.process.pid), folder / "up" / "kubeconfig", urls)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(running.drain)
            for name in names:
                await _wait_answered(up.urls["gateway"], name)
            yield up
            nursery.cancel_scope.cancel(reason="measured")
    finally:
        with trio.move_on_after(STEP_SECONDS, shield=True):
            running.process.terminate()
            await running.process.wait()


async def _wait_answered(gateway: str, name: str) -> None:
    body = request(name, "hello", stream=False).partition(b"\r\n\r\n")[2]
    async with httpx.AsyncClient(base_url=gateway, trust_env=False) as http:
        with trio.fail_after(STEP_SECONDS):
            while (await http.post("/v1/chat/completions", content=body)).status_code != 200:  # noqa: ASYNC110 (another process)
                await trio.sleep(0.1)
