"""A ModelRouter runs where it is placed: in pods of ours, or, under `llmkube up`, in the controller's own process."""

import datetime
from collections.abc import Callable
from typing import Final, Protocol

import attrs

from llmkube.controller.informer import Informer
from llmkube.controller.status.router_status import RouterFacts, derive_router_status, not_routed
from llmkube.controller.writes.status_writer import StatusWriter
from llmkube.k8s.crd.modelrouter import ModelRouter
from llmkube.k8s.rbac import FOLLOW, Permission
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.times import timestamp
from llmkube.k8s.workqueue import WorkQueue

PERMISSIONS: Final = (Permission(ModelRouter, FOLLOW | {"get"}),)

_NO_PODS: Final = "there are no nodes here that could run its pods: `llmkube router -f FILE` runs a router by itself"


class RouterPlacement(Protocol):
    """Where routers run."""

    @property
    def look_seconds(self) -> float | None:
        """After how many seconds a router is looked at again, whatever happens; None where all changes are seen."""
        ...

    @property
    def is_known(self) -> bool:
        """Whether all is known that a router needs here; until then each stays as it is."""
        ...

    async def place(self, router: ModelRouter) -> RouterFacts:
        """Have a router run by its spec; return what is known of it."""
        ...

    def forget(self, key: Key) -> None:
        """Drop what there is of a router that is gone."""
        ...


@attrs.frozen(eq=False)
class RouterReconciler:
    """Look after all routers; `placement` is None where none can run."""

    routers: Informer[ModelRouter]
    writer: StatusWriter[ModelRouter]
    utcnow: Callable[[], datetime.datetime]
    queue: WorkQueue[Key]
    placement: RouterPlacement | None = None

    async def reconcile(self, key: Key) -> None:
        """Bring one router in line."""
        cached, placement = self.routers.get(key), self.placement
        if cached is None:
            self.writer.forget(key)
            if placement is not None:
                placement.forget(key)
            return
        if cached.metadata.deletion_timestamp or self.routers.is_unreadable(key):
            return  # what serves serves on, until the router is gone
        now = self.utcnow()
        if placement is None:
            await self.writer.write(cached, not_routed(self.writer.newest(cached), _NO_PODS, now=now))
            return
        if placement.look_seconds is not None:
            self.queue.add_after(key, placement.look_seconds)
        if placement.is_known:
            facts = await placement.place(cached)
            status = derive_router_status(self.writer.newest(cached), facts, now=now)
            await self.writer.write(cached, status, along={"lastUpdated": timestamp(now)})
