"""How a router's backends and budgets do, asked of its pods; the status says what all have said together.

A pod that cannot be reached (a network policy, perhaps) says nothing; its backends are then as they were, until it is
gone.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Never

import orjson
import trio

from llmkube.controller.reconcile.context import PodContext
from llmkube.controller.reconcile.idleness import pod_url, read_text
from llmkube.controller.render.router_objects import ADMIN_PORT
from llmkube.controller.status.router_status import BackendHealth
from llmkube.k8s.resource import Key
from llmkube.k8s.workloads import Pod

ASK_EVERY_SECONDS: Final = 10.0
AT_A_TIME: Final = 16
"""Pods that are asked at the same time; one that does not answer takes five seconds."""

Health = Mapping[str, BackendHealth]


async def run_router_health(context: PodContext) -> Never:
    """Keep `context.health` true, and wake the router of every change."""
    while True:
        await trio.sleep(ASK_EVERY_SECONDS)
        routers = [router.key for router in context.informers.routers.values()]
        for gone in context.health.keys() - set(routers):
            del context.health[gone]
        limiter = trio.CapacityLimiter(AT_A_TIME)
        said: dict[Key, list[Health]] = {key: [] for key in routers}
        async with trio.open_nursery() as nursery:
            for key in routers:
                for pod in context.pods.pods_of_router(key):
                    if pod.status.phase == "Running" and pod.status.pod_ip and not pod.metadata.deletion_timestamp:
                        nursery.start_soon(_ask, pod, said[key], limiter)
        for key, answers in said.items():
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


async def _ask(pod: Pod, answers: list[Health], limiter: trio.CapacityLimiter) -> None:
    async with limiter:
        health = read_health(await read_text(pod_url(pod, ADMIN_PORT, "/backends")))
    if health is not None:
        answers.append(health)
