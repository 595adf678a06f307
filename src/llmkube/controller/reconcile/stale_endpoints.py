"""The endpoints of a host that is gone are taken out of service.

The slices are the agents'. This is the one thing that the controller edits there: the agent of a host that is gone
cannot say that its engine does not answer, and a cluster would go on sending requests to it.
"""

from typing import Any

import attrs
import structlog
import trio

from llmkube.controller.informers import Informers
from llmkube.k8s.builtins import EndpointSlice
from llmkube.k8s.client import Client
from llmkube.k8s.codec import encode
from llmkube.k8s.errors import NotFoundError
from llmkube.k8s.leases.host_monitor import HostMonitor
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import CONTROLLER_FIELD_MANAGER, HOST_LABEL

log = structlog.get_logger()


@attrs.frozen(eq=False)
class SliceReconciler:
    """Look after all slices that agents have published."""

    client: Client
    informers: Informers
    hosts: HostMonitor

    async def reconcile(self, key: Key) -> None:
        """Take a slice's endpoints out of service if its host is gone, and no program has written to it since."""
        await trio.lowlevel.checkpoint()
        piece = self.informers.slices.get(key)
        host = piece.metadata.labels.get(HOST_LABEL, "") if piece else ""
        hosts_known = self.hosts.leases.synced.is_set()  # else their arrival wakes every slice
        if piece is None or not hosts_known or not is_in_service(piece) or self.hosts.tracker.hosts.alive(host):
            return
        # A host that comes back renews its Lease before it says again where its engines are, but the two watches may
        # tell us the other way round.
        if host and not await self.hosts.wait_gone(host):
            return
        patch = out_of_service(piece)
        try:
            await self.client.patch(EndpointSlice, key, patch, field_manager=CONTROLLER_FIELD_MANAGER)
        except NotFoundError:
            return
        log.warning("endpoints taken out of service: their host is gone", slice=str(key), host=host)


def is_in_service(piece: EndpointSlice) -> bool:
    """Whether clients are sent to any endpoint of a slice; a readiness that is not stated counts as ready."""
    return any(endpoint.conditions.ready is not False for endpoint in piece.endpoints)


def out_of_service(piece: EndpointSlice) -> dict[str, Any]:
    """Return the merge patch after which no endpoint of this very version of a slice is ready."""
    endpoints = encode(piece)["endpoints"]
    return {
        "metadata": {"resourceVersion": piece.metadata.resource_version},
        "endpoints": [
            {**endpoint, "conditions": {**(endpoint.get("conditions") or {}), "ready": False}} for endpoint in endpoints
        ],
    }
