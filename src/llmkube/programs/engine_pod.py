"""Programs of our image in an engine's pod: `llmkube drain` and `llmkube key-proxy`."""

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
from llmkube.programs.options import command, with_options
from llmkube.programs.program import (
    LOOPBACK,
    Stop,
    freeze_heap,
    open_service_nursery,
    raise_descriptor_limit,
    run_until_signal,
)
from llmkube.router.auth.client_key import digest_of_key
from llmkube.router.engine_proxy import key_filter, proxy_handler
from llmkube.runtimes.container.container_plan import requests_in_flight
from llmkube.supervisor.host.tcp_listeners import connections_at
from llmkube.supervisor.values.api_keys import parse_keys

log = structlog.get_logger()

PATH: Final = "/drained"

MIN_DRAIN_SECONDS: Final = 10.0
"""Time in which a terminating pod may still get requests: kube-proxy reacts within a second, others take longer."""

SAMPLE_SECONDS: Final = 1.0
METRICS_TIMEOUT_SECONDS: Final = 2.0
"""Timeout of the engine's metrics; an engine that does not answer in time is busy."""

_LIMITS: Final = Limits(
    max_connections=128, max_connections_per_peer=8, max_head_bytes=8192, max_body_bytes=0, drain_seconds=1.0
)
"""A hook holds its connection until the engine may stop: other pods must not take up the kubelet's connections."""

EngineActivity = Literal["gone", "idle", "busy"]
"""State of an engine in one sample: nothing listens, it has no requests, or it may have some."""

PortProbe = Callable[[int], "tuple[bool, int] | None"]


@attrs.frozen
class DrainTarget:
    """The engine to drain.

    Attributes:
        engine: Port on which the engine listens.
        clients: Port to which clients connect: the same one, or that of the key proxy.
        metrics_url: URL of its metrics; empty if it has none.
        busy_metrics: Metrics that are all 0 while it has no requests.
        longest_seconds: Time after which the engine may stop even if it is busy.
    """

    engine: int
    clients: int
    metrics_url: str = ""
    busy_metrics: tuple[str, ...] = ()
    longest_seconds: float = 60.0


def may_stop(samples: Sequence[EngineActivity], waited_seconds: float) -> bool:
    """Whether an engine may stop after these samples, the newest last: it has exited, or has no requests left.

    One idle sample is not enough: a busy client has a gap between a response and its next request.
    """
    if not samples or samples[-1] == "gone":
        return bool(samples)
    return waited_seconds >= MIN_DRAIN_SECONDS and list(samples[-2:]) == ["idle", "idle"]


@attrs.define(eq=False)
class Drain:
    """Drain of one engine, shared by all hooks that wait for it.

    Attributes:
        target: The engine.
        client: HTTP client for its metrics.
        probe: Returns whether a port has a listener and the number of its connections; None if unknown.
    """

    target: DrainTarget
    client: HttpClient
    probe: PortProbe = connections_at
    _lock: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _last_sample: EngineActivity = attrs.field(default="busy", init=False)
    _sampled_at: float = attrs.field(default=-SAMPLE_SECONDS, init=False)

    async def wait(self) -> str:
        """Wait until the engine may stop, and return the reason."""
        started_at, samples = trio.current_time(), list[EngineActivity]()
        while not may_stop(samples, waited := trio.current_time() - started_at):
            if waited >= self.target.longest_seconds:
                return f"the limit of {self.target.longest_seconds:g} seconds for its requests has been reached"
            if samples:
                await trio.sleep(SAMPLE_SECONDS)
            samples = [*samples[-1:], await self._sample()]
        return "it has exited" if samples[-1] == "gone" else "it has no requests"

    async def _sample(self) -> EngineActivity:
        """Return a sample, taken now or a moment ago: many waiting hooks query the engine no more often than one."""
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
        """Return the number of requests in flight; None if no metrics show it, 1 if the engine does not answer."""
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
    """Return the handler that answers `GET /drained` once the engine may stop."""

    async def handle(exchange: Exchange) -> None:
        request = exchange.request
        if (request.method, request.path) != ("GET", PATH):
            await exchange.respond(Response.json(404, {"error": f"there is only GET {PATH}"}))
            return
        started_at = trio.current_time()
        log.info("drain requested", longestSeconds=drain.target.longest_seconds)
        why = await drain.wait()
        log.info("engine drained", why=why, waitedSeconds=round(trio.current_time() - started_at, 1))
        await exchange.respond(Response.json(200, {"engine": why}))

    return handle


async def run_drain(
    target: DrainTarget, port: int, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> NoReturn:
    """Answer a pod's preStop hooks until cancelled."""
    # A kubelet connects to the pod's address, which is of either family.
    listeners = await open_listeners(None, port, field="--drain-port")
    async with open_http_client() as client:
        await run_server(handler(Drain(target, client)), listeners, limits=_LIMITS, task_status=task_status)
    raise AssertionError("a server never returns")


drain_options: Final = with_options(
    click.option(
        "--longest",
        "longest_seconds",
        type=click.FloatRange(min=0),
        default=60.0,
        show_default=True,
        help="Seconds after which the engine may stop even if it is busy.",
    ),
    click.option("--busy-metric", "busy_metrics", multiple=True, help="Metric that is 0 when idle; repeatable."),
    click.option("--metrics-url", default="", help="URL of the engine's metrics (default: count connections)."),
    click.option("--drain-port", type=click.IntRange(1, 65535), help="Port for preStop hooks, on all addresses."),
)
"""Options for `DrainTarget`, except the ports of engine and clients."""


@command("drain")
@click.option("--engine", type=click.IntRange(1, 65535), required=True, help="Port of the engine.")
@drain_options
def drain(*, engine: int, drain_port: int | None, **target_options: Any) -> None:
    """Answer the preStop hooks of a pod once its engine has no requests left, as in the pods of services."""
    if drain_port is None:
        raise click.UsageError("--drain-port is missing: the kubelet needs a port for preStop hooks")
    configure_logging("info")
    target = DrainTarget(engine, engine, **target_options)
    trio.run(run_until_signal, partial(serve_drain, target, drain_port), log.info)


async def serve_drain(target: DrainTarget, port: int, stop: Stop) -> None:
    """Answer the hooks of a pod until a stop."""
    async with open_service_nursery() as tasks:
        with stop.scope():
            await tasks.start(partial(run_drain, target, port))
            freeze_heap()
            await trio.sleep_forever()


KEYS_POLL_SECONDS: Final = 10.0
"""Interval between reads of the file; a kubelet may take a minute more to update it."""

DRAIN_SECONDS: Final = 25.0
"""Limit for requests in flight after SIGTERM, which is sent once the engine is drained."""


class KeysError(UserError):
    """Required keys are missing."""


@attrs.define(eq=False)
class KeyFile:
    """The keys of a file, by their digests.

    Attributes:
        path: File with one key per line.
        named: Name for users: a Secret, and the key in it.
    """

    path: Path
    named: str
    digests: frozenset[bytes] = attrs.field(default=frozenset(), init=False, repr=False)
    _last_problem: str = attrs.field(default="", init=False)

    def read(self) -> None:
        """Read the file; blocks.

        Raises:
            KeysError: The file has no keys; the previous ones remain valid.
        """
        try:
            keys = parse_keys(self.path.read_bytes())
        except FileNotFoundError as error:
            raise KeysError(f"{self.named}: not found; create it, with one API key on each line") from error
        except (OSError, ValueError) as error:
            why = error.strerror or "cannot be read" if isinstance(error, OSError) else str(error)
            raise KeysError(f"{self.named}: {why}; write one API key on each line") from None
        self.digests = frozenset(map(digest_of_key, keys))

    async def watch(self) -> NoReturn:
        """Read the file at an interval until cancelled; each problem is logged once."""
        while True:
            await trio.sleep(KEYS_POLL_SECONDS)
            before, problem = self.digests, ""
            try:
                await trio.to_thread.run_sync(self.read)
            except KeysError as error:
                problem = str(error)
            if problem and problem != self._last_problem:
                log.warning("client keys not reloaded", error=problem)
            elif self.digests != before:
                log.info("client keys reloaded", keys=len(self.digests))
            self._last_problem = problem


@command("key-proxy")
@click.option("--listen", type=click.IntRange(1, 65535), required=True, help="Port on all addresses, for clients.")
@click.option("--engine", type=click.IntRange(1, 65535), required=True, help="Port of the engine on 127.0.0.1.")
@click.option("--keys", type=click.Path(path_type=Path), required=True, help="File with one API key per line.")
@click.option("--named", default="", help="Name of that file in messages.")
@click.option("--open", "open_paths", multiple=True, help="URL path that clients may read without a key; repeatable.")
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
    """Require API keys from the clients of an engine, as in the pods of services with spec.apiKeySecretRef."""
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
    """Proxy requests with a valid key until a stop; then drain requests in flight."""
    listeners = await open_listeners(None, listen, field="--listen")
    async with (
        open_sockets() as sockets,
        open_http_client(sockets.connect, max_idle_per_origin=256) as client,
        open_service_nursery() as tasks,
    ):
        handler = proxy_handler((LOOPBACK, engine), "", client)
        judge = key_filter(lambda: file.digests, frozenset(open_paths))
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
