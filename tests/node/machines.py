"""Agents on the machines next to the node: they know nothing of pods, and serve through the cluster's Services."""

import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import trio

from node.objects import Object, pod
from node.running_node import Node
from node.services import ANSWER, API, SLEEP, TRAFFIC, chat, model, wait
from node.wiring import MACHINES, STATE

PATIENCE_SECONDS = 90.0
URL = "http://demo:8080"
LLMKUBE = Path(sys.executable).with_name("llmkube")
AGENT = str(LLMKUBE.with_name("llmkube-metal-agent"))
ENGINE = Path(sys.executable).with_name("llmkube-llama-server")


class Agent:
    """An agent on a machine, joined by the guide's words; its state lies in the node's state folder."""

    def __init__(self, node: Node, machine: str, namespace: str) -> None:
        self.node = node
        self.machine = machine
        self.namespace = namespace
        self.name = f"{machine}-{namespace}"
        self.folder = f"{STATE}/agents/{self.name}"

    async def join(self, *more: str) -> None:
        """Give the machine an identity of its own, as an administrator of the cluster does."""
        await self.node.run(
            *(str(LLMKUBE), "agent", "join", "--kubeconfig", f"{STATE}/admin.kubeconfig"),
            *("--name", self.name, "--network", f"{MACHINES[self.machine]}/32", "--namespace", self.namespace),
            *("--state-dir", self.folder, *more),
        )

    @asynccontextmanager
    async def running(self, *more: str) -> AsyncIterator[None]:
        """Run the agent; when the block ends it is stopped with a signal, and waited for."""
        words = ("--kubeconfig", f"{self.folder}/host.kubeconfig", "--state-dir", self.folder)
        words += ("--host-name", self.name, "--host-ip", MACHINES[self.machine], "--namespace", self.namespace, *more)
        async with self.typed(str(LLMKUBE), "agent", *words):
            yield

    @asynccontextmanager
    async def typed(self, *words: str, **variables: str) -> AsyncIterator[None]:
        """Run a command that is the agent, with these further variables."""
        given = {"PYTHONDONTWRITEBYTECODE": "1", "LLMKUBE_LLAMA_SERVER": str(ENGINE)} | variables
        command = self.node.inside("env", *map("=".join, given.items()), *words, machine=self.machine)
        with (self.node.state / "logs" / f"agent-{self.name}.log").open("ab") as log:
            process = await trio.lowlevel.open_process(command, stdout=log, stderr=log)
            try:
                yield
            finally:
                with trio.CancelScope(deadline=trio.current_time() + 60, shield=True):
                    # its engines and their proxies end with it on a signal
                    for each in self.processes("agent"):
                        each.terminate()
                    await process.wait()

    def processes(self, what: str) -> Sequence[psutil.Process]:
        """Return the processes of the agent, or of its engines."""
        return [each for each in self.node.descendants() if _is(each, what, self.folder)]


def _is(process: psutil.Process, what: str, folder: str) -> bool:
    try:
        name, words, variables = process.name(), process.cmdline(), process.environ()
    except psutil.Error:  # it may exit at any time
        return False
    if name == "nsenter" or folder not in " ".join((*words, variables.get("LLMKUBE_STATE_DIR", ""))):
        return False
    if what == "agent":
        return AGENT in words or (str(LLMKUBE) in words and "agent" in words)
    return str(ENGINE) in words and "--model" in words


async def slices(node: Node, namespace: str, service: str) -> Sequence[tuple[str, bool]]:
    """Return the address and the readiness of each endpoint of a service."""
    label = f"kubernetes.io/service-name={service}"
    found = json.loads(await node.kubectl("get", "-n", namespace, "endpointslices", "-l", label, "-o", "json"))
    return [
        (address, bool(endpoint["conditions"].get("ready")))
        for each in found["items"]
        for endpoint in each.get("endpoints") or ()
        for address in endpoint["addresses"]
    ]


def demo(name: str = "demo", **spec: Any) -> Object:
    extra = ["--threads=1", "--context-shift"]
    wanted = {"modelRef": name, "contextSize": 1024, "parallelSlots": 2, "extraArgs": extra, **spec}
    return {"apiVersion": API, "kind": "InferenceService", "metadata": {"name": name}, "spec": wanted}


@asynccontextmanager
async def serving(
    node: Node, namespace: str, *machines: str, secret: str = "", **spec: Any
) -> AsyncIterator[list[Agent]]:
    """Run an agent on each machine, have them serve the demo model, and a pod `asker` on the node."""
    agents = [Agent(node, machine, namespace) for machine in machines]
    async with trio.open_nursery() as nursery:
        for agent in agents:
            await agent.join(*(("--secret", secret) if secret else ()))
        await node.apply(namespace, model("demo", hardware={"accelerator": "metal"}), demo(**spec), pod("asker", SLEEP))
        stop = trio.Event()

        async def run(agent: Agent, task_status: trio.TaskStatus[None]) -> None:
            async with agent.running():
                task_status.started()
                await stop.wait()

        for agent in agents:
            await nursery.start(run, agent)
        await wait(node, namespace, "isvc/demo", "condition=Available")
        await wait(node, namespace, "pod/asker", "condition=Ready")
        yield agents
        stop.set()


async def answered(node: Node, namespace: str, *, key: str = "", url: str = URL) -> str:
    """Return what the pod `asker` gets once it is the answer; agents, engines and kube-proxy may take their time."""
    answer = ""
    with trio.move_on_after(PATIENCE_SECONDS):
        while ANSWER not in answer:
            answer = await chat(node, namespace, "asker", url, key=key)
        return answer
    raise AssertionError(answer)


async def traffic(
    node: Node, namespace: str, seconds: int, tokens: int = 100, *, name: str = "traffic", url: str = URL
) -> Any:
    """Stream answers in a pod of its own, which needs neither kubelet nor API server while it does."""
    words = (url, str(seconds), str(tokens), "2")
    await node.apply(namespace, pod(name, ["python3", "-c", TRAFFIC, *words], restartPolicy="Never"))
    await wait(node, namespace, f"pod/{name}", "jsonpath={.status.phase}=Succeeded", f"{seconds + 120}s")
    return json.loads(await node.kubectl("logs", "-n", namespace, name))


@asynccontextmanager
async def streaming(node: Node, namespace: str, seconds: int = 12) -> AsyncIterator[list[Any]]:
    """Have a pod stream answers, and let the block break something meanwhile; what was whole is there afterwards."""
    seen: list[Any] = []
    async with trio.open_nursery() as nursery:

        async def stream() -> None:
            seen.append(await traffic(node, namespace, seconds))

        nursery.start_soon(stream)
        await wait(node, namespace, "pod/traffic", "jsonpath={.status.phase}=Running")
        await trio.sleep(3)
        yield seen
