"""How far downloads are, asked of the pods that fetch: each answers with a number, which takes no right.

The answers are shown in steps, so that a download is twenty writes at most and not one for every percent. A pod that
cannot be reached (a network policy, perhaps) costs a number in a message and nothing else.
"""

import json
from collections.abc import Iterable
from typing import Final, Never

import trio

from llmkube.controller.reconcile.context import PodContext
from llmkube.controller.reconcile.idleness import pod_url, read_text
from llmkube.controller.render.jobs import PROGRESS_PORT
from llmkube.controller.status.job_result import ended_at
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.owners import controller_key
from llmkube.k8s.workloads import Pod

ASK_EVERY_SECONDS: Final = 10.0
STEP_PERCENT: Final = 5
AT_A_TIME: Final = 16
"""Pods that are asked at the same time; one that does not answer takes five seconds."""


async def run_progress(context: PodContext) -> Never:
    """Keep `context.percents` true, and wake the Model of every step."""
    while True:
        await trio.sleep(ASK_EVERY_SECONDS)
        asked = dict(_fetching(context))
        for ended in context.percents.keys() - asked.keys():
            del context.percents[ended]
        limiter = trio.CapacityLimiter(AT_A_TIME)
        async with trio.open_nursery() as nursery:
            for job, pod in asked.items():
                nursery.start_soon(_ask, context, job, pod, limiter)


def read_percent(text: str) -> int | None:
    """Return how far a pod says that it is, in whole steps; None while it does not know.

    Of several files the one that is fetched counts as its share of all.
    """
    try:
        said = json.loads(text)
        file, files, done, total = (int(said[name]) for name in ("file", "files", "doneBytes", "totalBytes"))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):  # any user may make such a pod
        return None
    if said.get("stage") != "downloading" or not 0 < file <= files or not 0 <= done <= total or not total:
        return None
    share = (file - 1 + done / total) / files
    return int(100 * share) // STEP_PERCENT * STEP_PERCENT


def _fetching(context: PodContext) -> Iterable[tuple[Key, Pod]]:
    """Return the Jobs of Models that run now, each with its pod."""
    for job in context.pods.jobs.values():
        if ended_at(job) or controller_key(job, Model.RESOURCE.kind) is None:
            continue
        for pod in context.pods.pods_of_job(job):
            if pod.status.phase == "Running" and pod.status.pod_ip and not pod.metadata.deletion_timestamp:
                yield job.key, pod


async def _ask(context: PodContext, job: Key, pod: Pod, limiter: trio.CapacityLimiter) -> None:
    async with limiter:
        percent = read_percent(await read_text(pod_url(pod, PROGRESS_PORT, "/progress")))
    if percent is None or percent == context.percents.get(job):
        return
    context.percents[job] = percent
    live = context.owned.jobs.get(job)
    owner = controller_key(live, Model.RESOURCE.kind) if live is not None else None
    if owner is not None:
        context.queues.models.add_nowait(owner)
