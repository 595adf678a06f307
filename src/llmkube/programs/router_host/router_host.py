"""Follow the ModelRouters of an API server and run each in a task of its own, from its coming to its end."""

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Never

import attrs
import trio
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from llmkube.base.mailbox import Mailbox
from llmkube.controller.writes.status_writer import StatusWriter
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.modelrouter import ModelRouter
from llmkube.k8s.reflector import Cache, run_reflector
from llmkube.k8s.resource import Key
from llmkube.programs.router_host.hosted_router import KEYS, HostedRouter, HostedSettings
from llmkube.programs.router_host.secret_files import remove_left_over
from llmkube.router.proxy.router import Router

Name = tuple[Key, str]
"""A router and its uid."""


@attrs.define(eq=False)
class RouterHost:
    """The routers of this process; registered as a collector it shows the metrics of all of them.

    Attributes:
        settings: What all share.
        service_of: Returns a service; None of one that is not there.
        model_of: Returns what a service serves; None while that is not there.
    """

    settings: HostedSettings
    service_of: Callable[[Key], InferenceService | None]
    model_of: Callable[[InferenceService], Model | None]
    _cache: Cache[ModelRouter] = attrs.field(factory=Cache, init=False)
    _changed: Mailbox[None] = attrs.field(factory=lambda: Mailbox(None), init=False)
    _running: dict[Name, tuple[HostedRouter, trio.CancelScope]] = attrs.field(factory=dict, init=False)

    def find(self, key: Key) -> Router | None:
        """Return the router of that name, if it runs."""
        found = next((hosted for (name, _), (hosted, _) in self._running.items() if name == key), None)
        return found.router if found is not None else None

    async def run(self, rng: random.Random, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> Never:
        """Start what comes and end what goes, until cancelled; one of the same name that was made anew is another."""

        def notify(_key: Key) -> None:
            self._changed.put_nowait(None)

        follow = partial(run_reflector, self.settings.client, ModelRouter, self._cache, notify, rng=rng)
        writer = StatusWriter(self.settings.client, ModelRouter)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            await self._cache.synced.wait()
            await remove_left_over(self.settings.folder, KEYS)
            task_status.started()
            while True:
                version = self._changed.version
                there = {(router.key, router.metadata.uid) for router in self._cache.values()}
                for gone in self._running.keys() - there:
                    self._running[gone][1].cancel(reason="the router was deleted")
                for name in there - self._running.keys():
                    hosted, scope = self._hosted(name, writer), trio.CancelScope()
                    self._running[name] = hosted, scope
                    nursery.start_soon(self._host, name, hosted, scope)
                await self._changed.wait_newer(version)

    def describe(self) -> Iterator[Metric]:
        """Name no series: which there are depends on the routers."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        """Return the metrics of all routers; each names its router in a label."""
        families: dict[str, Metric] = {}
        for hosted, _ in self._running.values():
            for family in hosted.registry.collect():
                known = families.setdefault(family.name, family)
                if known is not family:
                    known.samples.extend(family.samples)
        yield from families.values()

    def _hosted(self, name: Name, writer: StatusWriter[ModelRouter]) -> HostedRouter:
        key, uid = name

        def object_of() -> ModelRouter | None:
            found = self._cache.get(key)
            return found if found is not None and found.metadata.uid == uid else None

        find = object_of, self.service_of, self.model_of
        return HostedRouter(key, self.settings, *find, writer, CollectorRegistry())

    async def _host(self, name: Name, hosted: HostedRouter, scope: trio.CancelScope) -> None:
        try:
            with scope:
                await hosted.run()
        finally:
            del self._running[name]
        await hosted.remove()
