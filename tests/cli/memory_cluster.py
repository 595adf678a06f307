"""The embedded API server in memory with LLMKube's CRDs: a cluster for commands under test."""

import datetime
import random
from contextlib import asynccontextmanager

import httpx  # noqa: ASYNC127 (the project's settled choice)

from llmkube.cli.commands.tools.files import demo_manifests
from llmkube.k8s.builtins import Lease
from llmkube.k8s.client import Client
from llmkube.k8s.crd.definitions import all_crds
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.programs.informer import open_object_caches
from llmkube.programs.server_side_apply import Applier
from memory_api_server import open_memory_api_server

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


@asynccontextmanager
async def open_cluster_client():
    async with (
        open_memory_api_server(utcnow=lambda: NOW, rng=random.Random(7)) as memory,
        httpx.AsyncClient(transport=memory.transport, base_url="http://apiserver", timeout=None) as http,
    ):
        await memory.server.ensure(all_crds())
        yield Client(http)


async def write_status(client, kind=InferenceService, *conditions, **status):
    """Write the demo's status; conditions are (type, status, reason, message)."""
    keys = ("type", "status", "reason", "message", "lastTransitionTime")
    listed = [dict(zip(keys, (*each, "2026-01-01T00:00:00Z"), strict=True)) for each in conditions]
    manifest = {"metadata": {"name": "demo", "namespace": "default"}, "status": {"conditions": listed, **status}}
    await client.apply(kind, manifest, field_manager="test", subresource="status")


@asynccontextmanager
async def open_demo():
    """Open a cluster with the demo's objects, and caches that watch it."""
    async with open_cluster_client() as client:
        await Applier(client).apply_all(demo_manifests(), lambda _: None)
        async with open_object_caches(client, random.Random(7)) as caches:
            yield client, caches


async def announce(client, *accelerators, age_seconds=0, **facts):
    """Renew the Lease of a host that serves these accelerators, with further annotations."""
    at = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=age_seconds)
    facts = {"accelerators": ",".join(accelerators), **facts}
    manifest = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": "mac",
            "namespace": "default",
            "labels": {"inference.llmkube.dev/host": "mac"},
            "annotations": {f"inference.llmkube.dev/{name.replace('_', '-')}": value for name, value in facts.items()},
        },
        "spec": {"leaseDurationSeconds": 40, "renewTime": at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")},
    }
    await client.apply(Lease, manifest, field_manager="test")
