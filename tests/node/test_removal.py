"""`helm uninstall` leaves what the guide says, all goes with `crds.keep=false`, and an install follows either."""

from collections.abc import AsyncIterator

import pytest
import trio

from charts.helm_runs import NAMESPACE
from node.release import VALUES, Release
from node.running_node import Node
from node.services import model, read, service, wait

pytestmark = [pytest.mark.node, pytest.mark.alone]

DEFINITIONS = ("models", "inferenceservices", "modelrouters")


@pytest.fixture
async def afterwards(release: Release) -> AsyncIterator[None]:
    """The release is there for the other tests, whatever this one leaves."""
    yield
    if not await release.installed():
        await release.reinstall()


@pytest.mark.usefixtures("afterwards")
async def test_an_uninstall_leaves_objects_and_pods_and_an_install_takes_them_over(
    node: Node, release: Release, namespace: str
):
    """The definitions, the service and its pods stay; the next controller acts on them at once."""
    await node.apply(namespace, model("tiny"), service("tiny"))
    await wait(node, namespace, "isvc/tiny", "condition=Available")
    (before,) = (await read(node, namespace, "pods -l app=tiny"))["items"]
    await release.in_thread("uninstall", "llmkube", "-n", NAMESPACE, "--wait")
    (after,) = (await read(node, namespace, "pods -l app=tiny"))["items"]
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    await release.reinstall()
    await node.kubectl("scale", "-n", namespace, "isvc/tiny", "--replicas=0")
    await wait(node, namespace, "deployment/tiny", "jsonpath={.spec.replicas}=0")


@pytest.mark.usefixtures("afterwards")
async def test_a_removal_with_the_definitions_ends_and_leaves_nothing(node: Node, release: Release, namespace: str):
    """`crds.keep=false`, then uninstall: it does not hang, no definition and no object is left, an install works."""
    await node.apply(namespace, model("tiny"), service("tiny"))
    await wait(node, namespace, "isvc/tiny", "condition=Available")
    await release.in_thread(
        "upgrade", "llmkube", "llmkube/llmkube", "-n", NAMESPACE, *VALUES, "--set", "crds.keep=false"
    )
    await release.in_thread("uninstall", "llmkube", "-n", NAMESPACE, "--wait")
    left = await node.kubectl("get", "crds", "-o", "name")
    assert not [name for name in DEFINITIONS if f"{name}.inference.llmkube.dev" in left]
    await release.reinstall()
    await node.apply(namespace, model("again"))
    await wait(node, namespace, "model/again", "jsonpath={.status.phase}=Ready")


async def test_a_namespace_goes_without_a_controller(node: Node, release: Release, namespace: str):
    """No finalizer of ours holds a namespace with a Model in use while no controller runs."""
    await node.kubectl("create", "namespace", f"{namespace}-gone")
    await node.apply(f"{namespace}-gone", model("tiny"), service("tiny", replicas=0))
    await node.kubectl("scale", "-n", NAMESPACE, "deployment/llmkube-controller", "--replicas=0")
    try:
        await node.kubectl("delete", "namespace", f"{namespace}-gone", "--timeout=60s")
    finally:
        with trio.move_on_after(30, shield=True):
            await node.kubectl("scale", "-n", NAMESPACE, "deployment/llmkube-controller", "--replicas=1")
