"""A Model and its service in pods: fetched by a Job into a claim, served by a Deployment, asked through a Service."""

import json

import pytest
import trio

from node.objects import pod
from node.release import Release
from node.running_node import Node
from node.services import ANSWER, TRAFFIC, chat, condition, model, read, service, wait

pytestmark = pytest.mark.node

SLEEP = ("sleep", "600")


async def serve(node: Node, namespace: str, name: str = "tiny", **spec) -> str:
    """Serve the demo model and return its URL, as pods of the namespace write it; a pod `asker` runs beside it."""
    await node.apply(namespace, model(name), service(name, **spec), pod("asker", SLEEP))
    await wait(node, namespace, "pod/asker", "condition=Ready")
    await wait(node, namespace, f"isvc/{name}", "condition=Available")
    return f"http://{name}:8080"


async def traffic(
    node: Node, namespace: str, url: str, *, seconds: int, tokens: int = 200, workers: int = 2, key: str = ""
):
    """Stream answers from inside the pod `asker`, and return how many were whole and which were not."""
    command = ("python3", "-c", TRAFFIC, url, str(seconds), str(tokens), str(workers), *([key] if key else []))
    return json.loads(await node.execute(namespace, "asker", *command))


async def test_a_pod_gets_an_answer_by_the_services_name(node: Node, release: Release, namespace: str):
    """Model, Job, claim, Deployment, Service: an answer comes through the Service's DNS name from another pod."""
    url = await serve(node, namespace)
    with trio.fail_after(30):
        while ANSWER not in (said := await chat(node, namespace, "asker", url)):
            await trio.sleep(0.2)
    assert said.startswith("200 ")
    assert ANSWER in await chat(node, namespace, "asker", f"http://tiny.{namespace}.svc.cluster.local:8080")
    (engine,) = (await read(node, namespace, "pods -l app=tiny"))["items"]
    assert engine["spec"]["containers"][0]["image"].startswith("localhost/llmkube-llama")


async def test_an_edit_under_load_loses_no_answer(node: Node, release: Release, namespace: str):
    """The pods are replaced while two clients stream; each answer is whole and no request is refused."""
    url = await serve(node, namespace)
    lost = []
    async with trio.open_nursery() as nursery:

        async def stream() -> None:
            lost.append(await traffic(node, namespace, url, seconds=40))

        nursery.start_soon(stream)
        await trio.sleep(5)
        (before,) = (await read(node, namespace, "pods -l app=tiny"))["items"]
        patch = {"spec": {"extraArgs": ["--threads=1", "--cache-ram=0"]}}
        await node.kubectl("patch", "-n", namespace, "isvc/tiny", "--type=merge", "-p", json.dumps(patch))
        await wait(node, namespace, f"pod/{before['metadata']['name']}", "delete")
    print(lost)  # noqa: T201
    assert lost[0]["whole"] > 10
    assert lost[0]["broken"] == []


async def test_a_crash_loop_stays_failed_and_says_why(node: Node, release: Release, namespace: str):
    """A flag that the engine does not know: the phase is Failed and stays so over restarts, and the reason is told."""
    await node.apply(namespace, model("tiny"), service("tiny", extraArgs=["--no-such-flag"]))
    await wait(node, namespace, "isvc/tiny", "jsonpath={.status.phase}=Failed")
    restarts = 0
    with trio.fail_after(120):
        while restarts < 3:
            found = await read(node, namespace, "isvc/tiny")
            assert found["status"]["phase"] == "Failed", found["status"]
            pods = (await read(node, namespace, "pods -l app=tiny"))["items"]
            restarts = max(
                (each["restartCount"] for p in pods for each in p["status"].get("containerStatuses", [])), default=0
            )
            await trio.sleep(0.5)
    available = condition(await read(node, namespace, "isvc/tiny"), "Available")
    assert available["status"] == "False"
    print(available)  # noqa: T201
    assert "no-such-flag" in available["message"]
