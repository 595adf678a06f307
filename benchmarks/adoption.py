"""Effect of a SIGKILL of the agent, with a real llama.cpp server and clients that send requests continuously.

API server, controller and agent are separate processes, as in a cluster. The agent is killed and restarted a hundred
times; the clients connect to the engine directly, as pods do. Adoption is measured from the start of the new agent's
process (including its interpreter and imports) to its log line that the engine is adopted and answers.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs
import trio

from harness import Aim, Run, Table, begin, median, percentile
from llmkube.base.http.client import HttpClient, open_http_client
from llmkube.base.http.errors import HttpError
from llmkube.base.http.message import Headers
from llmkube.cli.commands.tools.files import demo_manifests
from llmkube.k8s.auth.kubeconfig import load_config
from llmkube.k8s.client import open_client
from llmkube.programs.server_side_apply import Applier
from llmkube.supervisor.host.processes import OWNER_VARIABLE, find_marked

LLMKUBE = ("-m", "llmkube")
KILLS, CLIENTS, PAUSE_SECONDS = 100, 3, 0.02
STEP_SECONDS = 60.0  # a step that takes longer has gone wrong
QUESTION = json.dumps({"messages": [{"role": "user", "content": "What is LLMKube?"}], "max_tokens": 8}).encode()
JSON_BODY = Headers.of({"Content-Type": "application/json"})


@attrs.define(eq=False)
class Program:
    """One `llmkube` program, and its output line by line."""

    process: trio.Process
    _rest: bytes = b""

    async def line_with(self, word: str) -> str:
        """Return the next line of its stderr or stdout that contains a word; an end without it is a failure."""
        stream = self.process.stdout
        assert stream is not None, "it was given a pipe"
        with trio.fail_after(STEP_SECONDS):
            while True:
                line, newline, rest = self._rest.partition(b"\n")
                if newline:
                    self._rest = rest
                    if word in line.decode():
                        return line.decode()
                elif chunk := await stream.receive_some():
                    self._rest += chunk
                else:
                    raise RuntimeError(f"the program ended before it printed {word!r}")

    async def drain(self) -> None:
        """Read on, so that it never waits for us."""
        assert self.process.stdout is not None, "it was given a pipe"
        async for _ in self.process.stdout:
            self._rest = b""

    async def end(self, number: signal.Signals) -> None:
        """Signal it, and wait until it has ended."""
        self.process.send_signal(number)
        await self.process.wait()


async def start(folder: Path, *args: str, program: Sequence[str] = LLMKUBE) -> Program:
    """Start `llmkube ARGS`, or another program of Python, on a state directory of its own."""
    command = [sys.executable, *program, *args, "--state-dir", str(folder)]
    env = os.environ | {"KUBECONFIG": str(folder.parent / "server" / "kubeconfig")}
    process = await trio.lowlevel.open_process(
        command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    return Program(process)


@asynccontextmanager
async def open_program(
    folder: Path, *args: str, ready: str, program: Sequence[str] = LLMKUBE
) -> AsyncIterator[Program]:
    """Run a program for as long as the block; it begins when the program says that it is ready."""
    running = await start(folder, *args, program=program)
    try:
        await running.line_with(ready)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(running.drain)
            yield running
            nursery.cancel_scope.cancel(reason="measured")
    finally:
        with trio.move_on_after(STEP_SECONDS, shield=True):
            await running.end(signal.SIGTERM)


@asynccontextmanager
async def no_engine_left(folder: Path) -> AsyncIterator[None]:
    """End the engine of a killed agent, should the measurement break off between two agents."""
    try:
        yield
    finally:
        for process in find_marked(OWNER_VARIABLE, str(folder)):
            process.kill()


@attrs.define
class Count:
    """Results of the requests."""

    answered: int = 0
    lost: int = 0


async def ask(http: HttpClient, url: str, count: Count) -> None:
    """Ask an engine for ever, with a pause in which the machine can do something else."""
    while True:
        try:
            answer = await http.request("POST", f"{url}/v1/chat/completions", headers=JSON_BODY, body=QUESTION)
        except HttpError:
            count.lost += 1
        else:
            count.answered += answer.status == 200
            count.lost += answer.status != 200
        await trio.sleep(PAUSE_SECONDS)


async def kill_and_adopt(
    folder: Path, kills: int, count: Count, agent: Program
) -> tuple[Program, list[float], set[int]]:
    """Kill the agent so many times; return the last one, the seconds to each adoption, and the engines seen."""
    seconds, engines = [], set()
    for _ in range(kills):
        seen = count.answered
        while count.answered < seen + CLIENTS:  # noqa: ASYNC110 - under load, whenever it happens
            await trio.sleep(0.01)
        await agent.end(signal.SIGKILL)
        started_at = trio.current_time()
        agent = await start(folder, *AGENT)
        line = json.loads(await agent.line_with('"adopted inference service"'))
        await agent.line_with('"registered endpoint"')
        seconds.append(trio.current_time() - started_at)
        engines.add(line["pid"])
    return agent, seconds, engines


EVERYWHERE = ("--allow-from", "0.0.0.0/0")
AGENT = ("agent", "--accelerator", "cpu", "--host-name", "bench", "--port", "0", *EVERYWHERE)


async def measure(run: Run) -> None:
    """Bring everything up, kill and adopt, tell."""
    kills = 3 if run.quick else KILLS
    count = Count()
    with TemporaryDirectory(prefix="llmkube-bench-") as name:
        folder = Path(name)
        for part in ("server", "controller", "agent"):
            (folder / part).mkdir()
        async with (
            no_engine_left(folder / "agent"),
            open_program(folder / "server", "apiserver", "--port", "0", ready="Kubernetes API on"),
        ):
            control = ("controller", "--accelerator", "cpu")
            async with (
                open_program(folder / "controller", *control, ready='"controller started"'),
                open_client(load_config(folder / "server" / "kubeconfig", None)) as client,
                open_http_client() as http,
            ):
                agent = await start(folder / "agent", *AGENT)
                await agent.line_with('"agent started"')
                await Applier(client).apply_all(demo_manifests(), lambda _: None)
                place = json.loads(await agent.line_with('"registered endpoint"'))
                line = json.loads(await agent.line_with('"started inference service"'))
                async with trio.open_nursery() as clients:
                    for _ in range(CLIENTS):
                        clients.start_soon(ask, http, f"http://{place['hostIP']}:{place['port']}", count)
                    agent, seconds, engines = await kill_and_adopt(folder / "agent", kills, count, agent)
                    clients.cancel_scope.cancel(reason="measured")
                await agent.end(signal.SIGTERM)
    report_results(run, seconds, engines | {line["pid"]}, count)


def report_results(run: Run, seconds: list[float], engines: set[int], count: Count) -> None:
    """Hand the figures over."""
    p50, p99 = median(seconds), percentile(seconds, 99)
    row = [str(len(seconds)), str(count.answered), str(count.lost), str(len(engines)), f"{p50:.2f}", f"{p99:.2f}"]
    columns = ["kills", "requests answered", "requests lost", "engines", "adopted, p50 s", "adopted, p99 s"]
    run.finish(
        "Adoption: the agent is killed while its engine serves",
        __doc__ or "",
        [Table(columns, [row])],
        {"seconds": seconds, "answered": count.answered, "lost": count.lost},
        aims=[
            Aim("requests lost", "0", str(count.lost), met=count.lost == 0),
            Aim("engines started in all", "1", str(len(engines)), met=len(engines) == 1),
            Aim("adopted after exec, p99", "under 1 s", f"{p99:.2f} s", met=p99 < 1),
        ],
    )


def main() -> None:
    """Measure and print."""
    trio.run(measure, begin("adoption", "trio", "xllamacpp"))


if __name__ == "__main__":
    main()
