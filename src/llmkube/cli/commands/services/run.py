"""`llmkube run`: one word from a name to a conversation; what is not there yet is deployed."""

from pathlib import Path
from typing import Any

import click

from llmkube.cli.catalog.entries import find
from llmkube.cli.commands.inference.chat import chat
from llmkube.cli.commands.models.catalog import require_entry
from llmkube.cli.commands.services.deploy import absolute_source, deploy
from llmkube.cli.commands.services.readiness_wait import is_stopped, print_on_interrupt, wait_until_ready
from llmkube.cli.object_names import find as find_object
from llmkube.cli.object_names import looks_like_source, name_for
from llmkube.cli.options import catalog_or_services, cluster_options
from llmkube.cli.target_cluster import Cluster, ClusterFlags, answer_deadline, run_against
from llmkube.cli.view.output import shown_source
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.programs.failures import CommandError
from llmkube.programs.options import NumberRange, command


@command("run")
@click.argument("model", metavar="NAME|SOURCE", shell_complete=catalog_or_services)
@click.argument("prompt", required=False)
@click.option("--accelerator", help="What it runs on, if it is deployed. Default: as `llmkube deploy` chooses.")
@click.option("--context-size", type=click.IntRange(min=128), metavar="TOKENS", help="Its context, if it is deployed.")
@click.option("--timeout", type=NumberRange(min=0), default=1800.0, help="Seconds to wait for it. Default: 1800.")
@cluster_options()
@click.pass_context
def run(
    context: click.Context,
    /,
    *,
    model: str,
    prompt: str | None,
    accelerator: str | None,
    context_size: int | None,
    timeout: float,
    where: ClusterFlags,
) -> None:
    """Talk to a model; if no service has this NAME, deploy it from the catalog or from a SOURCE first.

    With PROMPT one answer is printed, else a conversation begins. The service stays afterwards: `llmkube ps` shows it,
    `llmkube scale NAME 0` stops it, `llmkube delete NAME --with-model` takes it away.
    """
    source = absolute_source(model, Path.cwd()) if looks_like_source(model) else None
    name = name_for(source) if source is not None else model
    if not _start_existing(where, name, source, timeout):
        if source is None and find(model) is None:
            require_entry(model)  # raises, with the names that look like it
        flags: dict[str, Any] = {"name": name, "source": source, "accelerator": accelerator, "timeout": timeout}
        if context_size is not None:
            flags["context_size"] = context_size
        context.invoke(deploy, **flags, **_cluster_flags(where))
    context.invoke(chat, name=name, prompt=prompt, **_cluster_flags(where))


def _start_existing(where: ClusterFlags, name: str, source: str | None, seconds: float) -> bool:
    """Wait until the service of this name is ready, starting it if it is stopped; return whether there is one.

    Raises:
        CommandError: It serves another source than the one that was named.
    """

    async def action(cluster: Cluster) -> bool:
        key = Key(cluster.namespace, name)
        with answer_deadline():
            found = await find_object(cluster.client, InferenceService, key)
            if found is None:
                return False
            if source is not None:
                await _check_source(cluster, found, source)
            if is_stopped(found):
                if cluster.note:
                    click.echo(cluster.note, err=True)
                patch = {"spec": {"suspend": False} if found.spec.suspend else {"replicas": 1}}
                await cluster.client.patch(InferenceService, key, patch, field_manager="llmkube-scale")
        interrupt.note = "It starts without this command"
        await wait_until_ready(cluster, key, seconds)
        return True

    with print_on_interrupt() as interrupt:
        return run_against(where, action)


async def _check_source(cluster: Cluster, service: InferenceService, source: str) -> None:
    key = Key(service.key.namespace, service.spec.model_ref)
    model = await find_object(cluster.client, Model, key)
    if model is not None and model.spec.source != source:
        raise CommandError(
            f"InferenceService {service.key} serves {shown_source(model.spec.source)} and not {shown_source(source)}; "
            "give the new one a name: llmkube deploy NAME --source SOURCE"
        )


def _cluster_flags(where: ClusterFlags) -> dict[str, Any]:
    return {"kubeconfig": where.kubeconfig, "context": where.context, "namespace": where.namespace}
