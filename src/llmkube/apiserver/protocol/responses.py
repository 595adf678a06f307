"""Responses: an object as JSON, as a Table or as metadata only, with the warnings in headers.

Where an object is shown as it is stored, the stored bytes are sent, in lists and watches too.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, Final

import attrs

from llmkube.apiserver.kinds.catalog import in_version
from llmkube.apiserver.kinds.kind_info import KindInfo
from llmkube.apiserver.kinds.scale import is_scale
from llmkube.apiserver.protocol.list_query import Page
from llmkube.apiserver.protocol.negotiation import Shape
from llmkube.apiserver.protocol.table import columns_of, partial_metadata, table, table_head, table_row
from llmkube.apiserver.storage.revisions import Object, encoded, fields_of, type_prefix
from llmkube.apiserver.values.json_text import write
from llmkube.base.http.message import Headers, Response

JSON_HEADERS = Headers.of({"Content-Type": "application/json", "Cache-Control": "no-cache, private"})
_WARNING_LIMIT_BYTES = 4096  # kube-apiserver's limit for all warnings of a response
_PIECE_ITEMS: Final = 128  # items of a list in one piece: a row of a Table takes 20 µs
_PIECE_BYTES: Final = 64 * 1024


def answer(status: int, content: Any, warnings: Sequence[str] = ()) -> Response:
    """Return a response with the content as JSON."""
    return answer_encoded(status, write(content), warnings)


def answer_encoded(status: int, body: bytes, warnings: Sequence[str] = ()) -> Response:
    """Return a response with content that is JSON already."""
    return Response(status, with_warnings(JSON_HEADERS, warnings) if warnings else JSON_HEADERS, body + b"\n")


def with_warnings(headers: Headers, warnings: Sequence[str]) -> Headers:
    """Return the headers with a `Warning: 299 - "…"` line for each warning; kubectl prints them."""
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
    """The form in which one client sees one kind."""

    kind: KindInfo
    shape: Shape
    include: str  # the part of an object in its row of a Table: None, Metadata or Object
    now: Callable[[], datetime]

    def encoded(self, stored: Object) -> bytes:
        """Return a single object, or the Scale of one, as JSON."""
        if is_scale(stored):
            return write(self._render(stored))
        if self.shape:
            return write(self._render(in_version(self.kind, stored)))
        return encoded(stored, self.kind.resource.api_version)

    def _render(self, shown: Object) -> Any:
        if self.shape == "Table":
            return table(self.kind, shown, self.now(), include=self.include, header=True)
        return partial_metadata(shown) if self.shape else shown

    def pieces(self, page: Page) -> Iterator[bytes]:
        """Yield a list as JSON in pieces, each made in a few milliseconds."""
        name, head, items = self._list(page)
        piece = write(head)[:-1] + b',"%b":' % name
        if not page.items and self.shape.startswith("Partial") and self.kind.builtin:
            yield piece + b"null}\n"  # as Go writes an empty list of metadata
            return
        piece += b"["
        batch = _batch(items)
        while batch:
            piece += b",".join(batch)
            batch = _batch(items)
            if batch:
                yield piece
                piece = b","
        yield piece + b"]}\n"

    def _list(self, page: Page) -> tuple[bytes, dict[str, Any], Iterator[bytes]]:
        """Return the name of the field for the list's items, the list without them, and the JSON of each item."""
        metadata, resource = page.metadata(), self.kind.resource
        if self.shape == "Table":
            columns, now = columns_of(self.kind), self.now()
            rows = (table_row(columns, in_version(self.kind, item), now, self.include) for item in page.items)
            return b"rows", table_head(columns, metadata), map(write, rows)
        if self.shape:
            head = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}
            return b"items", head, (write(partial_metadata(item)) for item in page.items)
        if self.kind.builtin:  # kube-apiserver omits the type from each item
            prefix = b"{"
        else:
            metadata.setdefault("continue", "")
            prefix = type_prefix(resource.api_version, resource.kind)
        head = {"kind": self.kind.list_kind, "apiVersion": resource.api_version, "metadata": metadata}
        return b"items", head, (prefix + fields_of(item) for item in page.items)


def _batch(items: Iterator[bytes]) -> list[bytes]:
    """Return the next items, up to the limits of a piece."""
    batch, size = [], 0
    for item in islice(items, _PIECE_ITEMS):
        batch.append(item)
        size += len(item)
        if size >= _PIECE_BYTES:
            break
    return batch


@attrs.define(eq=False)
class EventLines:
    """Renders watch events as lines; of a Table, only the first line defines the columns."""

    view: View
    _header_sent: bool = False

    def render(self, event: str, item: Object) -> bytes:
        """Return one line of a watch."""
        body = write(item) if event == "ERROR" else self._encoded(item)
        return b'{"type":"%b","object":%b}\n' % (event.encode(), body)

    def _encoded(self, item: Object) -> bytes:
        view = self.view
        if view.shape != "Table":
            return view.encoded(item)
        header, self._header_sent = not self._header_sent, True
        return write(table(view.kind, in_version(view.kind, item), view.now(), include=view.include, header=header))

    def bookmark(self, revision: int) -> Object:
        """Return an object with nothing but the revision that the watch has reached."""
        resource = self.view.kind.resource
        metadata = {"resourceVersion": str(revision)}
        return {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
