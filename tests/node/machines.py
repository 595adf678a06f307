"""Agents on the machines beside the node: they know nothing of pods, and serve through the cluster's Services."""

import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import trio

from node.running_node import Node
from node.wiring import ADDRESS, MACHINES, STATE

LLMKUBE = Path(sys.executable).with_name("llmkube")
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
            # what comes from pods comes through the node's address
            *("--allow-from", f"{ADDRESS}/32", "--state-dir", self.folder, *more),
        )

    @asynccontextmanager
    async def running(self, *more: str) -> AsyncIterator[None]:
        """Run the agent; when the block ends it is told to stop, and waited for."""
        command = self.node.inside(
            *("env", "PYTHONDONTWRITEBYTECODE=1", f"LLMKUBE_LLAMA_SERVER={ENGINE}", str(LLMKUBE), "agent"),
            *("--kubeconfig", f"{self.folder}/host.kubeconfig", "--state-dir", self.folder),
            *("--host-name", self.name, "--host-ip", MACHINES[self.machine], "--namespace", self.namespace, *more),
            machine=self.machine,
        )
        with (self.node.state / "logs" / f"agent-{self.name}.log").open("ab") as log:
            process = await trio.lowlevel.open_process(command, stdout=log, stderr=log)
            try:
                yield
            finally:
                with trio.CancelScope(deadline=trio.current_time() + 60, shield=True):
                    # its engines and their proxies end with it, as it is told to stop
                    for each in self.processes("agent"):
                        each.terminate()
                    await process.wait()

    def processes(self, what: str) -> Sequence[psutil.Process]:
        """Return the processes of the agent, or of its engines."""
        return [each for each in self.node.descendants() if _is(each, what, self.folder)]


def _is(process: psutil.Process, what: str, folder: str) -> bool:
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    if folder not in " ".join(words) or process.name() == "nsenter":
        return False
    if what == "agent":
        return str(LLMKUBE) in words and "agent" in words
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
