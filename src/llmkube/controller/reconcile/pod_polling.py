"""Poll pods over HTTP: whether they have requests, the progress of a fetch, the health of a router's backends.

This needs no permission. If a pod cannot be reached (perhaps because of a network policy), a message lacks its
percentage, the health of a router's backends stays until the router is gone, and the pod is taken for busy.
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
from llmkube.controller.status.job_result import finished_at
from llmkube.controller.status.router_status import BackendHealth
from llmkube.controller.status.scale import idle_timeout
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key, controller_key
from llmkube.k8s.workloads import Pod
from llmkube.runtimes.container.container_plan import ContainerPlan, request_counters, requests_in_flight

QUERY_SECONDS: Final = 5.0
QUERY_INTERVAL_SECONDS: Final = 10.0
IDLE_POLL_SECONDS: Final = 5.0
"""Longest interval between checks whether pods have requests, if they are stopped or replaced once they have none."""

MAX_CONCURRENT_QUERIES: Final = 16
"""Limit of concurrent queries; a pod that does not answer takes five seconds."""

STEP_PERCENT: Final = 5
"""Progress is reported in steps: a download causes at most twenty status writes, not one per percent."""

Health = Mapping[str, BackendHealth]

# -- requests in flight -----------------------------------------------------------------------------------------------


async def are_idle(plan: ContainerPlan, pods: Iterable[Pod]) -> bool:
    """Return whether no running engine has a request in flight; one that does not answer is assumed to be busy.

    Each pod is queried at its own port, since the pods may still be those of an earlier plan with another port. All are
    queried at once, within `QUERY_SECONDS`: one after the other, ten slow pods would outlast the reconcile.
    """
    return await read_usage(plan, pods) is not None


async def read_usage(plan: ContainerPlan, pods: Iterable[Pod]) -> frozenset[str] | None:
    """Return the counters of all requests so far of the running pods; None as `are_idle` is False.

    Two equal values prove that the same pods have had no request in between.
    """
    busy: list[Pod] = []
    counters = set[str]()

    async def query(pod: Pod) -> None:
        port = metrics_port(plan, pod)
        text = await read_text(pod_url(pod, port, plan.metrics_path)) if port and pod.status.pod_ip else ""
        if requests_in_flight(text, plan.busy_metrics) != 0:  # unknown (None) and NaN count as busy
            busy.append(pod)
            nursery.cancel_scope.cancel(reason="a busy pod found")
        counters.update(f"{pod.metadata.uid} {line}" for line in request_counters(text, plan.busy_metrics))

    async with trio.open_nursery() as nursery:
        for pod in pods:
            if pod.is_running and _runs_engine(plan, pod):
                nursery.start_soon(query, pod)
    return None if busy else frozenset(counters)


async def seconds_idle(context: PodContext, service: InferenceService, plan: ContainerPlan, replicas: int) -> float:
    """Return the idle time of a service that is loaded on request, in seconds; 0 if it is unknown.

    The service is reconciled again when its engines are to be queried next.
    """
    record, key, now = context.records[service.key], service.key, trio.current_time()
    cache = context.pods.gateway_leases.cache
    if not replicas or not plan.busy_metrics or not cache.synced.is_set() or cache.refusal:
        record.used_at = None
        return 0.0
    interval = min(IDLE_POLL_SECONDS, idle_timeout(service) / 4)
    if record.used_at is None or now >= record.checked_at + interval / 2:
        usage = None if context.wanted.wants(key, now) else await read_usage(plan, context.pods.pods_of_service(key))
        record.checked_at = trio.current_time()
        if record.used_at is None or usage is None or usage != record.usage:
            record.used_at = record.checked_at
        record.usage = usage
    context.queues.services.add_after(key, interval)
    return record.checked_at - record.used_at


def metrics_port(plan: ContainerPlan, pod: Pod) -> int | None:
    """Return the port of a pod's metrics by its name in the plan; None if the pod has no such port."""
    ports = (port for container in pod.spec.containers for port in container.ports)
    return next((port.container_port for port in ports if port.name == plan.metrics_port_name), None)


def _runs_engine(plan: ContainerPlan, pod: Pod) -> bool:
    """Return whether the container with the port of the metrics runs, as far as the kubelet has reported."""
    of_engine = {
        each.name for each in pod.spec.containers if plan.metrics_port_name in [one.name for one in each.ports]
    }
    return all(one.state.running for one in pod.status.container_statuses if one.name in of_engine)


# -- progress of fetches ----------------------------------------------------------------------------------------------


async def run_progress(context: PodContext) -> Never:
    """Update `context.percents` until cancelled, and reconcile a Model after every step."""

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
            if not finished_at(job) and controller_key(job, Model.RESOURCE.kind) is not None
            if (pods := _reachable(context.pods.pods_of_job(job)))
        }
        for ended in context.percents.keys() - running.keys():
            del context.percents[ended]
        await _query_all(running, PROGRESS_PORT, "/progress", take)


def read_percent(text: str) -> int | None:
    """Return the progress that a pod reports in percent, rounded down to a step; None while it is unknown.

    With several files, each has an equal share.
    """
    try:
        reported = json.loads(text)
        file, files, done, total = (int(reported[name]) for name in ("file", "files", "doneBytes", "totalBytes"))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):  # any user can create such a pod
        return None
    if reported.get("stage") != "downloading" or not 0 < file <= files or not 0 <= done <= total or not total:
        return None
    share = (file - 1 + done / total) / files
    return int(100 * share) // STEP_PERCENT * STEP_PERCENT


# -- health of routers' backends --------------------------------------------------------------------------------------


async def run_router_health(context: PodContext) -> Never:
    """Update `context.health` until cancelled, and reconcile a router after every change."""
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
    """Combine the reports of a router's pods: a backend is unhealthy if it is for any pod."""
    merged: dict[str, BackendHealth] = {}
    for answer in answers:
        for name, health in answer.items():
            if name not in merged or merged[name].healthy:
                merged[name] = health
    return merged


def read_health(text: str) -> Health | None:
    """Return the health of backends that a pod reports; None if the response is malformed."""
    try:
        backends = orjson.loads(text)["backends"]
        return {
            str(one["name"]): BackendHealth(healthy=one["healthy"] is True, message=str(one.get("message", ""))[:1024])
            for one in backends
        }
    except (ValueError, TypeError, KeyError, AttributeError):  # a user who can create a pod can make it return anything
        return None


# -- queries ----------------------------------------------------------------------------------------------------------


def pod_url(pod: Pod, port: int, path: str) -> str:
    """Return a URL at a pod, which must have an IP address."""
    host = f"[{pod.status.pod_ip}]" if ":" in pod.status.pod_ip else pod.status.pod_ip
    return f"http://{host}:{port}{path}"


async def read_text(url: str) -> str:
    """Return the body at a URL of a pod; empty unless it answers 200 in time."""
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
    """Query the pods of each object, `MAX_CONCURRENT_QUERIES` at once, and call `take` with each response."""
    limiter = trio.CapacityLimiter(MAX_CONCURRENT_QUERIES)

    async def query(owner: Key, pod: Pod) -> None:
        async with limiter:
            text = await read_text(pod_url(pod, port, path))
        take(owner, text)

    async with trio.open_nursery() as nursery:
        for owner, theirs in pods.items():
            for pod in theirs:
                nursery.start_soon(query, owner, pod)
