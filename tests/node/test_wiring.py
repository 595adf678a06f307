"""The node is a real one: pods start, names resolve, and packets pass through Services to a machine on its wire."""

import pytest
import trio

from node.objects import pod, service_of
from node.running_node import Node
from node.wiring import MACHINES, STATE

pytestmark = pytest.mark.node

PATIENCE_SECONDS = 60
SERVER = ("python3", "-c", "import http.server; http.server.test(port=8000)")
ASK = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=5).read().decode())"


async def wait_ready(node: Node, namespace: str, name: str) -> None:
    await node.kubectl("wait", "-n", namespace, f"pod/{name}", "--for=condition=Ready", "--timeout=60s")


async def test_a_pod_runs_as_nobody_and_writes_to_nothing_but_its_volumes(node: Node, namespace: str):
    """Log and exec work; the root filesystem is read-only and the user is not root."""
    await node.apply(namespace, pod("one", ["python3", "-uc", "print('up'); import time; time.sleep(600)"]))
    await wait_ready(node, namespace, "one")
    with trio.fail_after(PATIENCE_SECONDS):
        while not (output := await node.kubectl("logs", "-n", namespace, "one")):  # noqa: ASYNC110 (another program)
            await trio.sleep(0.2)  # a pod is Ready when its process runs, and has printed nothing then
    assert output == "up\n"
    assert "uid=65532" in await node.execute(namespace, "one", "id")
    assert "Read-only file system" in await node.execute(namespace, "one", "touch", "/etc/written", check=False)


@pytest.mark.alone
async def test_a_pod_reaches_a_machine_on_the_wire_by_the_name_of_a_service(node: Node, namespace: str):
    """Through CoreDNS and kube-proxy; with the cable out it does not, and with the cable in it does again."""
    (node.state / "web").mkdir()
    (node.state / "web" / "name").write_text("mac")
    async with trio.open_nursery() as nursery:
        web = node.inside("python3", "-m", "http.server", "9000", "--directory", f"{STATE}/web", machine="mac")
        nursery.start_soon(trio.run_process, web)
        await node.apply(namespace, *service_of("mac", MACHINES["mac"], 9000), pod("one", SERVER))
        await wait_ready(node, namespace, "one")

        async def asked() -> str:
            return await node.execute(namespace, "one", "python3", "-c", ASK, "http://mac:8080/name", check=False)

        with trio.fail_after(PATIENCE_SECONDS):
            while True:
                if await asked() == "mac\n":
                    break
                await trio.sleep(0.2)
            await node.wire("mac", "down")
            assert "Error" in await asked()
            await node.wire("mac", "up")
            while True:
                if await asked() == "mac\n":
                    break
                await trio.sleep(0.2)
        nursery.cancel_scope.cancel()
