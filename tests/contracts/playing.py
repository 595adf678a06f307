"""A server is asked in a namespace of its own, and left as it was found."""

import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import httpx
import pytest
import trio

from contracts.chapters import crds
from contracts.nouns import Chapter
from contracts.session import GROUP, MERGE, PATIENCE_SECONDS, Answer, Session
from llmkube.apiserver.server import open_memory_api_server

# httpx nests generators that a request which is left half-way leaves to the garbage collector
LEFT_HALF_WAY = [
    pytest.mark.filterwarnings("ignore:Async generator .* was garbage collected:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored in. <async_generator:pytest.PytestUnraisableExceptionWarning"),
]

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


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
        await install(http)
        yield http


async def install(http: httpx.AsyncClient) -> None:
    """Put the script's kinds on a server, and wait until they are served."""
    for crd in crds():
        answer = await http.post(CRDS, json=crd)
        assert answer.status_code in {201, 409}, answer.text
    with trio.fail_after(PATIENCE_SECONDS):
        for crd in crds():
            spec = crd["spec"]
            path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
            while (await http.get(path)).status_code != httpx.codes.OK:  # noqa: ASYNC110 (the event would be in the server)
                await trio.sleep(0.05)


@asynccontextmanager
async def open_session(http: httpx.AsyncClient) -> AsyncGenerator[Session, None]:
    """Open a session in a new namespace, and delete that with all that is in it."""
    namespace = f"check-{random.SystemRandom().getrandbits(40):010x}"
    answer = await http.post("/api/v1/namespaces", json={"metadata": {"name": namespace}})
    assert answer.status_code == httpx.codes.CREATED, answer.text
    try:
        yield Session(http, namespace)
    finally:
        with trio.CancelScope(deadline=trio.current_time() + PATIENCE_SECONDS, shield=True):
            await _release(http, namespace)
            await http.delete(f"/api/v1/namespaces/{namespace}")


async def _release(http: httpx.AsyncClient, namespace: str) -> None:
    """Take every finalizer away: nobody else will."""
    for root, plural in ((f"/apis/{GROUP}/v1", "widgets"), (f"/apis/{GROUP}/v1", "gadgets"), ("/api/v1", "configmaps")):
        path = f"{root}/namespaces/{namespace}/{plural}"
        for item in (await http.get(path)).json().get("items") or ():
            if item["metadata"].get("finalizers"):
                body = {"metadata": {"finalizers": None}}
                await http.patch(f"{path}/{item['metadata']['name']}", json=body, headers={"content-type": MERGE})
