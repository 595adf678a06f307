"""A ModelPool on the node: members that are asked in turn answer every request, and never have pods together."""

import os
from typing import Any, Final

import pytest
import trio

from node.release import Release
from node.running_node import Node
from node.services import read, wait
from node.test_zero import ask, at_zero, front_door

pytestmark = [pytest.mark.node, pytest.mark.alone]

SECONDS: Final = float(os.environ.get("LLMKUBE_POOL_SECONDS", "20"))
"""Seconds in which members are asked in turn; 600 for the full length."""

NAMES: Final = ("one", "two")


async def members_with_pods(node: Node, namespace: str) -> set[str]:
    """Return the members that have any pod, also a terminating one; one list, so that all are of one moment."""
    pods = (await read(node, namespace, "pods -l app"))["items"]
    return {pod["metadata"]["labels"]["app"] for pod in pods} & set(NAMES)


@pytest.mark.soak
async def test_members_that_are_asked_in_turn_lose_no_request(node: Node, release: Release, namespace: str):
    """Every request is answered, whichever member has the GPUs; at any time at most one member has pods."""
    pool: dict[str, Any] = {
        "apiVersion": "inference.llmkube.dev/v1alpha1",
        "kind": "ModelPool",
        "metadata": {"name": "slot"},
        "spec": {"members": [{"inferenceServiceRef": {"name": name}} for name in NAMES], "swapBudget": "15s"},
    }
    together: list[set[str]] = []
    turns = 0
    async with front_door(node, release, 1):
        await at_zero(node, namespace, *NAMES, activation={"mode": "OnRequest", "idleTimeout": "60s"})
        await node.apply(namespace, pool)
        await wait(node, namespace, "mpool/slot", "condition=MembersValid")

        async def watch() -> None:
            while True:
                if len(there := await members_with_pods(node, namespace)) > 1:
                    together.append(there)
                await trio.sleep(1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            began = trio.current_time()
            while turns < 2 or trio.current_time() < began + SECONDS:
                found = await ask(node, namespace, NAMES[turns % 2], "once", 3)
                assert (found["answered"], found["lost"]) == (3, [])
                turns += 1
            nursery.cancel_scope.cancel()
    print(f"{turns} turns in {trio.current_time() - began:.0f} s")  # noqa: T201
    assert together == []
