"""The contract of `check_api_server` holds on the embedded server, in memory and over TLS.

That it holds on a real one is shown by `envtest/test_real_api.py`.
"""

import random
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
import trio
import yaml

from contracts.check_api_server import CHECKS, check_api_server
from contracts.check_controllers import WORKLOAD_CHECKS
from contracts.lab import install, open_lab
from contracts.playing import LEFT_HALF_WAY, open_embedded
from contracts.widgets import widget_crd
from llmkube.apiserver.app import ApiServer
from llmkube.apiserver.memory_transport import open_transport
from llmkube.apiserver.server import open_api_server
from llmkube.apiserver.storage.revisions import Store
from memory_api_server import EVERY_KIND

pytestmark = LEFT_HALF_WAY


@asynccontextmanager
async def open_tls(state_dir: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with open_api_server(state_dir, port=0) as handle:
        config = yaml.safe_load(handle.kubeconfig.read_text())
        token = config["users"][0]["user"]["token"]
        context = ssl.create_default_context(cafile=str(state_dir / "ca" / "ca.crt"))
        headers = {"authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(base_url=handle.url, verify=context, headers=headers, timeout=30) as http:
            yield http


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
async def test_the_embedded_server_in_memory_keeps_the_contract(check):
    """Each check of the contract holds on a fresh embedded server without a socket."""
    async with open_embedded() as http, open_lab(http) as lab:
        await check(lab)


@pytest.mark.ci
async def test_the_embedded_server_over_tls_keeps_the_contract(tmp_path):
    """The whole contract holds over TLS and SQLite, on one server."""
    async with open_tls(tmp_path) as http:
        await check_api_server(http)


@pytest.mark.parametrize("check", WORKLOAD_CHECKS, ids=lambda check: check.__name__)
async def test_the_server_of_the_controllers_tests_keeps_the_contract(check):
    """With the kinds that run things, which no user gets to see, it keeps the contract about them."""
    server = ApiServer(Store(), kinds=EVERY_KIND, utcnow=lambda: datetime.now(UTC), rng=random.Random(0))
    await server.ensure_namespaces()
    async with (
        open_transport(server.handle) as transport,
        httpx.AsyncClient(transport=transport, base_url="http://apiserver", timeout=30) as http,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(server.run_housekeeping)
        await install(http, widget_crd())
        async with open_lab(http) as lab:
            await check(lab)
        nursery.cancel_scope.cancel()
