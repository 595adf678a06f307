"""Run the front door of a cluster.

```
 reflectors ─▶ ClusterDirectory ─▶ gateway_config ─┐
                     │              policy ────────┴▶ open_router ─▶ listener, admin port
                     └──── address of each engine ───────┘
```
A request is routed by the config, which follows the objects within a fraction of a second; the address of its engine is
looked up in the directory when it is sent, so no request goes to a pod that has left its EndpointSlice.

The config has one backend for each service, and one for each of its engines. A policy is a compiled ModelRouter: its
rules come first, and its backends have their own prices, regions and limits. A service that it does not name gets a
backend with the name `NAMESPACE/NAME`.
"""

import random
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, Never

import attrs
import trio
from prometheus_client import CollectorRegistry

from llmkube.base.errors import UserError
from llmkube.base.http.dial import Connect
from llmkube.base.http.egress import Egress
from llmkube.base.http.message import netloc
from llmkube.base.mailbox import Mailbox
from llmkube.base.times import utcnow
from llmkube.controller.status.scale import goes_to_zero
from llmkube.k8s.builtins import EndpointSlice
from llmkube.k8s.client import Client
from llmkube.k8s.leases.scale_up_requests import ScaleUpRequests
from llmkube.k8s.wire.names import service_name
from llmkube.programs.gateway.engines import ClusterDirectory, ServedService, engine_id
from llmkube.programs.gateway.page import add_page
from llmkube.programs.informer import open_object_caches
from llmkube.programs.page.machine import Describe
from llmkube.programs.page.requests import RecentRequests
from llmkube.programs.page.state import Rates
from llmkube.router.auth.key_files import Stamp
from llmkube.router.config.compile_backend import slots_of
from llmkube.router.config.routing_config import Backend, ResolvedService, RoutingConfig
from llmkube.router.dispatch.holds import Holds
from llmkube.router.model_ids import ModelIds, model_ids
from llmkube.router.proxy.live_config import Source
from llmkube.router.proxy.router import Router, open_router
from llmkube.router.traces import Traces

NAME: Final = "gateway"
TEAMS: Final = "teams"
"""Folder of the clients' keys in the folder of keys."""

SETTLE_SECONDS: Final = 0.05
"""Time in which changes of objects are collected before the config is compiled again."""

ResolvePolicy = Callable[[str, str], ResolvedService | None]


@attrs.frozen(kw_only=True)
class GatewaySettings:
    """Settings of the front door.

    Attributes:
        namespaces: Namespaces whose services it serves; empty for all.
        keys_folder: Folder of keys: `teams/TEAM` of clients, `services/NAMESPACE.NAME` of engines, and those that a
            ModelRouter has.
        anonymous: Whether clients need no key if neither keys nor tokens are configured.
        read_policy: Reads the policy, with a function that returns a service by namespace and name; blocks, and raises
            UserError if it is invalid.
        policy_stamp: Returns a value that changes with the policy.
        egress: Proxies and additional certificates for providers.
        budgets_folder: Folder where budgets are stored.
        https_proxy_pages: Whether web pages behind an https proxy may use it.
        describe: Returns the figures of a service for the page.
    """

    namespaces: Sequence[str] = ()
    keys_folder: Path
    anonymous: bool = False
    read_policy: Callable[[ResolvePolicy], RoutingConfig] = lambda _: RoutingConfig(name=NAME, backends={})
    policy_stamp: Callable[[], Stamp] = lambda: (0, 0, 0)
    egress: Egress
    budgets_folder: Path | None = None
    https_proxy_pages: bool = True
    describe: Describe


@attrs.define(eq=False)
class _CurrentConfig:
    """Source of the router's config: `stamp` runs in the event loop, `load` in a thread."""

    settings: GatewaySettings
    directory: ClusterDirectory
    _services: Sequence[ServedService] = ()
    _ids: ModelIds = attrs.field(factory=lambda: model_ids({}))

    def stamp(self) -> Stamp:
        self.directory.refresh()
        self._services, self._ids = tuple(self.directory.services.values()), self.directory.ids
        return hash(self.settings.policy_stamp()), self.directory.version, 0

    def load(self) -> RoutingConfig:
        services, ids, keys = self._services, self._ids, str(self.settings.keys_folder)
        known = {str(each.service.key): each for each in services}

        def resolve(namespace: str, name: str) -> ResolvedService | None:
            served = known.get(f"{namespace}/{name}")
            return served.resolved(keys) if served is not None else None

        policy = self.settings.read_policy(resolve)
        return gateway_config(with_clients(policy, self.settings), services, ids, keys)


def with_clients(policy: RoutingConfig, settings: GatewaySettings) -> RoutingConfig:
    """Return a policy that accepts the keys in the folder `teams`. Blocks.

    Raises:
        UserError: There is no such folder, and the policy accepts no other credentials.
    """
    folder = settings.keys_folder / TEAMS
    if folder.is_dir():
        return attrs.evolve(policy, auth=attrs.evolve(policy.auth, keys_folder=str(folder)))
    if policy.auth.tokens is None and not settings.anonymous:
        message = f"there is no folder {folder} with a file of keys for each team; mount a Secret there"
        raise UserError(f"{message}, or serve clients without keys by --allow-anonymous", field="--keys-dir")
    return policy


def gateway_config(
    policy: RoutingConfig, services: Sequence[ServedService], ids: ModelIds, keys_folder: str
) -> RoutingConfig:
    """Return the config in which every id of a service leads to its engines, unless a rule of the policy matches."""
    backends = dict(policy.backends)
    owners: dict[str, list[Backend]] = {}
    for each in policy.backends.values():
        if not each.provider:
            owners.setdefault(each.model, []).append(each)
    short = {str(ids.services[name]): name for name in ids.names}
    engines: dict[str, tuple[str, ...]] = {}
    for served in services:
        name = str(served.service.key)
        if name not in owners:
            known = attrs.asdict(served.resolved(keys_folder), recurse=False)
            owners[name] = [Backend(name=name, model_id=short.get(name, name), local=True, **known)]
        for backend in owners[name]:
            parts = {each.name: each for each in _engines(backend, served)}
            backends |= {backend.name: backend, **parts}
            if parts:
                engines[backend.name] = tuple(parts)
    by_id = {model_id: owners[str(key)][0].name for model_id, key in ids.services.items()}
    hosts = _hosts(services, ids)
    return attrs.evolve(policy, backends=backends, engines=engines, ids=by_id, ambiguous=ids.ambiguous, hosts=hosts)


def _hosts(services: Iterable[ServedService], ids: ModelIds) -> dict[str, str]:
    """Return the ids of services that requests start, by the names of their Services with and without namespace."""
    found: dict[str, list[str]] = {}
    for key in (each.service.key for each in services if goes_to_zero(each.service)):
        name = service_name(key.name)
        for host in (name, f"{name}.{key.namespace}"):
            found.setdefault(host, []).append(key.name if key.name in ids.names else str(key))
    return {host: model_ids[0] for host, model_ids in found.items() if len(model_ids) == 1}


def _engines(backend: Backend, served: ServedService) -> Iterator[Backend]:
    """Yield the engines of a backend."""
    spec = served.service.spec
    slots = 0 if spec.hosts is not None else slots_of(attrs.evolve(spec, replicas=1, autoscaling=None))
    for number, origin in served.engines.items():
        yield attrs.evolve(
            backend,
            name=f"{backend.name}#{number}",
            engine=engine_id(served.service.key, number),
            base_url=f"http://{netloc(origin)}/v1",
            slots=slots,
            is_replicated=False,
        )


@asynccontextmanager
async def open_gateway(
    client: Client,
    settings: GatewaySettings,
    *,
    connect: Connect,
    registry: CollectorRegistry,
    rng: random.Random,
    traces: Traces | None = None,
) -> AsyncIterator[Router]:
    """Run the front door's router; its handler serves all requests.

    Args:
        client: Client of the API server.
        settings: Settings.
        connect: Opens connections to engines and providers.
        registry: Registry for its metrics.
        rng: Source of weighted choices, delays and request IDs.
        traces: Exports traces; None if they are off.

    Raises:
        UserError: The policy, or the folder of keys, cannot be used.
    """
    async with AsyncExitStack() as stack:
        open_caches = partial(open_object_caches, client, rng, kinds=(EndpointSlice,))
        namespaces = settings.namespaces or (None,)
        caches = [await stack.enter_async_context(open_caches(namespace=each)) for each in namespaces]
        directory = ClusterDirectory(caches)
        current = _CurrentConfig(settings, directory)
        scale_up = ScaleUpRequests(
            client,
            gateway=socket.gethostname(),  # of a pod, its name
            gateway_id=f"{rng.getrandbits(48):012x}",
            utcnow=utcnow,
            is_on_request=directory.is_on_request,
            wait_directory_changed=directory.wait_changed,
        )
        requests = RecentRequests(utcnow, Rates(), traces)
        router = await stack.enter_async_context(
            open_router(
                Source(current.load, current.stamp),
                registry=registry,
                utcnow=utcnow,
                rng=rng,
                connect=directory.connect_with(connect),
                egress=settings.egress,
                budgets_folder=settings.budgets_folder,
                holds=Holds(directory, waker=scale_up),
                https_proxy_pages=settings.https_proxy_pages,
                needs_backend=False,
                traces=requests,
            )
        )
        async with trio.open_nursery() as nursery:
            for each in caches:
                nursery.start_soon(_follow, each.changed, directory, router)
            await nursery.start(scale_up.run)
            await add_page(router, directory, settings.describe, requests, nursery)
            yield router
            nursery.cancel_scope.cancel(reason="the front door closes")


async def _follow(changed: Mailbox[None], directory: ClusterDirectory, router: Router) -> Never:
    """Compile the config again after each change of the objects."""
    version = changed.version
    while True:
        await changed.wait_newer(version)
        version = changed.version
        directory.changed.put_nowait(None)
        await trio.sleep(SETTLE_SECONDS)
        await router.live.reload_if_changed()
