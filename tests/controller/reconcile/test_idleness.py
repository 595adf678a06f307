"""Pods are queried concurrently for requests in flight; one that has some, or does not answer, is enough."""

import pytest
import trio

from controller.podcluster import open_pods
from controller.podobjects import plan, pod
from llmkube.controller.reconcile import pod_polling
from llmkube.k8s.workloads import Deployment

NAMES = ("llamacpp:requests_processing", "llamacpp:requests_deferred")
IDLE = "# HELP x y\nllamacpp:requests_processing 0\nllamacpp:requests_deferred 0\n"
BUSY = IDLE.replace("processing 0", "processing 1")


async def context(hands) -> bool:
    """Return whether the Deployment has the edit."""
    [container, _] = (await hands.json(Deployment))["spec"]["template"]["spec"]["containers"]
    return "8192" in container["args"]


@pytest.mark.parametrize(
    ("address", "url"), [("10.0.0.7", "http://10.0.0.7:8080/metrics"), ("fd00::7", "http://[fd00::7]:8080/metrics")]
)
def test_a_pod_is_queried_at_its_address_of_either_family(address, url):
    """An IPv6 address is in brackets, or its last part would be the port."""
    assert pod_polling.pod_url(pod(podIP=address), 8080, "/metrics") == url


async def test_slow_pods_do_not_block_an_edit_for_ever(autojump_clock, monkeypatch):
    """Nine idle replicas that take four seconds each to answer are queried at once and then replaced."""
    policy = {"waitForIdle": True, "idleTimeoutSeconds": 3600}

    async def read_slowly(_url):
        await trio.sleep(pod_polling.QUERY_SECONDS - 1)
        return IDLE

    monkeypatch.setattr(pod_polling, "read_text", read_slowly)
    async with open_pods() as hands:
        await hands.bring_up(rolloutPolicy=policy, replicas=9)
        for number in range(1, 10):
            await hands.service_pod({"phase": "Running", "podIP": f"10.0.0.{number}"}, number=number)
        await hands.create_service(rolloutPolicy=policy, replicas=9, contextSize=8192)
        await trio.sleep(60)
        assert await context(hands)
        assert not hands.cluster.reconciles("inferenceservice", "error")


@pytest.mark.parametrize("busy", [None, 0, 1, 2])
async def test_one_busy_pod_keeps_all(busy, autojump_clock, monkeypatch):
    """Of three running pods any one that has a request, or does not answer, keeps all; a terminating one does not."""
    urls = [f"http://10.0.0.{number}:8080/metrics" for number in range(3)]
    texts = {url: "" if busy == 2 else BUSY for index, url in enumerate(urls) if index == busy}

    async def read(url):
        await trio.lowlevel.checkpoint()
        return texts.get(url, IDLE)

    monkeypatch.setattr(pod_polling, "read_text", read)
    pods = [pod(name=f"chat-{number}", phase="Running", podIP=f"10.0.0.{number}") for number in range(3)]
    going = pod(name="chat-9", phase="Running", deleted=True)
    assert await pod_polling.are_idle(plan(busy_metrics=NAMES), [*pods, going]) is (busy is None)


@pytest.mark.parametrize(
    ("state", "idle"), [({"waiting": {}}, True), ({"terminated": {}}, True), ({"running": {}}, False)]
)
async def test_an_engine_that_does_not_run_has_no_requests(state, idle, autojump_clock, monkeypatch):
    """It crashes again and again: its pod is in phase Running, and nothing answers there."""

    async def read(_url):
        await trio.lowlevel.checkpoint()
        return ""

    monkeypatch.setattr(pod_polling, "read_text", read)
    statuses = [{"name": "llama-server", "state": state}, {"name": "other", "state": {"running": {}}}]
    crashed = pod(phase="Running", podIP="10.0.0.1", containerStatuses=statuses)
    assert await pod_polling.are_idle(plan(busy_metrics=NAMES), [crashed]) is idle


async def test_a_pod_is_queried_at_its_own_port_and_not_at_that_of_the_next_plan(monkeypatch):
    """While an edit of containerPort waits for idleness, the pods still listen on the old port."""
    asked = []

    async def read(url):
        await trio.lowlevel.checkpoint()
        asked.append(url)
        return IDLE if url == "http://10.0.0.1:8080/metrics" else ""

    monkeypatch.setattr(pod_polling, "read_text", read)
    old = pod(phase="Running", podIP="10.0.0.1", port=8080)
    assert await pod_polling.are_idle(plan(port=9000, busy_metrics=NAMES), [old])
    assert asked == ["http://10.0.0.1:8080/metrics"]


async def test_a_pod_without_a_port_of_that_name_may_be_busy(monkeypatch):
    """The engine before had no metrics, or a port of another name for them: it is not known to be idle."""

    async def read(_url):
        await trio.lowlevel.checkpoint()
        return IDLE

    monkeypatch.setattr(pod_polling, "read_text", read)
    old = pod(phase="Running", podIP="10.0.0.1")
    assert not await pod_polling.are_idle(plan(metrics_port_name="metrics", busy_metrics=NAMES), [old])
