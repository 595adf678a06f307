"""One ModelRouter in this process.

```
 take_up      the object, the services that it names, its Secrets ─▶ config, keys; at each look, by the reconciler
 run          open_router, once there is a config to run by; it takes each further config up while it runs
```
"""

import datetime
import math
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Never

import attrs
import structlog
import trio
from prometheus_client import CollectorRegistry

from llmkube.base.errors import UserError, WorldError
from llmkube.base.http.dial import Connect
from llmkube.base.private_files import file_stem
from llmkube.controller.status.router_status import BackendHealth, RouterFacts
from llmkube.k8s.client import Client
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.modelrouter import ModelRouter
from llmkube.k8s.resource import Key
from llmkube.programs.router_host.router_paths import router_url
from llmkube.programs.router_host.secret_files import put_files, read_secrets, remove_files
from llmkube.router.backends import ModelDirectory
from llmkube.router.budget_store.budget_file import budget_file_of
from llmkube.router.config.compile_router import Compiled, ResolvedService, compile_router
from llmkube.router.config.routing_config import Audit, RoutingConfig
from llmkube.router.proxy.live_config import Source, keys_for
from llmkube.router.proxy.router import Router, open_router
from llmkube.router.queue.turns import Turns

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
