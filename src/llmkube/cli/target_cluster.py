"""Which cluster a command talks to: the one that kubectl would, else the one that `llmkube up` runs on this machine."""

import contextlib
import math
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import attrs
import trio

from llmkube.base.errors import UserError
from llmkube.cli.config import check_state_dir, local_state_dir
from llmkube.cli.failures import CommandError, ExitCode
from llmkube.k8s.auth.config import ClusterConfig
from llmkube.k8s.auth.load import load_config
from llmkube.k8s.client import Client, open_client
from llmkube.k8s.errors import ApiError, TransportError, UnauthorizedError

T = TypeVar("T")

ANSWER_SECONDS = 30.0
"""How long an object command waits for an API server that is there but says nothing."""


@attrs.frozen
class Where:
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
    """

    client: Client
    namespace: str
    server: str = ""


def find_config(
    kubeconfig: Path | None, context: str | None, state_dir: Path, environ: Mapping[str, str] = os.environ
) -> tuple[ClusterConfig, bool]:
    """Return the cluster's configuration, and whether it is the one that `llmkube up` wrote for want of another.

    Raises:
        UserError: There is none, or it cannot be used.
    """
    home = Path(environ.get("HOME") or Path.home()) / ".kube" / "config"
    named = kubeconfig is not None or environ.get("KUBECONFIG") or environ.get("KUBERNETES_SERVICE_HOST")
    if named or home.is_file():
        return load_config(kubeconfig, context, environ=environ), False
    own = state_dir / "kubeconfig"
    if not own.is_file():
        raise UserError(
            f"no cluster: there is no --kubeconfig, KUBECONFIG, {home} or {own}; "
            "start `llmkube up`, or name a cluster with --kubeconfig"
        )
    check_state_dir(state_dir)
    return load_config(own, context, environ=environ), True


def kubeconfig_files(where: Where, environ: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Return the files that `find_config` would read, in its order; they need not exist."""
    if where.kubeconfig:
        return (Path(where.kubeconfig),)
    if environ.get("KUBECONFIG"):
        return tuple(Path(each) for each in environ["KUBECONFIG"].split(os.pathsep) if each)
    home = Path(environ.get("HOME") or Path.home()) / ".kube" / "config"
    if home.is_file():
        return (home,)
    return () if environ.get("KUBERNETES_SERVICE_HOST") else (local_state_dir() / "kubeconfig",)


@contextlib.asynccontextmanager
async def open_cluster(kubeconfig: Path | None, context: str | None) -> AsyncIterator[Cluster]:
    """Connect to the cluster that is meant.

    Raises:
        UserError: There is none, or its configuration cannot be used.
    """
    config, local = find_config(kubeconfig, context, local_state_dir())
    async with open_client(config) as client:
        try:
            yield Cluster(client, config.namespace or "default", config.server)
        except (TransportError, UnauthorizedError) as exc:
            raise CommandError(f"{exc}\n{_way_out(exc, config, local=local)}") from exc


def _way_out(error: ApiError, config: ClusterConfig, *, local: bool) -> str:
    """Say who was asked, and what to do: no API server has answered, or one that does not know us."""
    if local and error.code == 0:
        return f"is `llmkube up` running? {local_state_dir()} says that it was"
    asked = f'{config.server} (context "{config.context}")'
    if isinstance(error, UnauthorizedError):
        return f"{asked} refuses these credentials; renew them, or choose another --context or --kubeconfig"
    if error.code == 404:
        return f"if {asked} is the right one: llmkube crds | kubectl apply --server-side -f -"
    return f"is {asked} running, and an API server? --context and --kubeconfig choose another"


def run_against(where: Where, action: Callable[[Cluster], Awaitable[T]], *, seconds: float = math.inf) -> T:
    """Run one action against the cluster that is meant, and return its value.

    Args:
        where: The cluster.
        action: Its `cluster.namespace` is the one that the command line names, if it names one.
        seconds: What the whole may take. An action that stays bounds its own calls with `answering`.

    Raises:
        CommandError: The API server said nothing for too long.
        LLMKubeError: It failed.
    """

    async def main() -> T:
        with trio.fail_after(seconds):
            async with open_cluster(where.kubeconfig_path, where.context) as cluster:
                return await action(attrs.evolve(cluster, namespace=where.namespace or cluster.namespace))

    try:
        return trio.run(main)
    except trio.TooSlowError as exc:
        waited = min(seconds, ANSWER_SECONDS)
        raise CommandError(
            f"the API server did not answer within {waited:g} s; check that it runs", ExitCode.TIMED_OUT
        ) from exc


@contextlib.contextmanager
def answering() -> Iterator[None]:
    """Give the API server `ANSWER_SECONDS` for what the block asks it."""
    with trio.fail_after(ANSWER_SECONDS):
        yield
