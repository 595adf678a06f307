"""`llmkube logs`: print the log of an engine, from a file on its host, or from pods through the API server."""

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
from llmkube.programs.page.tail import copy_log
from llmkube.supervisor.engine.logfile import log_path

API_SECONDS: Final = 3.0
"""Timeout for the API server if the log is on this machine."""


@command("logs")
@click.argument("name", shell_complete=services)
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines until Ctrl-C.")
@click.option("--tail", "lines", type=click.IntRange(min=0), metavar="N", help="Start with the last N lines.")
@click.option("-p", "--previous", is_flag=True, help="In pods: print the log of the previous run.")
@click.option("-c", "--container", default="", help="In pods: the container. Default: the engine's.")
@click.option("--state-dir", type=click.Path(path_type=Path), help="State directory of the agent.  [LLMKUBE_STATE_DIR]")
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
    """Print the log of the engine of an InferenceService.

    For pods, it is read through the API server, which requires the verb get on pods/log. On the host that runs the
    engine, it is read from a file, even if no API server is reachable; other machines print the name of that host.
    """
    if follow and previous:
        raise click.UsageError("--previous and --follow exclude each other: the previous run has ended")
    folders = state_dirs(where, state_dir)
    options = Options(follow, lines, previous, container)

    async def action(cluster: Cluster) -> LogRef:
        key = Key(cluster.namespace, name)
        with answer_deadline():
            found = await locate_log(cluster, key)
        if found.note:
            click.echo(found.note, err=True)
        if found.pods:
            await PodLogs(cluster, key, found.pods, options, _writer(), partial(click.echo, err=True)).run()
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
        return LogRef(path, f"API server not reachable ({problem}); printing the log file on this machine")

    found = run_against(where, action)
    if found.pods:
        return
    assert found.path is not None, "_locate_log raises an error if there is none"
    if previous or container:
        raise CommandError(f"--previous and --container are for pods; {found.path} is a file with all runs")
    _print_file(found.path, follow, lines)


@attrs.frozen
class LogRef:
    """A log file on this machine or the label selector of pods, and a note for the user."""

    path: Path | None
    note: str = ""
    pods: str = ""


def find_log_file(folders: Sequence[Path], key: Key) -> Path | None:
    """Return the log file of a service in the first folder that has one."""
    paths = (log_path(folder, key) for folder in folders)
    return next((path for path in paths if path.is_file()), None)


def local_host_names(state_dir: Path) -> frozenset[str]:
    """Return the host names that an agent on this machine may use."""
    chosen = (
        load("agent", AgentConfig, {"state_dir": state_dir}).host_name,
        load("up", UpConfig, {"state_dir": state_dir}).host_name,
    )
    return frozenset(host_id(name) for name in (stored_host_name(state_dir), *chosen) if name)


async def _locate_log(cluster: Cluster, key: Key, path: Path | None, folders: Sequence[Path]) -> LogRef:
    """Find out where the service runs, and choose between the file on this machine and its pods.

    Raises:
        CommandError: There is no log on this machine; the message says where to find it.
    """
    try:
        service = await get_service(cluster.client, key)
    except CommandError as exc:
        if path is None or exc.exit_code != ExitCode.NOT_FOUND:
            raise
        return LogRef(path, f"InferenceService {key} not found; printing the log of its last engine")
    engines = await find_engines(cluster, key.namespace, key.name)
    hosts = sorted({one.host for one in engines if one.host and not one.pod} | set(reporting_hosts(service)))
    pods = pods_of(service) or (service.status.selector if any(engine.pod for engine in engines) else "")
    if pods:
        host_log = str(path or (missing_log_text(key, hosts, folders) if hosts else ""))
        return LogRef(None, f"{key} also has a log on a host: {host_log}" if host_log else "", pods)
    if path is None:
        raise CommandError(missing_log_text(key, hosts, folders))
    # A flag of the agent, not known here, may have set the host's name, so the file is printed all the same.
    elsewhere = bool(hosts) and not local_host_names(folders[0]) & set(hosts)
    return LogRef(path, f"{key} runs on {', '.join(hosts)}; this log is from this machine" if elsewhere else "")


def missing_log_text(key: Key, hosts: Sequence[str], folders: Sequence[Path]) -> str:
    """Return which command to run on which host, or why there is no log."""
    command = f"llmkube logs {key.name}" + ("" if key.namespace == "default" else f" -n {key.namespace}")
    searched = ", ".join(str(folder / "logs") for folder in folders)
    if not hosts:
        return (
            f"InferenceService {key} has no log here ({searched}), and no engine has been reported yet; "
            f"see what it waits for with `llmkube status {key.name}`"
        )
    if local_host_names(folders[0]) & set(hosts):
        return (
            f"InferenceService {key} has no log in {searched}: its engine has not started yet, or its agent uses "
            f"another --state-dir; see what it waits for with `llmkube status {key.name}`"
        )
    return f"InferenceService {key} runs on {', '.join(hosts)}; run `{command}` there"


def _print_file(path: Path, follow: bool, lines: int | None) -> None:
    try:
        trio.run(partial(copy_log, path, lines, _writer(), follow=follow))
    except OSError as exc:
        if isinstance(exc, BrokenPipeError) or is_disk_full(exc):
            raise  # an error of standard output, not of the log
        raise CommandError(f"{path} cannot be read: {exc.strerror}; run this as the user who runs the agent") from exc


def _writer() -> Callable[[bytes], None]:
    """Return a function that writes a log: unchanged into a pipe, without control characters onto a terminal."""
    if not sys.stdout.isatty():

        def write_bytes(piece: bytes) -> None:
            out = sys.stdout.buffer
            out.write(piece)
            out.flush()

        return write_bytes
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode  # a piece may end within a character

    def write_text(piece: bytes) -> None:
        click.echo(printable(decode(piece)), nl=False)

    return write_text
