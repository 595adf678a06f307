"""The choice of a cluster: the one that the user names, else a running `llmkube up`, else kubectl's current context.

A command that changes objects prints which cluster it uses, unless the user named it.
"""

import contextlib
import enum
import math
import os
import shlex
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import attrs
import click
import trio

from llmkube.base.errors import UserError
from llmkube.k8s.auth.config import ClusterConfig
from llmkube.k8s.auth.kubeconfig import load_config
from llmkube.k8s.client import Client, open_client
from llmkube.k8s.errors import ApiError, TransportError, UnauthorizedError
from llmkube.programs.failures import CommandError, ExitCode, program_name
from llmkube.programs.state_location import (
    SERVER_LOCK,
    check_state_dir,
    local_state_dir,
    lock_holder,
    running_up_pid,
    state_dir_of,
)

T = TypeVar("T")

ANSWER_SECONDS = 30.0
"""Deadline of a command's API requests: an API server may accept connections but not answer."""


@attrs.frozen
class ClusterFlags:
    """The flags that choose cluster and namespace."""

    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str | None = None
    all_namespaces: bool = False


@attrs.frozen
class Cluster:
    """A connection to a cluster, with the namespace to use.

    Attributes:
        client: A client of its API server.
        namespace: Namespace of -n, else of the context.
        server: URL of the API server.
        note: Description of the cluster for a user who may mean another one; empty if there is no doubt.
        up_dir: State directory of the cluster if it is an `llmkube up` that this user runs on this machine.
    """

    client: Client
    namespace: str
    server: str = ""
    note: str = ""
    up_dir: Path | None = None


class Origin(enum.Enum):
    """Source of the choice of a cluster."""

    NAMED = enum.auto()
    """A flag, KUBECONFIG, or the pod that this process runs in."""

    HOME = enum.auto()
    """kubectl's default file and its current context."""

    UP = enum.auto()
    """The kubeconfig that `llmkube up` writes into its state directory."""


def home_kubeconfig(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the file that kubectl reads by default."""
    return Path(environ.get("HOME") or Path.home()) / ".kube" / "config"


def origin_of(
    kubeconfig: Path | None, context: str | None, state_dir: Path, environ: Mapping[str, str], *, prefer_up: bool
) -> Origin:
    """Return the source of the configuration.

    Args:
        kubeconfig: Value of --kubeconfig.
        context: Value of --context; it names a context of kubectl's file, if that exists.
        state_dir: State directory of `llmkube up`.
        environ: The environment.
        prefer_up: Whether a running `llmkube up` takes precedence over kubectl's file.
    """
    if kubeconfig is not None or environ.get("KUBECONFIG") or environ.get("KUBERNETES_SERVICE_HOST"):
        return Origin.NAMED
    if not home_kubeconfig(environ).is_file():
        return Origin.UP
    if context is not None:
        return Origin.NAMED
    live = prefer_up and (state_dir / "kubeconfig").is_file() and lock_holder(state_dir, SERVER_LOCK) is not None
    return Origin.UP if live else Origin.HOME


def find_config(
    kubeconfig: Path | None,
    context: str | None,
    state_dir: Path,
    environ: Mapping[str, str] = os.environ,
    *,
    prefer_up: bool = False,
) -> tuple[ClusterConfig, Origin]:
    """Return the configuration of the cluster, and its source; the arguments are those of `origin_of`.

    Raises:
        UserError: There is none, or it cannot be used.
    """
    origin = origin_of(kubeconfig, context, state_dir, environ, prefer_up=prefer_up)
    if origin is not Origin.UP:
        return load_config(kubeconfig, context, environ=environ), origin
    own = state_dir / "kubeconfig"
    if not own.is_file():
        if prefer_up:
            raise UserError(f"{_not_running(state_dir)}, or name a cluster with --kubeconfig")
        raise UserError(
            f"no cluster found: there is no --kubeconfig, KUBECONFIG, {home_kubeconfig(environ)} or {own}; "
            "start `llmkube up`, or name a cluster with --kubeconfig"
        )
    check_state_dir(state_dir)
    return load_config(own, context, environ=environ), origin


def kubeconfig_files(where: ClusterFlags, environ: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Return the files that a command's `find_config` would read, in order; they may not exist."""
    folder = local_state_dir()
    origin = origin_of(where.kubeconfig, where.context, folder, environ, prefer_up=True)
    if origin is Origin.UP:
        return (folder / "kubeconfig",)
    if where.kubeconfig:
        return (where.kubeconfig,)
    if environ.get("KUBECONFIG"):
        return tuple(Path(each) for each in environ["KUBECONFIG"].split(os.pathsep) if each)
    return (home_kubeconfig(environ),) if home_kubeconfig(environ).is_file() else ()


def state_dirs(where: ClusterFlags, chosen: Path | None = None) -> tuple[Path, ...]:
    """Return the state directories in which an agent on this machine may have logs, the most likely first."""
    if chosen is not None:
        return (state_dir_of(chosen),)
    # `llmkube up` writes its kubeconfig into its state directory, even a temporary one.
    folders = [path.absolute().parent for path in kubeconfig_files(where) if path.name == "kubeconfig"]
    return tuple(dict.fromkeys([*(each for each in folders if (each / "logs").is_dir()), local_state_dir()]))


@contextlib.asynccontextmanager
async def open_cluster(where: ClusterFlags) -> AsyncIterator[Cluster]:
    """Connect to the cluster that the flags and the environment choose.

    Raises:
        UserError: There is none, or its configuration cannot be used.
        CommandError: It cannot be reached, or rejects the credentials.
    """
    config, origin = find_config(where.kubeconfig, where.context, local_state_dir(), prefer_up=True)
    namespace = where.namespace or config.namespace or "default"
    async with open_client(config) as client:
        try:
            yield Cluster(client, namespace, config.server, _note(config, origin), own_up_dir(where))
        except (TransportError, UnauthorizedError) as exc:
            stopped = _stopped_up(where) if isinstance(exc, TransportError) else None
            message = f"{exc}\n{_hint(exc, config, origin)}" if stopped is None else _not_running(stopped)
            raise CommandError(message) from exc


def own_up_dir(where: ClusterFlags) -> Path | None:
    """Return the state directory of the chosen cluster if it is an `llmkube up` that this user runs on this machine."""
    folders = [path.absolute().parent for path in kubeconfig_files(where)]
    running = (each for each in folders if running_up_pid(each) is not None)
    return next((each for each in running if each.stat().st_uid == os.geteuid()), None)


def _stopped_up(where: ClusterFlags) -> Path | None:
    """Return the state directory of the chosen `llmkube up` if that is not running."""
    folders = [path.absolute().parent for path in kubeconfig_files(where)]
    stopped = (each for each in folders if (each / SERVER_LOCK).is_file() and lock_holder(each, SERVER_LOCK) is None)
    return next(stopped, None)


def _not_running(state_dir: Path) -> str:
    option = "" if state_dir == local_state_dir() else f" --state-dir {shlex.quote(str(state_dir))}"
    return f"llmkube up is not running; start it: {shlex.quote(program_name())} up start{option}"


def _note(config: ClusterConfig, origin: Origin) -> str:
    home = home_kubeconfig()
    if origin is Origin.HOME:
        return f'in context "{config.context}" of {home} ({config.server}); --context and --kubeconfig choose another'
    if origin is Origin.UP and home.is_file():
        return f"in `llmkube up` on this machine; --context chooses a cluster of {home}"
    return ""


def _hint(error: ApiError, config: ClusterConfig, origin: Origin) -> str:
    """Return the name of a cluster whose API server did not answer or rejected the request, and a fix."""
    if origin is Origin.UP and error.code == 0:
        return f"is `llmkube up` running? Its state directory is {local_state_dir()}"
    server = f'{config.server} (context "{config.context}")'
    if isinstance(error, UnauthorizedError):
        return f"{server} rejects these credentials; renew them, or choose another --context or --kubeconfig"
    if error.code == 404:
        return f"if {server} is the right cluster, install the CRDs: llmkube crds | kubectl apply --server-side -f -"
    other = "; without a cluster, `llmkube up` serves on this machine" if origin is Origin.HOME else ""
    return f"is {server} a running API server? --context and --kubeconfig choose another{other}"


def run_against(
    where: ClusterFlags, action: Callable[[Cluster], Awaitable[T]], *, seconds: float = math.inf, changes: bool = False
) -> T:
    """Connect to the chosen cluster, run an action with it, and return the result.

    Args:
        where: Flags that choose the cluster.
        action: The action; its `cluster.namespace` is that of -n, if given.
        seconds: Deadline of the whole action. A long-running action limits its requests with `answer_deadline` instead.
        changes: Whether it changes objects: `Cluster.note` is then printed.

    Raises:
        CommandError: The API server did not answer in time.
        LLMKubeError: It failed.
    """

    async def main() -> T:
        with trio.fail_after(seconds):
            async with open_cluster(where) as cluster:
                if changes and cluster.note:
                    click.echo(cluster.note, err=True)
                return await action(cluster)

    return run_or_time_out(main, seconds=seconds)


def run_or_time_out(function: Callable[..., Awaitable[T]], *args: Any, seconds: float = math.inf) -> T:
    """Run an async function that sets deadlines, and report a missed one as an API server that does not answer.

    Args:
        function: The function; it uses `answer_deadline` or `trio.fail_after`.
        *args: Its arguments.
        seconds: Deadline that the function sets, for the message; it reports at most `ANSWER_SECONDS`.

    Raises:
        CommandError: A deadline was missed.
    """

    async def main() -> T:
        with cancelled_by_interrupt():
            return await function(*args)
        raise AssertionError("the block returns or raises")

    try:
        return trio.run(main)
    except trio.TooSlowError as exc:
        waited = min(seconds, ANSWER_SECONDS)
        raise CommandError(
            f"the API server did not answer within {waited:g} s; check that it is running", ExitCode.TIMED_OUT
        ) from exc


@contextlib.contextmanager
def cancelled_by_interrupt() -> Iterator[None]:
    """Cancel the block at the first Ctrl-C; the second one has its usual effect. An ignored SIGINT stays ignored.

    Raises:
        KeyboardInterrupt: The block was cancelled.
    """
    # Trio's own KeyboardInterrupt is dropped in the callback of a weak reference, and may break an HTTP client's state.
    token, before = trio.lowlevel.current_trio_token(), signal.getsignal(signal.SIGINT)
    with trio.CancelScope() as scope:

        def cancel(*_: object) -> None:
            signal.signal(signal.SIGINT, before)
            token.run_sync_soon(partial(scope.cancel, reason="Ctrl-C"))

        try:
            if before is not signal.SIG_IGN:  # a background job of a script
                signal.signal(signal.SIGINT, cancel)
            yield
        finally:
            signal.signal(signal.SIGINT, before)
    if scope.cancelled_caught:
        raise KeyboardInterrupt


@contextlib.contextmanager
def answer_deadline() -> Iterator[None]:
    """Limit the requests in the block to `ANSWER_SECONDS` in total."""
    with trio.fail_after(ANSWER_SECONDS):
        yield
