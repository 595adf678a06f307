"""A server is asked in a namespace of its own, and left as it was found."""

import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import httpx
import pytest
import trio

from contracts.chapters import crds
from contracts.lab import PATIENCE_SECONDS, install, open_lab
from contracts.nouns import Chapter
from contracts.session import MERGE, Answer, Session
from contracts.widgets import GROUP
from memory_api_server import open_memory_api_server

# httpx nests generators that a request which is left half-way leaves to the garbage collector
LEFT_HALF_WAY = [
    pytest.mark.filterwarnings("ignore:Async generator .* was garbage collected:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored in. <async_generator:pytest.PytestUnraisableExceptionWarning"),
]


async def play(http: httpx.AsyncClient, chapter: Chapter) -> Sequence[Answer]:
    """Return what a server answers to a chapter of the script."""
    async with open_session(http) as session:
        await chapter(session)
        return session.answers


@asynccontextmanager
async def open_embedded() -> AsyncGenerator[httpx.AsyncClient, None]:
    """Open a fresh embedded server in memory that serves the kinds of the script."""
    async with (
        open_memory_api_server(utcnow=lambda: datetime.now(UTC), rng=random.Random(0)) as memory,
        httpx.AsyncClient(transport=memory.transport, base_url="http://apiserver", timeout=30) as http,
    ):
        await install(http, *crds())
        yield http


@asynccontextmanager
async def open_session(http: httpx.AsyncClient) -> AsyncGenerator[Session, None]:
    """Open a session in a new namespace, and delete that with all that is in it."""
    async with open_lab(http) as lab:
        try:
            yield Session(http, lab.namespace)
        finally:
            with trio.CancelScope(deadline=trio.current_time() + PATIENCE_SECONDS, shield=True):
                await _release(http, lab.namespace)


async def _release(http: httpx.AsyncClient, namespace: str) -> None:
    """Remove every finalizer, since no controller will."""
    for root, plural in ((f"/apis/{GROUP}/v1", "widgets"), (f"/apis/{GROUP}/v1", "gadgets"), ("/api/v1", "configmaps")):
        path = f"{root}/namespaces/{namespace}/{plural}"
        for item in (await http.get(path)).json().get("items") or ():
            if item["metadata"].get("finalizers"):
                body = {"metadata": {"finalizers": None}}
                await http.patch(f"{path}/{item['metadata']['name']}", json=body, headers={"content-type": MERGE})
