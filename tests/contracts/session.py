"""A session sends operations to one API server and writes down what it answers, so that two servers can be compared.

In the record the server's own values are replaced by names (`naming.py`).
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import attrs
import httpx
import trio

from contracts.lab import PATIENCE_SECONDS, wait_for, wait_until
from contracts.naming import Names, shortened

ABSENT_UID: Final = "5c1d2b1e-0000-4000-8000-000000000000"
"""A uid that no object has."""

JSON: Final = "application/json"
MERGE: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
APPLY: Final = "application/apply-patch+yaml"
TABLE: Final = "application/json;as=Table;v=v1;g=meta.k8s.io"


@attrs.frozen
class Operation:
    """One request. Paths, and texts in the body, may say `{ns}`, `{uid:PATH}` and `{rv:PATH}` (as last seen)."""

    method: str
    path: str
    body: Any = None
    content_type: str = ""
    params: Mapping[str, str] = {}
    accept: str = ""
    raw: bytes | None = None  # instead of a body

    def __str__(self) -> str:
        asked = "&".join(f"{name}={value}" for name, value in self.params.items())
        words = [self.method, self.path + (f"?{asked}" if asked else "")]
        if self.content_type and self.content_type != JSON:
            words.append(self.content_type.removeprefix("application/"))
        if self.accept:
            words.append(f"as {self.accept.removeprefix('application/')}")
        if self.body is not None:
            words.append(json.dumps(self.body, ensure_ascii=False))
        elif self.raw is not None:
            words.append(repr(self.raw[:80]))
        return " ".join(words)


@attrs.frozen
class Answer:
    """One request and what a server said to it, with names for everything that is its own."""

    asked: str
    code: int
    headers: Mapping[str, Any]
    body: Any

    def to_json(self) -> dict[str, Any]:
        return {"asked": self.asked, "code": self.code, "headers": dict(self.headers), "body": self.body}


class Session:
    """One namespace on one server: sends, and writes down."""

    def __init__(self, http: httpx.AsyncClient, namespace: str) -> None:
        self.namespace = namespace
        self.answers: list[Answer] = []
        self._http = http
        self._live: dict[str, Any] = {}  # the object at each path, as last seen
        self._names = Names(namespace)

    # -- asking --------------------------------------------------------------------------------------------------------

    async def send(self, operation: Operation, *, recorded: bool = True, label: str = "") -> Any:
        """Send one operation, write the answer down and return its body as the server sent it.

        Args:
            operation: The operation to send.
            recorded: Whether to write the answer down.
            label: Name of a body that contains values of the server.
        """
        response = await self._http.request(
            operation.method,
            self._filled(operation.path),
            content=self._content(operation),
            params={name: self._filled(value) for name, value in operation.params.items()} or None,
            headers=_headers(operation),
        )
        body = _read(response)
        self._remember(operation, response.status_code, body)
        if recorded:
            shown = f"{operation.method} {operation.path} {label}" if label else str(operation)
            self.note(shown, response.status_code, _relevant_headers(response), body)
        return body

    def note(self, asked: str, code: int, headers: Mapping[str, Any], body: Any) -> None:
        """Write down an answer."""
        asked, shown = shortened(self._names.text(asked)), shortened(self._names.named(body))
        self.answers.append(Answer(asked, code, headers, shown))

    async def post(self, path: str, body: Any, **params: str) -> Any:
        return await self.send(Operation("POST", path, body, JSON, params))

    async def put(self, path: str, body: Any, **params: str) -> Any:
        return await self.send(Operation("PUT", path, body, JSON, params))

    async def patch(self, path: str, body: Any, content_type: str = MERGE, **params: str) -> Any:
        return await self.send(Operation("PATCH", path, body, content_type, params))

    async def apply(self, path: str, body: Any, manager: str, **params: str) -> Any:
        return await self.send(Operation("PATCH", path, body, APPLY, {"fieldManager": manager, **params}))

    async def get(self, path: str, accept: str = "", **params: str) -> Any:
        return await self.send(Operation("GET", path, params=params, accept=accept))

    async def delete(self, path: str, body: Any = None, **params: str) -> Any:
        return await self.send(Operation("DELETE", path, body, JSON if body is not None else "", params))

    async def watch(self, path: str, count: int, accept: str = "", **params: str) -> list[Any]:
        """Watch until that many events have come, bookmarks aside, or the watch is refused; write them down."""
        params = {"watch": "true", **params}
        shown = {name: "a version" if value.isdigit() and int(value) > 1 else value for name, value in params.items()}
        operation = Operation("GET", path, params=shown, accept=accept)
        events: list[Any] = []
        code, headers = 0, {}
        with trio.fail_after(PATIENCE_SECONDS):
            sent = {name: self._filled(value) for name, value in params.items()}
            async with self._http.stream(
                "GET", self._filled(path), params=sent, headers=_headers(operation), timeout=None
            ) as response:
                code, headers = response.status_code, _relevant_headers(response)
                if code != httpx.codes.OK:
                    events = [_parsed(await response.aread())]
                elif count:
                    lines = response.aiter_lines()
                    while len(events) < count:
                        line = await anext(lines, "")
                        if not line:
                            break  # it ended
                        event = json.loads(line)
                        if event["type"] != "BOOKMARK" or (event["object"]["metadata"].get("annotations")):
                            events.append(event)
        self.note(str(operation), code, headers, events)
        return events

    async def wait_gone(self, path: str) -> None:
        """Return when there is nothing at the path; controllers delete asynchronously."""
        await wait_for(self._http, self._filled(path), httpx.codes.NOT_FOUND)

    async def wait_collector(self, collection: str, body: Mapping[str, Any]) -> None:
        """Wait until the garbage collector has seen a collection: it deletes the object that is created last.

        kube-controller-manager's deletes dependents that it has not seen yet, whatever the owner's deletion says.

        Args:
            collection: Path of the objects.
            body: One without an owner that lives.
        """
        created = await self._http.post(self._filled(collection), json=self._filled_in(body))
        assert created.status_code == httpx.codes.CREATED, created.text
        await self.wait_gone(f"{collection}/{body['metadata']['name']}")

    async def wait_until(self, path: str, name: str) -> None:
        """Return when the object's metadata has a field of that name."""

        async def there() -> bool:
            return name in (await self._http.get(self._filled(path))).json()["metadata"]

        await wait_until(there)

    # -- what to send ----

    def _content(self, operation: Operation) -> bytes | None:
        if operation.raw is not None:
            return operation.raw
        if operation.body is None:
            return None
        return json.dumps(self._filled_in(operation.body), ensure_ascii=False).encode()

    def _filled_in(self, body: Any) -> Any:
        if isinstance(body, str):
            return self._filled(body)
        if isinstance(body, dict):
            return {name: self._filled_in(item) for name, item in body.items()}
        if isinstance(body, list):
            return [self._filled_in(item) for item in body]
        return body

    def _filled(self, text: str) -> str:
        if "{" not in text:
            return text

        def found(match: re.Match[str]) -> str:
            metadata = self._live.get(match[2].replace("{ns}", self.namespace), {})
            return str(metadata.get({"uid": "uid", "rv": "resourceVersion", "token": "continue"}[match[1]], "1"))

        return re.sub(r"\{(uid|rv|token):([^}]*)\}", found, text.replace("{ns}", self.namespace))

    def _remember(self, operation: Operation, code: int, body: Any) -> None:
        if code >= httpx.codes.BAD_REQUEST or not isinstance(body, dict) or "dryRun" in operation.params:
            return
        metadata = body.get("metadata")
        if not isinstance(metadata, dict) or body.get("kind") == "Status":
            return
        path = self._filled(operation.path)
        if operation.method == "POST" and metadata.get("name"):
            path = f"{path}/{metadata['name']}"
        self._live[path.removesuffix("/status").removesuffix("/scale")] = metadata


def _headers(operation: Operation) -> dict[str, str]:
    headers = {"user-agent": "check/1", "accept": operation.accept or JSON}
    return headers | ({"content-type": operation.content_type} if operation.content_type else {})


def _relevant_headers(response: httpx.Response) -> dict[str, Any]:
    """Return the headers that mean something to a client."""
    received = response.headers
    headers: dict[str, Any] = {"content-type": received.get("content-type", "")}
    if "warning" in received:
        headers["warning"] = received.get_list("warning")
    if "retry-after" in received:
        headers["retry-after"] = received["retry-after"]
    return headers


def _read(response: httpx.Response) -> Any:
    return _parsed(response.content)


def _parsed(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return content.decode(errors="replace")
