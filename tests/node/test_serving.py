"""A Model and its service in pods: fetched by a Job into a claim, served by a Deployment, asked through a Service."""

from pathlib import Path

import pytest
import trio

from node.images import reference
from node.metrics_stand_in import metrics_server
from node.objects import pod
from node.release import Release
from node.running_node import Node
from node.services import ANSWER, chat, condition, model, read, service, wait
from node.wiring import NODE

pytestmark = pytest.mark.node

EXAMPLE = Path(__file__).parents[2] / "examples" / "cluster" / "cpu.yaml"
NAMED = "registry.example.com/llmkube-llama:0.1.0"
SLEEP = ("sleep", "600")


async def serve(node: Node, namespace: str, name: str = "tiny", **spec) -> str:
    """Serve the demo model and return its URL, as pods of the namespace write it; a pod `asker` runs beside it."""
    await node.apply(namespace, model(name), service(name, **spec), pod("asker", SLEEP))
    await wait(node, namespace, "pod/asker", "condition=Ready")
    await wait(node, namespace, f"isvc/{name}", "condition=Available")
    return f"http://{name}:8080"


async def test_a_pod_gets_an_answer_by_the_services_name(node: Node, release: Release, namespace: str):
    """Model, Job, claim, Deployment, Service: an answer comes through the Service's DNS name from another pod."""
    url = await serve(node, namespace)
    with trio.fail_after(30):
        while True:
            if ANSWER in (said := await chat(node, namespace, "asker", url)):
                break
            await trio.sleep(0.2)
    assert said.startswith("200 ")
    assert ANSWER in await chat(node, namespace, "asker", f"http://tiny.{namespace}.svc.cluster.local:8080")
    (engine,) = (await read(node, namespace, "pods -l app=tiny"))["items"]
    assert engine["spec"]["containers"][0]["image"].startswith("localhost/llmkube-llama")


async def test_the_example_for_cpus_is_served_as_it_stands(node: Node, release: Release, namespace: str):
    """`examples/cluster/cpu.yaml` with our image's name in it serves under Pod Security `restricted`."""
    text = EXAMPLE.read_text()
    assert NAMED in text
    await node.kubectl("apply", "-n", namespace, "-f", "-", stdin=text.replace(NAMED, reference("llmkube-llama")))
    await wait(node, namespace, "isvc/tiny", "condition=Available")


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
    assert "no-such-flag" in available["message"]


async def test_an_engine_that_takes_more_memory_than_it_may_is_told(node: Node, release: Release, namespace: str):
    """The kernel kills the engine at the Model's budget, and the status says so."""
    await node.apply(namespace, model("tiny", hardware={"memoryBudget": "16Mi"}), service("tiny", resources={}))
    await wait(node, namespace, "isvc/tiny", "jsonpath={.status.phase}=Failed")
    available = condition(await read(node, namespace, "isvc/tiny"), "Available")
    assert "OOMKilled" in available["message"] or available["reason"] == "OOMKilled"


async def test_the_scale_subresource_adds_and_removes_pods(node: Node, release: Release, namespace: str):
    """`kubectl scale` to two, to none and to one is followed by as many pods that are ready."""
    url = await serve(node, namespace)
    for replicas in (2, 0, 1):
        await node.kubectl("scale", "-n", namespace, "isvc/tiny", f"--replicas={replicas}")
        await wait(node, namespace, "deployment/tiny", f"jsonpath={{.spec.replicas}}={replicas}")
        with trio.fail_after(120):
            while True:
                if (await read(node, namespace, "isvc/tiny"))["status"].get("readyReplicas", 0) == replicas:
                    break
                await trio.sleep(0.2)
    with trio.fail_after(30):
        while True:
            if ANSWER in await chat(node, namespace, "asker", url):
                break
            await trio.sleep(0.2)


async def test_a_pod_is_ready_when_its_engine_is(node: Node, release: Release, namespace: str):
    """It is asked every second whether it has started, and a pod that was deleted is followed by one that is ready."""
    await serve(node, namespace)
    await node.kubectl("delete", "-n", namespace, "pod", "-l", "app=tiny", "--wait=true")
    await wait(node, namespace, "isvc/tiny", "condition=Available")
    pods = (await read(node, namespace, "pods -l app=tiny"))["items"]
    containers = [each for found in pods for each in found["spec"]["containers"] if each["name"] == "llama-server"]
    assert {each["startupProbe"]["periodSeconds"] for each in containers} == {1}


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
        said = await node.kubectl(*drain[:-1], "--timeout=10s", check=False)
        assert "would violate the pod's disruption budget" in said
    finally:
        with trio.move_on_after(30, shield=True):
            await node.kubectl("uncordon", NODE)


async def test_an_autoscaler_follows_the_load(node: Node, release: Release, namespace: str, tmp_path: Path):
    """The HorizontalPodAutoscaler of a service adds pods while they are busy, and takes them away afterwards."""
    metric = {"type": "Resource", "name": "cpu", "targetAverageUtilization": 50}
    await serve(node, namespace, autoscaling={"minReplicas": 1, "maxReplicas": 3, "metrics": [metric]})
    async with metrics_server(node, namespace, tmp_path) as metrics:
        for cpu, replicas in (("500m", 3), ("1m", 1)):
            metrics.cpu = cpu
            with trio.fail_after(150):
                while True:
                    if (await read(node, namespace, "isvc/tiny"))["status"].get("readyReplicas") == replicas:
                        break
                    await trio.sleep(0.5)
