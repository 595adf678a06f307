"""Real `llmkube` programs as children of the test, with their output as it comes."""

import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, PIPE

import attrs
import psutil
import trio

from waiting import stop_process

DEMO = Path(__file__).parents[2] / "src" / "llmkube" / "cli" / "demo.yaml"
ANSWER = (
    "LLMKube turns serving a language model into a Kubernetes object: describe a Model and an InferenceService, "
    "and it downloads, starts, watches and routes."
)
NOTED = 4000
"""Characters of each output of a program that a failure shows."""
FREE_PORTS = ("--api-port", "0", "--gateway-port", "0", "--probe-port", "0")

RunProgram = Callable[..., Awaitable[tuple[int, str, str]]]


@attrs.define(eq=False)
class Program:
    """A running `llmkube` program and its output so far."""

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
        pattern = r"API server +(\S+)\nkubeconfig .*\npage .*\ngateway +(http://[^/\s]+)\S*\nprobes +(\S+)\n"
        found = await self.wait_for("err", pattern)
        return found[1], found[2], found[3]


def environment(folder: Path) -> dict[str, str]:
    """Return an environment whose home and temporary folders are `folder`."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LANG", "LD_LIBRARY_PATH") if name in os.environ}
    return kept | {"TMPDIR": str(folder), "HOME": str(folder), "COLUMNS": "80"}


@asynccontextmanager
async def open_program(
    folder: Path,
    *args: str,
    kubeconfig: Path | None = None,
    prefix: tuple[str, ...] = (),
    module: str = "llmkube",
    runs_engines: bool = False,
) -> AsyncIterator[Program]:
    """Run `llmkube ARGS`; kill it if it still runs after the block.

    With `runs_engines`, the engines and proxies in its folder are killed as well.
    `prefix` is a program that executes it, such as a shell that enters a control group first; `module` is run in place
    of `llmkube`.
    """
    command = [*prefix, sys.executable, "-m", module, *args]
    env = environment(folder) | ({"KUBECONFIG": str(kubeconfig)} if kubeconfig else {})
    async with trio.open_nursery() as nursery:
        run = partial(trio.run_process, command, env=env, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, check=False)
        process = await nursery.start(run)
        program = Program(process)
        nursery.start_soon(program.pump, "out", process.stdout)
        nursery.start_soon(program.pump, "err", process.stderr)
        try:
            yield program
        except BaseException as error:
            error.add_note(f"the program's output:\n{program.out[-NOTED:]}\n{program.err[-NOTED:]}")
            raise
        finally:  # the nursery then waits for the end of both outputs, so that no line is missed
            if process.returncode is None:
                if runs_engines:
                    with trio.move_on_after(10.0, shield=True):  # so that no engine is between fork and exec
                        await stop_process(process.pid)  # noqa: ASYNC102 - see above
                process.send_signal(signal.SIGKILL)
            doors = processes_in(folder, "llmkube.programs.door")
            for left in [*engines_in(folder), *proxies_in(folder), *doors] if runs_engines else ():
                with suppress(psutil.NoSuchProcess):
                    left.kill()


def open_up(folder: Path, *args: str, prefix: tuple[str, ...] = ()) -> AbstractAsyncContextManager[Program]:
    """Run `llmkube up ARGS`."""
    return open_program(folder, "up", *args, prefix=prefix, runs_engines=True)


@asynccontextmanager
async def open_machine(folder: Path, *args: str, state: str = "state") -> AsyncIterator[tuple[Program, RunProgram]]:
    """Run `llmkube up ARGS` with its state in the folder; yield it and a function that runs a command.

    Commands run next to the state, since a program that ends kills the engines of its folder.
    """
    home, data = folder / "home", folder / state
    home.mkdir()
    async with open_up(folder, "--state-dir", str(data), *FREE_PORTS, *args) as up:
        await up.urls()
        yield up, partial(run_program, home, kubeconfig=data / "kubeconfig")


async def run_program(folder: Path, *args: str, kubeconfig: Path | None = None) -> tuple[int, str, str]:
    """Run `llmkube ARGS` to its end; return the exit code and both outputs."""
    return await _run(open_program(folder, *args, kubeconfig=kubeconfig))


async def run_up(folder: Path, *args: str) -> tuple[int, str, str]:
    """Run `llmkube up ARGS` to its end."""
    return await _run(open_up(folder, *args))


async def _run(opening: AbstractAsyncContextManager[Program]) -> tuple[int, str, str]:
    async with opening as program:
        code = await program.process.wait()
    return code, program.out, program.err


def command_line(process: psutil.Process) -> list[str]:
    """Return the process's command line, or nothing if it has exited, which may happen at any time."""
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return process.cmdline()
    return []


def working_folder(process: psutil.Process) -> str:
    """Return the process's working folder, or nothing if it has exited."""
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return process.cwd()
    return ""


def processes_in(folder: Path, word: str = "") -> list[psutil.Process]:
    """Return every other process whose command line mentions the folder and the word."""
    found = []
    for process in psutil.process_iter():
        line = " ".join(command_line(process))
        if str(folder) in line and word in line and process.pid != os.getpid():
            found.append(process)
    return found


def engines_in(folder: Path) -> list[psutil.Process]:
    """Return every engine that works in the folder: its command line has a model, and its working folder is there."""
    return [
        process
        for process in psutil.process_iter()
        if working_folder(process).startswith(str(folder)) and "--model" in command_line(process)
    ]


def proxies_in(folder: Path) -> list[psutil.Process]:
    """Return every proxy of an engine whose agent has its state in the folder."""
    return processes_in(folder, "engine_proxy")


def doors_in(folder: Path) -> list[psutil.Process]:
    """Return the door of an agent that has its state in the folder."""
    return [each for each in processes_in(folder, "llmkube.programs.door") if not has_ended(each)]


def has_ended(process: psutil.Process) -> bool:
    """Return whether a process has exited, read by its parent or not."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def fake_engine(folder: Path, script: str, name: str = "engine") -> str:
    """Write a llama-server as a shell script: it prints its flags and version, and otherwise runs `script`."""
    path = folder / name
    flags = "--model --host --port --alias --ctx-size --parallel --metrics --verbosity --fit --n-gpu-layers --threads "
    flags += "--api-key-file"
    path.write_text(
        f'#!/bin/sh\ncase "$1" in\n--help) for f in {flags}; do echo "$f VALUE"; done; exit 0;;\n'
        f'--version) echo "version: 1 (test)"; exit 0;;\nesac\n{script}\n'
    )
    path.chmod(0o755)
    return str(path)


def is_open(url: str) -> bool:
    """Return whether a program listens there."""
    host, _, port = url.partition("://")[2].partition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0
