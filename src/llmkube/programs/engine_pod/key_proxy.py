"""`llmkube key-proxy`: asks an engine's clients for their keys, in a container beside the engine's.

The keys are in a file that a kubelet renews. What they are now counts; while the file holds none, those that were there
last do, as on a host. Without any it does not start: an engine is never open because its Secret is empty.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

import attrs
import click
import structlog
import trio

from llmkube.base.errors import UserError
from llmkube.base.http.client import open_http_client
from llmkube.base.http.hub import open_sockets
from llmkube.base.http.limits import Limits
from llmkube.base.http.listen import open_listeners
from llmkube.base.http.server import run_server
from llmkube.base.log import configure_logging
from llmkube.programs.engine_pod.drain import Watched, drain_options, run_drain
from llmkube.programs.options import command
from llmkube.programs.program import (
    LOOPBACK,
    Stop,
    open_service_nursery,
    raise_descriptor_limit,
    run_until_signal,
    settle_heap,
)
from llmkube.router.auth.client_key import digest_of_key
from llmkube.router.engine_proxy import keys_judge, proxy_handler
from llmkube.supervisor.nouns.api_keys import parse_keys

log = structlog.get_logger()

LOOK_SECONDS: Final = 10.0
"""Between two looks whether the file has changed; a kubelet may take a minute longer to renew it."""

DRAIN_SECONDS: Final = 25.0
"""How long answers may take after TERM, which comes once the engine has no request or has had its time."""


class KeysError(UserError):
    """There are no keys where there have to be some."""


@attrs.define(eq=False)
class KeyFile:
    """The keys of a file, by their digests.

    Attributes:
        path: Where they are, one per line.
        named: What a user calls it: a Secret, and the key in it.
    """

    path: Path
    named: str
    digests: frozenset[bytes] = attrs.field(default=frozenset(), init=False, repr=False)
    _said: str = attrs.field(default="", init=False)

    def read(self) -> None:
        """Take what the file holds now; blocks.

        Raises:
            KeysError: It holds no keys; those that were there last stay.
        """
        try:
            keys = parse_keys(self.path.read_bytes())
        except FileNotFoundError as error:
            raise KeysError(f"{self.named}: there is none; create it, with one API key on each line") from error
        except (OSError, ValueError) as error:
            why = error.strerror or "cannot be read" if isinstance(error, OSError) else str(error)
            raise KeysError(f"{self.named}: {why}; write one API key on each line") from None
        self.digests = frozenset(map(digest_of_key, keys))

    async def follow(self) -> NoReturn:
        """Look at it again and again; what is wrong is said once."""
        while True:
            await trio.sleep(LOOK_SECONDS)
            before, said = self.digests, ""
            try:
                await trio.to_thread.run_sync(self.read)
            except KeysError as error:
                said = str(error)
            if said and said != self._said:
                log.warning("the keys of clients stay as they were", error=said)
            elif self.digests != before:
                log.info("other keys count", keys=len(self.digests))
            self._said = said


@command("key-proxy")
@click.option("--listen", type=click.IntRange(1, 65535), required=True, help="Port on all addresses, for clients.")
@click.option("--engine", type=click.IntRange(1, 65535), required=True, help="Port of the engine on 127.0.0.1.")
@click.option("--keys", type=click.Path(path_type=Path), required=True, help="File with one API key per line.")
@click.option("--named", default="", help="What messages call that file.")
@click.option("--open", "open_paths", multiple=True, help="Path that is read without a key; repeatable.")
@drain_options
def key_proxy(
    *,
    listen: int,
    engine: int,
    keys: Path,
    named: str,
    open_paths: tuple[str, ...],
    drain_port: int | None,
    metrics_url: str,
    busy_metrics: tuple[str, ...],
    longest: float,
) -> None:
    """Ask the clients of an engine for their keys, as the pods of services with spec.apiKeySecretRef do."""
    configure_logging("info")
    raise_descriptor_limit()
    file = KeyFile(keys, named or str(keys))
    file.read()
    watched = Watched(engine, listen, metrics_url, busy_metrics, longest)
    hooks = partial(run_drain, watched, drain_port) if drain_port is not None else None
    trio.run(run_until_signal, partial(serve, file, listen, engine, open_paths, hooks=hooks), log.info)


async def serve(
    file: KeyFile,
    listen: int,
    engine: int,
    open_paths: tuple[str, ...],
    stop: Stop,
    *,
    hooks: Callable[..., Awaitable[NoReturn]] | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Let requests in until the stop; answers that are under way then get their time."""
    listeners = await open_listeners(None, listen, field="--listen")
    async with (
        open_sockets() as sockets,
        open_http_client(sockets.connect, max_idle_per_origin=256) as client,
        open_service_nursery() as tasks,
    ):
        handler = proxy_handler((LOOPBACK, engine), "", client)
        judge = keys_judge(lambda: file.digests, frozenset(open_paths))
        with stop.here():
            limits = Limits(drain_seconds=DRAIN_SECONDS)
            server = partial(run_server, handler, sockets.listen(listeners), limits=limits, judge=judge)
            await tasks.start(server)
            tasks.start_soon(file.follow)
            if hooks is not None:
                await tasks.start(hooks)
            settle_heap()
            task_status.started()
            await trio.sleep_forever()
