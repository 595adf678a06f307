"""The API server in memory, without a socket, a thread or a file, and the kinds of workloads for it."""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Final

import attrs
import httpx
import trio

from llmkube.apiserver.app import ApiServer
from llmkube.apiserver.kinds.kind_info import BUILTIN_KINDS, KindInfo, builtin_kind
from llmkube.apiserver.memory_transport import open_transport
from llmkube.apiserver.storage.revisions import Store
from llmkube.k8s.builtins import PriorityClass
from llmkube.k8s.workloads import (
    Deployment,
    HorizontalPodAutoscaler,
    Job,
    NetworkPolicy,
    PersistentVolumeClaim,
    Pod,
    PodDisruptionBudget,
)

_WORKLOADS: Final = (
    Pod,
    PersistentVolumeClaim,
    Deployment,
    Job,
    HorizontalPodAutoscaler,
    NetworkPolicy,
    PodDisruptionBudget,
    PriorityClass,
)

EVERY_KIND: Final[tuple[KindInfo, ...]] = (
    *BUILTIN_KINDS,
    *(
        builtin_kind(
            kind.RESOURCE,
            f"io.k8s.api.{kind.RESOURCE.group or 'core'}.{kind.RESOURCE.version}",
            shape="" if kind is PriorityClass else "Workload",
            has_generation=True,
            unconditional_update=True,
        )
        for kind in _WORKLOADS
    ),
)
"""The embedded server's kinds, and those of workloads that every cluster has; nothing acts on the latter."""


@attrs.frozen(eq=False)
class MemoryApiServer:
    """A server in memory: no socket, no thread, no file."""

    server: ApiServer
    transport: httpx.AsyncBaseTransport


@asynccontextmanager
async def open_memory_api_server(
    *, utcnow: Callable[[], datetime], rng: random.Random, store: Store | None = None
) -> AsyncIterator[MemoryApiServer]:
    """Serve the API in memory until the block is left; pass the same `store` again to simulate a restart."""
    server = ApiServer(store or Store(), utcnow=utcnow, rng=rng)
    await server.ensure_namespaces()
    async with open_transport(server.handle) as transport, trio.open_nursery() as nursery:
        nursery.start_soon(server.run_housekeeping)
        yield MemoryApiServer(server, transport)
        nursery.cancel_scope.cancel()
