"""Pods from zero: the front door of the chart holds requests, and the controller starts pods for them and ends them."""

import contextlib
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import trio

from charts.helm_runs import NAMESPACE
from envtest.build import assets_dir
from lengths import ZERO_RACES
from llmkube.k8s.leases.wanted_services import LEASE_NAME, RECORD_PREFIX, decode_record
from node.metrics_stand_in import metrics_server
from node.objects import pod
from node.release import Release
from node.running_node import Node, line_of
from node.services import condition, model, read, service, wait

pytestmark = [pytest.mark.node, pytest.mark.alone]

URL = f"http://llmkube-gateway.{NAMESPACE}:8080"
CLIENTS = Path(__file__).with_name("zero_clients.py").read_text()
TOGETHER = min(10, max(2, ZERO_RACES // 8))
"""Services that are raced for at the same time."""

ON_REQUEST = {"activation": {"mode": "OnRequest", "idleTimeout": "1s"}}
MADE = 2
"""Generation of a Deployment that has never been scaled: its creation, and the manifest without replicas."""

DOOR = "deployment/llmkube-gateway"
SCALING_DISABLED = 'jsonpath={.status.conditions[?(@.type=="ScalingActive")].reason}=ScalingDisabled'


@asynccontextmanager
async def front_door(
    node: Node, release: Release, replicas: int = 2, *, endpoints_at_zero: bool = False
) -> AsyncIterator[None]:
    """Have the chart run the front door while the block runs."""
    upgrade = ("upgrade", "llmkube", "llmkube/llmkube", "-n", NAMESPACE, "--reuse-values", "--wait", "--set")
    values = f"gateway.allowAnonymous=true,gateway.replicas={replicas}"
    values += f",gateway.endpointsAtZero={str(endpoints_at_zero).lower()}"
    await release.in_thread(*upgrade, f"gateway.enabled=true,{values}")
    try:
        yield
    finally:
        with trio.CancelScope(deadline=trio.current_time() + 60, shield=True):
            await release.in_thread(*upgrade, "gateway.enabled=false,gateway.endpointsAtZero=false")


async def at_zero(node: Node, namespace: str, *names: str, **spec: Any) -> None:
    """Apply services that wait for requests, and a pod for clients."""
    services = [service(name, modelRef="demo", **ON_REQUEST | spec) for name in names]
    await node.apply(namespace, model("demo"), *services, pod("client", ("sleep", "7200")))
    await wait(node, namespace, "pod/client", "condition=Ready")
    for name in names:
        await wait(node, namespace, f"isvc/{name}", "jsonpath={.status.phase}=Idle")


async def ask(node: Node, namespace: str, names: str, *words: object, url: str = URL) -> dict[str, Any]:
    """Run clients in a pod, and return what became of their requests."""
    outcome = await node.execute(namespace, "client", "python3", "-c", CLIENTS, url, names, *map(str, words))
    found: dict[str, Any] = json.loads(outcome)
    print(f"{names}: {found}")  # noqa: T201
    return found


async def replicas(node: Node, namespace: str, name: str) -> int:
    return int((await read(node, namespace, f"deployment/{name}"))["spec"]["replicas"])


async def reach(node: Node, namespace: str, name: str, wanted: int, seconds: float = 90) -> None:
    """Return when a Deployment has this number of pods in its spec, and they are ready."""
    with trio.fail_after(seconds):
        while True:
            found = await read(node, namespace, f"deployment/{name}")
            if (found["spec"]["replicas"], found["status"].get("readyReplicas", 0)) == (wanted, wanted):
                return
            await trio.sleep(0.5)


async def scaled_to_zero(node: Node, namespace: str) -> int:
    """The number of times that the last pods of the namespace's services have ended: each scaling is a generation."""
    found = (await read(node, namespace, "deployments"))["items"]
    return sum((each["metadata"]["generation"] - MADE) // 2 for each in found)


async def disturb(node: Node) -> None:
    """Drain, kill and scale the front door, again and again; a command that comes too late does nothing."""
    for count in itertools.cycle((3, 1, 2)):
        await trio.sleep(10)
        await node.kubectl("rollout", "restart", "-n", NAMESPACE, DOOR, check=False)  # drains each
        await trio.sleep(15)
        for door in [each for each in node.descendants() if "llmkube gateway" in line_of(each)][:1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                door.kill()
        await trio.sleep(10)
        await node.kubectl("scale", "-n", NAMESPACE, DOOR, f"--replicas={count}", check=False)


async def test_two_hundred_requests_are_answered_by_the_first_pod(node: Node, release: Release, namespace: str):
    """At zero the service is Idle and available; all requests wait for one pod, and none is lost."""
    async with front_door(node, release):
        await at_zero(node, namespace, "tiny", activation={"mode": "OnRequest", "idleTimeout": "60s"})
        available = condition(await read(node, namespace, "isvc/tiny"), "Available")
        assert (available["status"], available["reason"]) == ("True", "Idle")
        assert "Idle" in await node.kubectl("get", "isvc", "tiny", "-n", namespace)
        found = await ask(node, namespace, "tiny", "once", 200)
        assert (found["answered"], found["lost"]) == (200, [])
        pods = (await read(node, namespace, "pods -l app=tiny"))["items"]
        assert len(pods) == 1
        assert await writers_of_replicas(node, namespace, "tiny") == ["llmkube-scaler"]


async def test_no_arrival_is_lost_to_a_scale_down(node: Node, release: Release, namespace: str):
    """Requests around the end of the last pod, while the front door is killed, drained and scaled."""
    names = [f"tiny-{number}" for number in range(TOGETHER)]
    each = -(-ZERO_RACES // TOGETHER)
    async with front_door(node, release):
        await at_zero(node, namespace, *names)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(disturb, node)
            outcome = await ask(node, namespace, ",".join(names), "race", each)
            nursery.cancel_scope.cancel()
        stopped = await scaled_to_zero(node, namespace)
        print(f"scaled to zero {stopped} times")  # noqa: T201
        assert (outcome["answered"], outcome["lost"]) == (each * TOGETHER, [])
        assert stopped >= each * TOGETHER // 3


async def ready_addresses(node: Node, namespace: str, name: str) -> set[str]:
    """The addresses to which proxies send the connections to a Service."""
    slices = (await read(node, namespace, f"endpointslices -l kubernetes.io/service-name={name}"))["items"]
    endpoints = [one for each in slices for one in each["endpoints"] or ()]
    return {one["addresses"][0] for one in endpoints if one["conditions"]["ready"]}


async def test_clients_of_a_plain_service_start_its_pods(node: Node, release: Release, namespace: str):
    """Around the end of the last pod no request to http://NAME:8080 is lost, whatever model it names.

    The proxy of a busy node may send a connection to a pod that has just ended; the client repeats it then.
    """
    async with front_door(node, release, 1, endpoints_at_zero=True):
        await at_zero(node, namespace, "tiny")
        count = max(3, ZERO_RACES // 10)
        outcome = await ask(node, namespace, "any-model", "race", count, url="http://tiny:8080")
        stopped = await scaled_to_zero(node, namespace)
        print(f"scaled to zero {stopped} times")  # noqa: T201
        assert (outcome["answered"], outcome["lost"]) == (count, [])
        assert stopped
        await wait(node, namespace, "isvc/tiny", "jsonpath={.status.phase}=Idle")
        [door] = (await read(node, NAMESPACE, "pods -l app.kubernetes.io/component=gateway"))["items"]
        assert await ready_addresses(node, namespace, "tiny") == {door["status"]["podIP"]}
    with trio.fail_after(60):  # without a front door there are no endpoints
        while await ready_addresses(node, namespace, "tiny"):
            await trio.sleep(0.5)


async def written_replicas(node: Node, namespace: str, name: str, numbers: Path) -> None:
    """Write each number of replicas that a Deployment has had into a file, a line each, until cancelled."""
    watch = ("get", "-n", namespace, f"deployment/{name}", "--watch", "-o", "jsonpath={.spec.replicas}{'\\n'}")
    command = (str(assets_dir() / "kubectl"), "--kubeconfig", str(node.kubeconfig), *watch)
    with numbers.open("wb") as output:
        await trio.run_process(command, stdout=output)


async def keep_busy(node: Node, namespace: str, name: str) -> None:
    """Ask, one request after the other, until cancelled."""
    while True:
        found = await ask(node, namespace, name, "once", 1)
        assert (found["answered"], found["lost"]) == (1, [])


async def writers_of_replicas(node: Node, namespace: str, name: str) -> list[str]:
    """Return the field managers that own a Deployment's number of replicas."""
    get = ("get", f"deployment/{name}", "-n", namespace, "-o", "json", "--show-managed-fields")
    managers = json.loads(await node.kubectl(*get))["metadata"]["managedFields"]
    return [each["manager"] for each in managers if "f:replicas" in each["fieldsV1"].get("f:spec", {})]


async def not_wanted(node: Node, namespace: str) -> None:
    """Return when the Lease of the front doors names no service."""
    with trio.fail_after(60):
        while True:
            lease = await read(node, namespace, f"lease/{LEASE_NAME}")
            records = lease["metadata"].get("annotations", {})
            if not any(decode_record(text) for name, text in records.items() if name.startswith(RECORD_PREFIX)):
                return
            await trio.sleep(0.5)


@pytest.mark.soak
async def test_an_autoscaler_works_from_one_up_and_requests_below(
    node: Node, release: Release, namespace: str, tmp_path: Path
):
    """From 0 to 1 for a request, by the autoscaler to 3 and back, and to 0 by idleness: the autoscaler stays away."""
    metric = {"type": "Resource", "name": "cpu", "targetAverageUtilization": 50}
    scaling = {"minReplicas": 0, "maxReplicas": 3, "metrics": [metric]}
    numbers = tmp_path / "replicas"
    async with (
        front_door(node, release, 1),
        metrics_server(node, namespace, tmp_path) as metrics,
        trio.open_nursery() as nursery,
    ):
        await at_zero(node, namespace, "tiny", autoscaling=scaling)
        nursery.start_soon(written_replicas, node, namespace, "tiny", numbers)
        metrics.cpu = "500m"
        async with trio.open_nursery() as clients:
            clients.start_soon(keep_busy, node, namespace, "tiny")
            await reach(node, namespace, "tiny", 3, seconds=180)
            clients.cancel_scope.cancel()
        await not_wanted(node, namespace)  # longer ago than the idle timeout
        assert await replicas(node, namespace, "tiny") == 3
        assert await writers_of_replicas(node, namespace, "tiny") == ["kube-controller-manager"]
        metrics.cpu = "1m"  # the autoscaler removes pods 5 s later: until then the service is idle, with three
        await reach(node, namespace, "tiny", 0, seconds=180)
        await wait(node, namespace, "hpa/tiny", SCALING_DISABLED)  # what an autoscaler says that stays away from 0
        assert (await read(node, namespace, "hpa/tiny"))["spec"]["minReplicas"] == 1
        await wait(node, namespace, "isvc/tiny", "jsonpath={.status.phase}=Idle")
        assert await writers_of_replicas(node, namespace, "tiny") == ["llmkube-scaler"]
        nursery.cancel_scope.cancel()
    written = [int(number) for number, _ in itertools.groupby(numbers.read_text().split())]
    print(f"replicas: {written}")  # noqa: T201
    assert (written[:2], max(written), written[-2:]) == ([0, 1], 3, [1, 0])
    assert all(written[1:-1])  # the autoscaler's alone
