"""Macs beside the cluster: their agents join, pods are answered by their engines, and what breaks is mended."""

from typing import Any

import pytest
import trio

from node.machines import PATIENCE_SECONDS, URL, answered, serving, slices, streaming, traffic
from node.release import Release
from node.running_node import Node
from node.services import ANSWER, ASK, chat, read
from node.wiring import MACHINES

pytestmark = pytest.mark.node

KEY = "chat-key-of-a-client"


async def test_a_pod_is_served_by_a_mac_and_a_stranger_on_the_wire_is_not(node: Node, release: Release, namespace: str):
    """Through the Service's name and kube-proxy the pod gets an answer; the other machine gets 401 from the engine."""
    async with serving(node, namespace, "mac"):
        await answered(node, namespace)
        (found,) = await slices(node, namespace, "demo")
        assert found == (MACHINES["mac"], True)
        port = (await read(node, namespace, "endpointslices -l kubernetes.io/service-name=demo"))["items"][0]["ports"][
            0
        ]
        direct = f"http://{MACHINES['mac']}:{port['port']}"
        assert (await node.run("python3", "-c", ASK, direct, "", machine="mac2")).startswith("401 ")


async def test_a_service_with_a_secret_asks_every_pod_for_a_key(node: Node, release: Release, namespace: str):
    """A pod without the key gets 401, one with it the answer."""
    await node.kubectl("create", "secret", "generic", "keys", "-n", namespace, f"--from-literal=api-key={KEY}")
    async with serving(node, namespace, "mac", secret="keys", apiKeySecretRef={"name": "keys"}):
        await answered(node, namespace, key=KEY)
        assert (await chat(node, namespace, "asker", URL)).startswith("401 ")
        assert (await chat(node, namespace, "asker", URL, key="another")).startswith("401 ")


@pytest.mark.parametrize("program", ["agent", "engine"])
async def test_what_is_killed_comes_back_and_the_pod_is_answered(
    node: Node, release: Release, namespace: str, program: str
):
    """After SIGKILL pods get answers again, and but for the engine's own end no answer is cut."""
    async with serving(node, namespace, "mac") as [mac]:
        await answered(node, namespace)
        (engine,) = mac.processes("engine")
        async with streaming(node, namespace) as seen:
            for each in mac.processes(program):
                each.kill()
        print(program, seen)  # noqa: T201
        if program == "agent":
            async with mac.running():
                await answered(node, namespace)
                assert engine.is_running()  # it was found again
            assert seen[0]["broken"] == []
        else:
            await answered(node, namespace)
            assert not engine.is_running()


async def test_a_cable_that_was_out_is_in_again(node: Node, release: Release, namespace: str):
    """A Mac that was away for a while serves again, with the same engine."""
    async with serving(node, namespace, "mac") as [mac]:
        await answered(node, namespace)
        (engine,) = mac.processes("engine")
        await node.wire("mac", "down")
        try:
            assert ANSWER not in await chat(node, namespace, "asker", URL)
            with trio.fail_after(PATIENCE_SECONDS):
                while True:
                    if not (any(ready for _, ready in await slices(node, namespace, "demo"))):
                        break
                    await trio.sleep(0.5)
        finally:
            with trio.move_on_after(30, shield=True):
                await node.wire("mac", "up")
        await answered(node, namespace)
        assert engine.is_running()


async def test_two_macs_one_unplugged(node: Node, release: Release, namespace: str):
    """Answers go on when one of two is unplugged; no request is lost once its endpoint is gone."""
    async with serving(node, namespace, "mac", "mac2", replicas=2):
        with trio.fail_after(PATIENCE_SECONDS):
            while True:
                if {address for address, ready in await slices(node, namespace, "demo") if ready} == set(
                    MACHINES.values()
                ):
                    break
                await trio.sleep(0.2)
        await answered(node, namespace)
        seen: list[Any] = []
        async with trio.open_nursery() as nursery:

            async def stream() -> None:
                seen.append(await traffic(node, namespace, 40))

            nursery.start_soon(stream)
            await trio.sleep(5)
            await node.wire("mac", "down")
            began = trio.current_time()
            try:
                with trio.fail_after(PATIENCE_SECONDS):
                    while True:
                        if (MACHINES["mac"], True) not in await slices(node, namespace, "demo"):
                            break
                        await trio.sleep(0.2)
                gone = 5 + trio.current_time() - began
            finally:
                with trio.move_on_after(30, shield=True):
                    await node.wire("mac", "up")
        print(f"endpoint gone after {gone - 5:.1f} s", seen)  # noqa: T201
        (only,) = seen
        assert only["whole"] > 20
        assert [each for each in only["broken"] if each["at"] > gone + 2] == []
