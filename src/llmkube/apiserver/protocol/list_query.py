"""Reads from memory: get, list in pages, and the resourceVersion rules that caches rely on.

A continue token names the revision of the first page, so all pages together show one consistent state, regardless of
later writes. Facts: Kubernetes API concepts, "Resource versions" and "Retrieving large results sets in chunks".

A page is selected in slices, so that other tasks run in between, however many objects there are.
"""

import base64
import binascii
import json
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs
import trio

from llmkube.apiserver.protocol.request_bodies import parse_flag
from llmkube.apiserver.storage.revisions import CompactedError, Object, Store
from llmkube.apiserver.values import json_text
from llmkube.apiserver.values.api_errors import (
    RequestRefusedError,
    Subject,
    bad_request,
    expired,
    invalid,
    plain_internal,
    too_large_revision,
)
from llmkube.apiserver.values.field_errors import FieldError, forbidden, not_supported
from llmkube.apiserver.values.selectors import Predicate
from llmkube.k8s.resource import Key

EXPIRED_PAGE: Final = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)

_LATEST: Final = -1  # revision in a token that continues an inconsistent list


@attrs.frozen
class ListQuery:
    """The validated parameters of a list or a watch."""

    label_selector: str = ""
    field_selector: str = ""
    limit: int = 0
    token: str = ""
    revision: int | None = None  # None: unset; 0: any
    match: str = ""
    watch: bool = False
    bookmarks: bool = False
    timeout_seconds: float | None = None
    initial_events: bool | None = None

    @classmethod
    def parse(cls, param: Callable[[str], str], *, is_get: bool = False) -> "ListQuery":
        """Parse the query parameters; `is_get` for those of a get, which cannot be a watch.

        Raises:
            RequestRefusedError: 400 for a malformed number, 422 for a contradictory combination, and 500 for a
                malformed resourceVersion in a get or a watch, as in kube-apiserver.
        """
        watch = not is_get and (parse_flag(param("watch")) or False)
        query = cls(
            label_selector=param("labelSelector"),
            field_selector=param("fieldSelector"),
            limit=max(0, _number(param("limit")) or 0),
            token=param("continue"),
            revision=_revision(param("resourceVersion"), listing=not (watch or is_get)),
            match=param("resourceVersionMatch"),
            watch=watch,
            bookmarks=parse_flag(param("allowWatchBookmarks")) or False,
            timeout_seconds=_number(param("timeoutSeconds")),
            initial_events=parse_flag(param("sendInitialEvents")),
        )
        if errors := list(query._contradictions()):
            raise invalid(Subject("ListOptions", "meta.k8s.io"), errors)
        return query

    def _contradictions(self) -> Sequence[FieldError]:
        field = "resourceVersionMatch"
        if self.initial_events is not None:
            if not self.watch:
                return [forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list")]
            if self.match != "NotOlderThan":
                why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
                unsupported = [not_supported(field, self.match, ["NotOlderThan"])] if self.match else []
                return [forbidden(field, why), *unsupported]
            return []
        if not self.match:
            return []
        if self.watch:
            return [forbidden(field, f"{field} is forbidden for watch unless sendInitialEvents is provided")]
        if self.revision is None:
            return [forbidden(field, "resourceVersionMatch is forbidden unless resourceVersion is provided")]
        if self.token:
            return [forbidden(field, "resourceVersionMatch is forbidden when continue is provided")]
        if self.match == "Exact" and self.revision == 0:
            return [forbidden(field, 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"')]
        if self.match not in {"Exact", "NotOlderThan"}:
            return [not_supported(field, self.match, ["Exact", "NotOlderThan", ""])]
        return []


@attrs.frozen
class Page:
    """Part of a list; `token` requests the next part and is empty on the last one."""

    items: list[Object]
    revision: int
    token: str = ""
    remaining: int | None = None

    def metadata(self) -> dict[str, Any]:
        """Return the list's metadata."""
        metadata: dict[str, Any] = {"resourceVersion": str(self.revision)}
        if self.token:
            metadata["continue"] = self.token
            if self.remaining is not None:
                metadata["remainingItemCount"] = self.remaining
        return metadata


def check_revision(store: Store, revision: int | None) -> None:
    """Refuse a read at a revision that this server has not reached.

    Raises:
        RequestRefusedError: 504 with the cause that makes client-go retry.
    """
    if revision is not None and revision > store.revision:
        raise too_large_revision(revision, store.revision)


def _candidates(store: Store, kind: str, namespace: str, query: ListQuery) -> tuple[Sequence[tuple[Key, Object]], int]:
    """Return the objects to select the page from, sorted, from where the page begins, and their revision."""
    if not query.token:
        check_revision(store, query.revision)
        exact = query.match == "Exact" or (query.limit > 0 and not query.match)  # the older rule for paged lists
        if query.revision and exact:
            try:
                return store.list_at(kind, namespace, query.revision), query.revision
            except CompactedError as exc:
                raise expired(str(exc)) from exc
        return store.list(kind, namespace), store.revision
    if query.revision:
        raise bad_request("specifying resource version is not allowed when using continue")
    revision, after = _decode_token(query.token)
    if revision == _LATEST:
        revision = store.revision
    try:
        items = store.list_at(kind, namespace, revision)
    except CompactedError as exc:
        refusal = expired(EXPIRED_PAGE)
        raise RequestRefusedError(410, refusal.reason, refusal.message, token=_encode_token(_LATEST, after)) from exc
    start = bisect_right(items, (after.namespace, after.name), key=lambda item: (item[0].namespace, item[0].name))
    return items[start:], revision


def _encode_token(revision: int, last: Key) -> str:
    payload = json.dumps({"v": "meta.k8s.io/v1", "rv": revision, "namespace": last.namespace, "name": last.name})
    return base64.urlsafe_b64encode(payload.encode()).decode().rstrip("=")


def _decode_token(token: str) -> tuple[int, Key]:
    try:
        payload = json_text.read(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        return int(payload["rv"]), Key(str(payload["namespace"]), str(payload["name"]))
    except (binascii.Error, ValueError, KeyError, TypeError) as exc:
        raise bad_request(f"invalid continue token: continue key is not valid: {type(exc).__name__}") from exc


def _number(text: str) -> int | None:
    if not text:
        return None
    if not re.fullmatch(r"[-+]?\d{1,18}", text, re.ASCII):
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    return int(text)


def _revision(text: str, *, listing: bool) -> int | None:
    if not text:
        return None
    if not re.fullmatch(r"\d{1,18}", text, re.ASCII):
        why = f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        raise bad_request(f"invalid resource version: {why}") if listing else plain_internal(why)
    return int(text)


SLICE: Final = 500
"""Objects that are checked before other tasks run: about a millisecond."""


async def read_page(store: Store, kind: str, namespace: str, query: ListQuery, selector: Predicate) -> Page:
    """Return the page that the query requests: the objects that match, by namespace and name.

    Raises:
        RequestRefusedError: 410 when the requested revision is no longer in the log, 504 when it is not reached yet.
    """
    items, revision = _candidates(store, kind, namespace, query)
    matching: list[tuple[Key, Object]] = []
    for start in range(0, len(items), SLICE):
        matching += [(key, item) for key, item in items[start : start + SLICE] if selector(item)]
        if query.limit and len(matching) > query.limit:
            break
        await trio.lowlevel.checkpoint()
    shown = [item for _, item in matching[: query.limit or None]]
    if not query.limit or len(matching) <= query.limit:
        return Page(shown, revision)
    counted = not query.label_selector and not query.field_selector
    remaining = len(items) - query.limit if counted else None
    return Page(shown, revision, _encode_token(revision, matching[query.limit - 1][0]), remaining)
