"""`llmkube list`, `status` and `delete`: what most people need of kubectl, for our two kinds."""

import datetime
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

import attrs
import click

from llmkube.cli import output
from llmkube.cli.cluster import ANSWER_SECONDS, Cluster, run_against
from llmkube.cli.failures import CommandError, ExitCode
from llmkube.cli.follow import open_follow
from llmkube.cli.options import HELP, cluster_options, guarded
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.errors import NotFoundError
from llmkube.k8s.resource import Key, Object

T = TypeVar("T", bound=Object)

_KINDS: dict[str, type[Any]] = {
    word: kind
    for kind in (InferenceService, Model)
    for word in (kind.RESOURCE.singular, kind.RESOURCE.plural, *kind.RESOURCE.short_names)
}


@attrs.frozen
class Target:
    """Which object a command line means."""

    kind: type[Any]
    name: str

    @property
    def title(self) -> str:
        """`InferenceService demo`."""
        return f"{self.kind.RESOURCE.kind} {self.name}"


def parse_target(text: str) -> Target:
    """Read `NAME` (an InferenceService) or `KIND/NAME`, kinds as kubectl takes them: `model/demo`, `isvc/demo`.

    Raises:
        click.UsageError: There is no such kind, or a part is empty.
    """
    word, slash, name = text.rpartition("/")
    kind = _KINDS.get(word.lower()) if slash else InferenceService
    if kind is None or not name:
        raise click.UsageError(f'"{text}" is neither NAME nor KIND/NAME; kinds are {", ".join(sorted(_KINDS))}')
    return Target(kind, name)


@click.command("list", context_settings=HELP)
@cluster_options
@click.option("-A", "--all-namespaces", is_flag=True, help="Look at all namespaces.")
@guarded
def list_objects(kubeconfig: str | None, context: str | None, namespace: str | None, all_namespaces: bool) -> None:
    """Show Models and InferenceServices."""

    async def action(cluster: Cluster) -> str:
        where = None if all_namespaces else namespace or cluster.namespace
        models = (await cluster.client.list(Model, namespace=where)).items
        services = (await cluster.client.list(InferenceService, namespace=where)).items
        if not models and not services:
            return f"No Models and no InferenceServices in {'any namespace' if where is None else where}."
        now = _now()
        return "\n\n".join(
            (
                _section(output.MODEL_COLUMNS, models, lambda each: output.model_row(each, now), all_namespaces),
                _section(output.SERVICE_COLUMNS, services, lambda each: output.service_row(each, now), all_namespaces),
            )
        )

    click.echo(run_against(kubeconfig, context, action, seconds=ANSWER_SECONDS))


@click.command("status", context_settings=HELP)
@click.argument("name")
@cluster_options
@guarded
def status(name: str, kubeconfig: str | None, context: str | None, namespace: str | None) -> None:
    """Explain one InferenceService (or, as model/NAME, one Model) and its conditions."""
    target = parse_target(name)

    async def action(cluster: Cluster) -> str:
        key = Key(namespace or cluster.namespace, target.name)
        found = await _existing(cluster, target, key)
        if target.kind is Model:
            return describe_model(found)
        try:
            model = await cluster.client.get(Model, Key(key.namespace, found.spec.model_ref))
        except NotFoundError:
            return f"{describe_service(found)}\n\nModel {found.spec.model_ref}: not there"
        return f"{describe_service(found)}\n\n{describe_model(model)}"

    click.echo(run_against(kubeconfig, context, action, seconds=ANSWER_SECONDS))


@click.command("delete", context_settings=HELP)
@click.argument("name")
@click.option("--wait", is_flag=True, help="Return when the object is gone.")
@click.option("--timeout", type=click.FloatRange(min=0), default=60.0, help="Seconds to --wait. Default: 60.")
@cluster_options
@guarded
def delete(
    *, name: str, wait: bool, timeout: float, kubeconfig: str | None, context: str | None, namespace: str | None
) -> None:
    """Delete an InferenceService (or, as model/NAME, a Model)."""
    target = parse_target(name)

    async def action(cluster: Cluster) -> str:
        key = Key(namespace or cluster.namespace, target.name)
        found = await _existing(cluster, target, key)
        # The uid: what is deleted is what was there when the command was typed, not a successor of that name.
        await _or_not_found(target, key, lambda: cluster.client.delete(target.kind, key, uid=found.metadata.uid))
        if wait:
            await _wait_gone(cluster, target, key, found.metadata.uid)
        return f"{target.title} {'is gone' if wait else 'deleted'}"

    click.echo(run_against(kubeconfig, context, action, seconds=timeout if wait else ANSWER_SECONDS))


def describe_service(service: InferenceService) -> str:
    """Return an InferenceService's state as lines and a table of its conditions, with the engine's words if any."""
    status = service.status
    lines = [
        f"InferenceService {service.key}",
        f"  phase     {status.phase or output.NOTHING}",
        f"  model     {service.spec.model_ref}",
        f"  ready     {status.ready_replicas or 0} of {service.spec.replicas}",
        f"  endpoint  {status.endpoint or output.NOTHING}",
    ]
    if status.scheduling_status:
        lines.append(f"  because   {status.scheduling_status}: {output.printable(status.scheduling_message)}")
    loaded = output.condition(status.conditions, "Loaded")
    if loaded is not None and "\n" in loaded.message:
        lines += ["", "The engine's last lines:", *_indented(loaded.message.partition("\n")[2])]
    return "\n".join([*lines, "", output.table(output.CONDITION_COLUMNS, output.condition_rows(status.conditions))])


def describe_model(model: Model) -> str:
    """Return a Model's state as lines and a table of its conditions."""
    facts = model.status.gguf
    lines = [
        f"Model {model.key}",
        f"  phase        {model.status.phase or output.NOTHING}",
        f"  source       {output.printable(model.spec.source)}",
        f"  accelerator  {model.spec.hardware.accelerator}",
        f"  size         {model.status.size or output.NOTHING}",
        f"  path         {model.status.path or output.NOTHING}",
    ]
    if facts is not None:
        context = f"{facts.context_length} tokens" if facts.context_length else ""
        known = (facts.architecture, facts.quantization, context)
        lines.append(f"  gguf         {output.printable(', '.join(each for each in known if each))}")
    rows = output.condition_rows(model.status.conditions)
    return "\n".join([*lines, "", output.table(output.CONDITION_COLUMNS, rows)])


async def _existing(cluster: Cluster, target: Target, key: Key) -> Any:
    return await _or_not_found(target, key, lambda: cluster.client.get(target.kind, key))


async def _or_not_found(target: Target, key: Key, call: Callable[[], Awaitable[Any]]) -> Any:
    try:
        return await call()
    except NotFoundError as exc:
        raise CommandError(
            f"there is no {target.title} in namespace {key.namespace}; see `llmkube list -A`", ExitCode.NOT_FOUND
        ) from exc


async def _wait_gone(cluster: Cluster, target: Target, key: Key, uid: str) -> None:
    async with open_follow(cluster.client, random.Random(), namespace=key.namespace) as followed:  # noqa: S311 - jitter
        cache = followed.models if target.kind is Model else followed.services
        while True:
            version = followed.changed.version
            left = cache.get(key)
            if left is None or left.metadata.uid != uid:
                return
            await followed.changed.wait_newer(version)


def _section(
    columns: tuple[str, ...], objects: Iterable[T], row: Callable[[T], tuple[str, ...]], all_namespaces: bool
) -> str:
    ordered = sorted(objects, key=lambda each: each.key)
    if not all_namespaces:
        return output.table(columns, map(row, ordered))
    return output.table(("NAMESPACE", *columns), ((each.key.namespace, *row(each)) for each in ordered))


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in output.printable(text).splitlines()]


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
