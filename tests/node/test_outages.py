"""A part of the node itself is killed, or the node is drained: pods are still served, and the failure is repaired."""

import signal

import pytest
import trio

from node.machines import answered, serving, streaming
from node.objects import pod
from node.release import Release
from node.running_node import Node
from node.services import SLEEP, serve, wait
from node.wiring import NODE

pytestmark = [pytest.mark.node, pytest.mark.alone]


async def test_what_is_killed_of_the_cluster_comes_back_and_cuts_no_answer(
    node: Node, release: Release, namespace: str
):
    """After SIGKILL to API server, kubelet and kube-proxy a pod gets answers from a Mac, and none of before is cut."""
    async with serving(node, namespace, "mac") as [mac]:
        await answered(node, namespace)
        (engine,) = mac.processes("engine")
        for program in ("kube-apiserver", "kubelet", "kube-proxy"):
            async with streaming(node, namespace) as seen:
                node.kill(program, signal.SIGKILL)
            await answered(node, namespace)
            assert engine.is_running(), program
            assert seen[0]["broken"] == [], (program, seen)
            await node.kubectl("delete", "-n", namespace, "pod/traffic", "--now")


async def test_a_program_of_the_node_that_is_killed_is_started_again(node: Node, namespace: str):
    """A kubelet that was killed starts new pods, and the pods that ran still run."""
    await node.apply(namespace, pod("before", SLEEP))
    await wait(node, namespace, "pod/before", "condition=Ready")
    node.kill("kubelet", signal.SIGKILL)
    await node.apply(namespace, pod("after", SLEEP))
    await wait(node, namespace, "pod/after", "condition=Ready")
    restarts = await node.kubectl("get", "-n", namespace, "pod/before", "-o", "jsonpath={..restartCount}")
    assert restarts == "0"


async def test_a_drained_node_gives_its_pods_away_unless_the_service_forbids_it(
    node: Node, release: Release, namespace: str
):
    """`kubectl drain` ends a service's pods, and they come back on a node that takes some; protected ones stay."""
    await serve(node, namespace, "drained")  # a drain goes by labels, over all namespaces
    drain = ("drain", NODE, "--pod-selector=app=drained", "--delete-emptydir-data", "--timeout=60s")
    try:
        await node.kubectl(*drain)
        await wait(node, namespace, "isvc/drained", "condition=Available=False")
        await node.kubectl("uncordon", NODE)
        await wait(node, namespace, "isvc/drained", "condition=Available")
        always = '{"spec": {"disruption": {"protectAlways": true}}}'
        await node.kubectl("patch", "-n", namespace, "isvc/drained", "--type=merge", "-p", always)
        await wait(node, namespace, "pdb/drained", "create")
        await wait(node, namespace, "pdb/drained", "jsonpath={.status.disruptionsAllowed}=0")
        await wait(node, namespace, "isvc/drained", "condition=Available")
        output = await node.kubectl(*drain[:-1], "--timeout=10s", check=False)
        assert "would violate the pod's disruption budget" in output
    finally:
        with trio.move_on_after(30, shield=True):
            await node.kubectl("uncordon", NODE)
