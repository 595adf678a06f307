"""A check of the contract works in a lab: a client, a namespace of its own, and what most checks need."""

import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import httpx
import trio

from contracts.widgets import CRDS, GROUP, WIDGETS

PATIENCE_SECONDS = 60.0  # the garbage collector of a control plane that has just started may need half of it

MERGE = {"content-type": "application/merge-patch+json"}
STRATEGIC = {"content-type": "application/strategic-merge-patch+json"}
APPLY = {"content-type": "application/apply-patch+yaml"}


@attrs.frozen(eq=False)
class Lab:
    """The resources of one check: a client and a namespace of its own."""

    http: httpx.AsyncClient
    namespace: str

    @property
    def widgets(self) -> str:
        return f"{WIDGETS}/namespaces/{self.namespace}/widgets"

    def core(self, plural: str) -> str:
        return f"/api/v1/namespaces/{self.namespace}/{plural}"

    async def create(self, path: str, manifest: dict[str, Any], **params: Any) -> Any:
        answer = await self.http.post(path, json=manifest, params=params)
        assert answer.status_code == 201, answer.text
        return answer.json()

    async def widget(self, name: str, **spec: Any) -> Any:
        return await self.create(self.widgets, widget(name, **spec))

    async def get(self, path: str, **params: Any) -> Any:
        answer = await self.http.get(path, params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    @asynccontextmanager
    async def watch(self, path: str, **params: Any) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
        """Yield a function that returns the watch's next event, or None at its clean end."""
        async with self.http.stream("GET", path, params={"watch": "true", **params}, timeout=None) as answer:
            assert answer.status_code == 200, await answer.aread()
            lines = answer.aiter_lines()

            async def next_event() -> Any:
                with trio.fail_after(PATIENCE_SECONDS):
                    line = await anext(lines, "")
                return json.loads(line) if line else None

            yield next_event

    async def wait_gone(self, path: str) -> None:
        await wait_for(self.http, path, 404)


async def wait_until(true: Callable[[], Awaitable[bool]]) -> None:
    """Wait for what another process does in its own time; there is no event to wait for."""
    with trio.fail_after(PATIENCE_SECONDS):
        while not await true():  # noqa: ASYNC110 (the event would be in the server's process)
            await trio.sleep(0.02)


async def wait_for(http: httpx.AsyncClient, path: str, status: int) -> None:
    """Wait until a path is answered with this status."""

    async def answered() -> bool:
        return (await http.get(path)).status_code == status

    await wait_until(answered)


def widget(name: str, *, metadata: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    manifest = {"apiVersion": f"{GROUP}/v1", "kind": "Widget", "metadata": {"name": name, **(metadata or {})}}
    return {**manifest, "spec": {"size": 3, **spec}}


def config_map(name: str, data: Any = None, **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}, "data": data or {}}


def status_of(answer: httpx.Response, code: int, reason: str) -> dict[str, Any]:
    """Return the Status of a refused request after a look at its envelope."""
    assert answer.status_code == code, answer.text
    status: dict[str, Any] = answer.json()
    assert (status["kind"], status["apiVersion"], status["status"]) == ("Status", "v1", "Failure")
    assert (status["code"], status["reason"]) == (code, reason)
    return status


def causes_of(status: dict[str, Any]) -> list[tuple[str, str]]:
    return [(cause["reason"], cause.get("field", "")) for cause in status["details"].get("causes", [])]


async def install(http: httpx.AsyncClient, *crds: dict[str, Any]) -> None:
    """Put kinds on a server, and wait until they are served."""
    for crd in crds:
        answer = await http.post(CRDS, json=crd)
        assert answer.status_code in {201, 409}, answer.text
    for spec in (crd["spec"] for crd in crds):
        await wait_for(http, f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}", 200)


@asynccontextmanager
async def open_lab(http: httpx.AsyncClient) -> AsyncIterator[Lab]:
    """Open a namespace for one check and delete it afterwards."""
    lab = Lab(http, f"check-{random.SystemRandom().getrandbits(40):010x}")
    await lab.create("/api/v1/namespaces", {"metadata": {"name": lab.namespace}})
    try:
        yield lab
    finally:
        with trio.CancelScope(deadline=trio.current_time() + PATIENCE_SECONDS, shield=True):
            await http.delete(f"/api/v1/namespaces/{lab.namespace}")
