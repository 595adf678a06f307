"""A contender is a controller's process with an API server of its own; what it asks for and uses can be read off."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import attrs
import httpx
import psutil
import trio

from counted_server import COUNTS, READY
from llmkube.k8s.auth.kubeconfig import load_config
from llmkube.k8s.client import Client, open_client

HERE: Final = Path(__file__).resolve().parent
LOOK_SECONDS: Final = 0.25
CALM_SECONDS: Final = 2.0
CALM_SHARE: Final = 0.05
"""Calm is who asks nothing and uses less than this share of a core for `CALM_SECONDS`."""

STEP_SECONDS: Final = 600.0  # a step that takes longer has gone wrong
KOPF_PIN: Final = "kopf==1.45.2"
PINS: Final = (KOPF_PIN, "uvloop==0.23.0")
"""Packages of the rival; kopf uses uvloop by itself where it is installed, and its documentation advises it."""

RENEWAL: Final = "patch leases"
"""The leader of several controllers renews its Lease every few seconds in any case."""

WRITES: Final = frozenset({"create", "update", "patch", "apply", "delete"})


@attrs.frozen
class Reading:
    """Resources and requests of a contender so far."""

    cpu_seconds: float
    server_cpu_seconds: float
    counts: Counter[str]


@attrs.frozen
class Spent:
    """Cost of one step for a contender."""

    seconds: float
    cpu_seconds: float
    server_cpu_seconds: float
    requests: dict[str, int]
    reconciles: int = 0

    @property
    def writes(self) -> int:
        """Number of writing requests."""
        asked = ((name.partition(" ")[0], count) for name, count in self.requests.items() if name != RENEWAL)
        return sum(count for verb, count in asked if verb in WRITES)


@attrs.define(eq=False)
class Contender:
    """A controller's process, the server that it talks to, and the largest that it has been seen."""

    argv: list[str]
    folder: Path
    client: Client
    http: httpx.AsyncClient
    metrics_port: int = 0
    process: psutil.Popen | None = None
    peak_bytes: int = 0

    async def start(self) -> None:
        """Start it; `wait_watching` tells when it is there."""
        env = os.environ | {"KUBECONFIG": str(self.folder / "contender")}
        with (self.folder / "contender.log").open("ab") as log:
            self.process = psutil.Popen(self.argv, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    async def stop(self) -> None:
        """Ask it to end, and wait for that; its memory is counted from zero the next time."""
        process, self.process = self.process, None
        if process is not None:
            process.send_signal(signal.SIGINT)
            if await trio.to_thread.run_sync(_ended_within, process, 30.0):
                return
            process.kill()
            process.wait()

    async def read(self) -> Reading:
        """Look at the process and at the server's counts."""
        assert self.process is not None, "it was started"
        if self.process.poll() is not None:
            tail = (self.folder / "contender.log").read_text("utf-8", "replace")[-2000:]
            raise RuntimeError(f"{self.argv[0]} has ended with {self.process.returncode}: {tail}")
        self.peak_bytes = max(self.peak_bytes, self.process.memory_info().rss)
        times, server = self.process.cpu_times(), await self.read_server()
        return attrs.evolve(server, cpu_seconds=times.user + times.system)

    async def read_server(self) -> Reading:
        """Read what there is without a process."""
        answer = (await self.http.get(COUNTS)).json()
        return Reading(0.0, answer["cpuSeconds"], Counter(answer["counts"]))

    async def reconciles(self) -> int:
        """Return how many services it has looked at; 0 if it has no metrics."""
        if not self.metrics_port:
            return 0
        text = (await self.http.get(f"http://127.0.0.1:{self.metrics_port}/metrics")).text
        lines = [line for line in text.splitlines() if line.startswith("llmkube_reconcile_total{")]
        return int(sum(float(line.split()[-1]) for line in lines if 'controller="inferenceservice"' in line))

    async def wait_watching(self, before: Counter[str]) -> None:
        """Return once it has begun to watch the services."""
        with trio.fail_after(STEP_SECONDS):
            while "watch inferenceservices" not in (await self.read()).counts - before:  # noqa: ASYNC110 (another process)
                await trio.sleep(LOOK_SECONDS)

    async def wait_calm(self) -> float:
        """Return the moment since which it has had nothing to do."""
        with trio.fail_after(STEP_SECONDS):
            since, before = trio.current_time(), await self.read()
            while trio.current_time() - since < CALM_SECONDS:
                await trio.sleep(LOOK_SECONDS)
                now = await self.read()
                busy = now.cpu_seconds - before.cpu_seconds > CALM_SHARE * (trio.current_time() - since) + 0.01
                if busy or now.counts - before.counts - Counter({RENEWAL: 1}):
                    since, before = trio.current_time(), now
            return since

    @asynccontextmanager
    async def measure_step(self, found: dict[str, Spent], step: str) -> AsyncIterator[None]:
        """Note under `step` what the block costs, from its beginning until the contender is calm again."""
        looked = await self.reconciles()  # outside of what is measured: it is a scrape of a thousand services
        before, began = await self.read(), trio.current_time()
        yield
        calm = await self.wait_calm()
        now = await self.read()
        found[step] = Spent(
            seconds=calm - began,
            cpu_seconds=now.cpu_seconds - before.cpu_seconds,
            server_cpu_seconds=now.server_cpu_seconds - before.server_cpu_seconds,
            requests=dict(now.counts - before.counts),
            reconciles=await self.reconciles() - looked,
        )


def _ended_within(process: psutil.Popen, seconds: float) -> bool:
    try:
        process.wait(seconds)
    except psutil.TimeoutExpired:
        return False
    return True


@asynccontextmanager
async def open_contender(folder: Path, argv: list[str], metrics_port: int) -> AsyncIterator[Contender]:
    """Bring up a server for a contender that is not started yet."""
    folder.mkdir(mode=0o700)
    command = [sys.executable, str(HERE / "counted_server.py"), str(folder)]
    server = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None, "it was given a pipe"
        with trio.fail_after(STEP_SECONDS):
            announced = await server.stdout.receive_some()
        if announced.decode().strip() != READY:
            raise RuntimeError("the API server did not start")
        config = load_config(folder / "stopwatch")
        async with (
            open_client(config) as client,
            httpx.AsyncClient(base_url=config.server, timeout=60) as http,
        ):
            contender = Contender(argv, folder, client, http, metrics_port)
            try:
                yield contender
            finally:
                with trio.CancelScope(deadline=trio.current_time() + 60, shield=True):
                    await contender.stop()
    finally:
        server.terminate()
        with trio.CancelScope(deadline=trio.current_time() + 60, shield=True):
            await server.wait()


def our_argv(folder: Path, port: int) -> list[str]:
    """Return the command line of the project's controller."""
    program = str(Path(sys.executable).with_name("llmkube"))
    options = ["--image", "bench/llmkube:1", "--port", str(port), "--state-dir", str(folder), "--log-level", "warning"]
    return [program, "controller", *options]


def kopf_argv(python: Path) -> list[str]:
    """Return the command line of the rival."""
    options = ["--standalone", "--all-namespaces", "--quiet"]
    return [str(python), "-m", "kopf", "run", *options, str(HERE / "kopf_operator.py")]


def install_kopf() -> tuple[Path | None, str]:
    """Return the Python of an environment that has kopf, or None and why there is none."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(base).expanduser() / "llmkube" / "benchmarks" / "-".join(PINS).replace("==", "-")
    python = folder / "bin" / "python"
    probe = [str(python), "-c", "import kopf, uvloop"]
    if python.exists() and not subprocess.run(probe, check=False, capture_output=True).returncode:
        return python, ""
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", *PINS],
    ):
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            why = (done.stderr or done.stdout).strip().splitlines()
            return None, why[-1] if why else f"{command[0]} failed"
    return python, ""
