"""The embedded API server, and a client for it in this process."""

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
    state_dir: Path, port: int, *, field: str, registry: CollectorRegistry | None = None, accelerator: str = "cpu"
) -> AsyncIterator[Server]:
    """Run the API server for the duration of the block; the CRDs are installed when the block starts.

    Args:
        state_dir: The state directory.
        port: TCP port on the loopback address; 0 selects a free one.
        field: Flag of the port, for error messages.
        registry: Metrics of `/metrics`; None disables the path.
        accelerator: Accelerator of Models that name none.

    Raises:
        PortTakenError: Another program listens on the port.
    """
    async with (
        open_api_server(state_dir, host=LOOPBACK, port=port, port_field=field, registry=registry) as running,
        open_transport(running.handler) as transport,
        # In memory: calls within the process need no TLS, and a renewed certificate does not interrupt them.
        httpx.AsyncClient(transport=transport, base_url="http://apiserver", timeout=None) as http,  # noqa: S113 (callers')
    ):
        await running.server.ensure(extend_crds(all_crds(accelerator), find_installed().runtimes))
        gc.freeze()  # these objects are permanent: traversing them takes 150 ms in each full collection
        yield Server(running.url, running.kubeconfig, Client(http))
