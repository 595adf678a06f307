"""What pods answer when they are asked over HTTP: whether they have requests, how far a fetch is, how backends do.

It takes no right. A pod that cannot be reached (a network policy, perhaps) costs a number in a message, leaves a
router's backends as they were until it is gone, and counts as busy.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Never

import orjson
import trio

from llmkube.base.http.client import open_http_client
from llmkube.base.http.errors import HttpError
from llmkube.controller.reconcile.context import PodContext
from llmkube.controller.render.jobs import PROGRESS_PORT
from llmkube.controller.render.router_objects import ADMIN_PORT
from llmkube.controller.status.job_result import ended_at
from llmkube.controller.status.router_status import BackendHealth
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key, controller_key
from llmkube.k8s.workloads import Pod
from llmkube.runtimes.container.container_plan import ContainerPlan, requests_in_flight

QUERY_SECONDS: Final = 5.0
QUERY_INTERVAL_SECONDS: Final = 10.0
MAX_CONCURRENT_QUERIES: Final = 16
"""Pods that are asked at the same time; one that does not answer takes five seconds."""

STEP_PERCENT: Final = 5
"""Progress is shown in steps, so that a download is twenty writes at most and not one for every percent."""

Health = Mapping[str, BackendHealth]

# -- has it requests --------------------------------------------------------------------------------------------------


async def are_idle(plan: ContainerPlan, pods: Iterable[Pod]) -> bool:
    """Ask every pod that runs, all at once; one that does not answer may well be busy, and counts as that.

    Each is asked at its own port: a service's pods are still those of the plan before, which may have another one.
    It takes `QUERY_SECONDS` at most: one after the other, ten slow ones would outlast the reconcile that asks.
    """
    busy: list[Pod] = []

    async def query(pod: Pod) -> None:
        port = metrics_port(plan, pod)
        text = await read_text(pod_url(pod, port, plan.metrics_path)) if port and pod.status.pod_ip else ""
        if requests_in_flight(text, plan.busy_metrics) != 0:  # unknown, or NaN, may hide one
            busy.append(pod)
            nursery.cancel_scope.cancel(reason="one is enough")

    async with trio.open_nursery() as nursery:
        for pod in pods:
            if pod.is_running:
                nursery.start_soon(query, pod)
    return not busy


def metrics_port(plan: ContainerPlan, pod: Pod) -> int | None:
    """Return the port of a pod's metrics, by the name that the plan has for it; None when it has none of that name."""
    ports = (port for container in pod.spec.containers for port in container.ports)
    return next((port.container_port for port in ports if port.name == plan.metrics_port_name), None)


# -- how far is it ----------------------------------------------------------------------------------------------------


async def run_progress(context: PodContext) -> Never:
    """Keep `context.percents` true, and wake the Model of every step."""

    def take(job: Key, text: str) -> None:
        percent = read_percent(text)
        if percent is None or percent == context.percents.get(job):
            return
        context.percents[job] = percent
        live = context.owned.jobs.get(job)
        owner = controller_key(live, Model.RESOURCE.kind) if live is not None else None
        if owner is not None:
            context.queues.models.add_nowait(owner)

    while True:
        await trio.sleep(QUERY_INTERVAL_SECONDS)
        running = {
            job.key: pods
            for job in context.pods.jobs.values()
            if not ended_at(job) and controller_key(job, Model.RESOURCE.kind) is not None
            if (pods := _reachable(context.pods.pods_of_job(job)))
        }
        for ended in context.percents.keys() - running.keys():
            del context.percents[ended]
        await _query_all(running, PROGRESS_PORT, "/progress", take)


def read_percent(text: str) -> int | None:
    """Return how far a pod says that it is, in whole steps; None while it does not know.

    Of several files the one that is fetched counts as its share of all.
    """
    try:
        reported = json.loads(text)
        file, files, done, total = (int(reported[name]) for name in ("file", "files", "doneBytes", "totalBytes"))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):  # any user may make such a pod
        return None
    if reported.get("stage") != "downloading" or not 0 < file <= files or not 0 <= done <= total or not total:
        return None
    share = (file - 1 + done / total) / files
    return int(100 * share) // STEP_PERCENT * STEP_PERCENT


# -- how do its backends do -------------------------------------------------------------------------------------------


async def run_router_health(context: PodContext) -> Never:
    """Keep `context.health` true, and wake the router of every change."""
    while True:
        await trio.sleep(QUERY_INTERVAL_SECONDS)
        keys = [router.key for router in context.informers.routers.values()]
        routers = {key: _reachable(context.pods.pods_of_router(key)) for key in keys}
        for gone in context.health.keys() - routers.keys():
            del context.health[gone]
        reported: dict[Key, list[Health]] = {key: [] for key in routers}

        def take(router: Key, text: str, reported: Mapping[Key, list[Health]] = reported) -> None:
            if (health := read_health(text)) is not None:
                reported[router].append(health)

        await _query_all(routers, ADMIN_PORT, "/backends", take)
        for key, answers in reported.items():
            health = merge(answers)
            if answers and health != context.health.get(key):
                context.health[key] = health
                context.queues.routers.add_nowait(key)


def merge(answers: Iterable[Health]) -> Health:
    """Return what all pods say together: one that cannot reach a backend is enough to say so."""
    merged: dict[str, BackendHealth] = {}
    for answer in answers:
        for name, health in answer.items():
            if name not in merged or merged[name].healthy:
                merged[name] = health
    return merged


def read_health(text: str) -> Health | None:
    """Return what a pod says of its backends; None of an answer that is none."""
    try:
        backends = orjson.loads(text)["backends"]
        return {
            str(one["name"]): BackendHealth(healthy=one["healthy"] is True, message=str(one.get("message", ""))[:1024])
            for one in backends
        }
    except (ValueError, TypeError, KeyError, AttributeError):  # a user who may make a pod may make it say anything
        return None


# -- asking -----------------------------------------------------------------------------------------------------------


def pod_url(pod: Pod, port: int, path: str) -> str:
    """Return an address of a pod that has one."""
    host = f"[{pod.status.pod_ip}]" if ":" in pod.status.pod_ip else pod.status.pod_ip
    return f"http://{host}:{port}{path}"


async def read_text(url: str) -> str:
    """Return what is at a pod's address, or nothing when it does not answer in time."""
    with trio.move_on_after(QUERY_SECONDS):
        async with open_http_client() as http:
            try:
                answer = await http.request("GET", url)
            except HttpError:
                return ""
            return answer.body.decode(errors="replace") if answer.status == 200 else ""
    return ""


def _reachable(pods: Iterable[Pod]) -> list[Pod]:
    return [pod for pod in pods if pod.is_running and pod.status.pod_ip]


async def _query_all(pods: Mapping[Key, Iterable[Pod]], port: int, path: str, take: Callable[[Key, str], None]) -> None:
    """Ask the pods of each object, `MAX_CONCURRENT_QUERIES` of them at once, and hand over what each answers."""
    limiter = trio.CapacityLimiter(MAX_CONCURRENT_QUERIES)

    async def query(owner: Key, pod: Pod) -> None:
        async with limiter:
            text = await read_text(pod_url(pod, port, path))
        take(owner, text)

    async with trio.open_nursery() as nursery:
        for owner, theirs in pods.items():
            for pod in theirs:
                nursery.start_soon(query, owner, pod)
