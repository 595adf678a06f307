"""The controller as a pod of the chart: installed by the guide's words, it leads, is killed, and hands over."""

import pytest
import trio

from charts.helm_runs import NAMESPACE
from node.release import Release
from node.running_node import Node
from node.services import model, read, wait

pytestmark = [pytest.mark.node, pytest.mark.alone]

LEASE = "lease/llmkube-controller"
PATIENCE_SECONDS = 120


async def holder(node: Node) -> str:
    return (await read(node, NAMESPACE, LEASE))["spec"].get("holderIdentity", "")


async def pods(node: Node) -> list[str]:
    found = await read(node, NAMESPACE, "pods -l app.kubernetes.io/component=controller")
    return [each["metadata"]["name"] for each in found["items"] if not each["metadata"].get("deletionTimestamp")]


async def settled(node: Node) -> None:
    """Return once one pod is left: one that was replaced takes its time to end, and has its program until then."""
    with trio.fail_after(PATIENCE_SECONDS):
        while True:
            found = await read(node, NAMESPACE, "pods -l app.kubernetes.io/component=controller")
            if len(found["items"]) == 1:
                return
            await trio.sleep(0.2)


async def test_the_controller_runs_as_nobody_on_a_read_only_root(node: Node, release: Release):
    """Its namespace enforces Pod Security `restricted`, and the pod that helm made starts there."""
    await node.kubectl("label", "ns", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted", "--overwrite")
    await node.kubectl("rollout", "restart", "-n", NAMESPACE, "deployment/llmkube-controller")
    await node.kubectl("rollout", "status", "-n", NAMESPACE, "deployment/llmkube-controller", "--timeout=120s")
    (name,) = await pods(node)
    inside = await node.execute(NAMESPACE, name, "/bin/sh", "-c", "id -u; touch /usr/written", check=False)
    assert "65532" in inside
    assert "Read-only file system" in inside


async def test_a_controller_that_is_killed_is_followed_by_another(node: Node, release: Release, namespace: str):
    """The container that was killed comes back and acts: a Model made afterwards gets a status."""
    await settled(node)
    node.kill_in_pods("llmkube", "controller")
    await node.apply(namespace, model("later"))
    await wait(node, namespace, "model/later", "jsonpath={.status.phase}=Ready")


async def test_two_controllers_hand_over(node: Node, release: Release, namespace: str):
    """When the pod that leads is deleted, the other holds the Lease before the first one's term would have ended."""
    await node.kubectl("scale", "-n", NAMESPACE, "deployment/llmkube-controller", "--replicas=2")
    try:
        await node.kubectl("rollout", "status", "-n", NAMESPACE, "deployment/llmkube-controller", "--timeout=120s")
        with trio.fail_after(PATIENCE_SECONDS):
            while True:
                if first := await holder(node):
                    break
                await trio.sleep(0.1)
        (leader,) = [name for name in await pods(node) if name in first]
        lease = await read(node, NAMESPACE, LEASE)
        began = trio.current_time()
        await node.kubectl("delete", "-n", NAMESPACE, f"pod/{leader}", "--wait=false")
        with trio.fail_after(lease["spec"]["leaseDurationSeconds"] - 1):
            while True:
                if await holder(node) not in {first, ""}:
                    break
                await trio.sleep(0.1)
        print(f"handed over after {trio.current_time() - began:.1f} s")  # noqa: T201
        await node.apply(namespace, model("later"))
        await wait(node, namespace, "model/later", "jsonpath={.status.phase}=Ready")
    finally:
        with trio.move_on_after(30, shield=True):
            await node.kubectl("scale", "-n", NAMESPACE, "deployment/llmkube-controller", "--replicas=1")


async def test_helm_test_passes(node: Node, release: Release):
    """`helm test --logs` passes and shows what the pod printed."""
    output = await release.in_thread("test", "llmkube", "-n", NAMESPACE, "--logs")
    assert "Phase:          Succeeded" in output
    assert "POD LOGS" in output
