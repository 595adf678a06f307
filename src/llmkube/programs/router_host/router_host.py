"""Where the ModelRouters of one machine run: each in a task of this process, from its coming to its end."""

import datetime
import math
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Never

import attrs
import structlog
import trio
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from llmkube.base.errors import UserError, WorldError
from llmkube.base.http.connection import StreamHandler
from llmkube.base.http.dial import Connect
from llmkube.base.http.exchange import StreamExchange
from llmkube.base.http.heads import RequestHead
from llmkube.base.http.message import Response
from llmkube.base.mailbox import Mailbox
from llmkube.base.private_files import file_stem
from llmkube.controller.status.router_status import BackendHealth, RouterFacts
from llmkube.k8s.client import Client
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.modelrouter import ModelRouter
from llmkube.k8s.resource import Key
from llmkube.programs.router_host.secret_files import put_files, read_secrets, remove_files, remove_left_over
from llmkube.router.backends import ModelDirectory
from llmkube.router.budget_store.budget_file import budget_file_of
from llmkube.router.config.compile_router import Compiled, ResolvedService, compile_router
from llmkube.router.config.routing_config import Audit, RoutingConfig
from llmkube.router.proxy.live_config import Source, keys_for
from llmkube.router.proxy.router import Router, open_router
from llmkube.router.queue.turns import Turns
from llmkube.router.refusals import refused

PREFIX: Final = "/routers/"


def router_url(gateway: str, router: Key) -> str:
    """Return where a router is, below a gateway's address."""
    return f"{gateway}{PREFIX}{router.namespace}/{router.name}"


def split_target(target: str) -> tuple[Key, str] | None:
    """Return the router that a request names and what is left of its target; None of one that names none."""
    parts = target.removeprefix(PREFIX).split("/", 2) if target.startswith(PREFIX) else []
    if len(parts) < 2 or not parts[0] or not parts[1]:
        return None
    return Key(parts[0], parts[1]), f"/{parts[2]}" if len(parts) > 2 else "/"


def routers_handler(find: Callable[[Key], Router | None], gateway: StreamHandler) -> StreamHandler:
    """Hand requests below `/routers/` to their router, all others to the gateway.

    Args:
        find: Returns the router of that name, if it runs.
        gateway: Answers the rest.
    """

    async def handle(exchange: StreamExchange) -> None:
        head = exchange.head
        if not head.target.startswith(PREFIX):
            await gateway(exchange)
            return
        answer = await _route(exchange, head)
        if answer is not None:
            await exchange.respond(answer)

    async def _route(exchange: StreamExchange, head: RequestHead) -> Response | None:
        found = split_target(head.target)
        router = find(found[0]) if found is not None else None
        if found is None or router is None:
            words = f"no router runs at {head.path}; a router's address is {PREFIX}NAMESPACE/NAME/v1"
            return refused(404, words, "router_not_found").response
        exchange.head = attrs.evolve(head, target=found[1], like=None)
        refusal = router.judge(exchange.head, exchange.peer)
        if refusal is None:
            await router.handler(exchange)
        return refusal

    return handle


BUDGETS_SECONDS: Final = 10.0
"""How old the budgets of a status may be."""

_AUDIT_FILE: Final = "audit.log"
_BUDGETS: Final = "budgets"
KEYS: Final = "keys"

log = structlog.get_logger()


@attrs.frozen(eq=False, kw_only=True)
class HostedSettings:
    """What all routers of this process share.

    Attributes:
        client: The API server.
        gateway_url: Where clients reach every service, and the routers themselves.
        folder: Where keys and audit logs lie.
        connect: Opens connections.
        utcnow: The wall clock.
        rng: Draws for weights, pauses and names of requests.
        directory: Says where the engines of services are.
        turns: The queues in front of these.
    """

    client: Client
    gateway_url: str
    folder: Path
    connect: Connect
    utcnow: Callable[[], datetime.datetime]
    rng: random.Random
    directory: ModelDirectory
    turns: Turns = attrs.field(factory=Turns)


@attrs.define(eq=False)
class HostedRouter:
    """One router.

    Attributes:
        key: Its namespace and name.
        uid: Of the object.
        settings: What all share.
        service_of: Returns a service of its namespace; None of one that is not there.
        model_of: Returns what a service serves; None while that is not there.
        registry: Gets its metrics.
        router: It, while it runs.
    """

    key: Key
    uid: str
    settings: HostedSettings
    service_of: Callable[[Key], InferenceService | None]
    model_of: Callable[[InferenceService], Model | None]
    registry: CollectorRegistry
    router: Router | None = None
    _config: RoutingConfig | None = None
    _runnable: trio.Event = attrs.field(factory=trio.Event)
    _changes: int = 0
    _budgets_said: tuple[Mapping[str, Any], ...] = ()
    _budgets_until: float = -math.inf

    @property
    def folder(self) -> Path:
        """Where its keys and its audit log lie."""
        return self.settings.folder / file_stem(f"{self.key.namespace}.{self.key.name}")

    async def run(self) -> Never:
        """Run it until cancelled, from when its spec can be run by."""
        await self._runnable.wait()
        source = Source(self._load, lambda: (self._changes, 0, 0))
        settings = self.settings
        async with open_router(
            source,
            registry=self.registry,
            utcnow=settings.utcnow,
            rng=settings.rng,
            connect=settings.connect,
            budgets_folder=self.folder / _BUDGETS,
            directory=settings.directory,
            turns=settings.turns,
        ) as self.router:
            log.info("router started", router=str(self.key), api=router_url(settings.gateway_url, self.key))
            await trio.sleep_forever()

    async def remove(self) -> None:
        """Take its keys away, once it was deleted; its audit log stays."""
        await remove_files(self.folder / KEYS)

    async def take_up(self, found: ModelRouter) -> RouterFacts:
        """Run by a spec, and by what it names, from now on; return what is known of the router.

        Raises:
            ApiError: The API server did not answer for a Secret.
            WorldError: The disk does not take the keys.
        """
        compiled = self._compile(found)
        if compiled.config is not None:
            try:
                compiled = await self._prepare(compiled, compiled.config)
            except OSError as error:
                raise WorldError(f"the keys of router {self.key} cannot be written: {error}") from error
        router = self.router
        states = router.states() if router is not None else {}
        return RouterFacts(
            config=compiled.config,
            errors=compiled.errors,
            ignored=compiled.not_honoured,
            exists=router is not None,
            ready=int(router is not None),
            wanted=1,
            is_rolled_out=router is not None,
            health={name: BackendHealth(healthy=not why, message=why) for name, why in states.items()},
            endpoint=router_url(self.settings.gateway_url, self.key) + found.spec.endpoint.path,
            budgets=self._budgets(router),
        )

    def _compile(self, found: ModelRouter) -> Compiled:
        def resolve(name: str) -> ResolvedService | None:
            service = self.service_of(Key(self.key.namespace, name))
            if service is None:
                return None
            url = f"{self.settings.gateway_url}/v1"
            return ResolvedService.of(service, self.model_of(service), base_url=url, model=str(service.key))

        compiled = compile_router(found, resolve, keys_folder=str(self.folder / KEYS))
        if compiled.config is None:
            return compiled
        ignored = compiled.not_honoured
        if found.spec.proxy is not None:
            ignored = (*ignored, "spec.proxy but its times (it runs in this process, and not in pods)")
        if compiled.config.audit.sink == "file":
            ignored = (*ignored, "spec.policy.auditLog.filePath (an object chooses no file of this machine)")
        audit = Audit(sink="file", path=str(self.folder / _AUDIT_FILE), bodies=compiled.config.audit.bodies)
        return attrs.evolve(compiled, config=attrs.evolve(compiled.config, audit=audit), not_honoured=ignored)

    async def _prepare(self, compiled: Compiled, config: RoutingConfig) -> Compiled:
        """Bring the keys to where they are read, and take the config up; without one if that cannot be."""
        contents = await read_secrets(self.settings.client, self.key.namespace, compiled.key_files)
        folders = [Path(each.path) for each in compiled.key_files if not each.key]
        await put_files(self.folder / KEYS, contents, folders)
        try:
            await trio.to_thread.run_sync(keys_for, config)
            if self.router is None and config.budgets and config.budget_store is None:
                await trio.to_thread.run_sync(budget_file_of(self.folder / _BUDGETS, config.name).check)
        except UserError as error:
            return attrs.evolve(compiled, config=None, errors=(str(error),))
        if config != self._config:
            self._config, self._changes = config, self._changes + 1
            self._runnable.set()
        return compiled

    def _load(self) -> RoutingConfig:
        if self._config is None:
            raise UserError("the router has no config yet")
        return self._config

    def _budgets(self, router: Router | None) -> tuple[Mapping[str, Any], ...]:
        """Return how much of each budget is taken, as it was seconds ago at most: else each look would be a write."""
        now = trio.current_time()
        if router is not None and now >= self._budgets_until:
            self._budgets_said, self._budgets_until = tuple(router.budgets()), now + BUDGETS_SECONDS
        return self._budgets_said


LOOK_SECONDS: Final = 1.0
"""Between two looks: how late a key or the state of a backend may be seen."""


@attrs.define(eq=False)
class RouterHost:
    """The routers of this process: a `RouterPlacement`; as a collector it shows the metrics of all of them.

    Attributes:
        settings: What all share.
        service_of: Returns a service; None of one that is not there.
        model_of: Returns what a service serves; None while that is not there.
    """

    settings: HostedSettings
    service_of: Callable[[Key], InferenceService | None]
    model_of: Callable[[InferenceService], Model | None]
    look_seconds: float = LOOK_SECONDS
    is_known: bool = True
    _changed: Mailbox[None] = attrs.field(factory=lambda: Mailbox(None), init=False)
    _placed: dict[Key, HostedRouter] = attrs.field(factory=dict, init=False)
    _running: dict[HostedRouter, trio.CancelScope] = attrs.field(factory=dict, init=False)

    def find(self, key: Key) -> Router | None:
        """Return the router of that name, if it runs."""
        hosted = self._placed.get(key)
        return hosted.router if hosted is not None else None

    async def place(self, router: ModelRouter) -> RouterFacts:
        """Have a router run by its spec; one of the same name that was made anew is another."""
        hosted = self._placed.get(router.key)
        if hosted is None or hosted.uid != router.metadata.uid:
            find = self.service_of, self.model_of
            hosted = HostedRouter(router.key, router.metadata.uid, self.settings, *find, CollectorRegistry())
            self._placed[router.key] = hosted
            self._changed.put_nowait(None)
        return await hosted.take_up(router)

    def forget(self, key: Key) -> None:
        """End a router that is gone."""
        if self._placed.pop(key, None) is not None:
            self._changed.put_nowait(None)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> Never:
        """Run what is placed, until cancelled."""
        await remove_left_over(self.settings.folder, KEYS)
        async with trio.open_nursery() as nursery:
            task_status.started()
            while True:
                version = self._changed.version
                placed = set(self._placed.values())
                for gone in self._running.keys() - placed:
                    self._running[gone].cancel(reason="the router was deleted")
                for hosted in placed - self._running.keys():
                    self._running[hosted] = scope = trio.CancelScope()
                    nursery.start_soon(self._host, hosted, scope)
                await self._changed.wait_newer(version)

    def describe(self) -> Iterator[Metric]:
        """Name no series: which there are depends on the routers."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        """Return the metrics of all routers; each names its router in a label."""
        families: dict[str, Metric] = {}
        for hosted in self._running:
            for family in hosted.registry.collect():
                known = families.setdefault(family.name, family)
                if known is not family:
                    known.samples.extend(family.samples)
        yield from families.values()

    async def _host(self, hosted: HostedRouter, scope: trio.CancelScope) -> None:
        try:
            with scope:
                await hosted.run()
        finally:
            del self._running[hosted]
        if hosted.key not in self._placed:  # else the keys that are there are those of another one of its name
            await hosted.remove()
