"""The controller compared with a kopf operator: 1,000 services at once, edits without effect, idle time, a restart.

Each contender has its own embedded API server, in a separate process, and has the same task: a Deployment, a Service
and a status for each InferenceService. It has converged when the last service has all three, and the status is of the
newest generation. No pods run; the benchmark sets them to ready. Requests are counted at the server. Processor time is
that of the contender's own process; the server's is listed separately.
"""

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import attrs
import trio

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from contender import (
    KOPF_PIN,
    LOOK_SECONDS,
    STEP_SECONDS,
    Contender,
    Spent,
    install_kopf,
    kopf_argv,
    open_contender,
    our_argv,
)
from free_ports import free_port
from harness import Aim, Run, Table, begin, median, percentile
from llmkube.k8s.builtins import Lease, Service
from llmkube.k8s.client import Client
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import ACCELERATORS_ANNOTATION, HOST_LABEL
from llmkube.k8s.workloads import Deployment, PersistentVolumeClaim

SERVICES: Final = 1000
QUICK_SERVICES: Final = 30
ROUNDS: Final = 1
WAKES: Final = 10
CREATORS: Final = 8
REST_SECONDS: Final = 60.0
OURS, KOPF = "llmkube", "kopf"
NAMESPACE, SYSTEM, MODEL, CLAIM = "default", "llmkube-system", "phi", "weights"


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
    """Progress at the server: when each service was created, which objects it lacks, and when it had all."""

    created: dict[str, float] = attrs.field(factory=dict)
    lacking: dict[str, set[type]] = attrs.field(factory=dict)
    done: dict[str, float] = attrs.field(factory=dict)
    phases: Counter[str] = attrs.field(factory=Counter)
    changed: trio.Event = attrs.field(factory=trio.Event)
    _phase: dict[str, str] = attrs.field(factory=dict)

    def expect(self, name: str) -> None:
        """Record that a service is created now."""
        self.created[name] = trio.current_time()
        self.lacking[name] = {Deployment, Service, InferenceService}

    def saw(self, kind: type[Any], raw: Mapping[str, Any]) -> None:
        """Record the current state of an object."""
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
        """Wait until the condition holds."""
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
    """Measurements of one contender in one round."""

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
    await contender.wait_watching(Counter())
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
        async with contender.measure_step(spent, "create"):
            began = trio.current_time()
            async with trio.open_nursery() as meanwhile:
                meanwhile.start_soon(sample, contender)
                await for_each(count, create)
                await progress.wait(lambda: len(progress.done) == count)
                meanwhile.cancel_scope.cancel(reason="converged")
        measured.converge_seconds = max(progress.done.values()) - began
        measured.per_service_seconds = [progress.done[name] - progress.created[name] for name in progress.created]
        if ours:
            async with contender.measure_step(spent, "pods answer"):
                await for_each(count, run_pod)
                await progress.wait(lambda: progress.phases["Ready"] == count)
        nursery.cancel_scope.cancel(reason="seen")
    async with contender.measure_step(spent, "edit a label"):
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
        async with contender.measure_step(spent, "wake"):
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
    """Cause a reconcile of every service: a host unrelated to them is added and removed."""
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
    before, began = await contender.read_server(), trio.current_time()
    await contender.start()
    await contender.wait_watching(before.counts)
    calm = await contender.wait_calm()
    now = await contender.read()
    return Spent(
        calm - began,
        now.cpu_seconds,
        now.server_cpu_seconds - before.server_cpu_seconds,
        dict(now.counts - before.counts),
        await contender.reconciles(),
    )


async def measure(run: Run, kopf: Path | None) -> dict[str, list[Measured]]:
    """Take the contenders through all steps, in turns."""
    rounds, count, rest_seconds = (1, QUICK_SERVICES, 5.0) if run.quick else (ROUNDS, SERVICES, REST_SECONDS)
    found: dict[str, list[Measured]] = {OURS: [], **({KOPF: []} if kopf else {})}
    rng = run.rng
    for _ in range(rounds):
        for name in rng.sample(list(found), len(found)):
            print(f"{name} …", file=sys.stderr, flush=True)
            with TemporaryDirectory(prefix="llmkube-bench-") as base:
                folder, port = Path(base) / "server", free_port() if name == OURS else 0
                argv = our_argv(folder, port) if name == OURS else kopf_argv(kopf or Path())
                async with open_contender(folder, argv, port) as contender:
                    found[name].append(await try_out(contender, count, rest_seconds, ours=name == OURS))
    return found


@attrs.frozen
class Figures:
    """The medians of one contender's rounds."""

    rounds: list[Measured]

    def of(self, read: Callable[[Measured], float]) -> float:
        """Return the median of something."""
        return median([read(one) for one in self.rounds])

    def cpu_ms(self, step: str, count: int) -> float:
        """Processor time of the contender in a step, for each of so many services."""
        return self.of(lambda one: 1000 * one.spent[step].cpu_seconds / count)

    def requests(self, step: str, count: int) -> dict[str, float]:
        """Requests per service in a step, by verb and resource; the renewals of its Lease and what is rare left out."""
        found = self.rounds[-1].spent[step].requests
        return {name: number / count for name, number in sorted(found.items()) if number / count >= 0.005}

    def all_requests(self, steps: Sequence[str], count: int) -> float:
        """All requests per service in some steps, the rare ones included."""
        return self.of(lambda one: sum(sum(one.spent[step].requests.values()) for step in steps) / count)

    def writes(self, step: str) -> int:
        """The most writes of a round in a step."""
        return max(one.spent[step].writes for one in self.rounds)


def convergence(figures: Mapping[str, Figures], count: int) -> Table:
    """Return the table of services that are created at once."""
    lines: dict[str, Callable[[Figures], str]] = {
        "all have converged after, s": lambda one: f"{one.of(lambda m: m.converge_seconds):.1f}",
        "one service, p50, s": lambda one: f"{one.of(lambda m: percentile(m.per_service_seconds, 50)):.2f}",
        "one service, p99, s": lambda one: f"{one.of(lambda m: percentile(m.per_service_seconds, 99)):.2f}",
        "processor, ms per service": lambda one: f"{one.cpu_ms('create', count):.2f}",
        "the server's processor, ms per service": lambda one: (
            f"{one.of(lambda m: 1000 * m.spent['create'].server_cpu_seconds / count):.2f}"
        ),
        "API requests per service": lambda one: f"{one.all_requests(['create'], count):.2f}",
        "largest memory, MiB": lambda one: f"{one.of(lambda m: m.peak_bytes / 2**20):.0f}",
    }
    rows = [[what, *(read(one) for one in figures.values())] for what, read in lines.items()]
    return Table([f"{count} services", *figures], rows, "Created at once:")


def asked(figures: Mapping[str, Figures], count: int) -> Table:
    """Return the table of requests by verb and resource."""
    columns = {f"{name}, until converged": one.requests("create", count) for name, one in figures.items()}
    columns[f"{OURS}, until the pods answer"] = figures[OURS].requests("pods answer", count)
    kinds = sorted({kind for column in columns.values() for kind in column})
    rows = [[kind, *(f"{column.get(kind, 0):.2f}" for column in columns.values())] for kind in kinds]
    return Table(["requests per service", *columns], rows, "Requests to the API server:")


def quiet(figures: Mapping[str, Figures], count: int) -> Table:
    """Return the table of the steps without changes."""
    rows = []
    for step, words in (
        ("edit a label", "one label edited on each"),
        ("wake", f"all looked at again, {WAKES} times"),
        ("restart", "the program is started again"),
        ("rest", f"nothing, for {figures[OURS].rounds[0].rest_seconds:.0f} s"),
    ):
        for name, one in figures.items():
            if step in one.rounds[0].spent:
                times = count * (WAKES if step == "wake" else 1)
                cpu = one.cpu_ms(step, times)
                each = [f"{cpu:.2f}", f"{1000 / cpu:.0f}"] if step != "rest" else ["", ""]
                rows.append([f"{words}: {name}", *each, str(one.writes(step))])
    columns = ["nothing to do", "processor, ms per service", "services per processor second", "writes"]
    return Table(columns, rows, "When nothing has to change:")


def aims_of(figures: Mapping[str, Figures], count: int) -> list[Aim]:
    """Return what was wanted."""
    ours, rival = figures[OURS], figures.get(KOPF)
    asked_for = ours.all_requests(["create", "pods answer"], count)
    at_rest = ours.writes("rest")
    aims = [
        Aim("API requests per service until its pods answer", "at most 8", f"{asked_for:.2f}", asked_for <= 8),
        Aim("writes at rest", "0", str(at_rest), not at_rest),
    ]
    if rival is None:
        return aims
    ratios = {
        "no-op edits per processor second, times kopf's": (
            rival.cpu_ms("edit a label", count) / ours.cpu_ms("edit a label", count)
        ),
        "new services per processor second, times kopf's": (
            rival.cpu_ms("create", count) / ours.cpu_ms("create", count)
        ),
        "new services per second, times kopf's": (
            rival.of(lambda one: one.converge_seconds) / ours.of(lambda one: one.converge_seconds)
        ),
    }
    return [*aims, *(Aim(what, "5", f"{ratio:.2f}", ratio >= 5) for what, ratio in ratios.items())]


NOTES: Final = (
    """The kopf operator does the least possible work: two applies over one pooled aiohttp session, on uvloop, with
    its own storage in annotations, without peering and without Events (its default). It does not wait for the Model,
    compares nothing, and does not watch its Deployments. So only LLMKube has the step in which pods answer, and the
    reconcile of all services (when a host is added or removed), for which kopf has no counterpart.""",
    """Of kopf's requests, one patch per service stores its state in an annotation; kopf writes it again after each
    edit of a label, although no handler uses labels. LLMKube detects such an edit in the watch, and does not
    reconcile, because no reconcile reads labels. The cost of a reconcile that changes nothing is shown by the
    reconcile of all services. A restart applies everything again.""",
    """A restart includes the start of the interpreter and all imports.""",
    """A new service costs three writes with LLMKube, and four with kopf; kopf was not profiled. The server's share
    includes the requests of the measurement.""",
)


def main() -> None:
    """Measure, print, keep."""
    run = begin("controller", "trio", "httpx")
    kopf, why = install_kopf()
    found = trio.run(measure, run, kopf)
    count = QUICK_SERVICES if run.quick else SERVICES
    figures = {name: Figures(rounds) for name, rounds in found.items()}
    missing = () if kopf else (f"There is nothing to compare with: {KOPF_PIN} could not be installed ({why}).",)
    run.finish(
        "The controller, a thousand services at once",
        __doc__ or "",
        [convergence(figures, count), asked(figures, count), quiet(figures, count)],
        {name: [attrs.asdict(one) for one in rounds] for name, rounds in found.items()},
        aims=aims_of(figures, count),
        notes=[*missing, *(" ".join(note.split()) for note in (NOTES if kopf else NOTES[2:3]))],
    )


if __name__ == "__main__":
    main()
