"""`llmkube queue`: what waits for a GPU or for memory, in the order in which it is next."""

import datetime
import math
from typing import Final

import click

from llmkube.base.times import utcnow
from llmkube.cli.options import cluster_options
from llmkube.cli.target_cluster import ANSWER_SECONDS, Cluster, Where, run_against
from llmkube.cli.view import output
from llmkube.k8s.crd.inferenceservice import PRIORITIES, InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.reasons import Reason
from llmkube.k8s.wire.service_health import Health, service_health
from llmkube.programs.options import HELP, guarded

COLUMNS: Final = ("NAME", "QUEUE", "WAITING FOR", "PRIORITY", "SINCE")
SCARCE: Final = {
    Reason.WAITING_FOR_GPU: "a GPU",
    Reason.INSUFFICIENT_GPU: "a GPU",
    Reason.INSUFFICIENT_MEMORY: "memory",
    Reason.EVICTED: "memory",
}
"""The reasons of a service that waits until others give something back, and what that is."""


@click.command("queue", context_settings=HELP)
@cluster_options(all_namespaces=True)
@guarded
def queue(*, where: Where) -> None:
    """Show the services that wait for a GPU of the cluster or for memory of a host.

    QUEUE is the place in the line for GPUs. For memory, the more important service goes first (--priority).
    """

    async def action(cluster: Cluster) -> str:
        namespace = None if where.all_namespaces else cluster.namespace
        models = {each.key: each for each in (await cluster.client.list(Model, namespace=namespace)).items}
        services = (await cluster.client.list(InferenceService, namespace=namespace)).items
        judged = [
            (each, service_health(each, models.get(Key(each.key.namespace, each.spec.model_ref)))) for each in services
        ]
        waiting = sorted((pair for pair in judged if is_waiting(*pair)), key=lambda pair: _order(pair[0]))
        if not waiting:
            return f"Nothing waits in {'any namespace' if namespace is None else namespace}."
        now = utcnow()
        rows = [(*((each.key.namespace,) if namespace is None else ()), *row(each, how, now)) for each, how in waiting]
        columns = (*(("NAMESPACE",) if namespace is None else ()), *COLUMNS)
        return output.table(columns, rows, width=output.line_width())

    click.echo(run_against(where, action, seconds=ANSWER_SECONDS))


def is_waiting(service: InferenceService, health: Health) -> bool:
    """Whether others have what a service needs."""
    return service.status.queue_position is not None or health.reason in SCARCE


def row(service: InferenceService, health: Health, now: datetime.datetime) -> tuple[str, ...]:
    """Return a service's cells for `COLUMNS`."""
    position, known = service.status.queue_position, Reason.of(health.reason)
    return (
        service.metadata.name,
        "" if position is None else str(position),
        service.status.waiting_for or (SCARCE.get(known, "") if known is not None else ""),
        service.spec.priority,
        output.age(health.since or service.metadata.creation_timestamp, now),
    )


def _order(service: InferenceService) -> tuple[float, int, Key]:
    position = service.status.queue_position
    return (math.inf if position is None else position, -PRIORITIES.index(service.spec.priority), service.key)
