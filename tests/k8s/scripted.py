"""An API server that follows a script: the n-th request gets the n-th answer, and the times are written down."""

import json
import math
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import attrs
import httpx  # noqa: ASYNC127 (the project's settled choice)
import trio

from llmkube.k8s.client import Client

Step = bytes | float | Exception | None  # bytes to send, seconds to wait, an error to raise, silence for ever
Answer = httpx.Response | Exception | Callable[[httpx.Request], httpx.Response]


class Body(httpx.AsyncByteStream):
    """A body that is sent step by step; `closed` tells whether the client let go of it."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self._steps = iter(steps)
        self.closed = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        await trio.lowlevel.checkpoint()
        for step in self._steps:
            if isinstance(step, bytes):
                return step
            if isinstance(step, Exception):
                raise step
            await trio.sleep(math.inf if step is None else step)
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self.closed = True


@attrs.frozen
class Call:
    at: float
    method: str
    path: str
    params: dict[str, str]
    body: bytes
    headers: httpx.Headers

    @property
    def verb(self) -> str:
        return "watch" if "watch" in self.params else "list" if self.method == "GET" else self.method


class ScriptedServer(httpx.AsyncBaseTransport):
    """Answer in the script's order; after its end every request hangs."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = iter(answers)
        self.calls: list[Call] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        call = Call(
            trio.current_time(), request.method, request.url.path, dict(request.url.params), body, request.headers
        )
        self.calls.append(call)
        await trio.lowlevel.checkpoint()
        answer = next(self._answers, None)
        if answer is None:
            await trio.sleep_forever()
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, httpx.Response) else answer(request)

    @property
    def verbs(self) -> list[str]:
        return [call.verb for call in self.calls]

    def client(self) -> Client:
        return Client(httpx.AsyncClient(transport=self, base_url="http://apiserver"))


def ok(obj: Any) -> httpx.Response:
    return httpx.Response(200, json=obj)


def status(
    code: int, reason: str, message: str = "no", *, headers: dict[str, str] | None = None, **more: Any
) -> httpx.Response:
    return httpx.Response(code, json=status_object(code, reason, message, **more), headers=headers)


def status_object(code: int, reason: str, message: str = "no", **more: Any) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
        **more,
    }


def html(code: int = 200) -> httpx.Response:
    return httpx.Response(
        code, text="<html><body>Please log in to the café Wi-Fi</body></html>", headers={"content-type": "text/html"}
    )


def config_map(name: str, version: int | str, **data: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default", "resourceVersion": str(version), "uid": f"uid-{name}"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def listing(version: int | str, *items: dict[str, Any], token: str = "") -> httpx.Response:
    return ok(
        {
            "apiVersion": "v1",
            "kind": "ConfigMapList",
            "metadata": {"resourceVersion": str(version), **({"continue": token} if token else {})},
            "items": [{k: v for k, v in item.items() if k not in ("kind", "apiVersion")} for item in items],
        }
    )


def event(event_type: str, obj: dict[str, Any]) -> bytes:
    return json.dumps({"type": event_type, "object": obj}).encode() + b"\n"


def bookmark(version: int | str) -> bytes:
    return event("BOOKMARK", {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"resourceVersion": str(version)}})


def watching(*steps: Step) -> httpx.Response:
    """Answer a watch; without a final None it ends cleanly."""
    return httpx.Response(200, stream=Body(steps), headers={"content-type": "application/json"})
