"""Health of engines of this machine, past the gateway, which answers at the address of a hosted router's backends."""

from typing import Final

from llmkube.base.http.client import HttpClient
from llmkube.base.http.errors import ConnectError
from llmkube.base.http.message import netloc
from llmkube.router.backends import ModelDirectory, UnavailableModel, is_on_its_way
from llmkube.router.config.routing_config import Backend
from llmkube.router.dispatch.attempt import MOST_HEALTH_BYTES, AskEngine, reply_of
from llmkube.router.health.probe_state import Reply
from llmkube.router.proxy.standing import WhyNotReady

_NOT_READY: Final = 503


def engine_asker(directory: ModelDirectory, client: HttpClient) -> AskEngine:
    """Return what asks the engine of a backend at a path.

    Probes of an engine that does not run count as little as those of one that loads: a backend that they close would
    stay closed until the next probe, after its engine is back, and clients would not learn the reason.

    Args:
        directory: Where engines are.
        client: Reaches them.
    """

    async def ask(backend: Backend, path: str) -> Reply:
        found = directory.lookup(backend.model)
        if found is None:
            raise ConnectError(f"there is no service {backend.model}")
        if isinstance(found, UnavailableModel):
            return Reply(_NOT_READY, is_loading=True)
        url = f"http://{netloc((found.host, found.port))}{path}"
        said = await client.request("GET", url, headers=found.credential_headers, max_body_bytes=MOST_HEALTH_BYTES)
        return reply_of(said.status, said.headers, said.body, ours=True)

    return ask


def readiness_of(directory: ModelDirectory) -> WhyNotReady:
    """Return a function that says why the service of a backend is not ready and does not load."""

    def why_not_ready(backend: Backend) -> str:
        found = directory.lookup(backend.model)
        if found is None:
            return f"InferenceService {backend.model} is not served here"
        if isinstance(found, UnavailableModel) and not is_on_its_way(found.reason):
            return f"InferenceService {backend.model} is not ready ({found.reason})"
        return ""

    return why_not_ready
