"""Kinds of objects that the controller creates for InferenceServices, Models and ModelRouters in pods.

Optional kinds are watched for as long as the API server serves them.
"""

import random
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Never

import attrs
import trio

from llmkube.controller.informers import PodInformers
from llmkube.controller.render.labels import OURS
from llmkube.controller.writes.owned_objects import OwnedObjects
from llmkube.k8s.client import Client
from llmkube.k8s.errors import ApiError
from llmkube.k8s.informer import Event, Informer
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import AGENT_MANAGER


class OwnedKinds:
    """One `OwnedObjects` per kind."""

    def __init__(self, client: Client, informers: PodInformers) -> None:
        self.deployments = OwnedObjects(client, informers.deployments)
        self.groups = OwnedObjects(client, informers.groups)
        # Agents own a port of the same Service while a Model moves to a host.
        self.kubernetes_services = OwnedObjects(client, informers.kubernetes_services, AGENT_MANAGER)
        self.autoscalers = OwnedObjects(client, informers.autoscalers)
        self.budgets = OwnedObjects(client, informers.budgets)
        self.monitors = OwnedObjects(client, informers.monitors)
        self.objectives = OwnedObjects(client, informers.objectives)
        self.routes = OwnedObjects(client, informers.routes)
        self.jobs = OwnedObjects(client, informers.jobs)
        self.config_maps = OwnedObjects(client, informers.config_maps)
        self.endpoints = OwnedObjects(client, informers.endpoints)
        self.network_policies = OwnedObjects(client, informers.network_policies)


INSTALL_POLL_SECONDS: Final = 300.0
"""Interval between checks whether LeaderWorkerSet, Prometheus operator, Pyrra or Gateway API are installed."""

DISCOVERY_SECONDS: Final = 30.0
"""Timeout of such a check."""


@attrs.frozen(eq=False)
class OptionalKinds:
    """Kinds of third-party operators, which a cluster may lack.

    Attributes:
        namespace: The namespace to watch, or None for all.
        changed: Called when a kind has been installed or uninstalled; it must not block.
    """

    client: Client
    namespace: str | None
    changed: Callable[[], None]
    _checked: set[type[Any]] = attrs.field(factory=set, init=False)

    def has_checked(self, kind: type[Any]) -> bool:
        """Whether it has been checked if the API server serves a kind; until then the kind cannot be called missing."""
        return kind in self._checked

    async def run(self, informer: Informer[Any], handle: Callable[[Event[Any]], None], rng: random.Random) -> Never:
        """Run an informer whenever its kind is installed, until cancelled."""
        while True:
            while not await self.serves(informer.kind):
                if not self.has_checked(informer.kind):
                    self._checked.add(informer.kind)
                    self.changed()
                await trio.sleep(INSTALL_POLL_SECONDS)
            informer.clear()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(informer.run, self.client, handle, namespace=self.namespace, rng=rng))
                await informer.cache.synced.wait()
                self._checked.add(informer.kind)
                self.changed()
                await informer.uninstalled.wait()
                nursery.cancel_scope.cancel(reason="the kind is no longer served")
            informer.clear()
            self.changed()

    async def apply(self, owned: OwnedObjects[Any], manifest: dict[str, Any] | None, key: Key, uid: str) -> None:
        """Write or remove an object of an optional kind, if it is served; an uninstalled kind is no error."""
        if not owned.informer.is_known:
            return
        try:
            await owned.ensure_or_remove(manifest, key, uid)
        except ApiError as error:
            if error.code != 404:
                raise
            missing = error
        else:
            return
        if await self.serves(owned.kind):
            raise missing
        owned.informer.uninstalled.set()

    async def serves(self, kind: type[Any]) -> bool:
        """Whether the API server serves a kind and permits listing it."""
        with trio.move_on_after(DISCOVERY_SECONDS):  # a timeout is retried like a refusal
            try:
                await self.client.list(kind, namespace=self.namespace, label_selector=OURS)
            except ApiError:
                return False
            return True
        return False
