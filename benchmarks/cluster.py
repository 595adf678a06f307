"""Requests from a pod to a Mac, the time to the first token, and an idle controller, on a real node (`make node`).

kubelet, containerd, kube-proxy, CoreDNS and two hosts on the node's network that represent Macs, all on this machine:
client, proxies and engines share its cores. The client is a Python program in a pod of LLMKube's image. One host has an
agent with `--allow-from`: its proxy, the filter, is in front of the engine. The other has one with `--insecure-lan`,
whose engine listens itself; "raw sockets" is a proxy in Trio that parses nothing, the lower limit for one in Python.
Contenders take turns. An engine that answers at once shows the cost of the path alone, llama.cpp with the demo model
the cost for a real answer.
"""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import attrs
import trio

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from go_programs import pinned_version
from harness import Aim, Run, Table, begin, median
from http_load.processes import launch
from http_load.up_program import write_engines
from node.build import MODULES
from node.machines import Agent, slices
from node.objects import make_namespace, pod
from node.release import opened
from node.running_node import Node, line_of
from node.services import API, model, read, service, wait
from node.session import opened_node
from node.wiring import MACHINES

HERE: Final = Path(__file__).parent
ROUNDS, SECONDS, TOKENS, TRIALS = 3, 1.0, 64, 3
SERVICES, RUNNING, SETTLE_SECONDS, REST_SECONDS = 100, 3, 10.0, 45.0
STEP_SECONDS: Final = 600.0
CONTROLLER: Final = "system:serviceaccount:llmkube-system:llmkube-controller"

ENGINE, SERVICE, RAW, FILTER, FILTERED = "engine", "service", "raw", "filter", "filtered"
NAMES: Final[Mapping[str, str]] = {
    ENGINE: "pod → engine",
    SERVICE: "pod → Service → engine",
    RAW: "pod → raw sockets → engine",
    FILTER: "pod → filter → engine",
    FILTERED: "pod → Service → filter → engine",
}
SCRIPTED, LLAMA = "an engine that answers at once", "llama.cpp, demo model"
CONNECTIONS: Final[Mapping[str, tuple[int, ...]]] = {SCRIPTED: (1, 16), LLAMA: (1, 4)}

ASK_FIRST: Final = """
import json, sys, time, urllib.request
body = {"stream": True, "max_tokens": 4, "messages": [{"role": "user", "content": "What is LLMKube?"}]}
request = urllib.request.Request(sys.argv[1] + "/v1/chat/completions", json.dumps(body).encode(),
                                 {"Content-Type": "application/json"})
while True:
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            for line in answer:
                if line.startswith(b"data: ") and b'"content":"' in line:
                    print(time.monotonic())
                    sys.exit()
    except OSError:
        time.sleep(0.02)
"""
"""Asks until there is a token, and prints the moment by the clock that all processes of a machine share."""


@attrs.define(eq=False)
class Results:
    """All samples: turns of the client by engine, seconds to the first token by place, the controller at rest."""

    turns: dict[str, list[dict[str, Any]]] = attrs.field(factory=dict)
    first: dict[str, list[float]] = attrs.field(factory=dict)
    rest: dict[str, float] = attrs.field(factory=dict)


def on_host(name: str, **spec: Any) -> list[Mapping[str, Any]]:
    """Return a Model for Macs, and a service of it."""
    engine = {"modelRef": name, "contextSize": 1024, "parallelSlots": 4, "extraArgs": ["--threads=1"], **spec}
    metadata = {"name": name}
    made = {"apiVersion": API, "kind": "InferenceService", "metadata": metadata, "spec": engine}
    return [model(name, hardware={"accelerator": "metal"}), made]


async def endpoint(node: Node, namespace: str, machine: str) -> str:
    """Return the URL of what a machine publishes for the service `demo`, once it is ready."""
    with trio.fail_after(STEP_SECONDS):
        while (MACHINES[machine], True) not in await slices(node, namespace, "demo"):  # noqa: ASYNC110 (another process)
            await trio.sleep(0.2)
    found = await read(node, namespace, "endpointslices -l kubernetes.io/service-name=demo")
    return f"http://{MACHINES[machine]}:{found['items'][0]['ports'][0]['port']}"


async def measure_path(node: Node, run: Run, engine: str, program: Sequence[str]) -> list[dict[str, Any]]:
    """Return the turns of every contender with one engine."""
    rounds, seconds = (1, 0.5) if run.quick else (ROUNDS, SECONDS)
    async with AsyncExitStack() as stack:
        namespaces = {machine: await make_namespace(node) for machine in MACHINES}
        for machine, namespace in namespaces.items():
            agent = Agent(node, machine, namespace)
            await agent.join()
            open_lan = () if machine == "mac" else ("--insecure-lan",)
            await stack.enter_async_context(agent.running(*open_lan, *program))
            await node.apply(namespace, *on_host("demo"))
        here, there = namespaces.values()
        await node.apply(here, pod("client", ("sleep", "3600")))
        await wait(node, here, "pod/client", "condition=Ready")
        behind, bare = [await endpoint(node, namespace, machine) for machine, namespace in namespaces.items()]
        raw = (sys.executable, str(HERE / "http_load" / "contenders.py"), "raw", bare.rpartition(":")[2])
        command = node.inside(*raw, MACHINES["mac2"], machine="mac2")
        _, raw_port = await launch(stack, command, prints_port=True)
        urls = {ENGINE: bare, SERVICE: f"http://demo.{there}:8080", RAW: f"http://{MACHINES['mac2']}:{raw_port}",
                FILTER: behind, FILTERED: "http://demo:8080"}  # fmt: skip
        body = {"max_tokens": TOKENS, "temperature": 0, "messages": [{"role": "user", "content": "What is LLMKube?"}]}
        await trio.sleep(3)  # kube-proxy follows a slice up to a second later

        async def play(order: Sequence[str], count: int, seconds: float) -> list[dict[str, Any]]:
            turns = [{"name": each, "url": urls[each], "connections": count, "seconds": seconds} for each in order]
            words = ("python3", "-c", (HERE / "http_load" / "pod_client.py").read_text(), json.dumps(
                {"body": body, "turns": turns}))  # fmt: skip
            samples: list[dict[str, Any]] = json.loads(await node.execute(here, "client", *words))
            return samples

        await play(list(urls), 1, 0.5)  # not counted
        found = []
        for count in CONNECTIONS[engine]:
            for _ in range(rounds):
                found += await play(run.rng.sample(list(urls), len(urls)), count, seconds)
        for each in node.descendants():
            if "contenders.py" in line_of(each) and each.name() != "nsenter":
                each.kill()
        return found


async def measure_first_token(node: Node, run: Run) -> dict[str, list[float]]:
    """Return seconds from `kubectl apply` of a Model and a service to the first token, in pods and on a host."""
    trials = 2 if run.quick else TRIALS
    namespace = await make_namespace(node)
    found: dict[str, list[float]] = {"in pods": [], "on the Mac": []}
    await node.apply(namespace, pod("client", ("sleep", "3600")))
    await wait(node, namespace, "pod/client", "condition=Ready")
    agent = Agent(node, "mac", namespace)
    await agent.join()

    async def ask(name: str, seen: list[float]) -> None:
        words = ("python3", "-c", ASK_FIRST, f"http://{name}:8080")
        seen.append(float(await node.execute(namespace, "client", *words)))

    async with agent.running():
        for number in range(trials):
            for where in run.rng.sample(list(found), len(found)):
                name = f"{where[-4:].strip().lower()}-{number}"
                objects = on_host(name) if where == "on the Mac" else [model(name), service(name)]
                seen: list[float] = []
                with trio.fail_after(STEP_SECONDS):
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(ask, name, seen)
                        await trio.sleep(1)  # the client asks before there is anything
                        began = time.monotonic()
                        await node.apply(namespace, *objects)
                found[where].append(seen[0] - began)
                await node.kubectl("delete", "-n", namespace, "isvc,model", name, "--wait=true")
                await node.kubectl(
                    "wait", "-n", namespace, "pod", "-l", f"app={name}", "--for=delete", "--timeout=120s"
                )
    return found


async def measure_rest(node: Node, run: Run) -> dict[str, float]:
    """Return the controller's memory in bytes, and its requests per minute, while nothing happens."""
    services, running = (4, 1) if run.quick else (SERVICES, RUNNING)
    settle, seconds = (5.0, 15.0) if run.quick else (SETTLE_SECONDS, REST_SECONDS)
    controller = next(each for each in node.descendants() if "llmkube controller" in line_of(each))
    before = controller.memory_full_info()
    namespace = await make_namespace(node)
    await node.apply(namespace, model("demo"))
    made = [service(f"s{number:03}", modelRef="demo", replicas=int(number < running)) for number in range(services)]
    await node.apply(namespace, *made)
    with trio.fail_after(STEP_SECONDS):
        while True:
            found = (await read(node, namespace, "isvc"))["items"]
            deployed = (await read(node, namespace, "deployments"))["items"]
            ready = sum(each.get("status", {}).get("readyReplicas", 0) for each in found)
            if (ready, len(deployed)) == (running, services):
                break
            await trio.sleep(2)
    await trio.sleep(settle)
    log = node.state / "logs" / "audit.jsonl"
    start, busy = log.stat().st_size, sum(controller.cpu_times()[:2])
    await trio.sleep(seconds)
    memory, busy = controller.memory_full_info(), sum(controller.cpu_times()[:2]) - busy
    with log.open("rb") as file:
        file.seek(start)
        asked = [one for one in map(json.loads, file.read().splitlines()) if one["user"]["username"] == CONTROLLER]
    lease = sum(one.get("objectRef", {}).get("resource") == "leases" for one in asked)
    watches = sum(one["verb"] == "watch" for one in asked)
    minutes = seconds / 60
    return {"services": services, "running": running, "seconds": seconds, "uss_before": before.uss, "rss": memory.rss,
            "uss": memory.uss, "lease": lease / minutes, "watches": watches / minutes,
            "other": (len(asked) - lease - watches) / minutes, "processor_percent": 100 * busy / seconds}  # fmt: skip


async def measure(run: Run, node: Node, folder: Path) -> Results:
    """Measure all three on one node."""
    found = Results()
    programs = {SCRIPTED: ("--llama-server", str(write_engines(folder, (), None))), LLAMA: ()}
    for engine, program in programs.items():
        found.turns[engine] = await measure_path(node, run, engine, program)
        print(f"path: {engine}", file=sys.stderr)
    found.first = await measure_first_token(node, run)
    print("first token", file=sys.stderr)
    found.rest = await measure_rest(node, run)
    return found


def path_tables(turns: Mapping[str, list[dict[str, Any]]]) -> tuple[list[Table], dict[tuple[str, int, str], float]]:
    """Return a table for each engine and number of connections, and each contender's requests/s of the engine alone."""
    tables, ratios = [], {}
    for engine, played in turns.items():
        for count in CONNECTIONS[engine]:
            mine = {
                name: [each for each in played if (each["name"], each["connections"]) == (name, count)]
                for name in NAMES
            }
            rate, p50, p99 = (
                {name: median([each[part] for each in each_turn]) for name, each_turn in mine.items()}
                for part in ("per_second", "p50", "p99")
            )
            rows = []
            for name, shown in NAMES.items():
                # of the same round: what else the machine does at that moment is in both
                pairs = zip(mine[name], mine[ENGINE], strict=True)
                ratio = median([one["per_second"] / other["per_second"] for one, other in pairs])
                ratios[engine, count, name] = ratio
                times = [f"{1000 * each:.2f}" for each in (p50[name], p99[name])]
                rows.append([shown, f"{rate[name]:.0f}", f"{ratio:.2f}", *times])
            caption = f"{count} connection{'s' * (count > 1)}, {engine}:"
            tables.append(Table(["way", "requests/s", "of the engine", "p50, ms", "p99, ms"], rows, caption))
    return tables, ratios


def report_results(run: Run, found: Results) -> None:
    """Hand the figures over."""
    tables, ratios = path_tables(found.turns)
    rows = [
        [where, str(len(each)), *(f"{seconds:.1f}" for seconds in (median(each), min(each), max(each)))]
        for where, each in found.first.items()
    ]
    columns = ["from `kubectl apply` to the first token", "trials", "median, s", "shortest, s", "longest, s"]
    tables.append(Table(columns, rows))
    rest, mebi = found.rest, 1024 * 1024
    services = f"{rest['services']:.0f} services, {rest['running']:.0f} of them with a pod"
    memory = [f"{rest[part] / mebi:.1f}" for part in ("uss", "rss")]
    rates = [f"{rest[part]:.1f}" for part in ("other", "lease", "watches")]
    columns = ["controller at rest", "USS, MiB", "RSS, MiB", "requests/min", "Lease/min", "watches/min", "processor, %"]
    tables.append(Table(columns, [[services, *memory, *rates, f"{rest['processor_percent']:.2f}"]]))
    aims = []
    for (engine, count, name), ratio in ratios.items():
        if name == SERVICE:
            met = ratio >= 0.98  # a Service has no program in its way: what is left is the noise of turns
            aims.append(Aim(f"Service, of the engine directly; {engine}, {count}", "1.00", f"{ratio:.2f}", met))
        if name == FILTERED:
            aims.append(Aim(f"Service and filter; {engine}, {count}", "at least 0.9", f"{ratio:.2f}", ratio >= 0.9))
    kubernetes = pinned_version(MODULES / "kubernetes", "k8s.io/kubernetes")
    containerd = pinned_version(MODULES / "containerd", "github.com/containerd/containerd/v2")
    floor = ratios[SCRIPTED, CONNECTIONS[SCRIPTED][0], RAW]
    run.finish(
        "On a real node",
        __doc__ or "",
        tables,
        attrs.asdict(found),
        aims=aims,
        notes=[
            f"Medians of {ROUNDS} rounds of {SECONDS:g} s; a ratio is that of two turns of one round.",
            f"The lower limit, with 1 connection to an engine that answers at once: raw sockets in Trio, {floor:.2f}.",
            f"An answer of llama.cpp has up to {TOKENS} tokens.",
            "Model and InferenceService are applied together; in pods a Job first copies the weights into the claim.",
            f"USS before the services: {rest['uss_before'] / mebi:.1f} MiB. Measured for {rest['seconds']:.0f} s.",
            "So short a period does not include renewed watches and resyncs; the table of reactions includes them.",
            f"Kubernetes {kubernetes}, containerd {containerd}, kube-proxy with nftables.",
        ],
    )


def main() -> None:
    """Start a node, measure, and print."""
    run = begin("cluster", "trio", "xllamacpp")
    with TemporaryDirectory(prefix="llmkube-bench-") as name:
        folder = Path(name)
        (folder / "home").mkdir()
        with opened_node(folder) as node, opened(node, folder / "home"):
            found = trio.run(measure, run, node, folder)
    report_results(run, found)


if __name__ == "__main__":
    main()
