"""`llmkube logs`: what an engine writes: a host's from its file, on that host; a pod's through the API server."""

import codecs
import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import click
import trio

from llmkube.base.errors import ExternalError
from llmkube.base.full_disk import is_disk_full
from llmkube.cli.commands.services.pod_logs import Options, PodLogs
from llmkube.cli.commands.services.tail import copy_log
from llmkube.cli.object_names import get_service
from llmkube.cli.options import cluster_options, services
from llmkube.cli.target_cluster import Cluster, ClusterFlags, answer_deadline, run_against, state_dirs
from llmkube.cli.view.locations import find_engines, reporting_hosts
from llmkube.cli.view.output import printable
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import host_id
from llmkube.k8s.wire.service_health import pods_of
from llmkube.programs.config import AgentConfig, UpConfig, load
from llmkube.programs.failures import CommandError, ExitCode
from llmkube.programs.host_name import stored_host_name
from llmkube.programs.options import command
from llmkube.supervisor.engine.logfile import log_path

API_SECONDS: Final = 3.0
"""How long the API server may take to say more about a log that is here."""


@command("logs")
@click.argument("name", shell_complete=services)
@click.option("-f", "--follow", is_flag=True, help="Stay, and print what is written from now on, until Ctrl-C.")
@click.option("--tail", "lines", type=click.IntRange(min=0), metavar="N", help="Begin with the last N lines.")
@click.option("-p", "--previous", is_flag=True, help="Of pods: what the run before this one has written.")
@click.option("-c", "--container", default="", help="Of pods: another container than the engine's.")
@click.option("--state-dir", type=click.Path(path_type=Path), help="The agent's folder.  [LLMKUBE_STATE_DIR]")
@cluster_options()
def logs(
    *,
    name: str,
    follow: bool,
    lines: int | None,
    previous: bool,
    container: str,
    state_dir: Path | None,
    where: ClusterFlags,
) -> None:
    """Print what the engine of an InferenceService writes.

    Pods are read through the API server, which asks for the verb get on pods/log. On the host that runs an engine, that
    is a file, which can be read also while no API server answers; on any other machine the command says where to look.
    """
    if follow and previous:
        raise click.UsageError("--previous is of a run that has ended: there is nothing to --follow")
    folders = state_dirs(where, state_dir)
    options = Options(follow, lines, previous, container)

    async def action(cluster: Cluster) -> LogRef:
        key = Key(cluster.namespace, name)
        with answer_deadline():
            found = await locate_log(cluster, key)
        if found.note:
            click.echo(found.note, err=True)
        if found.pods:
            await PodLogs(cluster, key, found.pods, options, _writer(), _print_note).run()
        return found

    async def locate_log(cluster: Cluster, key: Key) -> LogRef:
        path = find_log_file(folders, key)
        try:
            with trio.move_on_after(math.inf if path is None else API_SECONDS):
                return await _locate_log(cluster, key, path, folders)
            problem = "no answer"
        except ExternalError as exc:
            if path is None:
                raise
            problem = str(exc)
        return LogRef(path, f"the API server could not be asked ({problem}); this is the file on this machine")

    found = run_against(where, action)
    if found.pods:
        return
    assert found.path is not None, "_look raises when there is none"
    if previous or container:
        raise CommandError(f"--previous and --container are for pods; {found.path} is the log of a host, with all runs")
    _print_file(found.path, follow, lines)


@attrs.frozen
class LogRef:
    """A log on this machine, or the labels of pods that have one, and what the user should know about it."""

    path: Path | None
    note: str = ""
    pods: str = ""


def find_log_file(folders: Sequence[Path], key: Key) -> Path | None:
    """Return the log of a service in the first folder that has one."""
    paths = (log_path(folder, key) for folder in folders)
    return next((path for path in paths if path.is_file()), None)


def local_host_names(state_dir: Path) -> frozenset[str]:
    """Return the names under which an agent on this machine may report."""
    chosen = (
        load("agent", AgentConfig, {"state_dir": state_dir}).host_name,
        load("up", UpConfig, {"state_dir": state_dir}).host_name,
    )
    return frozenset(host_id(name) for name in (stored_host_name(state_dir), *chosen) if name)


async def _locate_log(cluster: Cluster, key: Key, path: Path | None, folders: Sequence[Path]) -> LogRef:
    """Ask where the service runs, and compare.

    Raises:
        CommandError: There is no log here; the sentence says where there may be one.
    """
    try:
        service = await get_service(cluster.client, key)
    except CommandError as exc:
        if path is None or exc.exit_code != ExitCode.NOT_FOUND:
            raise
        return LogRef(path, f"InferenceService {key} is gone; this is what its engine wrote last")
    engines = await find_engines(cluster, key.namespace, key.name)
    hosts = sorted({one.host for one in engines if one.host and not one.pod} | set(reporting_hosts(service)))
    pods = pods_of(service) or (service.status.selector if any(engine.pod for engine in engines) else "")
    if pods:
        host_log = str(path or (missing_log_text(key, hosts, folders) if hosts else ""))
        return LogRef(None, f"a host has a log of {key} as well: {host_log}" if host_log else "", pods)
    if path is None:
        raise CommandError(missing_log_text(key, hosts, folders))
    # A host's name may have been given by a flag that is not known here, so the file is shown all the same.
    elsewhere = bool(hosts) and not local_host_names(folders[0]) & set(hosts)
    return LogRef(path, f"{key} is reported by {', '.join(hosts)}; this file is on this machine" if elsewhere else "")


def missing_log_text(key: Key, hosts: Sequence[str], folders: Sequence[Path]) -> str:
    """Say on which host to run what, or why there is no log anywhere."""
    command = f"llmkube logs {key.name}" + ("" if key.namespace == "default" else f" -n {key.namespace}")
    searched = ", ".join(str(folder / "logs") for folder in folders)
    if not hosts:
        return (
            f"InferenceService {key} has no log here ({searched}), and no host reports about it yet; "
            f"`llmkube status {key.name}` says what it waits for"
        )
    if local_host_names(folders[0]) & set(hosts):
        return (
            f"InferenceService {key} has no log in {searched}: its engine has not been started, or its agent keeps its "
            f"files elsewhere (--state-dir); `llmkube status {key.name}` says what it waits for"
        )
    return f"InferenceService {key} runs on {', '.join(hosts)}; run `{command}` there"


def _print_note(line: str) -> None:
    click.echo(line, err=True)


def _print_file(path: Path, follow: bool, lines: int | None) -> None:
    try:
        trio.run(partial(copy_log, path, lines, _writer(), follow=follow))
    except OSError as exc:
        if isinstance(exc, BrokenPipeError) or is_disk_full(exc):
            raise  # that was not the log
        raise CommandError(f"{path} cannot be read ({exc.strerror}); run this as the user who runs the agent") from exc


def _writer() -> Callable[[bytes], None]:
    """Return what writes a log: as it is into a pipe, without control characters onto a terminal."""
    if not sys.stdout.isatty():

        def write_bytes(piece: bytes) -> None:
            out = sys.stdout.buffer
            out.write(piece)
            out.flush()

        return write_bytes
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode  # a character may be cut in two

    def write_text(piece: bytes) -> None:
        click.echo(printable(decode(piece)), nl=False)

    return write_text
