"""Whether the pods of a service have requests, asked of each engine's metrics."""

from collections.abc import Iterable
from typing import Final

import trio

from llmkube.base.http.client import open_http_client
from llmkube.base.http.errors import HttpError
from llmkube.k8s.workloads import Pod
from llmkube.runtimes.container.container_plan import ContainerPlan
from llmkube.runtimes.container.in_flight import requests_in_flight

ASK_SECONDS: Final = 5.0


async def are_idle(plan: ContainerPlan, pods: Iterable[Pod]) -> bool:
    """Ask every pod that runs, all at once; one that does not answer may well be busy, and counts as that.

    Each is asked at its own port: a service's pods are still those of the plan before, which may have another one.
    It takes `ASK_SECONDS` at most: one after the other, ten slow ones would outlast the reconcile that asks.
    """
    running = [pod for pod in pods if pod.status.phase == "Running" and not pod.metadata.deletion_timestamp]
    busy: list[Pod] = []

    async def ask(pod: Pod) -> None:
        port = metrics_port(plan, pod)
        text = await read_text(pod_url(pod, port, plan.metrics_path)) if port and pod.status.pod_ip else ""
        if requests_in_flight(text, plan.busy_metrics) != 0:  # unknown, or NaN, may hide one
            busy.append(pod)
            nursery.cancel_scope.cancel(reason="one is enough")

    async with trio.open_nursery() as nursery:
        for pod in running:
            nursery.start_soon(ask, pod)
    return not busy


def metrics_port(plan: ContainerPlan, pod: Pod) -> int | None:
    """Return the port of a pod's metrics, by the name that the plan has for it; None when it has none of that name."""
    ports = (port for container in pod.spec.containers for port in container.ports)
    return next((port.container_port for port in ports if port.name == plan.metrics_port_name), None)


def pod_url(pod: Pod, port: int, path: str) -> str:
    """Return an address of a pod that has one."""
    host = f"[{pod.status.pod_ip}]" if ":" in pod.status.pod_ip else pod.status.pod_ip
    return f"http://{host}:{port}{path}"


async def read_text(url: str) -> str:
    """Return what is at a pod's address, or nothing when it does not answer in time."""
    with trio.move_on_after(ASK_SECONDS):
        async with open_http_client() as http:
            try:
                answer = await http.request("GET", url)
            except HttpError:
                return ""
            return answer.body.decode(errors="replace") if answer.status == 200 else ""
    return ""
