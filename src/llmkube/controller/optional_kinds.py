"""Follow kinds that not every cluster has, for as long as the API server serves them."""

import random
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Never

import attrs
import trio

from llmkube.controller.indexer import Event
from llmkube.controller.informer import Informer
from llmkube.controller.render.labels import OURS
from llmkube.k8s.client import Client
from llmkube.k8s.errors import ApiError

INSTALL_POLL_SECONDS: Final = 300.0
"""Between two looks whether a Prometheus operator, Pyrra or the Gateway API has been installed."""

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

    async def run(self, informer: Informer[Any], handle: Callable[[Event[Any]], None], rng: random.Random) -> Never:
        """Run an informer from the moment that its kind is installed until it is uninstalled, again and again."""
        while True:
            while not await self.serves(informer.kind):  # noqa: ASYNC110 (a server sends no event for a kind it lacks)
                await trio.sleep(INSTALL_POLL_SECONDS)
            informer.clear()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(informer.run, self.client, handle, namespace=self.namespace, rng=rng))
                await informer.cache.synced.wait()
                self.changed()
                await informer.uninstalled.wait()
                nursery.cancel_scope.cancel(reason="the kind is not served any more")
            informer.clear()
            self.changed()

    async def serves(self, kind: type[Any]) -> bool:
        """Whether the API server serves a kind, and lets us see it."""
        with trio.move_on_after(DISCOVERY_SECONDS):  # a server that is silent is asked again, like one that says no
            try:
                await self.client.list(kind, namespace=self.namespace, label_selector=OURS)
            except ApiError:
                return False
            return True
        return False
