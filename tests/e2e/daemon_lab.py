"""An engine of a shared daemon as a process, and the daemons next to it."""

import signal
import subprocess
import sys
from contextlib import asynccontextmanager

import trio

from free_ports import free_port
from llmkube.base.http.client import open_http_client
from llmkube.base.http.errors import HttpError
from llmkube.base.http.message import Headers

KEY = "CanaryKeyOfThisTest"


@asynccontextmanager
async def running(*command, environ, log):
    """Run a program that writes to a file; kill it at the end if it still runs."""
    with log.open("ab") as output:
        process = await trio.lowlevel.open_process(
            list(map(str, command)), env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        yield process
    finally:
        with trio.CancelScope(shield=True):
            if process.poll() is None:
                process.kill()
            await process.wait()


@asynccontextmanager
async def running_engine(program, alias, *flags, environ, folder):
    """Run one of our engines with its key; yield its process, a function that sends it a request, and its log."""
    keys, port, log = folder / "keys", free_port(), folder / "engine.log"
    keys.write_text(f"{KEY}\n")
    common = ("--service", f"default/{alias}", "--alias", alias, "--port", port, "--api-key-file", keys)
    command = (sys.executable, "-m", program.__name__, *common, *flags)
    async with running(*command, environ=environ, log=log) as process, open_http_client() as http:

        async def ask(method, path, body=b""):
            headers = Headers.of({"Authorization": f"Bearer {KEY}"})
            return await http.request(method, f"http://127.0.0.1:{port}{path}", headers=headers, body=body)

        yield process, ask, log


async def ready(ask, log, seconds=60):
    """Wait until an engine reports that its model is loaded."""
    with trio.move_on_after(seconds):
        while True:
            try:
                if (await ask("GET", "/health")).status == 200:
                    return
            except HttpError:
                pass
            await trio.sleep(0.1)
    raise AssertionError(f"the engine is not ready:\n{log.read_text()}")


async def end(process, log, code=0):
    """Terminate an engine; it exits within a minute, with this code."""
    process.send_signal(signal.SIGTERM)
    with trio.fail_after(60):
        assert await process.wait() == code, log.read_text()
