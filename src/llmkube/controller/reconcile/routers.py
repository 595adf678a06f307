"""A ModelRouter is checked by its definition and stored; nothing routes by it yet, and its status says so."""

import datetime
from collections.abc import Callable
from typing import Any, Final

import attrs
import trio

from llmkube.controller.informer import Informer
from llmkube.controller.writes.status_writer import StatusWriter
from llmkube.k8s.crd.modelrouter import ModelRouter
from llmkube.k8s.rbac import FOLLOW, Permission
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.conditions import AVAILABLE, Statement, settle

ACCEPTED: Final = "Accepted"
NOT_SUPPORTED: Final = "NotSupported"
PERMISSIONS: Final = (Permission(ModelRouter, FOLLOW),)

_MESSAGE: Final = "this version of LLMKube stores routers and runs none: clients have to ask the services themselves"


@attrs.frozen(eq=False)
class RouterReconciler:
    """Look after all routers: the status says that none of them runs."""

    routers: Informer[ModelRouter]
    writer: StatusWriter[ModelRouter]
    utcnow: Callable[[], datetime.datetime]

    async def reconcile(self, key: Key) -> None:
        """Write a router's status."""
        await trio.lowlevel.checkpoint()
        cached = self.routers.get(key)
        if cached is None:
            self.writer.forget(key)
        elif not self.routers.is_unreadable(key):
            await self.writer.write(cached, derive_router_status(self.writer.newest(cached), now=self.utcnow()))


def derive_router_status(router: ModelRouter, *, now: datetime.datetime) -> dict[str, Any]:
    """Return a router's status.

    Args:
        router: The router as observed.
        now: The time of a condition that flips here.
    """
    said = [Statement(kind, holds=False, reason=NOT_SUPPORTED, message=_MESSAGE) for kind in (ACCEPTED, AVAILABLE)]
    generation = router.metadata.generation
    return {"phase": "Failed", "conditions": settle(said, router.status.conditions, generation=generation, now=now)}
