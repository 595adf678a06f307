"""The proxies that are compared, running: nginx and those in Python, each a process of its own before one backend."""

import contextlib
import shlex
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, PIPE
from tempfile import TemporaryDirectory
from typing import Final

import attrs
import psutil
import trio

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
from free_ports import free_port
from http_load import nginx, tools
from http_load.up_program import PLAIN, STREAMS, Up

DIRECT, NGINX, GATEWAY, BARE, RAW = "direct", "nginx", "gateway", "bare", "raw"
PEERS: Final[Mapping[str, str]] = {"aiohttp": "aiohttp", "uvicorn": "uvicorn + httpx"}
NAMES: Final[Mapping[str, str]] = {
    DIRECT: "no proxy",
    NGINX: "nginx",
    RAW: "raw sockets in Trio",
    BARE: "our server and client",
    GATEWAY: "gateway of `llmkube up`",
    **PEERS,
}
START_SECONDS: Final = 30.0
HERE: Final = Path(__file__).parent


@attrs.frozen
class Contender:
    """A proxy that runs, or the backend itself; `process` is charged, `headers` are lines that its requests need."""

    port: int
    model: str
    process: psutil.Process
    headers: tuple[str, ...] = ()

    @property
    def processor(self) -> float:
        """Seconds of processor time so far."""
        times = self.process.cpu_times()
        return times.user + times.system

    @property
    def memory(self) -> int:
        """Bytes that its exit would free."""
        return int(self.process.memory_full_info().uss)


async def launch(stack: AsyncExitStack, command: Sequence[str], *, prints_port: bool) -> tuple[psutil.Process, int]:
    """Start a process that ends with the stack; return it, and the port that it says, if it does."""
    process = await trio.lowlevel.open_process(command, stdin=DEVNULL, stdout=PIPE)
    stack.push_async_callback(end, process)
    if not prints_port:
        return psutil.Process(process.pid), 0
    assert process.stdout is not None, "it was given a pipe"
    with trio.fail_after(START_SECONDS):
        line = await process.stdout.receive_some()
    if not line:
        raise RuntimeError(f"{shlex.join(command)} ended before it served")
    return psutil.Process(process.pid), int(line)


async def end(process: trio.Process) -> None:
    """Kill it."""
    process.kill()
    with trio.move_on_after(START_SECONDS, shield=True):
        await process.wait()
    if process.stdout is not None:
        await process.stdout.aclose()


async def launch_nginx(stack: AsyncExitStack, make: Callable[[Path, int], list[str]]) -> Contender:
    """Start an nginx; it cannot choose a port and say which."""
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="llmkube-bench-")))
    port: int = free_port()
    process, _ = await launch(stack, make(folder, port), prints_port=False)
    with trio.fail_after(START_SECONDS):
        while True:
            with contextlib.suppress(OSError):
                await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
                return Contender(port, PLAIN, process)
            await trio.sleep(0.05)


@asynccontextmanager
async def open_contenders(program: Sequence[str], up: Up, *, streams: bool) -> AsyncIterator[dict[str, Contender]]:
    """Start the backend and every available proxy."""
    model = STREAMS if streams else PLAIN
    async with AsyncExitStack() as stack:
        if streams:
            command = [sys.executable, str(HERE / "sse.py"), "backend", "127.0.0.1", "0"]
            process, port = await launch(stack, command, prints_port=True)
            direct = Contender(port, model, process)
        else:
            direct = await launch_nginx(stack, partial(nginx.backend_command, program))
        found = {DIRECT: direct, GATEWAY: Contender(up.port("gateway"), model, up.process)}
        if program:
            proxy = partial(nginx.proxy_command, program, backend=direct.port, streams=streams)
            found[NGINX] = await launch_nginx(stack, proxy)
        pythons = {BARE: sys.executable, **({} if streams else {RAW: sys.executable})}
        if python := tools.peer_python():
            pythons |= dict.fromkeys(PEERS, python)
        for name, python in pythons.items():
            command = [python, str(HERE / "contenders.py"), name, str(direct.port)]
            process, port = await launch(stack, command, prints_port=True)
            found[name] = Contender(port, model, process)
        yield found
