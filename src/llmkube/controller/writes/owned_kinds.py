"""The kinds of objects that the controller makes: for InferenceServices and Models in pods, and for ModelRouters.

Kinds that not every cluster has are followed for as long as the API server serves them.
"""

import random
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Never

import attrs
import trio

from llmkube.controller.informer import Event, Informer
from llmkube.controller.informers import PodInformers
from llmkube.controller.render.labels import OURS
from llmkube.controller.writes.owned_objects import OwnedObjects
from llmkube.k8s.client import Client
from llmkube.k8s.errors import ApiError
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import AGENT_MANAGER


class OwnedKinds:
    """One `OwnedObjects` per kind."""

    def __init__(self, client: Client, informers: PodInformers) -> None:
        self.deployments = OwnedObjects(client, informers.deployments)
        self.groups = OwnedObjects(client, informers.groups)
        # Agents list the port of their engine in the same Service while a Model moves to a host.
        self.kubernetes_services = OwnedObjects(client, informers.kubernetes_services, AGENT_MANAGER)
        self.autoscalers = OwnedObjects(client, informers.autoscalers)
        self.budgets = OwnedObjects(client, informers.budgets)
        self.monitors = OwnedObjects(client, informers.monitors)
        self.objectives = OwnedObjects(client, informers.objectives)
        self.routes = OwnedObjects(client, informers.routes)
        self.jobs = OwnedObjects(client, informers.jobs)
        self.config_maps = OwnedObjects(client, informers.config_maps)
        self.network_policies = OwnedObjects(client, informers.network_policies)


INSTALL_POLL_SECONDS: Final = 300.0
"""Between two looks whether LeaderWorkerSet, a Prometheus operator, Pyrra or the Gateway API has been installed."""

DISCOVERY_SECONDS: Final = 30.0
"""How long such a look may take."""


@attrs.frozen(eq=False)
class OptionalKinds:
    """Kinds that operators of others bring.

    Attributes:
        client: The API server.
        namespace: The namespace to look at, or None for all of them.
        changed: Called when a kind has been installed or uninstalled; it must not block.
    """

    client: Client
    namespace: str | None
    changed: Callable[[], None]
    _checked: set[type[Any]] = attrs.field(factory=set, init=False)

    def has_checked(self, kind: type[Any]) -> bool:
        """Whether it is known if the API server serves a kind: before, nothing can be said to be missing."""
        return kind in self._checked

    async def run(self, informer: Informer[Any], handle: Callable[[Event[Any]], None], rng: random.Random) -> Never:
        """Run an informer from the moment that its kind is installed until it is uninstalled, again and again."""
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
                nursery.cancel_scope.cancel(reason="the kind is not served any more")
            informer.clear()
            self.changed()

    async def apply(self, owned: OwnedObjects[Any], manifest: dict[str, Any] | None, key: Key, uid: str) -> None:
        """Write or remove an object of such a kind, where it is known; that it was uninstalled fails no owner."""
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
        """Whether the API server serves a kind, and lets us see it."""
        with trio.move_on_after(DISCOVERY_SECONDS):  # a server that is silent is asked again, like one that says no
            try:
                await self.client.list(kind, namespace=self.namespace, label_selector=OURS)
            except ApiError:
                return False
            return True
        return False
