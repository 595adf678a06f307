"""Macs next to the cluster: their agents join, pods are answered by their engines, and failures are repaired."""

import json
from functools import partial
from typing import Any

import pytest
import trio

from lengths import SWAP_POD_SECONDS
from llmkube.supervisor.network import host_facts
from node.machines import (
    AGENT,
    LLMKUBE,
    PATIENCE_SECONDS,
    URL,
    Agent,
    answered,
    demo,
    serving,
    slices,
    streaming,
    traffic,
)
from node.objects import pod
from node.release import Release
from node.running_node import Node, line_of
from node.services import ANSWER, ASK, SLEEP, chat, model, read, wait
from node.wiring import ADDRESS, MACHINES, STATE

pytestmark = pytest.mark.node

KEY = "chat-key-of-a-client"

ONE_ENGINE_BYTES = 200 << 20
"""Memory for one engine of the demo's model."""


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


async def test_a_pod_asks_an_unloaded_model_by_its_name_and_is_answered(node: Node, release: Release, namespace: str):
    """Nothing is loaded, and the Service still has a ready endpoint; a stranger on the wire loads nothing."""
    async with serving(node, namespace, "mac", activation={"mode": "OnRequest", "idleTimeout": "1s"}) as (agent,):
        await wait(node, namespace, "isvc/demo", "jsonpath={.status.phase}=Idle")
        await wait(node, namespace, "isvc/demo", "condition=Available")
        assert not agent.processes("engine")
        assert await slices(node, namespace, "demo") == [(MACHINES["mac"], True)]
        (piece,) = (await read(node, namespace, "endpointslices -l kubernetes.io/service-name=demo"))["items"]
        direct = f"http://{MACHINES['mac']}:{piece['ports'][0]['port']}"
        assert (await node.run("python3", "-c", ASK, direct, "", machine="mac2")).startswith("401 ")
        assert not agent.processes("engine")
        assert ANSWER in await chat(node, namespace, "asker", URL)


async def test_ten_pods_ask_two_models_that_do_not_fit_together(node: Node, release: Release, namespace: str):
    """The models make room for each other all the time, and every request of every pod is answered."""
    mac, names, found = Agent(node, "mac", namespace), ("demo", "other"), dict[str, Any]()
    fraction = ONE_ENGINE_BYTES / host_facts().total_bytes
    await mac.join()
    for name in names:
        service = demo(name, activation={"mode": "OnRequest"})
        await node.apply(namespace, model(name, hardware={"accelerator": "metal"}), service)
    async with mac.running("--memory-fraction", f"{fraction:.6f}"):
        for name in names:
            await wait(node, namespace, f"isvc/{name}", "condition=Available")
        await node.apply(namespace, pod("asker", SLEEP))
        await wait(node, namespace, "pod/asker", "condition=Ready")
        for name in names:  # kube-proxy has the endpoints
            await answered(node, namespace, url=f"http://{name}:8080")

        async def ask(pod_name: str, url: str) -> None:
            found[pod_name] = await traffic(node, namespace, SWAP_POD_SECONDS, 16, name=pod_name, url=url)

        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(ask, f"pod{number}", f"http://{names[number % 2]}:8080")
    print(found)  # noqa: T201
    assert [each["broken"] for each in found.values()] == [[]] * 10
    assert all(each["whole"] for each in found.values())
    log = (node.state / "logs" / f"agent-{mac.name}.log").read_text("utf-8")
    assert log.count("started inference service") > len(names)


@pytest.mark.alone  # it serves the Metal services of every namespace
async def test_the_guide_as_typed(node: Node, release: Release, namespace: str):
    """`llmkube-metal-agent --host-ip IP` and a kubeconfig; pods, the worker and the Mac get answers, a stranger 401."""
    agent = Agent(node, "mac", namespace)
    here = {"KUBECONFIG": f"{STATE}/admin.kubeconfig", "LLMKUBE_STATE_DIR": agent.folder, "NO_COLOR": "1"}
    on_mac = ("env", *map("=".join, here.items()), str(LLMKUBE))
    async with agent.typed(AGENT, "--host-ip", MACHINES["mac"], **here):
        await node.apply(namespace, model("demo", hardware={"accelerator": "metal"}), demo(), pod("asker", SLEEP))
        await wait(node, namespace, "isvc/demo", "condition=Available")
        await wait(node, namespace, "pod/asker", "condition=Ready")
        await answered(node, namespace)
        (piece,) = (await read(node, namespace, "endpointslices -l kubernetes.io/service-name=demo"))["items"]
        direct = f"http://{MACHINES['mac']}:{piece['ports'][0]['port']}"
        assert ANSWER in await node.run("python3", "-c", ASK, direct, "")
        assert ANSWER in await node.run("python3", "-c", ASK, direct, "", machine="mac")
        assert ANSWER in await node.run(*on_mac, "chat", "demo", "What is LLMKube?", "-n", namespace, machine="mac")
        assert (await node.run("python3", "-c", ASK, direct, "", machine="mac2")).startswith("401 ")
        agent_status = await node.run(*on_mac, "agent", "status", machine="mac")
        assert f"admitted    this machine, nodes ({ADDRESS}/32" in agent_status
        forwarding = node.inside(*on_mac, "port-forward", "demo", "18080", "-n", namespace, machine="mac")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(trio.run_process, forwarding, check=False, capture_stdout=True))
            forwarded = ""
            with trio.move_on_after(PATIENCE_SECONDS):
                while ANSWER not in forwarded:
                    forwarded = await node.run("python3", "-c", ASK, "http://127.0.0.1:18080", "", machine="mac")
            for each in node.descendants():
                if "port-forward" in line_of(each):
                    each.kill()
        assert ANSWER in forwarded


async def test_a_node_that_comes_is_admitted_at_once_and_one_that_goes_is_not(
    node: Node, release: Release, namespace: str
):
    """The other machine's address in a Node object opens the engine to it, without a restart of anything."""
    agent = Agent(node, "mac", namespace)
    here = {"KUBECONFIG": f"{STATE}/admin.kubeconfig", "LLMKUBE_STATE_DIR": agent.folder}
    variables, worker = map("=".join, here.items()), f"worker-{namespace}"
    async with agent.typed(AGENT, "--host-ip", MACHINES["mac"], "--namespace", namespace, **here):
        await node.apply(namespace, model("demo", hardware={"accelerator": "metal"}), demo())
        await wait(node, namespace, "isvc/demo", "condition=Available")
        (piece,) = (await read(node, namespace, "endpointslices -l kubernetes.io/service-name=demo"))["items"]
        direct = f"http://{MACHINES['mac']}:{piece['ports'][0]['port']}"

        async def wait_for_answer(beginning: str) -> None:
            with trio.fail_after(PATIENCE_SECONDS):
                while True:
                    if (await node.run("python3", "-c", ASK, direct, "", machine="mac2")).startswith(beginning):
                        return
                    await trio.sleep(0.2)

        await wait_for_answer("401 ")
        unschedulable = {"unschedulable": True, "podCIDR": "0.0.0.0/0", "podCIDRs": ["0.0.0.0/0"]}
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": worker}, "spec": unschedulable}
        await node.kubectl("create", "-f", "-", stdin=json.dumps(body))
        try:
            status = {"status": {"addresses": [{"type": "InternalIP", "address": MACHINES["mac2"]}]}}
            await node.kubectl(
                "patch", "node", worker, "--subresource=status", "--type=merge", "-p", json.dumps(status)
            )
            await wait_for_answer("200 ")
            agent_status = await node.run("env", *variables, str(LLMKUBE), "agent", "status", machine="mac")
            assert f"{MACHINES['mac2']}/32" in agent_status
            assert "0.0.0.0" not in agent_status
        finally:
            with trio.CancelScope(deadline=trio.current_time() + 30, shield=True):
                await node.kubectl("delete", "node", worker)
        await wait_for_answer("401 ")


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
    """Answers continue when one of two is unplugged; no request is lost once its endpoint is gone."""
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
