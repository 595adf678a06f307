"""The embedded API server, with a client of it for this process."""

import contextlib
import gc
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import httpx
from prometheus_client import CollectorRegistry

from llmkube.apiserver.memory_transport import open_transport
from llmkube.apiserver.server import open_api_server
from llmkube.k8s.client import Client
from llmkube.k8s.crd.definitions import all_crds
from llmkube.programs.program import LOOPBACK
from llmkube.runtimes.container.plugins import extend_crds, find_installed


@attrs.frozen
class Server:
    """A running API server, and a client for it within this process."""

    url: str
    kubeconfig: Path
    client: Client


@contextlib.asynccontextmanager
async def open_server(
    state_dir: Path, port: int, *, field: str, registry: CollectorRegistry | None = None
) -> AsyncIterator[Server]:
    """Run the API server for as long as the block; Models and InferenceServices are known to it when the block begins.

    Args:
        state_dir: Holds everything that it keeps.
        port: TCP port on the loopback address; 0 takes a free one.
        field: The flag that an error about the port names.
        registry: What its `/metrics` shows; None for no such path.

    Raises:
        PortTakenError: Another program listens on the port.
    """
    async with (
        open_api_server(state_dir, host=LOOPBACK, port=port, port_field=field, registry=registry) as running,
        open_transport(running.handler) as transport,
        # In memory: our own calls need no TLS, and go on when the certificate is renewed.
        httpx.AsyncClient(transport=transport, base_url="http://apiserver", timeout=None) as http,  # noqa: S113 (callers')
    ):
        await running.server.ensure(extend_crds(all_crds(), find_installed().runtimes))
        gc.freeze()  # what is there by now stays: looking at it again in each full collection takes 150 ms
        yield Server(running.url, running.kubeconfig, Client(http))
