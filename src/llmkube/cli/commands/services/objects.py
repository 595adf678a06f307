"""`llmkube status`, `scale`, `stop`, `delete` and `restart` of Models, InferenceServices and ModelRouters."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click
import trio

from llmkube.base.errors import ExternalError
from llmkube.base.times import utcnow
from llmkube.cli.commands.services.footprint import drafts_of, memory_of
from llmkube.cli.commands.services.readiness_wait import is_stopped, print_on_interrupt, typed_command, wait_until_ready
from llmkube.cli.host_warnings import warn_of_old_output
from llmkube.cli.local_files import cause_of
from llmkube.cli.object_names import KINDS, Target, find, get_object, get_service, parse_target, with_not_found_error
from llmkube.cli.options import cluster_options, manifests_option, output_option, services, targets, watch_option
from llmkube.cli.target_cluster import ANSWER_SECONDS, Cluster, ClusterFlags, answer_deadline, run_against, state_dirs
from llmkube.cli.view import formats, output
from llmkube.cli.view.describe import StatusView, describe_object, describe_service, summary
from llmkube.cli.view.live_view import append_lines, is_terminal, show_in_place, summarize_outages
from llmkube.cli.view.locations import find_engines, find_hosts, reporting_hosts
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.placement import ON_REQUEST
from llmkube.k8s.errors import NotFoundError
from llmkube.k8s.request import MERGE_PATCH
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import RESTARTED_AT, UNLOAD_REQUESTED_AT
from llmkube.k8s.wire.service_health import is_reported_by_host, model_health, service_health
from llmkube.k8s.wire.times import micro_timestamp
from llmkube.programs.failures import CommandError, ExitCode
from llmkube.programs.options import HELP, NumberRange, command

if TYPE_CHECKING:  # importing it takes longer than printing a status
    from llmkube.programs.informer import ObjectCaches

_VIEW_SECONDS = 5.0
_MAX_REPLICAS = 10  # as in the schema; click's message is clearer than the API server's

FIELD_MANAGER = "llmkube-restart"
SCALE_MANAGER = "llmkube-scale"

_LOCAL = ("/", "file://")
"""Beginnings of the sources that are files of their users."""

_Deleted = tuple[Target, Key, Any]
"""A deleted object: its name, its key and its last state."""


@command("status")
@click.argument("name", shell_complete=targets)
@cluster_options()
@output_option(*formats.FORMATS)
@watch_option
def status(*, name: str, where: ClusterFlags, form: str, watch: bool) -> None:
    """Describe an InferenceService, a Model as model/NAME, or another object of ours as KIND/NAME.

    Shows what it waits for, its progress, its last error and the next retry, and where it runs.
    """
    target = parse_target(name)
    folders = state_dirs(where, None)
    warn_of_old_output(folders)

    async def once(cluster: Cluster) -> str:
        key = Key(cluster.namespace, target.name)
        found = await get_object(cluster.client, target, key)
        if form not in {"", "wide"}:
            return formats.render(found, form)
        if target.kind is not InferenceService:
            reason = model_health(found).reason if target.kind is Model else ""
            return describe_object(found, utcnow(), await trio.to_thread.run_sync(cause_of, cluster, found, reason))
        view = await _load_view(cluster, found, folders)
        text = describe_service(view, utcnow())
        return text if form != "wide" or view.model is None else f"{text}\n\n{describe_object(view.model, utcnow())}"

    async def run_watch(cluster: Cluster) -> None:
        from llmkube.programs.informer import open_object_caches  # noqa: PLC0415 - see above

        key = Key(cluster.namespace, target.name)
        with answer_deadline():
            await get_object(cluster.client, target, key)
        async with open_object_caches(cluster.client, namespace=key.namespace, kinds=(target.kind,)) as caches:
            watcher = _StatusWatch(cluster, caches, target, key, form, folders)
            if form in {"", "wide"} and is_terminal():
                await show_in_place(caches.changed, watcher.text)
            await append_lines(caches.changed, watcher.updates)

    if watch:
        summarize_outages()
        run_against(where, run_watch)
    else:
        text = run_against(where, once, seconds=ANSWER_SECONDS)
        click.echo(output.wrapped(text) if form in {"", "wide"} else text)


@command("scale", context_settings={**HELP, "ignore_unknown_options": True})  # else -1 is an unknown option
@click.argument("name", shell_complete=services)
@click.argument("replicas", metavar="N", type=click.IntRange(min=0, max=_MAX_REPLICAS))
@cluster_options()
def scale(*, name: str, replicas: int, where: ClusterFlags) -> None:
    """Set the number of replicas of an InferenceService; 0 stops it and keeps its objects and files."""
    target = parse_target(name)
    if target.kind is not InferenceService:
        raise click.UsageError(f"only an InferenceService can be scaled, not a {target.kind.RESOURCE.kind}")

    async def action(cluster: Cluster) -> str:
        key = Key(cluster.namespace, target.name)
        before = await _scale(cluster, target, key, replicas)
        if before == replicas:
            return f"{target.title} already has {replicas} replica{'' if replicas == 1 else 's'}"
        reported = f"{target.title} scaled from {before} to {replicas}"
        return "\n".join([reported, *await _too_few_hosts(cluster, key, replicas)])

    click.echo(run_against(where, action, seconds=ANSWER_SECONDS, changes=True))


async def _scale(cluster: Cluster, target: Target, key: Key, replicas: int) -> int:
    """Set the number of replicas; return the previous one."""

    async def patch() -> int:
        path = InferenceService.RESOURCE.path(key.namespace, key.name, "scale")
        before = await cluster.client.get_json(path)
        params, body = {"fieldManager": SCALE_MANAGER}, {"spec": {"replicas": replicas}}
        await cluster.client.request_json("PATCH", path, params=params, body=body, content_type=MERGE_PATCH)
        return int((before.get("spec") or {}).get("replicas") or 0)

    return await with_not_found_error(target, key, patch)


@command("stop")
@click.argument("name", shell_complete=services)
@cluster_options()
def stop(*, name: str, where: ClusterFlags) -> None:
    """Unload a model until the next request; set the replicas of a service that is always loaded to 0.

    A model that is loaded on request is unloaded once its requests have ended, and the next request loads it again; to
    keep it stopped, use `llmkube scale NAME 0`. `llmkube up stop` stops everything on this machine.
    """

    async def action(cluster: Cluster) -> str:
        key = Key(cluster.namespace, name)
        found = await get_service(cluster.client, key)
        title = f"InferenceService {name}"
        if is_stopped(found):
            return f"{title} is already stopped; `{typed_command('run', key)}` starts it"
        if found.status.activation != ON_REQUEST:
            before = await _scale(cluster, Target(InferenceService, name), key, 0)
            return f"{title} scaled from {before} to 0; `{typed_command('scale', key)} {before}` starts it"
        if found.status.phase == "Failed":
            return f"{title} is not loaded: its last load failed; `{typed_command('status', key)}` shows why"
        if found.status.phase == "Idle":
            return f"{title} is not loaded; the next request loads it"
        body = {"metadata": {"annotations": {UNLOAD_REQUESTED_AT: micro_timestamp(utcnow())}}}
        await cluster.client.patch(InferenceService, key, body, field_manager=SCALE_MANAGER)
        return f"{title} is unloaded once its requests have ended; the next request loads it"

    click.echo(run_against(where, action, seconds=ANSWER_SECONDS, changes=True))


async def _too_few_hosts(cluster: Cluster, key: Key, replicas: int) -> list[str]:
    """Return a message if fewer hosts can serve than replicas are requested: a host runs one replica of a service."""
    service = await cluster.client.get(InferenceService, key)
    hosts = await find_hosts(cluster, utcnow())
    if replicas < 2 or hosts is None or not is_reported_by_host(service):
        return []
    model = await find(cluster.client, Model, Key(key.namespace, service.spec.model_ref))
    if model is None:
        return []
    accelerator = model.spec.hardware.accelerator
    able = [host.name for host in hosts if accelerator in host.accelerators]
    if len(able) >= replicas:
        return []
    named = f" ({', '.join(able)})" if able else ""
    reason = f"a machine runs one replica, and {len(able) or 'none'} can serve {accelerator}{named}"
    return [f"{len(able)} of {replicas} can run: {reason}"]


@command("delete")
@click.argument("names", metavar="[NAME...]", nargs=-1, shell_complete=targets)
@manifests_option("files", "Delete the objects in a file, a folder, or - for standard input. Repeatable.")
@click.option("--ignore-not-found", is_flag=True, help="Succeed if an object does not exist.")
@click.option("--with-model", is_flag=True, help="Delete its Model too, unless another InferenceService refers to it.")
@click.option("--wait", is_flag=True, help="Wait until the objects are gone.")
@click.option("--timeout", type=NumberRange(min=0), default=60.0, help="Seconds to wait with --wait. Default: 60.")
@cluster_options()
def delete(
    *,
    names: Sequence[str],
    files: tuple[str, ...],
    ignore_not_found: bool,
    with_model: bool,
    wait: bool,
    timeout: float,
    where: ClusterFlags,
) -> None:
    """Delete InferenceServices, objects of another kind as KIND/NAME, or those in files.

    If an object cannot be deleted, the others still are; the exit code is that of the first failure.
    """
    if bool(names) == bool(files):
        raise click.UsageError("name objects, or name files with -f")
    if files or ignore_not_found or any("/" in name and name.partition("/")[0].lower() not in KINDS for name in names):
        if with_model or wait:
            raise click.UsageError("--with-model and --wait are for InferenceServices, Models and ModelRouters by name")
        from llmkube.cli.commands.services.any_kind import delete_objects  # noqa: PLC0415 - `status` starts faster

        delete_objects(
            [name if "/" in name else f"isvc/{name}" for name in names], files, where, ignore_missing=ignore_not_found
        )
        return
    wanted = list(dict.fromkeys(parse_target(name) for name in names))
    seconds = timeout if wait else None
    run_against(where, lambda cluster: _delete_all(cluster, wanted, with_model, seconds), changes=True)


async def _delete_all(cluster: Cluster, wanted: Sequence[Target], with_model: bool, wait_seconds: float | None) -> None:
    problems: list[CommandError] = []
    deleted: list[_Deleted] = []
    for target in wanted:
        key = Key(cluster.namespace, target.name)
        try:
            deleted += await _delete(cluster, target, key, with_model)
        except CommandError as problem:
            problems.append(problem)
    if wait_seconds is not None:
        await _wait_gone(cluster, deleted, wait_seconds)
    for target, _, _ in deleted:
        click.echo(f"{target.title} {'deleted' if wait_seconds is None else 'is gone'}")
    sources = [found.spec.source for target, _, found in deleted if target.kind is Model]
    for path in (each for each in sources if each.startswith(_LOCAL)):
        click.echo(output.wrapped(f"{path} stays where it is", err=True), err=True)
    if not all(each.startswith(_LOCAL) for each in sources):
        note = "the file remains in the store of its machine; remove it with `llmkube cache prune` there"
        click.echo(output.wrapped(note, err=True), err=True)
    if problems:
        message = "\n".join(problem.format_message() for problem in problems)
        raise CommandError(message, ExitCode(problems[0].exit_code))


async def _delete(cluster: Cluster, target: Target, key: Key, with_model: bool) -> list[_Deleted]:
    with answer_deadline():
        found = await get_object(cluster.client, target, key)
        # With the uid, a new object of the same name is not deleted.
        await with_not_found_error(target, key, lambda: cluster.client.delete(target.kind, key, uid=found.metadata.uid))
        gone = [(target, key, found)]
        if with_model and target.kind is InferenceService:
            for name in _models_of(found):
                gone += await _delete_model(cluster, found, Key(key.namespace, name))
    return gone


def _models_of(service: InferenceService) -> list[str]:
    """Return the names of the Models of a service: its own, those of its adapters and of its draft."""
    spec, draft = service.spec, service.spec.speculative_decoding
    names = (spec.model_ref, *(each.model_ref for each in spec.adapters), draft.draft_model_ref if draft else None)
    return [name for name in dict.fromkeys(names) if name]


async def _delete_model(cluster: Cluster, service: InferenceService, key: Key) -> list[_Deleted]:
    others = (await cluster.client.list(InferenceService, namespace=key.namespace)).items
    users = sorted(each.key.name for each in others if key.name in _models_of(each) and each.key != service.key)
    if users:
        click.echo(f"Model {key.name} not deleted: in use by {', '.join(users)}", err=True)
        return []
    try:
        model = await cluster.client.get(Model, key)
        await cluster.client.delete(Model, key, uid=model.metadata.uid)
    except NotFoundError:
        return []
    return [(Target(Model, key.name), key, model)]


async def _wait_gone(cluster: Cluster, deleted: Sequence[_Deleted], seconds: float) -> None:
    from llmkube.programs.informer import open_object_caches  # noqa: PLC0415 - see above

    remaining = list(deleted)
    with trio.move_on_after(seconds):
        namespace, kinds = cluster.namespace, {target.kind for target, _, _ in deleted}
        async with open_object_caches(cluster.client, namespace=namespace, kinds=kinds) as caches:
            while True:
                version = caches.changed.version
                remaining = [each for each in deleted if _exists(caches, *each)]
                if not remaining:
                    return
                await caches.changed.wait_newer(version)
    names = ", ".join(target.title for target, _, _ in remaining)
    raise CommandError(
        f"{names}: deletion accepted, but not complete after {seconds:g} s; wait longer with --timeout",
        ExitCode.TIMED_OUT,
    )


def _exists(caches: "ObjectCaches", target: Target, key: Key, deleted: Any) -> bool:
    found = caches.of(target.kind).get(key)
    return found is not None and found.metadata.uid == deleted.metadata.uid


async def _load_view(cluster: Cluster, service: InferenceService, folders: Sequence[Path]) -> StatusView:
    """Read the objects and engines of a service."""
    key = service.key
    model = await find(cluster.client, Model, Key(key.namespace, service.spec.model_ref))
    engines = await find_engines(cluster, key.namespace, key.name)
    memory = await trio.to_thread.run_sync(memory_of, folders, key)
    hosts, health = await find_hosts(cluster, utcnow()), service_health(service, model)
    cause = await trio.to_thread.run_sync(cause_of, cluster, model, health.reason)
    drafts = await drafts_of(folders, key) if service.spec.speculative_decoding is not None else ""
    return StatusView(service, model, engines, reporting_hosts(service), hosts, memory, cause, drafts)


@attrs.define(eq=False)
class _StatusWatch:
    """The state of an object after each change; during an outage of the API server, its last known state."""

    _cluster: Cluster
    _followed: "ObjectCaches"
    _target: Target
    _key: Key
    _form: str
    _folders: Sequence[Path]
    _reported: str = ""
    _view: StatusView | None = None

    async def text(self) -> str:
        """Return the full state, for a terminal."""
        found = self._current()
        if found is None:
            return f"{self._target.title} is gone"
        if not isinstance(found, InferenceService):
            return describe_object(found, utcnow())
        with contextlib.suppress(ExternalError), trio.move_on_after(_VIEW_SECONDS):
            if self._view is None or self._view.service != found:
                fresh = await self._cluster.client.get(InferenceService, self._key)
                self._view = await _load_view(self._cluster, fresh, self._folders)
        model = self._followed.model_of(found)
        view = attrs.evolve(self._view, service=found, model=model) if self._view else StatusView(found, model)
        return describe_service(view, utcnow())

    async def updates(self) -> Sequence[str]:
        """Return a line, or the object as data, if it has changed."""
        found = self._current()
        if found is None:
            reported = line = f"{self._target.title} is gone"
        elif self._form not in {"", "wide"}:
            reported, line = found.metadata.resource_version, formats.render_next(found, self._form)
        elif not isinstance(found, InferenceService):
            reported = line = f"{found.key}: {found.status.phase or 'New'}"
        else:
            reported = line = f"{found.key}: {summary(found, self._followed.model_of(found))}"
        if reported == self._reported:
            return []
        self._reported = reported
        return [line if self._form not in {"", "wide"} else f"{utcnow().astimezone():%H:%M:%S}  {line}"]

    def _current(self) -> Any:
        return self._followed.of(self._target.kind).get(self._key)


@command("restart")
@click.argument("name", shell_complete=services)
@click.option("--wait/--no-wait", default=True, help="Wait until the new engine is ready. Default: wait.")
@click.option("--timeout", type=NumberRange(min=0), default=600.0, help="Seconds to wait with --wait. Default: 600.")
@cluster_options()
def restart(*, name: str, wait: bool, timeout: float, where: ClusterFlags) -> None:
    """Restart the engine of an InferenceService, on hosts and in pods.

    Writes the time into spec.podAnnotations, as `kubectl rollout restart` does for a Deployment. Requests are answered
    without interruption if both engines fit into memory.
    """

    async def action(cluster: Cluster) -> None:
        key = Key(cluster.namespace, name)
        with answer_deadline():
            found = await get_service(cluster.client, key)
            if is_stopped(found):
                raise CommandError(f"InferenceService {key} is stopped; `{typed_command('scale', key)} 1` starts it")
            now = micro_timestamp(utcnow())
            body: dict[str, Any] = {"spec": {"podAnnotations": {RESTARTED_AT: now}}}
            await cluster.client.patch(InferenceService, key, body, field_manager=FIELD_MANAGER)
        if wait:
            watch = f"{typed_command('status', key)} --watch"
            interrupt.note = f"The restart continues without this command; watch it with `{watch}`"
            await wait_until_ready(cluster, key, timeout, written={InferenceService.RESOURCE.kind}, edited=True)
        click.echo(f"InferenceService {key} {'restarted' if wait else 'is restarting'}")

    with print_on_interrupt() as interrupt:
        run_against(where, action, changes=True)
