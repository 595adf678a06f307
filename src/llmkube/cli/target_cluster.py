"""Which cluster a command talks to: what the user named, else a live `llmkube up`, else what kubectl would take.

A command that changes something in a cluster that the user has not named says which one that is.
"""

import contextlib
import enum
import math
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
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
from llmkube.programs.failures import CommandError, ExitCode
from llmkube.programs.state_location import SERVER_LOCK, check_state_dir, local_state_dir, lock_holder, state_dir_of

T = TypeVar("T")

ANSWER_SECONDS = 30.0
"""How long an object command waits for an API server that is there but says nothing."""


@attrs.frozen
class ClusterFlags:
    """What the command line says about the place to look at."""

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None
    all_namespaces: bool = False

    @property
    def kubeconfig_path(self) -> Path | None:
        """The file that was named, if one was."""
        return Path(self.kubeconfig) if self.kubeconfig else None


@attrs.frozen
class Cluster:
    """A connection, and the namespace that its context names.

    Attributes:
        client: Talks to the API server.
        namespace: What a command without -n looks at.
        server: The API server's URL.
        note: Which cluster this is, for a user who may mean another one; empty when there is no doubt.
    """

    client: Client
    namespace: str
    server: str = ""
    note: str = ""


class Origin(enum.Enum):
    """Who decided which cluster it is."""

    NAMED = enum.auto()
    """The user: a flag, KUBECONFIG, or the pod that this runs in."""

    HOME = enum.auto()
    """kubectl's own file, with the context that is current there."""

    UP = enum.auto()
    """What `llmkube up` wrote into the state directory."""


def home_kubeconfig(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the file that kubectl reads when nothing else is named."""
    return Path(environ.get("HOME") or Path.home()) / ".kube" / "config"


def origin_of(
    kubeconfig: Path | None, context: str | None, state_dir: Path, environ: Mapping[str, str], *, prefer_up: bool
) -> Origin:
    """Decide where the configuration comes from.

    Args:
        kubeconfig: The file that a flag names.
        context: The context that a flag names: of kubectl's file, if there is one.
        state_dir: Where `llmkube up` keeps its own.
        environ: The environment.
        prefer_up: Whether an API server that runs on this machine comes before kubectl's file.
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
    """Return the cluster's configuration, and who decided that it is this one; the arguments are those of `origin_of`.

    Raises:
        UserError: There is none, or it cannot be used.
    """
    origin = origin_of(kubeconfig, context, state_dir, environ, prefer_up=prefer_up)
    if origin is not Origin.UP:
        return load_config(kubeconfig, context, environ=environ), origin
    own = state_dir / "kubeconfig"
    if not own.is_file():
        raise UserError(
            f"no cluster: there is no --kubeconfig, KUBECONFIG, {home_kubeconfig(environ)} or {own}; "
            "start `llmkube up`, or name a cluster with --kubeconfig"
        )
    check_state_dir(state_dir)
    return load_config(own, context, environ=environ), origin


def kubeconfig_files(where: ClusterFlags, environ: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Return the files that a command's `find_config` would read, in its order; they need not exist."""
    folder = local_state_dir()
    origin = origin_of(where.kubeconfig_path, where.context, folder, environ, prefer_up=True)
    if origin is Origin.UP:
        return (folder / "kubeconfig",)
    if where.kubeconfig:
        return (Path(where.kubeconfig),)
    if environ.get("KUBECONFIG"):
        return tuple(Path(each) for each in environ["KUBECONFIG"].split(os.pathsep) if each)
    return (home_kubeconfig(environ),) if home_kubeconfig(environ).is_file() else ()


def state_dirs(where: ClusterFlags, chosen: Path | None = None) -> tuple[Path, ...]:
    """Return the folders in which an agent on this machine may keep its logs, the likeliest first.

    `llmkube up` writes its kubeconfig into its state directory, so the one in use leads there, also to a temporary one.
    """
    if chosen is not None:
        return (state_dir_of(chosen),)
    folders = [path.absolute().parent for path in kubeconfig_files(where) if path.name == "kubeconfig"]
    return tuple(dict.fromkeys([*(each for each in folders if (each / "logs").is_dir()), local_state_dir()]))


@contextlib.asynccontextmanager
async def open_cluster(kubeconfig: Path | None, context: str | None) -> AsyncIterator[Cluster]:
    """Connect to the cluster that is meant.

    Raises:
        UserError: There is none, or its configuration cannot be used.
    """
    config, origin = find_config(kubeconfig, context, local_state_dir(), prefer_up=True)
    async with open_client(config) as client:
        try:
            yield Cluster(client, config.namespace or "default", config.server, _note(config, origin))
        except (TransportError, UnauthorizedError) as exc:
            raise CommandError(f"{exc}\n{_hint(exc, config, origin)}") from exc


def _note(config: ClusterConfig, origin: Origin) -> str:
    home = home_kubeconfig()
    if origin is Origin.HOME:
        return f'in context "{config.context}" of {home} ({config.server}); --context and --kubeconfig choose another'
    if origin is Origin.UP and home.is_file():
        return f"in `llmkube up` on this machine; --context chooses a cluster of {home}"
    return ""


def _hint(error: ApiError, config: ClusterConfig, origin: Origin) -> str:
    """Say who was asked, and what to do: no API server has answered, or one that does not know us."""
    if origin is Origin.UP and error.code == 0:
        return f"is `llmkube up` running? {local_state_dir()} says that it was"
    server = f'{config.server} (context "{config.context}")'
    if isinstance(error, UnauthorizedError):
        return f"{server} refuses these credentials; renew them, or choose another --context or --kubeconfig"
    if error.code == 404:
        return f"if {server} is the right one: llmkube crds | kubectl apply --server-side -f -"
    other = "; without a cluster, `llmkube up` serves on this machine" if origin is Origin.HOME else ""
    return f"is {server} running, and an API server? --context and --kubeconfig choose another{other}"


def run_against(
    where: ClusterFlags,
    action: Callable[[Cluster], Awaitable[T]],
    *,
    seconds: float = math.inf,
    changes: bool = False,
) -> T:
    """Run one action against the cluster that is meant, and return its value.

    Args:
        where: The cluster.
        action: Its `cluster.namespace` is the one that the command line names, if it names one.
        seconds: What the whole may take. An action that stays bounds its own calls with `answer_deadline`.
        changes: Whether it changes something: then the user hears which cluster that is, unless it was named.

    Raises:
        CommandError: The API server said nothing for too long.
        LLMKubeError: It failed.
    """

    async def main() -> T:
        with trio.fail_after(seconds):
            async with open_cluster(where.kubeconfig_path, where.context) as cluster:
                if changes and cluster.note:
                    click.echo(cluster.note, err=True)
                return await action(attrs.evolve(cluster, namespace=where.namespace or cluster.namespace))

    return run_with_deadline(main, seconds=seconds)


def run_with_deadline(function: Callable[..., Awaitable[T]], *args: Any, seconds: float = math.inf) -> T:
    """Run an async function that sets deadlines, and report a missed one as a silent API server.

    Args:
        function: The function; it uses `answer_deadline` or `trio.fail_after`.
        *args: Its arguments.
        seconds: Deadline of the caller, for the message; `ANSWER_SECONDS` if that is shorter.

    Raises:
        CommandError: A deadline was missed.
    """
    try:
        return trio.run(function, *args)
    except trio.TooSlowError as exc:
        waited = min(seconds, ANSWER_SECONDS)
        raise CommandError(
            f"the API server did not answer within {waited:g} s; check that it runs", ExitCode.TIMED_OUT
        ) from exc


@contextlib.contextmanager
def answer_deadline() -> Iterator[None]:
    """Limit the requests in the block to `ANSWER_SECONDS` in all."""
    with trio.fail_after(ANSWER_SECONDS):
        yield
