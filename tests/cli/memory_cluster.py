"""The embedded API server in memory, with our kinds in it: a cluster for commands under test."""

import datetime
import random
from contextlib import asynccontextmanager

import httpx  # noqa: ASYNC127 (the project's settled choice)

from llmkube.apiserver.server import open_memory_api_server
from llmkube.k8s.builtins import Lease
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


async def announce(client, *accelerators, age_seconds=0):
    """A live host that serves these."""
    at = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=age_seconds)
    manifest = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": "mac",
            "namespace": "default",
            "labels": {"inference.llmkube.dev/host": "mac"},
            "annotations": {"inference.llmkube.dev/accelerators": ",".join(accelerators)},
        },
        "spec": {"leaseDurationSeconds": 40, "renewTime": at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")},
    }
    await client.apply(Lease, manifest, field_manager="test")
