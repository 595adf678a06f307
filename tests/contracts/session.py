"""A session sends operations to one API server and writes down what it answers, so that two servers can be compared.

What two servers cannot agree on is replaced by names in the order in which it first appears: the first uid is `uid1` on
both, the second resourceVersion is `rv2`. So a write that changes nothing is seen to keep its resourceVersion, and a
new object to have a new uid, while nobody compares random numbers. `README` in `recording.py` lists every allowance.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import attrs
import httpx
import trio

GROUP: Final = "check.llmkube.dev"
ABSENT_UID: Final = "5c1d2b1e-0000-4000-8000-000000000000"
"""A uid that no object has."""

JSON: Final = "application/json"
MERGE: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
APPLY: Final = "application/apply-patch+yaml"
TABLE: Final = "application/json;as=Table;v=v1;g=meta.k8s.io"

PATIENCE_SECONDS: Final = 30.0

_UID: Final = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
_TIME: Final = re.compile(r"\b20(?:2[0-9]|3[0-9])-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")
_NUMBER: Final = re.compile(r"\b\d{2,}\b")
_ADDRESS: Final = re.compile(r"10(\.\d+){3}")
_AGE: Final = re.compile(r"(\d+[smhdy])+")
_SEVERAL: Final = re.compile(r"is invalid: \[.*\]$", re.DOTALL)


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
        self._uids: dict[str, str] = {}
        self._versions: dict[str, str] = {}
        self._generated: dict[str, str] = {}

    # -- asking --------------------------------------------------------------------------------------------------------

    async def send(self, operation: Operation, *, recorded: bool = True, said: str = "") -> Any:
        """Send one operation, write the answer down and return its body as the server said it.

        Args:
            operation: What to ask.
            recorded: Whether to write the answer down.
            said: How to call a body that has something of the server's own in it.
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
            shown = f"{operation.method} {operation.path} {said}" if said else str(operation)
            self.note(shown, response.status_code, _telling(response), body)
        return body

    def note(self, asked: str, code: int, headers: Mapping[str, Any], body: Any) -> None:
        """Write down an answer."""
        self.answers.append(Answer(self._named_text(asked), code, headers, self._named(body)))

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
        shown = {name: "a version" if value.isdigit() and len(value) > 1 else value for name, value in params.items()}
        operation = Operation("GET", path, params=shown, accept=accept)
        events: list[Any] = []
        code, headers = 0, {}
        with trio.fail_after(PATIENCE_SECONDS):
            sent = {name: self._filled(value) for name, value in params.items()}
            async with self._http.stream(
                "GET", self._filled(path), params=sent, headers=_headers(operation), timeout=None
            ) as response:
                code, headers = response.status_code, _telling(response)
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
        """Return when there is nothing at the path; who takes it away does so in its own time."""
        with trio.fail_after(PATIENCE_SECONDS):
            while (await self._http.get(self._filled(path))).status_code != httpx.codes.NOT_FOUND:
                await trio.sleep(0.02)

    async def wait_until(self, path: str, name: str) -> None:
        """Return when the object's metadata has a field of that name."""
        with trio.fail_after(PATIENCE_SECONDS):
            while name not in (await self._http.get(self._filled(path))).json()["metadata"]:
                await trio.sleep(0.02)

    # -- what to send ---------------------------------------------------------------------------------------------------

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

    # -- what is written down -------------------------------------------------------------------------------------------

    def _named(self, value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return self._named_object(value)
        if isinstance(value, list):
            return [self._named(item, name) for item in value]
        return self._named_text(value) if isinstance(value, str) else value

    def _named_object(self, value: dict[str, Any]) -> dict[str, Any]:
        metadata = value.get("metadata")
        if isinstance(metadata, dict):
            self._learn(metadata)
        named = {self._named_text(name): self._named(value[name], name) for name in sorted(value)}
        if isinstance(value.get("managedFields"), list):
            shown = [entry for entry in named["managedFields"] if entry.get("subresource") != "scale"]
            named["managedFields"] = sorted(shown, key=_manager_key)
        if "resourceVersion" in value:
            version = str(value["resourceVersion"])
            named["resourceVersion"] = self._versions.get(version, "a version") if "uid" in value else "a version"
        if value.get("continue"):
            named["continue"] = "a token"
        if "cells" in value:
            named["cells"] = [_cell(cell) for cell in named["cells"]]
        for definition in named.get("columnDefinitions") or ():
            if not definition["description"].startswith("Custom resource definition column"):
                definition["description"] = "in somebody's words"
        for address in ("clusterIP", "clusterIPs"):
            if value.get(address) and "None" not in value[address]:
                named[address] = "an address"
        if value.get("kind") == "Status" and value.get("apiVersion") == "v1":
            _in_any_order(named)
            _in_other_words(named)
        return named

    def _learn(self, metadata: dict[str, Any]) -> None:
        uid, version, name = (str(metadata.get(key) or "") for key in ("uid", "resourceVersion", "name"))
        if uid:
            self._uids.setdefault(uid, f"uid{len(self._uids) + 1}")
            if version:
                self._versions.setdefault(version, f"rv{len(self._versions) + 1}")
        prefix = str(metadata.get("generateName") or "")
        if prefix and name.startswith(prefix[:58]) and len(name) == len(prefix[:58]) + 5:
            self._generated.setdefault(name, f"{prefix[:58]}<made up {len(self._generated) + 1}>")

    def _named_text(self, text: str) -> str:
        for name, said in self._generated.items():
            text = text.replace(name, said)
        text = text.replace(self.namespace, "{ns}")
        text = _UID.sub(lambda match: self._uids.get(match[0], match[0]), text)
        text = _TIME.sub("a time", text)
        return _NUMBER.sub(lambda match: self._versions.get(match[0], match[0]), text)


def _cell(cell: Any) -> Any:
    if isinstance(cell, str) and _AGE.fullmatch(cell):
        return "an age"
    return "an address" if isinstance(cell, str) and _ADDRESS.fullmatch(cell) else cell


def _headers(operation: Operation) -> dict[str, str]:
    headers = {"user-agent": "check/1", "accept": operation.accept or JSON}
    return headers | ({"content-type": operation.content_type} if operation.content_type else {})


def _telling(response: httpx.Response) -> dict[str, Any]:
    """Return the headers that mean something to a client."""
    said = response.headers
    headers: dict[str, Any] = {"content-type": said.get("content-type", "")}
    if "warning" in said:
        headers["warning"] = said.get_list("warning")
    if "retry-after" in said:
        headers["retry-after"] = said["retry-after"]
    return headers


def _read(response: httpx.Response) -> Any:
    return _parsed(response.content)


def _parsed(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return content.decode(errors="replace")


def _manager_key(entry: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(entry.get(name, "")) for name in ("operation", "manager", "apiVersion", "subresource"))


OTHER_WORDS: Final = (
    (re.compile(r"(couldn't get version/kind; json parse error|json: cannot unmarshal|parsing time|illegal base64 data|converting \(|yaml: |cannot restore slice).*", re.S), "it does not decode"),
    (re.compile(r"(map: |in map: )(map\[.*?\]|\{.*\})", re.S), r"\1a map"),
    (re.compile(r"(continue key is not valid|error decoding patch|error decoding YAML): .*", re.S), r"\1"),
    (re.compile(r"StorageError: .*AdditionalErrorMsg: "), ""),
    (re.compile(r" in scheme \S+"), ""),
    (re.compile(r'patch: Invalid value: ".*?[}\]]": ', re.S), "patch: Invalid value: an object: "),
    (re.compile(r"(expected (?:string|boolean|list|map|numeric \(int or float\))), got .*", re.S), r"\1"),
    (re.compile(r"the provided object is unrecognized"), ""),
)
"""Where both servers refuse alike and say it in words of their own: Go's names for types, its readers' sentences."""


def _in_other_words(status: dict[str, Any]) -> None:
    if status.get("code") == httpx.codes.NOT_ACCEPTABLE:
        status["message"] = "nothing that the client takes"
        status.pop("details", None)
    for pattern, words in OTHER_WORDS:
        if isinstance(status.get("message"), str):
            status["message"] = pattern.sub(words, status["message"])
    for cause in (status.get("details") or {}).get("causes") or ():
        if cause.get("field") == "patch":
            cause["message"] = re.sub(r'^Invalid value: ".*?[}\]]": ', "Invalid value: an object: ", cause["message"], flags=re.S)
            for pattern, words in OTHER_WORDS:
                cause["message"] = pattern.sub(words, cause["message"])


def _in_any_order(status: dict[str, Any]) -> None:
    """Sort the causes of a Status and the sentences of its message: kube-apiserver collects them from maps."""
    causes = (status.get("details") or {}).get("causes")
    if not causes:
        return
    status["details"]["causes"] = sorted(causes, key=json.dumps)
    if len(causes) > 1 and _SEVERAL.search(status["message"]):
        said = status["message"].partition("is invalid: ")[0]
        every = sorted(f"{cause.get('field', '')}: {cause['message']}" for cause in causes)
        whole = status["message"].removeprefix(said)
        if all(each in whole for each in every):
            status["message"] = f"{said}is invalid: {every}"
