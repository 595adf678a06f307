"""The embedded API server in memory, with our kinds in it: a cluster for commands under test."""

import datetime
import random
from contextlib import asynccontextmanager

import httpx  # noqa: ASYNC127 (the project's settled choice)

from llmkube.apiserver.server import open_memory_api_server
from llmkube.k8s.client import Client
from llmkube.k8s.crd.definitions import all_crds

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


@asynccontextmanager
async def open_cluster_client():
    async with (
        open_memory_api_server(utcnow=lambda: NOW, rng=random.Random(7)) as memory,
        httpx.AsyncClient(transport=memory.transport, base_url="http://apiserver", timeout=None) as http,
    ):
        await memory.server.ensure(all_crds())
        yield Client(http)
