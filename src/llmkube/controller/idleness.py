"""Whether the pods of a service have requests, asked of each engine's metrics."""

from collections.abc import Iterable
from typing import Final

import trio

from llmkube.base.http import HttpError, open_http_client
from llmkube.controller.turnover import is_idle
from llmkube.k8s.workloads import Pod
from llmkube.runtimes.container import PORT_NAME, ContainerPlan

ASK_SECONDS: Final = 5.0


async def are_idle(plan: ContainerPlan, pods: Iterable[Pod]) -> bool:
    """Ask every pod that runs; one that does not answer may well be busy, and counts as that."""
    port = {PORT_NAME: plan.port, **dict(plan.extra_ports)}.get(plan.metrics_port_name, plan.port)
    for pod in pods:
        if pod.status.phase != "Running" or pod.metadata.deletion_timestamp:
            continue
        text = await read_text(pod_url(pod, port, plan.metrics_path)) if pod.status.pod_ip else ""
        if not is_idle(text, plan.busy_metrics):
            return False
    await trio.lowlevel.checkpoint()
    return True


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
