"""`llmkube ps` and `llmkube queue`: services that run, and services that wait for a GPU or for memory."""

import datetime
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import click
import trio

from llmkube.base.times import utcnow
from llmkube.base.units import format_bytes
from llmkube.cli.commands.services.footprint import used_bytes
from llmkube.cli.options import cluster_options
from llmkube.cli.target_cluster import ANSWER_SECONDS, Cluster, ClusterFlags, run_against, state_dirs
from llmkube.cli.view import output
from llmkube.cli.view.locations import Engine, find_all_engines, reporting_hosts
from llmkube.k8s.crd.inferenceservice import PRIORITIES, InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import service_name
from llmkube.k8s.wire.reasons import Reason
from llmkube.k8s.wire.service_health import Health, service_health
from llmkube.programs.options import command

COLUMNS: Final = ("NAME", "PHASE", "SIZE", "MEMORY", "RUNS ON", "CONTEXT", "HOST", "AGE")
QUEUE_COLUMNS: Final = ("NAME", "QUEUE", "WAITING FOR", "PRIORITY", "SINCE")
SCARCE: Final = {
    Reason.WAITING_FOR_GPU: "a GPU",
    Reason.INSUFFICIENT_GPU: "a GPU",
    Reason.INSUFFICIENT_MEMORY: "memory",
    Reason.EVICTED: "memory",
}
"""Reasons of services that wait for a resource that other services use, and the name of the resource."""


@command("ps")
@cluster_options(all_namespaces=True)
def ps(*, where: ClusterFlags) -> None:
    """List the services that have a running engine, and its memory, accelerator, context and host.

    MEMORY is shown for engines of this machine only. `llmkube list` shows all services.
    """
    folders = state_dirs(where, None)

    async def action(cluster: Cluster) -> str:
        namespace = None if where.all_namespaces else cluster.namespace
        services = await _services(cluster, namespace)
        engines = await find_all_engines(cluster, namespace)
        now, rows = utcnow(), []
        for service, model in services:
            used = await trio.to_thread.run_sync(used_bytes, folders, service.key)
            if used or service.status.ready_replicas:
                rows.append((service, _row(service, model, used, _hosts(service, engines), now)))
        return _table(COLUMNS, rows, namespace) if rows else f"Nothing is running in {namespace or 'any namespace'}."

    click.echo(run_against(where, action, seconds=ANSWER_SECONDS))


@command("queue")
@cluster_options(all_namespaces=True)
def queue(*, where: ClusterFlags) -> None:
    """List the services that wait for a GPU of the cluster or for memory of a host.

    QUEUE is the position in the queue for GPUs. Memory goes first to the service with the highest
    priority (`deploy --priority`).
    """

    async def action(cluster: Cluster) -> str:
        namespace = None if where.all_namespaces else cluster.namespace
        assessed = [(each, service_health(each, model)) for each, model in await _services(cluster, namespace)]
        waiting = [(one, how) for one, how in assessed if one.status.queue_position is not None or how.reason in SCARCE]
        waiting.sort(key=lambda pair: _order(pair[0]))
        now = utcnow()
        rows = [(each, queue_row(each, health, now)) for each, health in waiting]
        return _table(QUEUE_COLUMNS, rows, namespace) if rows else f"Nothing waits in {namespace or 'any namespace'}."

    click.echo(run_against(where, action, seconds=ANSWER_SECONDS))


async def _services(cluster: Cluster, namespace: str | None) -> list[tuple[InferenceService, Model | None]]:
    """Return each service with its Model, sorted by name."""
    services = (await cluster.client.list(InferenceService, namespace=namespace)).items
    models = {each.key: each for each in (await cluster.client.list(Model, namespace=namespace)).items}
    return [
        (each, models.get(Key(each.key.namespace, each.spec.model_ref)))
        for each in sorted(services, key=lambda each: each.key)
    ]


def _table(
    columns: Sequence[str], rows: Iterable[tuple[InferenceService, tuple[str, ...]]], namespace: str | None
) -> str:
    """Return a table of services, with a column for the namespace if all namespaces are shown."""
    if namespace is None:
        columns = ("NAMESPACE", *columns)
        rows = [(service, (service.key.namespace, *cells)) for service, cells in rows]
    return output.table(columns, (cells for _, cells in rows), width=output.line_width())


def _hosts(service: InferenceService, engines: Mapping[Key, Sequence[Engine]]) -> str:
    addresses = engines.get(Key(service.key.namespace, service_name(service.key.name)), ())
    named = dict.fromkeys(each.host for each in addresses if each.ready and each.host)
    return ",".join(named or reporting_hosts(service))


def _row(
    service: InferenceService, model: Model | None, used: int, hosts: str, now: datetime.datetime
) -> tuple[str, ...]:
    return (
        service.metadata.name,
        service.status.phase,
        model.status.size if model is not None else "",
        format_bytes(used) if used else "",
        output.runs_on(service, model),
        str(output.context_in_effect(service, model) or ""),
        hosts,
        output.age(service.metadata.creation_timestamp, now),
    )


def queue_row(service: InferenceService, health: Health, now: datetime.datetime) -> tuple[str, ...]:
    """Return a service's cells for `QUEUE_COLUMNS`."""
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
