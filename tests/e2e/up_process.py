"""A real `llmkube up` as a child of the test, with its output as it comes."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import psutil
import trio

DEMO = Path(__file__).parents[2] / "src" / "llmkube" / "cli" / "demo.yaml"
ANSWER = (
    "LLMKube turns serving a language model into a Kubernetes object: describe a Model and an InferenceService, "
    "and it downloads, starts, watches and routes."
)
FREE_PORTS = ("--api-port", "0", "--gateway-port", "0", "--probe-port", "0")


@attrs.define(eq=False)
class UpProcess:
    process: trio.Process
    lines: dict[str, str] = attrs.field(factory=lambda: {"out": "", "err": ""})
    changed: trio.Condition = attrs.field(factory=trio.Condition)

    @property
    def out(self) -> str:
        return self.lines["out"]

    @property
    def err(self) -> str:
        return self.lines["err"]

    async def pump(self, name: str, stream: trio.abc.ReceiveStream) -> None:
        async for chunk in stream:
            async with self.changed:
                self.lines[name] += chunk.decode()
                self.changed.notify_all()
        async with self.changed:
            self.changed.notify_all()

    async def wait_for(self, name: str, pattern: str) -> re.Match[str]:
        """Return the first match in the output; a process that ends without it is a failure."""
        while (found := re.search(pattern, self.lines[name])) is None:
            assert self.process.returncode is None, f"ended with {self.process.returncode}\n{self.out}\n{self.err}"
            async with self.changed:
                with trio.move_on_after(0.2):
                    await self.changed.wait()
        return found

    async def urls(self) -> tuple[str, str, str]:
        """Return the addresses of the Kubernetes API, the gateway and the probes."""
        found = await self.wait_for("err", r"Kubernetes +(\S+)\ngateway +(\S+)\nprobes +(\S+)\n")
        return found[1], found[2], found[3]


def environment(folder: Path) -> dict[str, str]:
    """An environment in which everything temporary and personal lies in `folder`."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LD_LIBRARY_PATH") if name in os.environ}
    return kept | {"TMPDIR": str(folder), "HOME": str(folder), "COLUMNS": "80"}


@asynccontextmanager
async def open_up(folder: Path, *args: str) -> AsyncIterator[UpProcess]:
    """Run `llmkube up`; it is killed if the test leaves it behind."""
    command = [sys.executable, "-m", "llmkube", "up", *args]
    async with trio.open_nursery() as nursery:
        process = await nursery.start(
            partial(
                trio.run_process,
                command,
                env=environment(folder),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                check=False,
            )
        )
        up = UpProcess(process)
        nursery.start_soon(up.pump, "out", process.stdout)
        nursery.start_soon(up.pump, "err", process.stderr)
        try:
            yield up
        finally:  # the nursery then waits for the ends of both outputs, so that nothing said last is missed
            if process.returncode is None:
                process.send_signal(signal.SIGKILL)
            for left in processes_in(folder):
                left.kill()


async def run_up(folder: Path, *args: str) -> tuple[int, str, str]:
    """Run `llmkube up` to its end; return the exit code and both outputs."""
    async with open_up(folder, *args) as up:
        code = await up.process.wait()
    return code, up.out, up.err


def processes_in(folder: Path) -> list[psutil.Process]:
    """Every process whose command line mentions the folder: engines name their model file in it."""
    found = []
    for process in psutil.process_iter():
        try:
            if any(str(folder) in part for part in process.cmdline()) and process.pid != os.getpid():
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def is_open(url: str) -> bool:
    """Whether somebody listens there."""
    host, _, port = url.partition("://")[2].partition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0
