"""`llmkube pull`: create a Model and fetch its file."""

from pathlib import Path
from typing import Any

import click
import trio

from llmkube.base.times import utcnow
from llmkube.cli.commands.models.cache import preload
from llmkube.cli.commands.models.catalog import require_entry
from llmkube.cli.commands.services.deploy import FIELD_MANAGER, absolute_source, choose_accelerator, empty_object
from llmkube.cli.commands.services.readiness_wait import print_on_interrupt
from llmkube.cli.local_files import allow_folder, cause_of
from llmkube.cli.object_names import looks_like_source, name_for
from llmkube.cli.options import cluster_options, files
from llmkube.cli.target_cluster import Cluster, ClusterFlags, answer_deadline, own_up_dir, run_against
from llmkube.cli.view.locations import find_hosts
from llmkube.cli.view.output import printable, wrapped
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.placement import ACCELERATORS
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.reasons import Reason
from llmkube.k8s.wire.service_health import State, model_health
from llmkube.programs.failures import CommandError, ExitCode
from llmkube.programs.informer import open_object_caches
from llmkube.programs.options import NumberRange, command
from llmkube.weights.ollama_model import OllamaModel
from llmkube.weights.source import LocalFile, parse_source


@command("pull")
@click.argument("model", metavar="NAME|SOURCE", shell_complete=files)
@click.option("--name", help="Name of the Model. Default: its name in the catalog, or the file's name.")
@click.option("--sha256", metavar="DIGEST", help="SHA-256 digest that the file must have.")
@click.option("--accelerator", type=click.Choice(ACCELERATORS), help="Default: as `llmkube deploy` chooses.")
@click.option("--timeout", type=NumberRange(min=0), default=3600.0, help="Seconds to wait. Default: 3600.")
@cluster_options()
@click.pass_context
def pull(
    context: click.Context,
    /,
    *,
    model: str,
    name: str | None,
    sha256: str | None,
    accelerator: str | None,
    timeout: float,
    where: ClusterFlags,
) -> None:
    """Create a Model from the catalog or a SOURCE, and wait until its file has been fetched.

    For `llmkube up` on this machine, the file is fetched into its store; in a cluster, a Job fetches it for pods. A
    host fetches it when a service needs it. Serve it with `llmkube run NAME` or `llmkube deploy NAME --model NAME`.
    """
    entry = None if looks_like_source(model) else require_entry(model)
    source = entry.source if entry is not None else absolute_source(model, Path.cwd())
    digest = sha256 or (entry.sha256 if entry is not None else "")
    parsed = parse_source(source)
    folder = own_up_dir(where)

    async def action(cluster: Cluster) -> bool:
        key = Key(cluster.namespace, name or (entry.name if entry is not None else name_for(source)))
        with answer_deadline():
            hosts = await find_hosts(cluster, utcnow()) or ()
            served = {each for host in hosts for each in host.accelerators}
            chosen = accelerator or choose_accelerator(served, gpu=False)
            on_hosts = chosen in served
            spec: dict[str, Any] = {"source": source, "hardware": {"accelerator": chosen}}
            spec |= {"sha256": digest} if digest else {}
            spec |= {"quantization": entry.quantization} if entry is not None else {}
            spec |= {} if on_hosts else {"prefetch": True}
            allow_folder(cluster, source)
            body = empty_object(Model, key) | {"spec": spec}
            applied = await cluster.client.apply(Model, body, field_manager=FIELD_MANAGER)
        click.echo(f"Model {key} applied", err=True)
        if isinstance(parsed, LocalFile):
            if cause := cause_of(cluster, applied, Reason.FILE_NOT_FOUND):
                raise CommandError(cause)
            click.echo(wrapped(f"Nothing to fetch: {source} is read in place on the machine that serves it"))
            return False
        if isinstance(parsed, OllamaModel):
            message = "Nothing to fetch: Ollama pulls the model on the machine that serves it, when a service needs it"
            click.echo(wrapped(message))
            return False
        if on_hosts and folder is None:
            names = " or ".join(host.name for host in hosts if chosen in host.accelerators)
            click.echo(wrapped(f"No file was fetched: {names} fetches it when a service needs it"))
            return False
        if not on_hosts:
            watch = f"llmkube status model/{key.name} --watch"
            interrupt.note = f"The download continues without this command; watch it with `{watch}`"
            await _wait(cluster, key, timeout)
            click.echo(f"Model {key} is Ready")
        return on_hosts

    with print_on_interrupt() as interrupt:
        if run_against(where, action, changes=True):
            location = {"state_dir": str(folder), "model_store": str(folder / "store")} if folder is not None else {}
            interrupt.note = "The download has stopped; the same command continues it"
            context.invoke(preload, source=source, sha256=digest or None, **location)


async def _wait(cluster: Cluster, key: Key, seconds: float) -> None:
    shown = ""
    with trio.move_on_after(seconds):
        async with open_object_caches(cluster.client, namespace=key.namespace) as caches:
            while True:
                version = caches.changed.version
                model = caches.models.get(key)
                if model is not None:
                    health = model_health(model)
                    if health.state is State.READY:
                        return
                    if health.failing:
                        problem = f"{health.reason}: {printable(health.message)}"
                        raise CommandError(f"Model {key} cannot be fetched: {problem}")
                    if health.headline != shown:
                        shown = health.headline
                        click.echo(wrapped(shown, err=True), err=True)
                await caches.changed.wait_newer(version)
    raise CommandError(
        f"Model {key} is not Ready after {seconds:g} s: {printable(shown)}\n"
        f"The download continues without this command; watch it with `llmkube status model/{key.name} --watch`",
        ExitCode.TIMED_OUT,
    )
