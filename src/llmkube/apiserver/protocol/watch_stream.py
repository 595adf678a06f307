"""A watch reads the store's log by resourceVersion: it has no queue; one that lags too far behind gets 410.

Selectors apply to changes: an object that begins to match is ADDED, one that no longer matches is DELETED.
Facts: Kubernetes API concepts, "Efficient detection of changes", "Watch bookmarks" and "Streaming lists".
"""

import math
from collections.abc import Callable, Iterator
from typing import Final

import attrs
import trio

from llmkube.apiserver.protocol.list_query import SLICE, ListQuery
from llmkube.apiserver.storage.revisions import Change, CompactedError, Object, Store
from llmkube.apiserver.values.api_errors import RequestRefusedError, expired
from llmkube.apiserver.values.selectors import Predicate
from llmkube.base.http.exchange import SendChunk

BOOKMARK_SECONDS: Final = 60.0
"""Interval of bookmarks for an idle watch that allows them."""

INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"
"""Annotation of the bookmark that ends the initial state of a streaming list."""

Render = Callable[[str, Object], bytes]
"""Turns an event's type and object into one line of the response."""


class ChangeSignal:
    """Wakes the watches of one kind."""

    def __init__(self) -> None:
        self._events: dict[str, trio.Event] = {}

    def notify(self, kind: str) -> None:
        """Wake all watches of that kind."""
        event = self._events.pop(kind, None)
        if event is not None:
            event.set()

    def notify_all(self) -> None:
        """Wake all watches."""
        for kind in list(self._events):
            self.notify(kind)

    async def wait(self, kind: str) -> None:
        """Wait for the next `notify`."""
        await self._events.setdefault(kind, trio.Event()).wait()


@attrs.frozen(eq=False)
class WatchStream:
    """One client's watch of one kind."""

    store: Store
    signal: ChangeSignal
    kind: str
    namespace: str
    query: ListQuery
    selector: Predicate
    is_served: Callable[[], bool]
    render: Render
    bookmark: Callable[[int], Object]  # an object with that resourceVersion and nothing else

    def start(self) -> tuple[list[Object], int]:
        """Return the initial objects, before the selector applies, and the revision to continue from.

        Raises:
            RequestRefusedError: 410, the log does not reach back that far (or the revision is from another database).
        """
        query = self.query
        if not query.revision or query.initial_events:
            return [item for _, item in self.store.list(self.kind, self.namespace)], self.store.revision
        if query.revision > self.store.revision:
            # kube-apiserver would wait; here the database was replaced, and a new list recovers at once
            raise expired(f"too large resource version: {query.revision}, current: {self.store.revision}")
        self._changes(query.revision)
        return [], query.revision

    async def run(self, send: SendChunk, timeout_seconds: float) -> None:
        """Send events until the timeout, the kind is no longer served, or the client is too far behind the log."""
        end = trio.current_time() + timeout_seconds
        try:
            items, revision = self.start()
            for number, item in enumerate([] if self.query.initial_events is False else items):
                if self.selector(item):
                    await send(self.render("ADDED", item))
                elif number % SLICE == 0:
                    await trio.lowlevel.checkpoint()
            if self.query.initial_events and self.query.bookmarks:
                await send(self.render("BOOKMARK", _ending_initial_events(self.bookmark(revision))))
            await self._send_changes(send, revision, end)
        except RequestRefusedError as exc:
            await send(self.render("ERROR", exc.to_status()))

    async def _send_changes(self, send: SendChunk, revision: int, end: float) -> None:
        next_bookmark = trio.current_time() + BOOKMARK_SECONDS if self.query.bookmarks else math.inf
        while True:
            changes = self._changes(revision)
            revision = self.store.revision  # everything up to here is in `changes`: no checkpoint in between
            for change in changes:
                for event_type, item in self._events(change):
                    await send(self.render(event_type, item))
            if self._changes(revision):
                continue  # written while the events were being sent
            if not self.is_served():
                return
            with trio.move_on_at(min(end, next_bookmark)):
                await self.signal.wait(self.kind)
            now = trio.current_time()
            is_over = now >= end
            if self.query.bookmarks and (is_over or now >= next_bookmark) and not self._changes(revision):
                revision = self.store.revision
                await send(self.render("BOOKMARK", self.bookmark(revision)))
                next_bookmark = now + BOOKMARK_SECONDS
            if is_over:
                return

    def _changes(self, revision: int) -> list[Change]:
        try:
            changes = self.store.changes_after(self.kind, revision)
        except CompactedError as exc:
            raise expired(str(exc)) from exc
        return [change for change in changes if not self.namespace or change.ref.key.namespace == self.namespace]

    def _events(self, change: Change) -> Iterator[tuple[str, Object]]:
        was = change.before is not None and self.selector(change.before)
        now = not change.removed and self.selector(change.after)
        if now:
            yield ("MODIFIED" if was else "ADDED"), change.after
        elif was and change.before is not None:
            # an object that left the selection is sent as it was, with the revision of this change
            last = change.after if change.removed else change.before
            yield "DELETED", {**last, "metadata": {**last["metadata"], "resourceVersion": str(change.revision)}}


def _ending_initial_events(bookmark: Object) -> Object:
    metadata = {**bookmark["metadata"], "annotations": {INITIAL_EVENTS_END: "true"}}
    return {**bookmark, "metadata": metadata}
