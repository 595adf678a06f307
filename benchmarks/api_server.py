"""Throughput of one client of the embedded API server, in this process and over https, and of a real one.

The real one is a kube-apiserver with its etcd, if `make envtest` has built it. All of them run at once and take turns;
the client is ours and costs the same everywhere, so ratios are smaller than those of the servers alone.
"""

import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import attrs
import httpx
import structlog
import trio

from harness import Run, Table, begin, median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from envtest.build import ESSENTIAL, assets_dir
from envtest.plane import open_control_plane
from go_programs import missing
from llmkube.apiserver.memory_transport import open_transport
from llmkube.apiserver.server import open_api_server
from llmkube.k8s.auth.kubeconfig import load_config
from llmkube.k8s.builtins import ConfigMap
from llmkube.k8s.client import Client, open_client
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.definitions import all_crds
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.resource import Key

ROUNDS, BATCH, WRITERS, FILLED = 5, 100, 8, 1000
NAMESPACE: Final = "default"
API_VERSION = InferenceService.RESOURCE.api_version
IN_PROCESS, OVER_HTTPS, REAL = "embedded, in process", "embedded, https", "kube-apiserver and etcd"


def manifest(name: str, **fields: Any) -> dict[str, Any]:
    """Return an InferenceService as plain data."""
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": API_VERSION, "kind": "InferenceService", "metadata": metadata, **fields}


def status(name: str, number: int) -> dict[str, Any]:
    """Return a status as the agent applies it."""
    conditions = [
        {
            "type": kind,
            "status": "True",
            "reason": "Benchmark",
            "message": f"number {number}",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        for kind in ("Accepted", "SpecHonoured", "Loaded")
    ]
    return manifest(name, status={"schedulingMessage": f"number {number}", "conditions": conditions})


@attrs.define(eq=False)
class Contender:
    """A server under load: one client, and a number that makes names unique."""

    client: Client
    made: int = 0

    async def create(self, count: int) -> None:
        """Create services, one after the other."""
        for _ in range(count):
            self.made += 1
            await self.client.create(decode(InferenceService, manifest(f"made-{self.made}", spec={"modelRef": "m"})))

    async def apply(self, count: int) -> None:
        """Apply the status of one service again and again."""
        for number in range(count):
            self.made += 1
            await self._apply_one("filled-0", self.made + number)

    async def apply_together(self, count: int) -> None:
        """Apply statuses of several services at a time."""
        self.made += count

        async def write(name: str) -> None:
            for number in range(count // WRITERS):
                await self._apply_one(name, self.made + number)

        async with trio.open_nursery() as nursery:
            for writer in range(WRITERS):
                nursery.start_soon(write, f"filled-{writer + 1}")

    async def _apply_one(self, name: str, number: int) -> None:
        await self.client.apply(InferenceService, status(name, number), field_manager="benchmark", subresource="status")

    async def get(self, count: int) -> None:
        """Read one service."""
        for number in range(count):
            await self.client.get(InferenceService, Key(NAMESPACE, f"filled-{number}"))

    async def list_all(self, count: int) -> None:
        """List all ConfigMaps, again and again."""
        for _ in range(max(1, count // 50)):
            await self.client.list(ConfigMap, namespace=NAMESPACE, label_selector="filled=yes")

    async def watch(self, count: int) -> None:
        """Change a service and wait for the event of the watch."""
        listing = await self.client.list(InferenceService, namespace=NAMESPACE, label_selector="watched=yes")
        name = "watched"
        async with self.client.open_watch(
            InferenceService,
            namespace=NAMESPACE,
            resource_version=listing.resource_version,
            label_selector="watched=yes",
        ) as watch:
            for _ in range(count):
                self.made += 1
                await self._apply_one(name, self.made)
                await watch.next_event()

    async def fill(self) -> None:
        """Make what the others read."""
        for number in range(BATCH):
            body = manifest(f"filled-{number}", spec={"modelRef": "m"})
            await self.client.create(decode(InferenceService, body))
        body = manifest("watched", spec={"modelRef": "m"})
        body["metadata"]["labels"] = {"watched": "yes"}
        await self.client.create(decode(InferenceService, body))
        for number in range(FILLED):
            metadata = {"name": f"filled-{number}", "namespace": NAMESPACE, "labels": {"filled": "yes"}}
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"key": "value " * 20}}
            await self.client.create(decode(ConfigMap, body))


Work = Callable[[Contender, int], Awaitable[None]]
WORKS: dict[str, tuple[Work, float]] = {
    "create": (Contender.create, 1),
    "apply a status": (Contender.apply, 1),
    f"apply statuses, {WRITERS} at a time": (Contender.apply_together, 1),
    "get": (Contender.get, 1),
    f"list {FILLED} ConfigMaps": (Contender.list_all, 1 / 50),
    "apply a status, then see it in a watch": (Contender.watch, 1),
}
"""The measured operations, and their number in one unit of a batch."""


@contextmanager
def embedded_process(folder: Path) -> Iterator[Path]:
    """Run `llmkube apiserver`; yield its kubeconfig."""
    program = Path(sys.executable).with_name("llmkube")
    argv = [str(program), "apiserver", "--state-dir", str(folder), "--port", "0", "--log-level", "warning"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        while line := process.stdout.readline():
            if "KUBECONFIG=" in line:
                break
        yield folder / "kubeconfig"
    finally:
        process.terminate()
        process.communicate()


@asynccontextmanager
async def open_contenders(folder: Path) -> AsyncIterator[dict[str, Contender]]:
    """Bring up every server that there is, with our kinds in it."""
    async with AsyncExitStack() as stack:
        state = folder / "own"
        state.mkdir(mode=0o700)
        running = await stack.enter_async_context(open_api_server(state, port=0))
        await running.server.ensure(all_crds())
        transport = await stack.enter_async_context(open_transport(running.handler))
        http = httpx.AsyncClient(transport=transport, base_url="http://apiserver", timeout=None)  # noqa: S113 (callers')
        found = {IN_PROCESS: Contender(Client(await stack.enter_async_context(http)))}
        kubeconfig = stack.enter_context(embedded_process(folder / "other"))
        client = await stack.enter_async_context(open_client(load_config(kubeconfig)))
        found[OVER_HTTPS] = Contender(client)
        assets = assets_dir(os.environ)
        if not missing(assets, ESSENTIAL):
            plane = await stack.enter_async_context(open_control_plane(assets, folder / "real"))
            client = await stack.enter_async_context(open_client(load_config(plane.kubeconfig)))
            for body in all_crds():
                path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
                await client.request_json("POST", path, body=body)
            await trio.sleep(3)  # until the new paths are served
            found[REAL] = Contender(client)
        yield found


async def measure(run: Run) -> dict[str, dict[str, list[float]]]:
    """Return operations per second, by work and contender, one figure per round."""
    rounds, batch = (1, 50) if run.quick else (ROUNDS, BATCH)
    with TemporaryDirectory(prefix="llmkube-bench-") as name:
        async with open_contenders(Path(name)) as contenders:
            for contender in contenders.values():
                await contender.fill()
            samples: dict[str, dict[str, list[float]]] = {work: {who: [] for who in contenders} for work in WORKS}
            rng = run.rng
            for _ in range(rounds):
                for work, (do, share) in WORKS.items():
                    for who in rng.sample(list(contenders), len(contenders)):
                        started = time.perf_counter()
                        await do(contenders[who], batch)
                        samples[work][who].append(max(1, batch * share) / (time.perf_counter() - started))
            return samples


def main() -> None:
    """Measure, print, keep."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    run = begin("api_server", "httpx", "httptools")
    samples = trio.run(measure, run)
    rows = []
    for work, found in samples.items():
        medians = {who: median(values) for who, values in found.items()}
        ours = medians[OVER_HTTPS]
        real = [f"{medians[REAL]:.0f}", f"{ours / medians[REAL]:.2f}"] if REAL in medians else ["not built", ""]
        rows.append([work, f"{medians[IN_PROCESS]:.0f}", f"{ours:.0f}", *real])
    run.finish(
        "The embedded API server",
        f"""Operations per second of one client, the median of {len(samples["get"][OVER_HTTPS])} rounds. The
        embedded server has every write on the disk before it answers; the real one's etcd runs without fsync, as the
        tests start it. The Python client is part of each figure.""",
        [Table(["per second", IN_PROCESS, OVER_HTTPS, REAL, "https / real"], rows)],
        {"per_second": samples},
        notes=["The embedded server is for one machine, some hundred objects and one core; a real one uses all cores."],
    )


if __name__ == "__main__":
    main()
