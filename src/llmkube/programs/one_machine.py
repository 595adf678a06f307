"""`llmkube up`: the API server, the controller, the gateway and the agent in one process, nested by dependency.

```
 run_until_signal             outermost: a second Ctrl-C is reported, and does not change the order
   └ ports, API server, client
     └ support nursery        controller, gateway, probes
       └ agent nursery        cancelled first: engines stop while the API server still accepts their last writes
         └ Stop.scope         cancelled by a signal: the user's command, or the wait for Ctrl-C
```
"""

import datetime
import random
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Generic, TypeVar

import attrs
import structlog
import trio

from llmkube.base.http.client import HttpClient, open_http_client
from llmkube.base.http.hub import open_sockets
from llmkube.base.http.limits import CONNECTIONS_PER_PEER, Limits
from llmkube.base.http.server import run_server
from llmkube.base.loop_watchdog import open_loop_watchdog
from llmkube.base.private_files import write_private
from llmkube.base.probes import run_probes
from llmkube.base.times import utcnow
from llmkube.controller.operator import run_controller
from llmkube.controller.settings import ControllerSettings
from llmkube.k8s.crd.placement import ACCELERATORS
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.reasons import Reason
from llmkube.programs.api_server import open_server
from llmkube.programs.config import UpConfig
from llmkube.programs.found_models import lookup_result
from llmkube.programs.host_name import persistent_host_name
from llmkube.programs.host_settings import default_source_folders, host_settings
from llmkube.programs.informer import ObjectCaches, open_object_caches
from llmkube.programs.lan_gateway import LanGateway, ListenSettings, open_lan_gateway, run_lan_listener
from llmkube.programs.ollama_library import local_ollama
from llmkube.programs.page.machine import Commands, Machine, open_pages
from llmkube.programs.page.requests import RecentRequests
from llmkube.programs.page.state import Rates
from llmkube.programs.program import (
    LOOPBACK,
    LOOPBACK_IPV6,
    Stop,
    check_ports,
    freeze_heap,
    open_port,
    open_service_nursery,
    process_age_seconds,
    run_until_signal,
    trim_heap,
)
from llmkube.programs.router_host.router_host import RouterHost
from llmkube.programs.router_host.router_paths import ROUTERS, refuse_models, routers_handler
from llmkube.programs.server_side_apply import Applier, ApplyResult, Manifest
from llmkube.programs.state_location import ADDRESSES_FILE
from llmkube.router.backends import Found, UnavailableModel
from llmkube.router.dialects.inbound import in_dialect, unread_refusal
from llmkube.router.model_ids import model_ids
from llmkube.router.origin_policy import cors_lines, refuse_foreign_pages
from llmkube.router.proxy.default_route import Services, run_default_route
from llmkube.router.traces import open_traces
from llmkube.runtimes.devices import NO_DEVICES, Devices, preferred
from llmkube.supervisor.agent import run_agent
from llmkube.supervisor.local import open_local_ports
from llmkube.supervisor.memory.capacity import MemoryView
from llmkube.supervisor.metrics import agent_registry
from llmkube.supervisor.network import own_addresses
from llmkube.supervisor.values.lifecycle import ServiceView
from llmkube.supervisor.values.settings import AgentSettings
from llmkube.weights.store.local_sources import RECORDED_FOLDERS

_STOPPING: Final = UnavailableModel(Reason.STOPPING, "llmkube up is stopping; retry once it has started again")


@attrs.define(eq=False)
class AgentDirectory:
    """The models of one agent, by InferenceService name; by `namespace/name` if a name occurs twice.

    An alias leads to its service unless it is also the name of a service, or an alias of two. A look-up is one access
    to a dict, which is built again after a change.

    Attributes:
        services: Returns the current services.
        version: Changes whenever `services` may return something else.
        stopping: Whether the program stops: services that have ended exist for the next one.
    """

    services: Callable[[], Mapping[Key, ServiceView]]
    version: Callable[[], int]
    stopping: Callable[[], bool] = lambda: False
    _seen_version: int | None = None
    _by_id: Mapping[str, Found] = {}
    _ids: Sequence[str] = ()
    _aliases: Sequence[str] = ()

    def model_ids(self) -> Sequence[str]:
        """Return the shortest unique id of each service, sorted."""
        self._refresh()
        return self._ids

    def aliases(self) -> Sequence[str]:
        """Return the aliases that lead to a service, sorted."""
        self._refresh()
        return self._aliases

    def lookup(self, model_id: str) -> Found | None:
        """Return the backend of a model, or why it is unavailable; None if the id names no service, or several."""
        self._refresh()
        return self._by_id.get(model_id)

    def _refresh(self) -> None:
        version = self.version()
        if version == self._seen_version:
            return
        services = self.services()
        ids = model_ids({key: view.aliases for key, view in services.items()})
        found = {key: lookup_result(key, view) for key, view in services.items()}
        ended = dict.fromkeys(self._by_id, _STOPPING) if self.stopping() else {}
        self._by_id = ended | {each: found[key] for each, key in ids.services.items()}
        self._ids, self._aliases = ids.names, ids.aliases
        self._seen_version = version


T = TypeVar("T")

log: structlog.stdlib.BoundLogger = structlog.get_logger()


@attrs.frozen
class UpPlan:
    """The validated arguments of `llmkube up`."""

    config: UpConfig
    manifests: tuple[Manifest, ...]
    llama_server: Path
    state_dir: Path
    listen: ListenSettings | None = None
    devices: Devices = NO_DEVICES

    @property
    def agent_settings(self) -> AgentSettings:
        """Settings of the agent; engines listen on the loopback address unless the user has set another one."""
        store, recorded = self.state_dir / "store", self.state_dir / RECORDED_FOLDERS
        return AgentSettings(
            host_name=self.config.host_name or persistent_host_name(self.state_dir),
            state_dir=self.state_dir,
            store_dir=store,
            llama_server=str(self.llama_server),
            advertise_address=self.config.host_ip,
            bind_address=self.config.host_ip or LOOPBACK,
            local_sources_file=recorded if self.config.allow_local_sources is None else None,
            **host_settings(self.config, default_source_folders(store), self.devices),
        )


@attrs.frozen
class Addresses:
    """Addresses of the running programs.

    Attributes:
        server_url: The Kubernetes API.
        kubeconfig: Path of the kubeconfig for it.
        gateway_url: The OpenAI-compatible gateway.
        probes_url: Health and metrics.
        network_url: The gateway for other machines; "" if it is not open to them.
        key_file: File of the keys for other machines; "" if they need none.
        routers_only: Whether the gateway serves ModelRouters only.
    """

    server_url: str
    kubeconfig: str
    gateway_url: str
    probes_url: str
    network_url: str = ""
    key_file: str = ""
    routers_only: bool = False

    @property
    def lines(self) -> str:
        """The addresses, one per line, so that no address is broken across lines."""
        router = "/routers/NAMESPACE/NAME" if self.routers_only else ""
        named = {"API server": self.server_url, "kubeconfig": self.kubeconfig, "page": f"{self.gateway_url}/"}
        named |= {"gateway": f"{self.gateway_url}{router}/v1", "probes": self.probes_url}
        named |= {"network": self.network_url, "its key": self.key_file}
        return "\n".join(f"{name:<12}{where}" for name, where in named.items() if where)


@attrs.frozen
class UpSession:
    """Access to the running programs, for a user's commands.

    Attributes:
        addresses: Addresses of the API server, the gateway and the probes.
        caches: Models and InferenceServices, kept up to date.
        http: HTTP client for the gateway.
        utcnow: The wall clock, for ages in tables.
        started_at: Start of this process, by Trio's clock.
    """

    addresses: Addresses
    caches: ObjectCaches
    http: HttpClient
    utcnow: Callable[[], datetime.datetime]
    started_at: float


Prepare = Callable[[UpSession, tuple[ApplyResult, ...]], Awaitable[Callable[[MemoryView | None], Awaitable[T]]]]
"""Called before the agent starts, while objects still have an earlier run's status; its result runs once all is up."""


async def run_up(
    plan: UpPlan,
    prepare: Prepare[T],
    report: Callable[[str], None],
    show_once: Callable[[str], None],
    commands: Commands,
) -> T | None:
    """Start all programs, run the function that `prepare` returns, and stop all programs in order.

    Args:
        plan: The validated arguments.
        prepare: Returns the function to run once all programs are up.
        report: Prints a line about the run.
        show_once: Prints a key that was just generated.
        commands: Commands that the page carries out.

    Returns:
        The result of that function; None if a signal came first.
    """
    return await run_until_signal(_Up(plan, prepare, report, show_once, commands).serve, report)


@attrs.define(eq=False)
class _Up(Generic[T]):
    plan: UpPlan
    prepare: Prepare[T]
    report: Callable[[str], None]
    show_once: Callable[[str], None]
    commands: Commands
    rng: random.Random = attrs.field(factory=random.Random)
    started_at: float = attrs.field(factory=lambda: trio.current_time() - process_age_seconds())

    async def serve(self, stop: Stop) -> T | None:
        """Open each layer around those that need it, and run the user's function inside."""
        config, settings = self.plan.config, self.plan.agent_settings
        judge = partial(refuse_foreign_pages, https_proxy_pages=config.https_proxy_pages)
        outcome = None
        await check_ports({f"--{name}-port": getattr(config, f"{name}_port") for name in ("api", "gateway", "probe")})
        async with (
            open_loop_watchdog() as loop_watchdog,
            open_port(config.gateway_port, "--gateway-port", also=LOOPBACK_IPV6) as gateway,
            open_port(config.probe_port, "--probe-port") as probes,
            open_lan_gateway(self.plan.listen, self.plan.state_dir, judge) as lan,
            open_server(
                self.plan.state_dir, config.api_port, field="--api-port", accelerator=preferred(settings.accelerators)
            ) as server,
            open_sockets() as sockets,
            open_traces(utcnow) as traces,
            open_http_client(sockets.connect, max_idle_per_origin=256, max_idle=512) as http,
            open_object_caches(server.client, self.rng) as caches,
            open_service_nursery() as support,
            open_local_ports(settings, server.client, partial(local_ollama, allowed=settings.ollama_sources)) as ports,
        ):
            addresses = Addresses(
                server.url,
                str(server.kubeconfig),
                gateway.url,
                probes.url,
                network_url=lan.port.url if lan is not None else "",
                key_file=str(lan.keys.path) if lan is not None and lan.keys is not None else "",
                routers_only=config.gateway_serves == ROUTERS,
            )
            self.report(addresses.lines)
            self._report_access(lan)
            applied = await Applier(server.client).apply_all(self.plan.manifests, self._report_applied)
            user_task = await self.prepare(UpSession(addresses, caches, http, ports.utcnow, self.started_at), applied)
            async with open_service_nursery() as agents:
                with stop.scope():
                    view = await agents.start(run_agent, server.client, settings, ports)
                    registry = agent_registry(
                        view.services, ports.downloads, view.memory, cordon=lambda: view.cordon.current
                    )
                    registry.register(loop_watchdog)
                    if traces is not None:
                        registry.register(traces)
                    directory = AgentDirectory(view.services, lambda: view.changed.version, lambda: bool(stop.reason))
                    requests = RecentRequests(ports.utcnow, Rates(), traces)
                    services = Services(
                        directory=directory,
                        get=caches.services.get,
                        all=caches.services.values,
                        model_of=caches.model_of,
                        url=gateway.url,
                        connect=sockets.connect,
                        utcnow=ports.utcnow,
                        rng=self.rng,
                        has_open_route=not addresses.routers_only,
                        egress=settings.egress,
                        version=lambda: (caches.changed.version, view.changed.version),
                        on_error=lambda name: view.record_error(Key.parse(name)),
                        activator=view.activator,
                        traces=requests,
                    )
                    routers = RouterHost(services, server.client, self.plan.state_dir / "routers")
                    registry.register(routers)
                    await support.start(routers.run)
                    control = partial(
                        run_controller,
                        server.client,
                        # All accelerators: a service that this machine cannot serve then gets the reason NoHost.
                        ControllerSettings(host_accelerators=frozenset(ACCELERATORS), gateway_url=gateway.url),
                        utcnow=ports.utcnow,
                        rng=self.rng,
                        registry=registry,
                        routers=routers,
                    )
                    await support.start(control)
                    default = refuse_models
                    if not addresses.routers_only:
                        default = await support.start(run_default_route, services, http, routers.models)
                    machine = Machine(view, caches, server.client, settings, ports, self.commands, requests)
                    with_page = await open_pages(machine, self.plan.state_dir, gateway.url, support)
                    handler = routers_handler(routers.find, default)
                    stamp = partial(cors_lines, https_proxy_pages=config.https_proxy_pages)
                    limits = Limits(max_connections_per_peer=CONNECTIONS_PER_PEER)
                    serve = partial(run_server, limits=limits, stamp=stamp, unread=unread_refusal)
                    serve_gateway = partial(
                        serve, with_page(handler, True), sockets.listen(gateway.listeners), judge=in_dialect(judge)
                    )
                    await support.start(serve_gateway)
                    if lan is not None:
                        if lan.keys is not None:
                            await support.start(lan.follow_issued_keys, server.client, self.rng)
                        lan_handler = lan.identified(with_page(handler, False))
                        serve_lan = partial(serve, lan_handler, judge=in_dialect(lan.judge))
                        support.start_soon(
                            run_lan_listener,
                            lan.port,
                            lambda listeners: serve_lan(sockets.listen(listeners)),
                            own_addresses,
                        )
                    await support.start(run_probes, view.ready, registry, probes.listeners)
                    freeze_heap()
                    trim_heap()
                    await trio.to_thread.run_sync(write_private, self.plan.state_dir / ADDRESSES_FILE, addresses.lines)
                    outcome = await user_task(view.memory())
        return outcome

    def _report_access(self, lan: LanGateway | None) -> None:
        """Log who has access; show a key that was just generated, but only on a terminal, not in redirected output."""
        if lan is None:
            return
        if lan.keys is not None and lan.keys.is_world_readable:
            log.warning("key file readable by every user of this machine", file=str(lan.keys.path))
        if lan.keys is None:
            log.warning("gateway open to every request from any address", address=lan.port.url, why="--insecure-lan")
        elif lan.keys.generated and sys.stdout.isatty():
            self.show_once(f"The key for other machines, shown this once: {lan.keys.keys[0]}")

    def _report_applied(self, applied: ApplyResult) -> None:
        manifest = applied.manifest
        if applied.error:
            self.report(f"{manifest.where}: {manifest.title} was refused: {applied.error}")
        else:
            self.report(f"{manifest.body['kind']} {applied.key} applied")
