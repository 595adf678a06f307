"""Host the ModelRouters of one machine, each in a task of this process until it is deleted."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, Never

import attrs
import trio
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from llmkube.base.mailbox import Mailbox
from llmkube.base.private_files import file_stem
from llmkube.controller.status.router_status import RouterFacts
from llmkube.k8s.client import Client
from llmkube.k8s.crd.modelrouter import ModelRouter
from llmkube.k8s.resource import Key
from llmkube.programs.router_host.hosted_router import KEYS, HostedRouter
from llmkube.programs.router_host.router_paths import MODEL
from llmkube.programs.router_host.secret_files import remove_leftovers
from llmkube.router.backends import State
from llmkube.router.model_list import ModelEntry
from llmkube.router.proxy.default_route import Services
from llmkube.router.proxy.router import Router

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
        await remove_leftovers(self.folder, KEYS)
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
            await hosted.remove()
