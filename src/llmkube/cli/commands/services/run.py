"""`llmkube run`: deploy a model if necessary, and talk to it."""

from pathlib import Path
from typing import Any

import attrs
import click

from llmkube.cli.catalog.entries import find as find_entry
from llmkube.cli.commands.inference.chat import chat
from llmkube.cli.commands.models.catalog import require_entry
from llmkube.cli.commands.services.deploy import absolute_source, deploy, split_context
from llmkube.cli.commands.services.readiness_wait import is_stopped, load_request, print_on_interrupt, wait_until_ready
from llmkube.cli.local_files import allow_folder
from llmkube.cli.object_names import find as find_object
from llmkube.cli.object_names import looks_like_source, name_for
from llmkube.cli.options import catalog_or_services, cluster_options
from llmkube.cli.target_cluster import Cluster, ClusterFlags, answer_deadline, run_against
from llmkube.cli.view.output import shown_source
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.service_health import was_available
from llmkube.programs.failures import CommandError
from llmkube.programs.options import NumberRange, command


@command("run")
@click.argument("model", metavar="NAME|SOURCE", shell_complete=catalog_or_services)
@click.argument("prompt", required=False)
@click.option("--accelerator", help="Accelerator of a new deployment. Default: as `llmkube deploy` chooses.")
@click.option("--context-size", type=click.IntRange(min=128), metavar="TOKENS", help="Context of a new deployment.")
@click.option("--mmproj", metavar="FILE", help="Projector of pictures of a new deployment.")
@click.option("--draft", metavar="FILE|NAME", help="Draft model of a new deployment.")
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
    mmproj: str | None,
    draft: str | None,
    timeout: float,
    where: ClusterFlags,
) -> None:
    """Talk to a model, after deploying it if no service has its NAME: a Model, one of the catalog, or a SOURCE.

    Prints one answer to PROMPT, or starts a conversation without it. The service remains afterwards: show it with
    `llmkube ps`, unload it with `llmkube stop NAME`, remove it with `llmkube delete NAME --with-model`.
    """
    source = absolute_source(model, Path.cwd()) if looks_like_source(model) else None
    name = name_for(source) if source is not None else model
    where, context_size = split_context(where, context_size)
    weights = _start_existing(where, name, source, timeout, accelerator=accelerator)
    if weights is not None:
        flags: dict[str, Any] = {"name": name, **weights, "accelerator": accelerator, "timeout": timeout}
        given = {"context_size": context_size, "mmproj": mmproj, "draft": draft}
        flags |= {flag: value for flag, value in given.items() if value is not None}
        context.invoke(deploy, **flags, **attrs.asdict(where))
    context.invoke(chat, name=name, prompt=prompt, **attrs.asdict(where))


def _start_existing(
    where: ClusterFlags, name: str, source: str | None, seconds: float, *, accelerator: str | None
) -> dict[str, str] | None:
    """Wait until the service of this name is ready, starting it if it is stopped.

    Returns:
        Flags of `deploy` with the weights, if there is no service to use; else None.

    Raises:
        CommandError: The service serves a different source than the given one, or nothing has this name.
    """

    async def action(cluster: Cluster) -> dict[str, str] | None:
        key = Key(cluster.namespace, name)
        with answer_deadline():
            found = await find_object(cluster.client, InferenceService, key)
            model_name = found.spec.model_ref if found is not None else name
            model = await find_object(cluster.client, Model, Key(key.namespace, model_name))
            allow_folder(cluster, source or "")
            if found is None or (source and await _is_replaced(cluster, found, model, source)):
                return _weights(name, source, model, accelerator)
            patch: dict[str, Any] = {}
            if is_stopped(found):
                patch = {"spec": {"suspend": False} if found.spec.suspend else {"replicas": 1}}
            elif annotations := load_request(found, model):
                patch = {"metadata": {"annotations": annotations}}
            if patch:
                if cluster.note:
                    click.echo(cluster.note, err=True)
                await cluster.client.patch(InferenceService, key, patch, field_manager="llmkube-scale")
        interrupt.note = "The start continues without this command"
        await wait_until_ready(cluster, key, seconds)
        return None

    with print_on_interrupt() as interrupt:
        return run_against(where, action)


async def _is_replaced(cluster: Cluster, service: InferenceService, model: Model | None, source: str) -> bool:
    """Return whether a service of another source, which has never been available, makes way for a new one.

    Raises:
        CommandError: It has another source, and its Model has been served.
    """
    if model is None or model.spec.source == source:
        return model is None
    others = (await cluster.client.list(InferenceService, namespace=service.key.namespace)).items
    if any(was_available(each) for each in others if each.spec.model_ref == model.key.name):
        raise CommandError(
            f"InferenceService {service.key} serves {shown_source(model.spec.source)}, not {shown_source(source)}; "
            "deploy the new one under another name: llmkube deploy NAME --source SOURCE"
        )
    return True


def _weights(name: str, source: str | None, model: Model | None, accelerator: str | None) -> dict[str, str]:
    """Return the flags of `deploy` that name the weights: an existing Model, the source, or none for the catalog.

    Raises:
        CommandError: The name is neither that of a Model nor in the catalog.
    """
    if source is not None:
        is_served_as_it_is = model is not None and model.spec.source == source and accelerator is None
        return {"model_name": name} if is_served_as_it_is else {"source": source}
    entry = find_entry(name)
    if model is not None and (entry is None or model.spec.source != entry.source):
        return {"model_name": name}
    require_entry(name)  # raises an error with similar names
    return {}
