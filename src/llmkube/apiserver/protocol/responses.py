"""An object is one thing and its answer another: JSON, a Table or metadata only, with the warnings in headers."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import attrs

from llmkube.apiserver.kinds.catalog import in_version
from llmkube.apiserver.kinds.kind_info import KindInfo
from llmkube.apiserver.kinds.scale import is_scale
from llmkube.apiserver.protocol.list_query import Page
from llmkube.apiserver.protocol.negotiation import Shape
from llmkube.apiserver.protocol.table import partial_metadata, table
from llmkube.apiserver.storage.encoding import encode, encoded
from llmkube.apiserver.storage.revisions import Object
from llmkube.base.http.message import Headers, Response

JSON_HEADERS = Headers.of({"Content-Type": "application/json", "Cache-Control": "no-cache, private"})
_WARNING_LIMIT_BYTES = 4096  # kube-apiserver's limit for all warnings of an answer


def answer(status: int, content: Any, warnings: Sequence[str] = ()) -> Response:
    """Return the answer with that content."""
    return answer_encoded(status, encode(content), warnings)


def answer_encoded(status: int, body: bytes, warnings: Sequence[str] = ()) -> Response:
    """Return the answer with content that is JSON already."""
    return Response(status, with_warnings(JSON_HEADERS, warnings) if warnings else JSON_HEADERS, body + b"\n")


def with_warnings(headers: Headers, warnings: Sequence[str]) -> Headers:
    """Return the headers with a `Warning: 299 - "…"` line for each warning, as kubectl prints them."""
    lines = list(headers)
    size = 0
    for warning in dict.fromkeys(warnings):
        printable = "".join(char if char.isprintable() and char.isascii() else "?" for char in warning)
        quoted = printable.replace("\\", "\\\\").replace('"', '\\"')
        size += len(quoted)
        if size <= _WARNING_LIMIT_BYTES:
            lines.append(("Warning", f'299 - "{quoted}"'))
    return Headers(lines)


@attrs.frozen
class View:
    """How one client wants to see one kind."""

    kind: KindInfo
    shape: Shape
    include: str  # what rows of a Table carry of their objects
    now: Callable[[], datetime]

    def one(self, stored: Object) -> Any:
        """Return a single object, or the Scale of one."""
        shown = stored if is_scale(stored) else in_version(self.kind, stored)
        if self.shape == "Table":
            metadata = {"resourceVersion": stored["metadata"].get("resourceVersion", "")}
            return table(self.kind, [shown], metadata, self.now(), include=self.include, header=True)
        return partial_metadata(shown) if self.shape else shown

    def encoded(self, stored: Object) -> bytes:
        """Return `one` as JSON."""
        shown = self.one(stored)
        return encoded(shown) if shown is stored else encode(shown)

    def many(self, page: Page) -> Any:
        """Return a list."""
        items = [in_version(self.kind, item) for item in page.items]
        metadata = page.metadata()
        shown: Any
        if self.shape == "Table":
            return table(self.kind, items, metadata, self.now(), include=self.include, header=True)
        if self.shape:
            kind, version = "PartialObjectMetadataList", "meta.k8s.io/v1"
            shown = [partial_metadata(item) for item in items] or (None if self.kind.builtin else [])
        elif self.kind.builtin:  # the list says what its items are; kube-apiserver leaves it out of each
            shown = [{name: value for name, value in item.items() if name not in _TYPE} for item in items]
            kind, version = self.kind.list_kind, self.kind.resource.api_version
        else:
            metadata.setdefault("continue", "")
            shown = [dict(item) for item in items]
            kind, version = self.kind.list_kind, self.kind.resource.api_version
        return {"kind": kind, "apiVersion": version, "metadata": metadata, "items": shown}


_LASTING = frozenset({"ADDED", "MODIFIED"})
"""Events that show an object as it is stored, where others show one that was made for them."""

_TYPE = frozenset({"apiVersion", "kind"})


@attrs.define(eq=False)
class EventLines:
    """Renders watch events as lines; a Table defines its columns in the first one only."""

    view: View
    _header_sent: bool = False

    def render(self, event: str, item: Object) -> bytes:
        """Return one line of a watch."""
        shown = item if event == "ERROR" else self._shown(item)
        body = encoded(shown) if shown is item and event in _LASTING else encode(shown)
        return b'{"type":"%b","object":%b}\n' % (event.encode(), body)

    def _shown(self, item: Object) -> Any:
        view = self.view
        if view.shape != "Table":
            return view.one(item)
        metadata = {"resourceVersion": item["metadata"].get("resourceVersion", "")}
        shown = in_version(view.kind, item)
        header, self._header_sent = not self._header_sent, True
        return table(view.kind, [shown], metadata, view.now(), include=view.include, header=header)

    def bookmark(self, revision: int) -> Object:
        """Return an object that says nothing but how far the watch has come."""
        resource = self.view.kind.resource
        metadata = {"resourceVersion": str(revision)}
        return {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
