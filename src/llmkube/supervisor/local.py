"""The outside world for real: this machine's processes, files and sockets behind `supervisor.ports`."""

import datetime
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio

from llmkube.base.http import open_http_client
from llmkube.k8s.crd.model import Model
from llmkube.supervisor.engines import LocalEngines
from llmkube.supervisor.orphans import end_orphans
from llmkube.supervisor.ports import Ports
from llmkube.supervisor.settings import AgentSettings
from llmkube.weights.fetch import Progress, WeightsFile, fetch
from llmkube.weights.gguf import GGUFFacts, read_header
from llmkube.weights.source import LocalFile, parse_source
from llmkube.weights.store import Store, open_store

MAX_FILE_THREADS = 4
"""Worker threads for reading, copying and hashing model files."""


@attrs.define(eq=False)
class LocalWeights:
    """Model files in this machine's store."""

    store: Store
    limiter: trio.CapacityLimiter
    _verified: dict[str, str] = attrs.field(factory=dict)  # identity of a file -> the digest that it was found to have

    async def fetch(self, model: Model, progress: Callable[[Progress], None]) -> tuple[WeightsFile, GGUFFacts]:
        """Make the file present, then read its header."""
        source, sha256 = parse_source(model.spec.source), model.spec.sha256
        bound = partial(fetch, source, self.store, progress=progress, limiter=self.limiter)
        if isinstance(source, LocalFile) and sha256 is not None:
            # Every edit of a service comes through here: a file that has not changed since is not hashed again.
            weights = await bound(sha256=None)
            if self._verified.get(weights.identity) != sha256.lower():
                weights = await bound(sha256=sha256)
                self._verified[weights.identity] = sha256.lower()
            weights = attrs.evolve(weights, sha256=sha256.lower())
        else:
            weights = await bound(sha256=sha256)
        return weights, await trio.to_thread.run_sync(read_header, weights.path, limiter=self.limiter)


@asynccontextmanager
async def open_local_ports(settings: AgentSettings) -> AsyncIterator[Ports]:
    """Give the agent this machine, without the engines that an earlier agent on the same state directory left on it.

    The caller holds the state directory's lock: the engines of a running agent carry the same mark.
    """
    limiter = trio.CapacityLimiter(MAX_FILE_THREADS)
    clear = partial(end_orphans, str(settings.state_dir), grace_seconds=settings.grace_seconds)
    await trio.to_thread.run_sync(clear, limiter=limiter)
    store = await trio.to_thread.run_sync(open_store, settings.store_dir, limiter=limiter)
    async with open_http_client() as http:
        yield Ports(
            engines=LocalEngines(settings),
            weights=LocalWeights(store, limiter),
            http=http,
            utcnow=lambda: datetime.datetime.now(datetime.UTC),
            rng=random.Random(),  # noqa: S311 - jitter, not a secret
        )
