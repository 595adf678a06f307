"""Local copies of Models, InferenceServices and further kinds, kept up to date by watches."""

import contextlib
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Mapping
from functools import partial
from typing import Any, Final

import attrs
import trio

from llmkube.base.mailbox import Mailbox
from llmkube.k8s.builtins import EndpointSlice
from llmkube.k8s.client import Client
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.reflector import Cache, run_reflector
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import SERVICE_LABEL

_SELECTORS: Final[Mapping[type[Any], str]] = {EndpointSlice: SERVICE_LABEL}
"""Label selectors of kinds of which most objects are not ours."""


@attrs.define(eq=False)
class ObjectCaches:
    """Local copies of collections; `changed` gets a new version with each change."""

    changed: Mailbox[None] = attrs.field(factory=lambda: Mailbox(None))
    _caches: dict[type[Any], Cache[Any]] = attrs.field(factory=lambda: defaultdict(Cache))

    def of(self, kind: type[Any]) -> Cache[Any]:
        """Return the copy of the objects of a kind."""
        return self._caches[kind]

    @property
    def services(self) -> Cache[InferenceService]:
        """The InferenceServices."""
        return self.of(InferenceService)

    @property
    def models(self) -> Cache[Model]:
        """The Models."""
        return self.of(Model)

    def model_of(self, service: InferenceService) -> Model | None:
        """Return the Model to which a service refers; None if it does not exist."""
        return self.models.get(Key(service.metadata.namespace, service.spec.model_ref))


@contextlib.asynccontextmanager
async def open_object_caches(
    client: Client, rng: random.Random | None = None, *, namespace: str | None = None, kinds: Collection[type[Any]] = ()
) -> AsyncIterator[ObjectCaches]:
    """Watch Models and InferenceServices; they are synced when the block starts.

    Args:
        client: Client of the API server.
        rng: Jitter of reconnects; by default, seeded by the system.
        namespace: None for all.
        kinds: Further kinds to watch.
    """
    caches, rng = ObjectCaches(), rng or random.Random()  # noqa: S311 - jitter

    def notify(_key: Key) -> None:
        caches.changed.put_nowait(None)

    reflect = partial(run_reflector, client, namespace=namespace, keep_unserved=True, rng=rng)
    async with trio.open_nursery() as nursery:
        watched: set[type[Any]] = {InferenceService, Model, *kinds}
        for kind in watched:
            nursery.start_soon(partial(reflect, kind, caches.of(kind), notify, label_selector=_SELECTORS.get(kind, "")))
        for kind in watched:
            await caches.of(kind).synced.wait()
        yield caches
        nursery.cancel_scope.cancel(reason="the caches are no longer needed")
