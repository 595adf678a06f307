"""`llmkube run`: deploy a model if necessary, and talk to it."""

from pathlib import Path
from typing import Any

import click

from llmkube.base.times import utcnow
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
from llmkube.k8s.crd.placement import ON_REQUEST
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import LOAD_REQUESTED_AT
from llmkube.k8s.wire.times import micro_timestamp
from llmkube.programs.failures import CommandError
from llmkube.programs.options import NumberRange, command


@command("run")
@click.argument("model", metavar="NAME|SOURCE", shell_complete=catalog_or_services)
@click.argument("prompt", required=False)
@click.option("--accelerator", help="Accelerator of a new deployment. Default: as `llmkube deploy` chooses.")
@click.option("--context-size", type=click.IntRange(min=128), metavar="TOKENS", help="Context of a new deployment.")
@click.option("--timeout", type=NumberRange(min=0), default=1800.0, help="Seconds to wait. Default: 1800.")
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
    """Talk to a model, after deploying it from the catalog or a SOURCE if no service has its NAME.

    Prints one answer to PROMPT, or starts a conversation without it. The service keeps running afterwards: show it with
    `llmkube ps`, stop it with `llmkube scale NAME 0`, remove it with `llmkube delete NAME --with-model`.
    """
    source = absolute_source(model, Path.cwd()) if looks_like_source(model) else None
    name = name_for(source) if source is not None else model
    if not _start_existing(where, name, source, timeout):
        if source is None:
            require_entry(model)  # raises an error with similar names
        flags: dict[str, Any] = {"name": name, "source": source, "accelerator": accelerator, "timeout": timeout}
        if context_size is not None:
            flags["context_size"] = context_size
        context.invoke(deploy, **flags, **_cluster_flags(where))
    context.invoke(chat, name=name, prompt=prompt, **_cluster_flags(where))


def _start_existing(where: ClusterFlags, name: str, source: str | None, seconds: float) -> bool:
    """Wait until the service of this name is ready, starting it if it is stopped; return whether it exists.

    Raises:
        CommandError: The service serves a different source than the given one.
    """

    async def action(cluster: Cluster) -> bool:
        key = Key(cluster.namespace, name)
        with answer_deadline():
            found = await find_object(cluster.client, InferenceService, key)
            if found is None:
                return False
            if source is not None:
                await _check_source(cluster, found, source)
            patch: dict[str, Any] = {}
            if is_stopped(found):
                patch = {"spec": {"suspend": False} if found.spec.suspend else {"replicas": 1}}
            elif found.status.activation == ON_REQUEST and found.status.phase == "Failed":
                patch = {"metadata": {"annotations": {LOAD_REQUESTED_AT: micro_timestamp(utcnow())}}}
            if patch:
                if cluster.note:
                    click.echo(cluster.note, err=True)
                await cluster.client.patch(InferenceService, key, patch, field_manager="llmkube-scale")
        interrupt.note = "The start continues without this command"
        await wait_until_ready(cluster, key, seconds)
        return True

    with print_on_interrupt() as interrupt:
        return run_against(where, action)


async def _check_source(cluster: Cluster, service: InferenceService, source: str) -> None:
    key = Key(service.key.namespace, service.spec.model_ref)
    model = await find_object(cluster.client, Model, key)
    if model is not None and model.spec.source != source:
        raise CommandError(
            f"InferenceService {service.key} serves {shown_source(model.spec.source)}, not {shown_source(source)}; "
            "deploy the new one under another name: llmkube deploy NAME --source SOURCE"
        )


def _cluster_flags(where: ClusterFlags) -> dict[str, Any]:
    return {"kubeconfig": where.kubeconfig, "context": where.context, "namespace": where.namespace}
