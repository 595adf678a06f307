"""What runs beside an engine in its pod, from our image: `llmkube drain` and `llmkube key-proxy`."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, NoReturn

import attrs
import click
import structlog
import trio

from llmkube.base.errors import UserError
from llmkube.base.http.client import HttpClient, open_http_client
from llmkube.base.http.errors import HttpError
from llmkube.base.http.exchange import Exchange
from llmkube.base.http.hub import open_sockets
from llmkube.base.http.limits import Limits
from llmkube.base.http.listen import open_listeners
from llmkube.base.http.message import Response
from llmkube.base.http.server import run_server
from llmkube.base.log import configure_logging
from llmkube.programs.options import command
from llmkube.programs.program import (
    LOOPBACK,
    Stop,
    freeze_heap,
    open_service_nursery,
    raise_descriptor_limit,
    run_until_signal,
)
from llmkube.router.auth.client_key import digest_of_key
from llmkube.router.engine_proxy import keys_judge, proxy_handler
from llmkube.runtimes.container.container_plan import requests_in_flight
from llmkube.supervisor.host.tcp_listeners import connections_at
from llmkube.supervisor.values.api_keys import parse_keys

log = structlog.get_logger()

PATH: Final = "/drained"

MIN_DRAIN_SECONDS: Final = 10.0
"""How long requests may still come to a pod that is going: kube-proxy follows within a second, others take longer."""

SAMPLE_SECONDS: Final = 1.0
METRICS_TIMEOUT_SECONDS: Final = 2.0
"""How long the engine may take to show its metrics; one that takes longer is busy."""

_LIMITS: Final = Limits(
    max_connections=128, max_connections_per_peer=8, max_head_bytes=8192, max_body_bytes=0, drain_seconds=1.0
)
"""A hook keeps its connection until the engine may end: a pod that asks like one must not take the kubelet's place."""

EngineActivity = Literal["gone", "idle", "busy"]
"""What a look at an engine finds: nothing listens there, it has no request, or it may have one."""

PortProbe = Callable[[int], "tuple[bool, int] | None"]


@attrs.frozen
class DrainTarget:
    """The engine that has to end.

    Attributes:
        engine: The port where it listens.
        clients: The port where its clients connect: the same, or that of what asks them for their keys.
        metrics_url: Where its metrics are; empty when it has none.
        busy_metrics: Those of its metrics that are all 0 while it has no request.
        longest_seconds: After so long it may end, whatever it does.
    """

    engine: int
    clients: int
    metrics_url: str = ""
    busy_metrics: tuple[str, ...] = ()
    longest_seconds: float = 60.0


def may_stop(samples: Sequence[EngineActivity], waited_seconds: float) -> bool:
    """Whether an engine may end after these looks, the newest last: it has ended, or there is no request left.

    One look is not enough: between an answer and the next request of a busy client there is a moment without any.
    """
    if not samples or samples[-1] == "gone":
        return bool(samples)
    return waited_seconds >= MIN_DRAIN_SECONDS and list(samples[-2:]) == ["idle", "idle"]


@attrs.define(eq=False)
class Drain:
    """Looks at one engine for all who wait for its end.

    Attributes:
        target: The engine.
        client: Reads its metrics.
        probe: Asks the kernel for a port's listener and connections.
    """

    target: DrainTarget
    client: HttpClient
    probe: PortProbe = connections_at
    _lock: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _last_sample: EngineActivity = attrs.field(default="busy", init=False)
    _sampled_at: float = attrs.field(default=-SAMPLE_SECONDS, init=False)

    async def wait(self) -> str:
        """Return why the engine may end, once it may."""
        started_at, samples = trio.current_time(), list[EngineActivity]()
        while not may_stop(samples, waited := trio.current_time() - started_at):
            if waited >= self.target.longest_seconds:
                return f"its requests have had {self.target.longest_seconds:g} seconds"
            if samples:
                await trio.sleep(SAMPLE_SECONDS)
            samples = [*samples[-1:], await self._sample()]
        return "it has ended" if samples[-1] == "gone" else "it has no request"

    async def _sample(self) -> EngineActivity:
        """Look, or return what another one has just seen: a crowd that waits asks the engine no more often than one."""
        async with self._lock:
            if trio.current_time() >= self._sampled_at + SAMPLE_SECONDS / 2:
                self._last_sample = await self._take_sample()
                self._sampled_at = trio.current_time()
            return self._last_sample

    async def _take_sample(self) -> EngineActivity:
        port_state = self.probe(self.target.engine)
        if port_state is not None and not port_state[0]:
            return "gone"
        requests = await self._requests()
        if requests is None:
            client_port = self.probe(self.target.clients)
            requests = float(client_port[1]) if client_port is not None else 1.0
        return "idle" if requests == 0 else "busy"

    async def _requests(self) -> float | None:
        """Return how many requests the engine says that it has; None when it does not tell. Silence is work."""
        if not self.target.metrics_url:
            return None
        try:
            with trio.fail_after(METRICS_TIMEOUT_SECONDS):
                answer = await self.client.request("GET", self.target.metrics_url)
        except (HttpError, trio.TooSlowError):
            return 1.0
        if answer.status != 200:
            return None
        return requests_in_flight(answer.body.decode(errors="replace"), self.target.busy_metrics)


def handler(drain: Drain) -> Callable[[Exchange], Any]:
    """Answer `GET /drained` once the engine may end."""

    async def handle(exchange: Exchange) -> None:
        request = exchange.request
        if (request.method, request.path) != ("GET", PATH):
            await exchange.respond(Response.json(404, {"error": f"there is only GET {PATH}"}))
            return
        started_at = trio.current_time()
        log.info("the pod has to end: asked when its engine may", longestSeconds=drain.target.longest_seconds)
        why = await drain.wait()
        log.info("the engine may end", why=why, waitedSeconds=round(trio.current_time() - started_at, 1))
        await exchange.respond(Response.json(200, {"engine": why}))

    return handle


async def run_drain(
    target: DrainTarget, port: int, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> NoReturn:
    """Answer the hooks of a pod until cancelled; a kubelet asks at the pod's own address, of whichever family."""
    listeners = await open_listeners(None, port, field="--drain-port")
    async with open_http_client() as client:
        await run_server(handler(Drain(target, client)), listeners, limits=_LIMITS, task_status=task_status)
    raise AssertionError("a server never ends")


def drain_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that `DrainTarget` is made from, but for the ports of engine and clients."""
    for option in (
        click.option("--drain-port", type=click.IntRange(1, 65535), help="Port for preStop hooks, on all addresses."),
        click.option("--metrics-url", default="", help="The engine's metrics; without them, connections count."),
        click.option("--busy-metric", "busy_metrics", multiple=True, help="Metric that is 0 when idle; repeatable."),
        click.option("--longest", "longest_seconds", type=click.FloatRange(min=0), default=60.0, show_default=True,
                     help="Seconds after which the engine may end, whatever it does."),
    ):  # fmt: skip
        command = option(command)
    return command


@command("drain")
@click.option("--engine", type=click.IntRange(1, 65535), required=True, help="Port of the engine.")
@drain_options
def drain(*, engine: int, drain_port: int | None, **target_options: Any) -> None:
    """Tell the preStop hooks of a pod when its engine has no request left, as the pods of services do."""
    if drain_port is None:
        raise click.UsageError("--drain-port is missing: a kubelet has to ask somewhere")
    configure_logging("info")
    target = DrainTarget(engine, engine, **target_options)
    trio.run(run_until_signal, partial(serve_drain, target, drain_port), log.info)


async def serve_drain(target: DrainTarget, port: int, stop: Stop) -> None:
    """Answer the hooks of a pod until the stop."""
    async with open_service_nursery() as tasks:
        with stop.scope():
            await tasks.start(partial(run_drain, target, port))
            freeze_heap()
            await trio.sleep_forever()


KEYS_POLL_SECONDS: Final = 10.0
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
    _last_problem: str = attrs.field(default="", init=False)

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

    async def watch(self) -> NoReturn:
        """Look at it again and again; what is wrong is said once."""
        while True:
            await trio.sleep(KEYS_POLL_SECONDS)
            before, problem = self.digests, ""
            try:
                await trio.to_thread.run_sync(self.read)
            except KeysError as error:
                problem = str(error)
            if problem and problem != self._last_problem:
                log.warning("the keys of clients stay as they were", error=problem)
            elif self.digests != before:
                log.info("other keys count", keys=len(self.digests))
            self._last_problem = problem


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
    **target_options: Any,
) -> None:
    """Ask the clients of an engine for their keys, as the pods of services with spec.apiKeySecretRef do."""
    configure_logging("info")
    raise_descriptor_limit()
    file = KeyFile(keys, named or str(keys))
    file.read()
    target = DrainTarget(engine, listen, **target_options)
    hooks = partial(run_drain, target, drain_port) if drain_port is not None else None
    trio.run(run_until_signal, partial(serve_keys, file, listen, engine, open_paths, hooks=hooks), log.info)


async def serve_keys(
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
        with stop.scope():
            limits = Limits(drain_seconds=DRAIN_SECONDS)
            server = partial(run_server, handler, sockets.listen(listeners), limits=limits, judge=judge)
            await tasks.start(server)
            tasks.start_soon(file.watch)
            if hooks is not None:
                await tasks.start(hooks)
            freeze_heap()
            task_status.started()
            await trio.sleep_forever()
