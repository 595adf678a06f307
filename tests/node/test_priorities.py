"""Which pod gets the last GPU, by the real scheduler and the chart's PriorityClasses."""

from collections.abc import AsyncIterator

import pytest
import trio

from node.objects import Object, pod
from node.running_node import Node
from node.services import SLEEP, model, read, service, wait
from node.wiring import NODE

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("release")]

PATIENCE_SECONDS = 120
# The rest of the message depends on pods of other tests: no victim at all, or none that frees the GPU.
PREEMPTION_TRIED = "preemption: "


@pytest.fixture
async def gpu(node: Node, namespace: str) -> AsyncIterator[str]:
    """An extended resource of which the node has one, and a Model `demo` that takes it."""
    name = f"example.com/{namespace}"
    await _advertise(node, name, '"1"')
    hardware = {"accelerator": "cuda", "gpu": {"count": 1, "resourceName": name}}
    await node.apply(namespace, model("demo", hardware=hardware))
    yield name
    with trio.move_on_after(10.0, shield=True):
        await _advertise(node, name, "null")


async def _advertise(node: Node, resource: str, amount: str) -> None:
    has = f'{{"{resource}": {amount}}}'
    patch = f'{{"status": {{"capacity": {has}, "allocatable": {has}}}}}'
    await node.kubectl("patch", "node", NODE, "--subresource=status", "--type=merge", "-p", patch)


def on_gpu(priority: str) -> Object:
    """Return a service called as its priority is."""
    return service(priority, modelRef="demo", priority=priority)


async def displaced(node: Node, namespace: str) -> set[str]:
    """Return the pods that the scheduler has displaced, by the first word of their names."""
    found = await read(node, namespace, "events --field-selector reason=Preempted")
    return {each["involvedObject"]["name"].partition("-")[0] for each in found["items"]}


async def test_services_displace_services_of_a_lower_priority(node: Node, namespace: str, gpu: str):
    """Each of the three gets the GPU of the one before, which then waits for it."""
    for before, priority in (("", "batch"), ("batch", "normal"), ("normal", "critical")):
        await node.apply(namespace, on_gpu(priority))
        await wait(node, namespace, f"isvc/{priority}", "condition=Available")
        if before:
            await wait(node, namespace, f"isvc/{before}", "jsonpath={.status.phase}=WaitingForGPU")
    assert await displaced(node, namespace) == {"batch", "normal"}


async def test_no_service_displaces_an_ordinary_pod(node: Node, namespace: str, gpu: str):
    """A pod without a class displaces a service of high priority, and a critical one waits for that pod."""
    await node.apply(namespace, on_gpu("high"))
    await wait(node, namespace, "isvc/high", "condition=Available")
    ordinary = pod("ordinary", SLEEP)
    ordinary["spec"]["containers"][0]["resources"] = {"limits": {gpu: "1"}}
    await node.apply(namespace, ordinary)
    await wait(node, namespace, "pod/ordinary", "condition=Ready")
    await node.apply(namespace, on_gpu("critical"))
    await wait(node, namespace, "isvc/critical", "jsonpath={.status.phase}=WaitingForGPU")
    with trio.fail_after(PATIENCE_SECONDS):
        while True:
            (waiting,) = (await read(node, namespace, "pods -l app=critical"))["items"]
            if any(PREEMPTION_TRIED in each.get("message", "") for each in waiting["status"]["conditions"]):
                break
            await trio.sleep(0.2)
    (kept,) = (await read(node, namespace, "pods --field-selector metadata.name=ordinary"))["items"]
    assert (kept["status"]["phase"], kept["spec"]["priority"]) == ("Running", 0)
    assert "deletionTimestamp" not in kept["metadata"]
    assert await displaced(node, namespace) == {"high"}
