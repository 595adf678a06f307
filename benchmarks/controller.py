"""The controller against the same on kopf: 1,000 services at once, edits that change nothing, rest, a restart.

Each contender has an embedded API server of its own, in a process of its own, over plain HTTP, and is asked for the same:
a Deployment, a Service and a status for each InferenceService. It has converged when the last of the services has all
three, and the status speaks of the newest generation. Nothing runs the pods; that they answer is said by the stopwatch.
Requests are counted at the server. Processor time is the contender's own process: the server, one process on one core
too, takes longer over a write than either of them.
"""

import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import attrs
import httpx
import psutil
import trio

from counted_server import COUNTS, READY
from harness import Aim, Run, Table, begin, percentile
from llmkube.k8s.auth import load_config
from llmkube.k8s.builtins import Lease, Namespace, Service
from llmkube.k8s.client import Client, open_client
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.names import ACCELERATORS_ANNOTATION, HOST_LABEL
from llmkube.k8s.resource import Key
from llmkube.k8s.workloads import Deployment, PersistentVolumeClaim

HERE: Final = Path(__file__).resolve().parent
SERVICES: Final = 1000
ROUNDS: Final = int(os.environ.get('ROUNDS', 3))
WAKES: Final = int(os.environ.get('WAKES', 10))
CREATORS: Final = 8
REST_SECONDS: Final = float(os.environ.get('REST', 60.0))
LOOK_SECONDS: Final = 0.25
CALM_SECONDS: Final = 2.0
CALM_SHARE: Final = 0.05
"""Calm is who asks nothing and uses less than this share of a core for `CALM_SECONDS`."""

STEP_SECONDS: Final = 600.0  # a step that takes longer has gone wrong
OURS, KOPF = "llmkube", "kopf"
PINS: Final = ("kopf==1.45.2", "uvloop==0.23.0")
"""What the rival is made of; kopf takes uvloop by itself where it is installed, and its documentation advises it."""

RENEWAL: Final = "patch leases"
"""Whoever acts among several controllers says so again every few seconds, whatever happens."""

WRITES: Final = frozenset({"create", "update", "patch", "apply", "delete"})
NAMESPACE, SYSTEM, MODEL, CLAIM = "default", "llmkube-system", "phi", "weights"


@attrs.frozen
class Reading:
    """What a contender has used and asked for so far."""

    cpu_seconds: float
    server_cpu_seconds: float
    counts: Counter[str]


@attrs.frozen
class Spent:
    """What one step has cost a contender."""

    seconds: float
    cpu_seconds: float
    server_cpu_seconds: float
    requests: dict[str, int]
    reconciles: int = 0

    @property
    def writes(self) -> int:
        """How many requests were meant to change something."""
        return sum(count for name, count in self.requests.items() if name.partition(" ")[0] in WRITES and name != RENEWAL)


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
        """Start it; it is there when it watches the services, and calm."""
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
        times, answer = self.process.cpu_times(), (await self.http.get(COUNTS)).json()
        return Reading(times.user + times.system, answer["cpuSeconds"], Counter(answer["counts"]))

    async def reconciles(self) -> int:
        """Return how many services it has looked at, where it tells."""
        if not self.metrics_port:
            return 0
        text = (await self.http.get(f"http://127.0.0.1:{self.metrics_port}/metrics")).text
        lines = [line for line in text.splitlines() if line.startswith("llmkube_reconcile_total{")]
        return int(sum(float(line.split()[-1]) for line in lines if 'controller="inferenceservice"' in line))

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
    async def spending(self, found: dict[str, Spent], step: str) -> AsyncIterator[None]:
        """Note under `step` what the block costs, from its beginning until the contender is calm again."""
        before, looked, began = await self.read(), await self.reconciles(), trio.current_time()
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


# -- What is asked of them ----------------------------------------------------------------------------------------------


def body(kind: type[Any], name: str, **rest: Any) -> dict[str, Any]:
    """Return a manifest."""
    resource = kind.RESOURCE
    metadata = {"name": name, **({"namespace": NAMESPACE} if resource.namespaced else {})}
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **rest}


def names(count: int) -> list[str]:
    """Return the services' names."""
    return [f"s{number:04}" for number in range(count)]


async def prepare(client: Client) -> None:
    """Make what a service needs: a Model on a claim that is bound."""
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}}}
    await client.create(decode(PersistentVolumeClaim, body(PersistentVolumeClaim, CLAIM, spec=spec)))
    key, bound = Key(NAMESPACE, CLAIM), {"status": {"phase": "Bound"}}
    await client.patch(PersistentVolumeClaim, key, bound, subresource="status")
    source = {"source": f"pvc://{CLAIM}/model.gguf", "format": "gguf", "hardware": {"accelerator": "cuda"}}
    await client.create(decode(Model, body(Model, MODEL, spec=source)))


async def for_each(count: int, do: Callable[[str], Any]) -> None:
    """Call `do` with each service's name, several at a time."""
    left = iter(names(count))

    async def some() -> None:
        for name in left:
            await do(name)

    async with trio.open_nursery() as nursery:
        for _ in range(CREATORS):
            nursery.start_soon(some)


@attrs.define(eq=False)
class Progress:
    """What the server shows: when each service was created, what it lacks, and when it had everything."""

    created: dict[str, float] = attrs.field(factory=dict)
    lacking: dict[str, set[type]] = attrs.field(factory=dict)
    done: dict[str, float] = attrs.field(factory=dict)
    phases: Counter[str] = attrs.field(factory=Counter)
    changed: trio.Event = attrs.field(factory=trio.Event)
    _phase: dict[str, str] = attrs.field(factory=dict)

    def expect(self, name: str) -> None:
        """Say that a service is created now."""
        self.created[name] = trio.current_time()
        self.lacking[name] = {Deployment, Service, InferenceService}

    def saw(self, kind: type[Any], raw: Mapping[str, Any]) -> None:
        """Take in an object as it is now."""
        name = raw["metadata"]["name"]
        if kind is InferenceService:
            status = raw.get("status") or {}
            self._note_phase(name, status.get("phase", ""))
            generation = raw["metadata"]["generation"]
            if status.get("phase") not in {"Creating", "Ready"} or any(
                condition.get("observedGeneration") != generation for condition in status["conditions"]
            ):
                return
        lacking = self.lacking.get(name, set())
        if kind in lacking:
            lacking.discard(kind)
            if not lacking:
                self.done[name] = trio.current_time()
        self.changed.set()
        self.changed = trio.Event()

    def _note_phase(self, name: str, phase: str) -> None:
        self.phases[self._phase.get(name, "")] -= 1
        self.phases[phase] += 1
        self._phase[name] = phase

    async def wait(self, holds: Callable[[], bool]) -> None:
        """Return once something holds."""
        with trio.fail_after(STEP_SECONDS):
            while not holds():
                await self.changed.wait()


async def follow(client: Client, kind: type[Any], progress: Progress) -> None:
    """Never return: tell `progress` of every change."""
    position = (await client.list(kind, namespace=NAMESPACE)).resource_version
    while True:
        async with client.open_watch(kind, resource_version=position, namespace=NAMESPACE) as watch:
            while (event := await watch.next_event()) is not None:
                position = event.resource_version
                if event.type in {"ADDED", "MODIFIED"}:
                    progress.saw(kind, event.raw)


@attrs.define
class Measured:
    """What one round has found of one contender."""

    spent: dict[str, Spent] = attrs.field(factory=dict)
    converge_seconds: float = 0.0
    per_service_seconds: list[float] = attrs.field(factory=list)
    peak_bytes: int = 0
    rest_seconds: float = 0.0


async def try_out(contender: Contender, count: int, rest_seconds: float, *, ours: bool) -> Measured:
    """Take one contender through all steps."""
    client, measured, progress = contender.client, Measured(), Progress()
    spent = measured.spent
    await prepare(client)
    await contender.start()
    with trio.fail_after(STEP_SECONDS):
        while "watch inferenceservices" not in (await contender.read()).counts:  # noqa: ASYNC110 (another process)
            await trio.sleep(LOOK_SECONDS)
    await contender.wait_calm()

    async def create(name: str) -> None:
        progress.expect(name)
        spec = {"modelRef": MODEL, "replicas": 1, "contextSize": 8192}
        await client.request_json(
            "POST", InferenceService.RESOURCE.path(NAMESPACE), body=body(InferenceService, name, spec=spec)
        )

    async def run_pod(name: str) -> None:
        counts = {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1}
        await client.patch(Deployment, Key(NAMESPACE, name), {"status": counts}, subresource="status")

    async def edit(name: str) -> None:
        labels = {"metadata": {"labels": {"edited": "yes"}}}
        await client.request_json(
            "PATCH",
            InferenceService.RESOURCE.path(NAMESPACE, name),
            body=labels,
            content_type="application/merge-patch+json",
        )

    async with trio.open_nursery() as nursery:
        for kind in (InferenceService, Deployment, Service):
            nursery.start_soon(follow, client, kind, progress)
        await trio.sleep(1)  # the watches are open
        async with contender.spending(spent, "create"):
            began = trio.current_time()
            async with trio.open_nursery() as meanwhile:
                meanwhile.start_soon(sample, contender)
                await for_each(count, create)
                await progress.wait(lambda: len(progress.done) == count)
                meanwhile.cancel_scope.cancel(reason="converged")
        measured.converge_seconds = max(progress.done.values()) - began
        measured.per_service_seconds = [progress.done[name] - progress.created[name] for name in progress.created]
        if ours:
            async with contender.spending(spent, "pods answer"):
                await for_each(count, run_pod)
                await progress.wait(lambda: progress.phases["Ready"] == count)
        nursery.cancel_scope.cancel(reason="seen")
    async with contender.spending(spent, "edit a label"):
        await for_each(count, edit)
    before = await contender.read()
    await trio.sleep(rest_seconds)
    after, measured.rest_seconds = await contender.read(), rest_seconds
    spent["rest"] = Spent(
        rest_seconds,
        after.cpu_seconds - before.cpu_seconds,
        after.server_cpu_seconds - before.server_cpu_seconds,
        dict(after.counts - before.counts),
    )
    if ours:
        async with contender.spending(spent, "wake"):
            await wake(contender)
    measured.peak_bytes = contender.peak_bytes
    await contender.stop()
    spent["restart"] = await restart(contender)
    return measured


async def sample(contender: Contender) -> None:
    """Look again and again, so that the largest size is seen."""
    while True:
        await contender.read()
        await trio.sleep(LOOK_SECONDS)


async def wake(contender: Contender) -> None:
    """Have every service looked at again: a host comes, and goes, and none of them has anything to do with it."""
    client = contender.client
    lease = body(Lease, "bench-host", spec={"holderIdentity": "bench", "leaseDurationSeconds": 3600})
    lease["metadata"] |= {
        "namespace": SYSTEM,
        "labels": {HOST_LABEL: "bench"},
        "annotations": {ACCELERATORS_ANNOTATION: "metal"},
    }
    for number in range(WAKES):
        if number % 2:
            await client.delete(Lease, Key(SYSTEM, "bench-host"))
        else:
            await client.create(decode(Lease, lease))
        await contender.wait_calm()


async def restart(contender: Contender) -> Spent:
    """Return what a new process costs until it has looked at everything that there is."""
    counts = Counter((await contender.http.get(COUNTS)).json()["counts"])
    server = (await contender.http.get(COUNTS)).json()["cpuSeconds"]
    began = trio.current_time()
    await contender.start()
    with trio.fail_after(STEP_SECONDS):
        while "watch inferenceservices" not in (await contender.read()).counts - counts:  # noqa: ASYNC110
            await trio.sleep(LOOK_SECONDS)
    calm = await contender.wait_calm()
    now = await contender.read()
    return Spent(
        calm - began,
        now.cpu_seconds,
        now.server_cpu_seconds - server,
        dict(now.counts - counts),
        await contender.reconciles(),
    )


# -- Who they are --------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def open_contender(folder: Path, argv: list[str], metrics_port: int) -> AsyncIterator[Contender]:
    """Bring up a server for a contender that is not started yet."""
    folder.mkdir(mode=0o700)
    command = [sys.executable, str(HERE / "counted_server.py"), str(folder)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None, "it was given a pipe"
        if server.stdout.readline().strip() != READY:
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
        server.communicate()


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


def free_port() -> int:
    """Return a port that nobody has at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# -- What is told --------------------------------------------------------------------------------------------------------


async def measure(run: Run, kopf: Path | None) -> dict[str, list[Measured]]:
    """Take the contenders through all steps, in turns."""
    rounds, count, rest_seconds = (1, 30, 5.0) if run.quick else (ROUNDS, SERVICES, REST_SECONDS)
    found: dict[str, list[Measured]] = {OURS: [], **({KOPF: []} if kopf else {})}
    found={k: v for k, v in found.items() if k in os.environ.get('ONLY', 'llmkube kopf')}
    rng = run.rng
    for _ in range(rounds):
        for name in rng.sample(list(found), len(found)):
            print(f"{name} …", file=sys.stderr, flush=True)
            with TemporaryDirectory(prefix="llmkube-bench-") as base:
                folder, port = Path(base) / "server", free_port() if name == OURS else 0
                argv = our_argv(folder, port) if name == OURS else kopf_argv(kopf or Path())
                async with open_contender(folder, argv, port) as contender:
                    found[name].append(await try_out(contender, count, rest_seconds, ours=name == OURS))
                os.system(f"cp {folder}/contender.log /tmp/w/ctlbench/{name}.log")
            print(f"{name}: {attrs.asdict(found[name][-1])['spent']}", file=sys.stderr, flush=True)
    return found


def main() -> None:
    """Measure, print, keep."""
    run = begin("controller", "trio", "httpx")
    kopf, why = install_kopf()
    found = trio.run(partial(measure, run, kopf))
    print({name: [(m.converge_seconds, m.peak_bytes / 2**20, percentile(m.per_service_seconds, 50)) for m in ms] for name, ms in found.items()})


if __name__ == "__main__":
    main()
