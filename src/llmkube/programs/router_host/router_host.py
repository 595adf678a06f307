"""Host the ModelRouters of one machine, each in a task of this process until it is deleted.

```
 place, apply object, services that it names, Secrets ─▶ config, keys; called at each resync by the reconciler
 run          open_router, once there is a valid config; later configs are reloaded while it runs
```
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Never

import attrs
import structlog
import trio
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from llmkube.base.errors import ExternalError, UserError
from llmkube.base.mailbox import Mailbox
from llmkube.base.private_files import file_stem
from llmkube.controller.status.router_status import BackendHealth, RouterFacts
from llmkube.k8s.client import Client
from llmkube.k8s.crd.modelrouter import ModelRouter
from llmkube.k8s.resource import Key
from llmkube.programs.router_host.router_paths import MODEL, ROUTERS, SETTING, router_url
from llmkube.programs.router_host.secret_files import read_secrets, remove_files, write_files
from llmkube.router.backends import State
from llmkube.router.budget_store.budget_file import budget_file_of
from llmkube.router.config.compile_backend import resolved_service
from llmkube.router.config.compile_router import CompiledRouter, ResolvedService, compile_router
from llmkube.router.config.routing_config import Audit, RoutingConfig
from llmkube.router.model_list import ModelEntry
from llmkube.router.proxy.default_route import Services
from llmkube.router.proxy.live_config import Source, keys_for
from llmkube.router.proxy.router import Router, open_router

BUDGETS_MAX_AGE_SECONDS: Final = 10.0
"""Greatest age of the budgets in a status."""

_AUDIT_FILE: Final = "audit.log"
_BUDGETS: Final = "budgets"
KEYS: Final = "keys"

log = structlog.get_logger()


@attrs.define(eq=False)
class HostedRouter:
    """One router.

    Attributes:
        key: Its namespace and name.
        uid: The object's uid.
        services: Services to which it routes, and dependencies that all routers share.
        client: Client of the API server.
        folder: Folder of its keys, budgets and audit log.
        registry: Registry of its metrics.
        router: The running router; None before it starts.
    """

    key: Key
    uid: str
    services: Services
    client: Client
    folder: Path
    registry: CollectorRegistry
    router: Router | None = None
    _config: RoutingConfig | None = None
    _runnable: trio.Event = attrs.field(factory=trio.Event)
    _changes: int = 0
    _reported_budgets: tuple[Mapping[str, Any], ...] = ()
    _budgets_until: float = -math.inf

    async def run(self) -> Never:
        """Run the router until cancelled, as soon as it has a valid config."""
        await self._runnable.wait()
        source = Source(self._load, lambda: (self._changes, 0, 0))
        services = self.services
        async with open_router(
            source,
            registry=self.registry,
            utcnow=services.utcnow,
            rng=services.rng,
            connect=services.connect,
            egress=services.egress,
            budgets_folder=self.folder / _BUDGETS,
            holds=services.holds,
            turns=services.turns,
            on_error=services.on_error,
            traces=services.traces,
        ) as self.router:
            log.info("router started", router=str(self.key), api=router_url(services.url, self.key))
            await trio.sleep_forever()

    async def apply(self, resource: ModelRouter) -> RouterFacts:
        """Apply a spec with the services and Secrets that it names; return the state of the router.

        Raises:
            ApiError: A Secret cannot be read from the API server.
            ExternalError: The keys cannot be written to the disk.
        """
        compiled = self._compile(resource)
        if compiled.config is not None:
            try:
                compiled = await self._prepare(compiled, compiled.config)
            except OSError as error:
                raise ExternalError(f"the keys of router {self.key} cannot be written: {error}") from error
        router = self.router
        states = router.states() if router is not None else {}
        secrets = {each.path: f"entry {each.key} of Secret {each.secret}" for each in compiled.key_files if each.key}
        return RouterFacts(
            config=compiled.config,
            errors=compiled.errors,
            ignored=compiled.not_honoured,
            exists=router is not None,
            ready=int(router is not None),
            wanted=1,
            is_rolled_out=router is not None,
            health={name: BackendHealth(healthy=not why, message=_named(why, secrets)) for name, why in states.items()},
            endpoint=router_url(self.services.url, self.key) + resource.spec.endpoint.path,
            budgets=self._budgets(router),
        )

    def _compile(self, resource: ModelRouter) -> CompiledRouter:
        def resolve(name: str) -> ResolvedService | None:
            service = self.services.get(Key(self.key.namespace, name))
            if service is None:
                return None
            weights, url = self.services.model_of(service), f"{self.services.url}/v1"
            return resolved_service(service, weights, base_url=url, model=str(service.key))

        compiled = compile_router(resource, resolve, keys_folder=str(self.folder / KEYS))
        if compiled.config is None:
            return compiled
        ignored = compiled.not_honoured
        if resource.spec.proxy is not None:
            ignored = (*ignored, "spec.proxy except its durations (the router runs in this process, not in pods)")
        if compiled.config.audit.sink == "file":
            ignored = (*ignored, "spec.policy.auditLog.filePath (an object may not choose a file of this machine)")
        auth = compiled.config.auth
        if self.services.has_open_route and (auth.keys_folder or auth.tokens):
            note = f"{self.services.url}/v1 serves the same services to every local user without a key"
            ignored = (*ignored, f"spec.policy.auth ({note}; start with {SETTING} {ROUTERS})")
        audit = Audit(sink="file", path=str(self.folder / _AUDIT_FILE), bodies=compiled.config.audit.bodies)
        return attrs.evolve(compiled, config=attrs.evolve(compiled.config, audit=audit), not_honoured=ignored)

    async def _prepare(self, compiled: CompiledRouter, config: RoutingConfig) -> CompiledRouter:
        """Write the keys to their files and activate the config; on failure the result has errors and no config."""
        contents = await read_secrets(self.client, self.key.namespace, compiled.key_files)
        folders = [Path(each.path) for each in compiled.key_files if not each.key]
        await trio.to_thread.run_sync(write_files, self.folder / KEYS, contents, folders)
        try:
            await trio.to_thread.run_sync(keys_for, config, lambda: self.services.utcnow().timestamp())
            if not self._runnable.is_set() and config.budgets and config.budget_store is None:
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
        """Return the usage of each budget, which may be seconds old: else each resync would write the status."""
        now = trio.current_time()
        if router is not None and now >= self._budgets_until:
            self._reported_budgets, self._budgets_until = tuple(router.budgets()), now + BUDGETS_MAX_AGE_SECONDS
        return self._reported_budgets


def _named(reason: str, secrets: Mapping[str, str]) -> str:
    """Return why a backend is not used, with the entry of a Secret that users write instead of its file."""
    for path, entry in secrets.items():
        reason = reason.replace(path, entry)
    return reason


RESYNC_SECONDS: Final = 1.0
"""Interval between resyncs; a changed key or backend state is noticed within this time."""


@attrs.define(eq=False)
class RouterHost:
    """The routers of this process: a `RouterPlacement`, and a collector of the metrics of all routers.

    Attributes:
        services: Services to which they route, and dependencies that they share.
        client: Client of the API server.
        folder: Folder of keys, budgets and audit logs.
    """

    services: Services
    client: Client
    folder: Path
    resync_seconds: float = RESYNC_SECONDS
    is_known: bool = True
    _changed: Mailbox[None] = attrs.field(factory=lambda: Mailbox(None), init=False)
    _placed: dict[Key, HostedRouter] = attrs.field(factory=dict, init=False)
    _running: dict[HostedRouter, trio.CancelScope] = attrs.field(factory=dict, init=False)

    def find(self, key: Key) -> Router | None:
        """Return a running router; None if there is none with this name."""
        hosted = self._placed.get(key)
        return hosted.router if hosted is not None else None

    def models(self) -> list[ModelEntry]:
        """Return the entries of the routers in the gateway's list of models."""
        members = {"status": {"value": State.LOADED.value}}
        return [ModelEntry(name=f"{MODEL}{key}", runs=True, tags={"chat"}, members=members) for key in self._placed]

    async def place(self, router: ModelRouter) -> RouterFacts:
        """Run a router with its spec; an object that was deleted and created again gets a new router."""
        hosted = self._placed.get(router.key)
        if hosted is None or hosted.uid != router.metadata.uid:
            folder = self.folder / file_stem(f"{router.key.namespace}.{router.key.name}")
            uid, registry = router.metadata.uid, CollectorRegistry()
            hosted = HostedRouter(router.key, uid, self.services, self.client, folder, registry)
            self._placed[router.key] = hosted
            self._changed.put_nowait(None)
        return await hosted.apply(router)

    def forget(self, key: Key) -> None:
        """Stop a router that was deleted."""
        if self._placed.pop(key, None) is not None:
            self._changed.put_nowait(None)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> Never:
        """Run the placed routers until cancelled."""
        # those that a killed process has left; running routers get theirs again
        await trio.to_thread.run_sync(lambda: remove_files(*self.folder.glob(f"*/{KEYS}")))
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
        """Describe no metrics, because they depend on the routers."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all routers; each has its router as a label."""
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
        if hosted.key not in self._placed:  # else the files belong to its successor of the same name
            await trio.to_thread.run_sync(remove_files, hosted.folder / KEYS)  # its audit log stays
