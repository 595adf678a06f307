"""`llmkube ps`: what runs, how much memory it takes, and where."""

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import click
import trio

from llmkube.base.times import utcnow
from llmkube.base.units import format_bytes
from llmkube.cli.commands.services.footprint import bytes_of, local_engine
from llmkube.cli.options import cluster_options
from llmkube.cli.target_cluster import ANSWER_SECONDS, Cluster, Where, run_against, state_dirs
from llmkube.cli.view import output
from llmkube.cli.view.locations import Engine, find_all_engines, reporting_hosts
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import service_name
from llmkube.programs.options import HELP, guarded

COLUMNS: Final = ("NAME", "PHASE", "SIZE", "MEMORY", "RUNS ON", "CONTEXT", "HOST", "AGE")


@click.command("ps", context_settings=HELP)
@cluster_options(all_namespaces=True)
@guarded
def ps(*, where: Where) -> None:
    """Show the services that have an engine now: its memory, what it runs on, its context and its host.

    MEMORY is what the engine takes, for engines of this machine; `llmkube list` shows services that have none too.
    """
    folders = state_dirs(where, None)

    async def action(cluster: Cluster) -> str:
        namespace = None if where.all_namespaces else cluster.namespace
        services = (await cluster.client.list(InferenceService, namespace=namespace)).items
        models = {each.key: each for each in (await cluster.client.list(Model, namespace=namespace)).items}
        engines = await find_all_engines(cluster, namespace)
        rows = []
        for service in sorted(services, key=lambda each: each.key):
            used = await trio.to_thread.run_sync(_memory, folders, service.key)
            hosts = _hosts(service, engines)
            if used or service.status.ready_replicas:
                rows.append((service, used, hosts))
        if not rows:
            where_ = "any namespace" if namespace is None else namespace
            return f"Nothing runs in {where_}."
        now = utcnow()
        cells = [
            (
                *((service.key.namespace,) if namespace is None else ()),
                *_row(service, models.get(Key(service.key.namespace, service.spec.model_ref)), used, hosts, now),
            )
            for service, used, hosts in rows
        ]
        columns = (*(("NAMESPACE",) if namespace is None else ()), *COLUMNS)
        return output.table(columns, cells, width=output.line_width())

    click.echo(run_against(where, action, seconds=ANSWER_SECONDS))


def _memory(folders: Sequence[Path], key: Key) -> int:
    engine = local_engine(folders, key)
    return bytes_of(engine.pid) if engine is not None else 0


def _hosts(service: InferenceService, engines: Mapping[Key, Sequence[Engine]]) -> str:
    behind = engines.get(Key(service.key.namespace, service_name(service.key.name)), ())
    named = dict.fromkeys(each.host for each in behind if each.ready and each.host)
    return ",".join(named or reporting_hosts(service))


def _row(
    service: InferenceService, model: Model | None, used: int, hosts: str, now: datetime.datetime
) -> tuple[str, ...]:
    return (
        service.metadata.name,
        service.status.phase,
        model.status.size if model is not None else "",
        format_bytes(used) if used else "",
        model.spec.hardware.accelerator if model is not None else "",
        str(output.context_in_effect(service, model) or ""),
        hosts,
        output.age(service.metadata.creation_timestamp, now),
    )
