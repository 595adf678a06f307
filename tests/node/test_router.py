"""A ModelRouter in a cluster: its pods route by its spec, take an edit up without a restart, and say how they do."""

import json
from typing import Any

import pytest
import trio

from node.machines import answered
from node.objects import pod
from node.release import Release
from node.running_node import Node
from node.services import ANSWER, API, SLEEP, chat, condition, read, serve, wait

pytestmark = pytest.mark.node

NAME = "front-router-proxy"
URL = f"http://{NAME}:8080"

TRAFFIC = """
import json, sys, time, urllib.request
url, seconds = sys.argv[1], float(sys.argv[2])
body = json.dumps({"model": "x", "temperature": 0, "messages": [{"role": "user", "content": "What is LLMKube?"}]})
end, answers, lost = time.monotonic() + seconds, 0, []
while time.monotonic() < end:
    request = urllib.request.Request(f"{url}/v1/chat/completions", body.encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            json.load(answer)["choices"][0]["message"]["content"]
        answers += 1
    except Exception as error:
        lost.append(repr(error))
print(json.dumps({"answers": answers, "lost": lost}))
"""
"""Ask again and again, each time over a new connection, and say what was lost: URL SECONDS."""


def router(**spec: Any) -> dict[str, Any]:
    local = {"name": "local", "inferenceServiceRef": {"name": "tiny"}}
    given = {"backends": [local], "defaultRoute": "local", "proxy": {"replicas": 2}} | spec
    return {"apiVersion": API, "kind": "ModelRouter", "metadata": {"name": "front"}, "spec": given}


async def pods_of(node: Node, namespace: str) -> set[str]:
    found = (await read(node, namespace, f"pods -l app={NAME}"))["items"]
    return {each["metadata"]["uid"] for each in found if not each["metadata"].get("deletionTimestamp")}


async def test_a_routers_pods_answer_by_its_spec(node: Node, release: Release, namespace: str):
    """From the object to an answer through its Service; under `restricted`, with no token; it says Ready and why not.

    A backend that goes away is reported, and loses only its own requests.
    """
    await serve(node, namespace)
    await node.apply(namespace, router())
    await wait(node, namespace, "mr/front", "jsonpath={.status.phase}=Ready")
    found = await read(node, namespace, "mr/front")
    assert found["status"]["endpoint"] == f"http://{NAME}.{namespace}.svc.cluster.local:8080/v1/chat/completions"
    await answered(node, namespace, url=URL)
    assert ANSWER in await chat(node, namespace, "asker", URL)
    await wait(node, namespace, "mr/front", "jsonpath={.status.backends[0].healthy}=true")
    await node.kubectl("delete", "-n", namespace, "isvc/tiny")
    await wait(node, namespace, "mr/front", "jsonpath={.status.phase}=Degraded")
    degraded = condition(await read(node, namespace, "mr/front"), "Degraded")
    assert "there is no InferenceService tiny" in degraded["message"]


async def test_an_edit_of_a_router_loses_no_request_and_no_pod(node: Node, release: Release, namespace: str):
    """Rules are taken up by the pods that run; pods that are replaced lose nothing either."""
    await serve(node, namespace)
    await node.apply(namespace, router(), pod("client", SLEEP))
    await wait(node, namespace, "mr/front", "jsonpath={.status.phase}=Ready")
    await wait(node, namespace, "pod/client", "condition=Ready")
    await answered(node, namespace, url=URL)
    before = await pods_of(node, namespace)
    outcome: dict[str, Any] = {}

    async def ask() -> None:
        words = ("client", "python3", "-c", TRAFFIC, URL, "90")
        outcome.update(json.loads(await node.execute(namespace, *words)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.sleep(2)
        rule = {"name": "any", "match": {"models": ["*"]}, "route": {"backends": ["local"]}}
        await node.apply(namespace, router(rules=[rule]))
        await wait(node, namespace, "mr/front", "jsonpath={.status.activeRules}=1")
        assert await pods_of(node, namespace) == before
        await node.apply(namespace, router(proxy={"replicas": 2, "resources": {"requests": {"cpu": "20m"}}}))
        with trio.fail_after(80):
            while len(now := await pods_of(node, namespace)) != 2 or now & before:  # noqa: ASYNC110 (nothing tells)
                await trio.sleep(1)
    assert outcome["lost"] == []
    assert outcome["answers"] > 10
