"""A Model and its service in pods: fetched by a Job into a claim, served by a Deployment, asked through a Service."""

from pathlib import Path

import pytest
import trio

from node.images import images, pinned, reference
from node.machines import answered
from node.metrics_stand_in import metrics_server
from node.objects import pod
from node.release import Release
from node.running_node import Node
from node.services import ANSWER, SLEEP, chat, condition, model, read, serve, service, wait

pytestmark = pytest.mark.node

EXAMPLE = Path(__file__).parents[2] / "examples" / "cluster" / "cpu.yaml"


async def test_a_pod_gets_an_answer_by_the_services_name(node: Node, release: Release, namespace: str):
    """Model, Job, claim, Deployment, Service: an answer comes through the Service's DNS name from another pod."""
    url = await serve(node, namespace)
    assert (await answered(node, namespace, url=url)).startswith("200 ")
    assert ANSWER in await chat(node, namespace, "asker", f"http://tiny.{namespace}.svc.cluster.local:8080")
    (engine,) = (await read(node, namespace, "pods -l app=tiny"))["items"]
    assert engine["spec"]["containers"][0]["image"].startswith("localhost/llmkube-llama")


async def test_the_example_for_cpus_is_served_by_our_image_unchanged(node: Node, release: Release, namespace: str):
    """`examples/cluster/cpu.yaml` names no image, command or user, and answers under Pod Security `restricted`."""
    await node.kubectl("apply", "-n", namespace, "-f", str(EXAMPLE))
    await node.apply(namespace, pod("asker", SLEEP))
    await wait(node, namespace, "pod/asker", "condition=Ready")
    await wait(node, namespace, "isvc/tiny", "condition=Available")
    await answered(node, namespace, url="http://tiny:8080")
    (engine,) = (await read(node, namespace, "pods -l app=tiny"))["items"]
    spec, container = engine["spec"], engine["spec"]["containers"][0]
    assert container["image"] == pinned(next(each for each in images() if each.name == reference("llmkube-llama")))
    assert "command" not in container
    assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["runAsNonRoot"]) == (65532, True)
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


async def test_a_crash_loop_stays_failed_with_its_reason(node: Node, release: Release, namespace: str):
    """With a flag that the engine does not know the phase stays Failed across restarts, and the reason is reported."""
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


async def test_an_engine_beyond_its_memory_limit_is_reported(node: Node, release: Release, namespace: str):
    """The kernel kills the engine at the Model's budget, and the status reports it."""
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
    await answered(node, namespace, url=url)


async def test_a_pod_is_ready_when_its_engine_is(node: Node, release: Release, namespace: str):
    """It is asked every second whether it has started, and a pod that was deleted is followed by one that is ready."""
    await serve(node, namespace)
    await node.kubectl("delete", "-n", namespace, "pod", "-l", "app=tiny", "--wait=true")
    await wait(node, namespace, "isvc/tiny", "condition=Available")
    pods = (await read(node, namespace, "pods -l app=tiny"))["items"]
    containers = [each for found in pods for each in found["spec"]["containers"] if each["name"] == "llama-server"]
    assert {each["startupProbe"]["periodSeconds"] for each in containers} == {1}


async def test_an_autoscaler_follows_the_load(node: Node, release: Release, namespace: str, tmp_path: Path):
    """The HorizontalPodAutoscaler of a service adds pods while they are busy, and removes them afterwards."""
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
