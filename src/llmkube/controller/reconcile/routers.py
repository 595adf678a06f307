"""A ModelRouter is served by pods of ours; where there are no nodes, `llmkube up` runs it in its own process."""

import datetime
from collections.abc import Callable
from typing import Final

import attrs

from llmkube.controller.informer import Informer
from llmkube.controller.reconcile.pod_routers import PodRouters
from llmkube.controller.status.router_status import not_routed
from llmkube.controller.writes.status_writer import StatusWriter
from llmkube.k8s.crd.modelrouter import ModelRouter
from llmkube.k8s.rbac import FOLLOW, Permission
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.times import timestamp

PERMISSIONS: Final = (Permission(ModelRouter, FOLLOW | {"get"}),)

_NO_PODS: Final = "there are no nodes here that could run its pods: `llmkube router -f FILE` runs a router by itself"


@attrs.frozen(eq=False)
class RouterReconciler:
    """Look after all routers; `in_pods` is None where no pods are."""

    routers: Informer[ModelRouter]
    writer: StatusWriter[ModelRouter]
    utcnow: Callable[[], datetime.datetime]
    in_pods: PodRouters | None = None

    async def reconcile(self, key: Key) -> None:
        """Bring one router in line."""
        cached = self.routers.get(key)
        if cached is None or cached.metadata.deletion_timestamp:
            self.writer.forget(key)
            if self.in_pods is not None:
                self.in_pods.forget(key)
            return
        if self.routers.is_unreadable(key):
            return
        now = self.utcnow()
        if self.in_pods is None:
            await self.writer.write(cached, not_routed(self.writer.newest(cached), _NO_PODS, now=now))
        elif self.in_pods.is_known:
            status = await self.in_pods.reconcile(cached, self.writer.newest, now=now)
            await self.writer.write(cached, status, along={"lastUpdated": timestamp(now)})
