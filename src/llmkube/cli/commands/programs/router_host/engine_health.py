"""Asks an engine of this machine how it does: at the address of a hosted router's backends the gateway would answer."""

from typing import Final

from llmkube.base.http.client import HttpClient
from llmkube.base.http.errors import ConnectError
from llmkube.base.http.message import netloc
from llmkube.router.backends import ModelDirectory, UnavailableModel
from llmkube.router.config.routing_config import Backend
from llmkube.router.dispatch.attempt import MOST_HEALTH_BYTES, AskEngine, reply_of
from llmkube.router.health.probe_state import Reply

_NOT_READY: Final = 503


def engine_asker(directory: ModelDirectory, client: HttpClient) -> AskEngine:
    """Return what asks the engine of a backend at a path; one that still loads, or waits for a retry, says so itself.

    Args:
        directory: Where engines are.
        client: Reaches them.
    """

    async def ask(backend: Backend, path: str) -> Reply:
        found = directory.lookup(backend.model)
        if found is None:
            raise ConnectError(f"there is no service {backend.model}")
        if isinstance(found, UnavailableModel):
            return Reply(_NOT_READY, is_loading=not found.failed)
        url = f"http://{netloc((found.host, found.port))}{path}"
        said = await client.request("GET", url, headers=found.credential_headers, max_body_bytes=MOST_HEALTH_BYTES)
        return reply_of(said.status, said.headers, said.body, ours=True)

    return ask
