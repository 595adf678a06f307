"""The store has the current objects and their recent changes: pure, synchronous, one counter for all kinds.

Objects in the store are never edited in place: a writer passes a new one and readers may keep the old one. The recent
changes are a bounded log per kind; a watch reads it by resourceVersion, so a watcher needs no queue of its own.

An object is written as JSON once: the database, the responses, the lists and every watch send the same bytes.
"""

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import attrs

from llmkube.apiserver.values import json_text
from llmkube.k8s.resource import Key

_TYPE: Final = frozenset({"apiVersion", "kind"})


class StoredObject(dict[str, Any]):
    """An object in the store, never edited, that caches its JSON when it is first needed."""

    __slots__ = ("_fields",)

    _fields: bytes

    @property
    def fields(self) -> bytes:
        """The JSON without apiVersion and kind: `"metadata":{…},"spec":{…}}`."""
        try:
            return self._fields
        except AttributeError:
            self._fields = _fields(self)
            return self._fields


def fields_of(obj: Mapping[str, Any]) -> bytes:
    """Return an object's JSON without apiVersion and kind, from the first field after them to the closing brace."""
    return obj.fields if isinstance(obj, StoredObject) else _fields(obj)


def encoded(obj: Mapping[str, Any], api_version: str = "") -> bytes:
    """Return an object's JSON, in a version of its kind; by default in its own."""
    return type_prefix(api_version or obj["apiVersion"], obj["kind"]) + fields_of(obj)


@lru_cache(maxsize=1024)  # one for each version of a kind
def type_prefix(api_version: str, kind: str) -> bytes:
    """Return the JSON that precedes an object's `fields`: `{"apiVersion":"v1","kind":"Service",`."""
    return json_text.write({"apiVersion": api_version, "kind": kind})[:-1] + b","


def _fields(obj: Mapping[str, Any]) -> bytes:
    bare = {name: value for name, value in obj.items() if name not in _TYPE}
    try:
        return json_text.write(bare)[1:]
    except TypeError:  # a database written by an earlier version may have values that are refused now
        return json.dumps(bare, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")[1:]


Object = Mapping[str, Any]
"""A Kubernetes object as JSON; treat it as immutable."""

LOG_WINDOW: Final = 4096
"""Changes in each kind's log; a watcher that lags further behind must list again."""


@attrs.frozen
class Ref:
    """A reference to an object; `kind` is its storage name, equal in all versions: `models.inference.llmkube.dev`."""

    kind: str
    key: Key


@attrs.frozen(eq=False)
class Change:
    """One write: `before` is None for a creation; `after` is the object that this write left, even if it is removed."""

    revision: int
    ref: Ref
    before: Object | None
    after: Object
    removed: bool = False


class CompactedError(Exception):
    """The log no longer reaches back to the requested revision."""

    def __init__(self, requested: int, oldest: int) -> None:
        super().__init__(f"too old resource version: {requested} ({oldest})")


@attrs.define(eq=False)
class _KindHistory:
    """All objects of one kind, and its log: `floor` is the newest revision that is no longer in the log."""

    floor: int
    objects: dict[Key, Object] = attrs.Factory(dict)
    log: deque[Change] = attrs.Factory(deque)
    _order: list[Key] | None = None

    def put(self, key: Key, stored: Object) -> None:
        if key not in self.objects:
            self._order = None
        self.objects[key] = stored

    def remove(self, key: Key) -> None:
        self._order = None
        self.objects.pop(key, None)

    def ordered(self) -> list[Key]:
        """Return the keys by namespace and name, sorted again only after keys were added or removed."""
        if self._order is None:
            self._order = sorted(self.objects, key=_by_name)
        return self._order


class Store:
    """Objects by kind and key, a revision that only grows, and a log of changes for each kind.

    Args:
        revision: The revision of the last write before a restart; new ones continue from it.
        objects: The objects at that revision.
        window: Number of changes in each kind's log.
    """

    def __init__(
        self, revision: int = 0, objects: Iterable[tuple[Ref, Object]] = (), *, window: int = LOG_WINDOW
    ) -> None:
        self._revision = revision
        self._start = revision
        self._window = window
        self._histories: dict[str, _KindHistory] = {}
        self._by_uid: dict[str, Ref] = {}
        self._dependents: dict[str, set[Ref]] = {}
        for ref, stored in objects:
            self._history(ref.kind).put(ref.key, stored)
            self._index(ref, None, stored)

    @property
    def revision(self) -> int:
        """The revision of the newest write."""
        return self._revision

    def get(self, ref: Ref) -> Object | None:
        """Return the object, or None."""
        history = self._histories.get(ref.kind)
        return None if history is None else history.objects.get(ref.key)

    def list(self, kind: str, namespace: str = "") -> list[tuple[Key, Object]]:
        """Return the objects of a kind by key; the empty namespace selects all namespaces."""
        history = self._histories.get(kind)
        if history is None:
            return []
        objects = history.objects
        return [(key, objects[key]) for key in history.ordered() if not namespace or key.namespace == namespace]

    def list_at(self, kind: str, namespace: str, revision: int) -> Sequence[tuple[Key, Object]]:
        """Return the result of `list` at that revision.

        Raises:
            CompactedError: The log no longer reaches back that far.
        """
        objects = dict(self.list(kind, namespace))
        for change in reversed(self.changes_after(kind, revision)):
            key = change.ref.key
            if namespace and key.namespace != namespace:
                continue
            if change.before is None:
                objects.pop(key, None)
            else:
                objects[key] = change.before
        return [(key, objects[key]) for key in sorted(objects, key=_by_name)]

    def changes_after(self, kind: str, revision: int) -> Sequence[Change]:
        """Return the kind's changes that are newer than a revision, oldest first; the cost grows with the result.

        Raises:
            CompactedError: The log no longer reaches back that far.
        """
        history = self._histories.get(kind)
        floor = self._start if history is None else history.floor
        if revision < floor:
            raise CompactedError(revision, floor)
        newer: list[Change] = []
        for change in reversed(history.log if history is not None else ()):
            if change.revision <= revision:
                break
            newer.append(change)
        newer.reverse()
        return newer

    def apply(self, changes: Sequence[Change]) -> None:
        """Make committed changes visible; their revisions follow the current one."""
        for change in changes:
            assert change.revision > self._revision, "resourceVersions only grow"
            history = self._history(change.ref.kind)
            if change.removed:
                history.remove(change.ref.key)
            else:
                history.put(change.ref.key, change.after)
            self._index(change.ref, change.before, None if change.removed else change.after)
            history.log.append(change)
            while len(history.log) > self._window:
                history.floor = history.log.popleft().revision
            self._revision = change.revision

    def compact(self) -> None:
        """Discard the log: every watch that is behind, and every continue token, gets 410 and lists again."""
        for history in self._histories.values():
            history.log.clear()
            history.floor = self._revision
        self._start = self._revision

    def replica(self) -> "Store":
        """Return another store with the same objects and revision, and an empty log."""
        histories = self._histories.items()
        objects = ((Ref(kind, key), stored) for kind, history in histories for key, stored in history.objects.items())
        return Store(self._revision, objects, window=0)

    def by_uid(self, uid: str) -> Ref | None:
        """Return the reference to the live object with that uid, or None."""
        return self._by_uid.get(uid)

    def dependents(self, uid: str) -> Sequence[Ref]:
        """Return references to the objects whose ownerReferences name that uid, in a stable order."""
        return sorted(self._dependents.get(uid, ()), key=lambda ref: (ref.kind, ref.key))

    def refs(self) -> Iterator[Ref]:
        """Yield a reference to every object."""
        for kind, history in self._histories.items():
            for key in history.objects:
                yield Ref(kind, key)

    def _history(self, kind: str) -> _KindHistory:
        history = self._histories.get(kind)
        if history is None:
            history = self._histories[kind] = _KindHistory(floor=self._start)
        return history

    def _index(self, ref: Ref, before: Object | None, after: Object | None) -> None:
        if before is not None:
            self._by_uid.pop(before["metadata"]["uid"], None)
            for uid in _owner_uids(before):
                dependents = self._dependents.get(uid, set())
                dependents.discard(ref)
                if not dependents:
                    self._dependents.pop(uid, None)
        if after is not None:
            self._by_uid[after["metadata"]["uid"]] = ref
            for uid in _owner_uids(after):
                self._dependents.setdefault(uid, set()).add(ref)


def _owner_uids(stored: Object) -> Iterator[str]:
    for owner in stored["metadata"].get("ownerReferences") or ():
        yield owner["uid"]


class Transaction:
    """A write in progress: its reads see the store plus what it has staged; nothing else sees that.

    The writer holds the server's write lock from here to `Store.apply`, so the revisions that it takes are the next
    ones. A dry run takes none: an object that it would create has no resourceVersion, one that it would change keeps
    its own.
    """

    def __init__(self, store: Store, *, dry_run: bool = False) -> None:
        self._store = store
        self._dry_run = dry_run
        self._staged: dict[Ref, Object | None] = {}
        self._changes: list[Change] = []

    @property
    def store(self) -> Store:
        """The committed state."""
        return self._store

    @property
    def revision(self) -> int:
        """The revision of the state with the staged changes."""
        return self._store.revision + len(self._changes)

    @property
    def changes(self) -> Sequence[Change]:
        """The staged changes, in order."""
        return self._changes

    def get(self, ref: Ref) -> Object | None:
        """Return the object as this transaction would leave it."""
        return self._staged[ref] if ref in self._staged else self._store.get(ref)

    def put(self, ref: Ref, new: Object) -> Object:
        """Stage a creation or an update; returns the object with its new resourceVersion."""
        return self._stage(ref, new, removed=False)

    def remove(self, ref: Ref, last: Object) -> Object:
        """Stage a removal; `last` is the object's final state, as the DELETED event will show it."""
        return self._stage(ref, last, removed=True)

    def _stage(self, ref: Ref, new: Object, *, removed: bool) -> Object:
        revision, before = self.revision + 1, self.get(ref)
        stored = StoredObject(new)
        stored["metadata"] = metadata = {**new["metadata"], "resourceVersion": str(revision)}
        if self._dry_run:
            metadata.pop("resourceVersion")
            if before is not None:
                metadata["resourceVersion"] = before["metadata"]["resourceVersion"]
        self._changes.append(Change(revision, ref, before, stored, removed))
        self._staged[ref] = None if removed else stored
        return stored


def _by_name(key: Key) -> tuple[str, str]:
    """Return the sort key of lists; plain tuples compare several times faster than keys do."""
    return key.namespace, key.name
