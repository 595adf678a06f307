"""`llmkube doctor --from-cluster` on a Mac next to the cluster: a real pod tries the Mac's advertised address."""

import json
import sys
from typing import Any

import pytest
import trio

from node.running_node import Node
from node.services import read
from node.wiring import MACHINES

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("release")]

MAC = "mac2"  # its cable stays in
TABLE = "llmkube_test"
NO_NEW_CONNECTIONS = (
    f"table inet {TABLE} {{ chain input {{ type filter hook input priority 0; "
    "tcp flags & (syn | ack) == syn reject with icmpx admin-prohibited; }; }"
)
"""Rules of a firewall that rejects new connections."""


async def examined(node: Node, namespace: str) -> dict[str, Any]:
    """Return doctor's finding about the pod."""
    variables = (f"LLMKUBE_STATE_DIR=/tmp/llmkube-doctor-{namespace}", f"LLMKUBE_HOST_IP={MACHINES[MAC]}")
    words = ("doctor", "--from-cluster", "--json", "--kubeconfig", str(node.kubeconfig), "-n", namespace)
    command = ("env", *variables, sys.executable, "-m", "llmkube", *words)
    report = await node.run(*command, machine=MAC, check=False)  # this machine is no Mac, which is a failure too
    (found,) = [each for each in json.loads(report)["findings"] if each["name"] == "from a pod"]
    return dict(found)


async def no_jobs(node: Node, namespace: str) -> None:
    """Wait until no Job of doctor's is there."""
    with trio.fail_after(30):
        while True:
            if not (await read(node, namespace, "jobs"))["items"]:
                return
            await trio.sleep(0.5)


async def test_a_pod_reaches_the_mac(node: Node, namespace: str):
    """With the user's own kubeconfig, and the image of the controller; the Job is deleted afterwards."""
    found = await examined(node, namespace)
    assert found["verdict"] == "pass", found
    assert found["found"].startswith(f"a pod reached {MACHINES[MAC]}:")
    await no_jobs(node, namespace)


@pytest.mark.alone
async def test_a_firewall_on_the_mac_is_named(node: Node, namespace: str):
    """The pod's error is reported, with the fix."""
    await node.run("nft", NO_NEW_CONNECTIONS, machine=MAC)
    try:
        found = await examined(node, namespace)
    finally:
        with trio.move_on_after(30, shield=True):
            await node.run("nft", f"delete table inet {TABLE}", machine=MAC)
    assert found["verdict"] == "fail", found
    assert f"{MACHINES[MAC]}:" in found["found"]
    assert "cannot be reached" in found["found"]
    assert "firewall" in found["fix"]
    await no_jobs(node, namespace)
