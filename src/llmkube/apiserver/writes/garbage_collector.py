"""Garbage collection: dependents of deleted owners, contents of namespaces, instances of CRDs, and old Events.

The collector is notified of every change and keeps a set of objects to check; it decides from their current state,
never from the change, so a restart that begins with all objects (`enqueue_all`) loses nothing.
Facts: Kubernetes "Garbage Collection": an object is deleted when all of its owners are gone; `blockOwnerDeletion`
blocks a foreground deletion; `orphan` keeps the dependents.

Events expire: one is removed an hour after the last write to it, and of very many only the newest stay. kube-apiserver
gives each Event a lease in etcd, renewed by every write (`--event-ttl`, 1 h). Here the time of the last write is
derived from the server's own timestamps in the object, so a restart loses nothing.
"""

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final

from llmkube.apiserver.fields.ownership import Endpoint, record_write
from llmkube.apiserver.kinds.catalog import CRDS, NAMESPACES, Catalog
from llmkube.apiserver.storage.revisions import Change, Object, Ref, Store, Transaction
from llmkube.apiserver.values.json_values import set_or_drop
from llmkube.apiserver.writes.deletion import FOREGROUND, INSTANCES, ORPHAN, delete, stage, without_finalizer
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.times import parse_timestamp

MANAGER: Final = "garbage-collector"
"""Field manager of the changes made here."""

BATCH: Final = 64
"""Objects checked in one transaction: a large cascade must not keep other writers waiting."""


class GarbageCollector:
    """Finishes deletions, a batch at a time. Pure: `step` stages writes into the transaction that it is given."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._dirty: dict[Ref, None] = {}  # an ordered set

    @property
    def idle(self) -> bool:
        """Whether no object is left to check."""
        return not self._dirty

    def enqueue_all(self, store: Store) -> None:
        """Enqueue every object that may need work: pending work is not stored, so a restart begins here."""
        self._enqueue(ref for ref in store.refs() if _needs_work(_metadata(store.get(ref))))

    def observe(self, changes: Iterable[Change], store: Store) -> None:
        """Enqueue the objects that committed changes may affect."""
        for change in changes:
            metadata = change.after["metadata"]
            if change.removed:
                self._enqueue(store.dependents(metadata["uid"]))
                self._enqueue(_waiting_refs(change, store))
            elif _needs_work(metadata):
                self._enqueue([change.ref])

    def step(self, tx: Transaction, now: str) -> None:
        """Stage the changes for the next batch of objects; if the write fails, `enqueue_all` begins again."""
        for ref in list(self._dirty)[:BATCH]:
            del self._dirty[ref]
            stored = tx.get(ref)
            if stored is not None:
                self._process(tx, ref, stored, now)

    def _enqueue(self, refs: Iterable[Ref]) -> None:
        self._dirty.update(dict.fromkeys(refs))

    def _process(self, tx: Transaction, ref: Ref, stored: Object, now: str) -> None:
        metadata = stored["metadata"]
        if "deletionTimestamp" not in metadata:
            if metadata.get("ownerReferences"):
                self._process_owned(tx, ref, stored, now)
            return
        finalizers = metadata.get("finalizers") or ()
        if ORPHAN in finalizers:
            self._orphan(tx, ref, stored, now)
        elif FOREGROUND in finalizers:
            self._foreground(tx, ref, stored, now)
        elif ref.kind == NAMESPACES:
            self._empty_namespace(tx, ref, stored, now)
        elif ref.kind == CRDS and INSTANCES in finalizers:
            self._remove_instances(tx, ref, stored, now)

    def _process_owned(self, tx: Transaction, ref: Ref, stored: Object, now: str) -> None:
        """Keep an object with a living owner, without its references to the others; delete one with none."""
        owners = stored["metadata"]["ownerReferences"]
        states = [self._owner_state(tx, ref.key.namespace, owner) for owner in owners]
        solid = [owner for owner, state in zip(owners, states, strict=True) if state == "solid"]
        if len(solid) == len(owners):
            return
        if solid:
            trimmed = {**stored, "metadata": {**stored["metadata"], "ownerReferences": solid}}
            self._rewrite(tx, ref, stored, trimmed, now)
        elif "waiting" in states and tx.store.dependents(stored["metadata"]["uid"]):
            delete(tx, ref, stored, now, "Foreground")  # the owner waits for this, and this for its dependents
        else:
            delete(tx, ref, stored, now)

    def _owner_state(self, tx: Transaction, namespace: str, owner: Mapping[str, Any]) -> str:
        kind = self._catalog.find_kind(owner["apiVersion"], owner["kind"])
        if kind is None:
            return "solid"  # its kind is not served: the owner may exist
        owner_ref = Ref(kind.resource.full_name, Key(namespace if kind.resource.namespaced else "", owner["name"]))
        live = tx.get(owner_ref)
        if live is None or live["metadata"]["uid"] != owner["uid"]:
            return "gone"
        metadata = live["metadata"]
        deleting = "deletionTimestamp" in metadata and FOREGROUND in (metadata.get("finalizers") or ())
        return "waiting" if deleting else "solid"

    def _rewrite(self, tx: Transaction, ref: Ref, old: Object, new: Object, now: str) -> None:
        """Stage a change of metadata, with its effect on field ownership."""
        kind = self._catalog.versions(ref.kind)[0]
        tx.put(ref, record_write(old, new, MANAGER, Endpoint(kind.schema), now=now))

    def _orphan(self, tx: Transaction, ref: Ref, stored: Object, now: str) -> None:
        uid = stored["metadata"]["uid"]
        for dependent_ref in tx.store.dependents(uid):
            dependent = tx.get(dependent_ref)
            if dependent is None:
                continue
            metadata = dict(dependent["metadata"])
            kept = [owner for owner in metadata.get("ownerReferences") or () if owner["uid"] != uid]
            set_or_drop(metadata, "ownerReferences", kept)
            self._rewrite(tx, dependent_ref, dependent, {**dependent, "metadata": metadata}, now)
        stage(tx, ref, without_finalizer(stored, ORPHAN))

    def _foreground(self, tx: Transaction, ref: Ref, stored: Object, now: str) -> None:
        uid = stored["metadata"]["uid"]
        blocked = False
        for dependent_ref in tx.store.dependents(uid):
            dependent = tx.get(dependent_ref)
            if dependent is None:
                continue
            if "deletionTimestamp" not in dependent["metadata"]:
                self._process_owned(tx, dependent_ref, dependent, now)
                dependent = tx.get(dependent_ref)
            if dependent is not None and _blocks(dependent, uid):
                blocked = True
        if not blocked:
            stage(tx, ref, without_finalizer(stored, FOREGROUND))

    def _empty_namespace(self, tx: Transaction, ref: Ref, stored: Object, now: str) -> None:
        namespace = ref.key.name
        remaining = False
        for storage in self._catalog.storages():
            if storage not in {NAMESPACES, CRDS}:
                remaining |= self._delete_all(tx, storage, namespace, now)
        if remaining:
            return
        spec = {**stored.get("spec", {}), "finalizers": []}
        stage(tx, ref, {**stored, "spec": spec})

    def _remove_instances(self, tx: Transaction, ref: Ref, stored: Object, now: str) -> None:
        if not self._delete_all(tx, ref.key.name, "", now):
            stage(tx, ref, without_finalizer(stored, INSTANCES))

    def _delete_all(self, tx: Transaction, storage: str, namespace: str, now: str) -> bool:
        """Delete all objects of a kind; return whether finalizers hold any of them."""
        remaining = False
        for key, _ in tx.store.list(storage, namespace):
            instance_ref = Ref(storage, key)
            current = tx.get(instance_ref)
            if current is not None:
                _, gone = delete(tx, instance_ref, current, now)
                remaining |= not gone
        return remaining


def _waiting_refs(gone: Change, store: Store) -> list[Ref]:
    """Return the objects that may have waited for this one: its foreground-deleted owners, its namespace, its CRD."""
    owners = gone.after["metadata"].get("ownerReferences") or ()
    refs = [store.by_uid(owner["uid"]) for owner in owners]
    refs.append(Ref(NAMESPACES, Key("", gone.ref.key.namespace)))
    refs.append(Ref(CRDS, Key("", gone.ref.kind)))
    return [ref for ref in refs if ref is not None and "deletionTimestamp" in _metadata(store.get(ref))]


def _metadata(stored: Object | None) -> Mapping[str, Any]:
    return {} if stored is None else stored["metadata"]


def _needs_work(metadata: Mapping[str, Any]) -> bool:
    return bool(metadata.get("ownerReferences")) or "deletionTimestamp" in metadata


def _blocks(dependent: Object, uid: str) -> bool:
    owners = dependent["metadata"].get("ownerReferences") or ()
    return any(owner["uid"] == uid and owner.get("blockOwnerDeletion") for owner in owners)


EVENTS: Final = "events"

LIFETIME: Final = timedelta(hours=1)

MAX_EVENTS: Final = 4096
"""Beyond this number, the oldest Events expire early: a program that reports all day must not fill the disk."""

EXPIRY_BATCH: Final = 256
"""Removals in one transaction: other writers wait for it."""

_parse_time: Final = lru_cache(maxsize=2 * MAX_EVENTS)(parse_timestamp)  # called for all Events once a minute
_NEVER: Final = datetime.min.replace(tzinfo=UTC)


def overdue(events: Iterable[tuple[Key, Object]], now: datetime, *, limit: int = MAX_EVENTS) -> list[Key]:
    """Return the keys of the Events that are due for removal, the oldest first."""
    by_age = sorted(((last_written(event), key) for key, event in events), key=itemgetter(0))
    surplus = max(len(by_age) - limit, 0)
    return [key for number, (when, key) in enumerate(by_age) if number < surplus or now - when >= LIFETIME]


def last_written(event: Object) -> datetime:
    """Return the time of the last accepted write to the object, to the second."""
    metadata = event["metadata"]
    stamps = [metadata.get("creationTimestamp"), *(entry.get("time") for entry in metadata.get("managedFields") or ())]
    return max(filter(None, map(_parse_time, filter(None, stamps))), default=_NEVER)


def expire(tx: Transaction, now: datetime) -> None:
    """Stage the removal of a batch of overdue Events."""
    for key in overdue(tx.store.list(EVENTS), now)[:EXPIRY_BATCH]:
        ref = Ref(EVENTS, key)
        event = tx.get(ref)
        if event is not None:
            tx.remove(ref, event)


def seconds_to_next(events: Iterable[tuple[Key, Object]], now: datetime, *, limit: int = MAX_EVENTS) -> float:
    """Return the time until the next check: 0 when an Event is due, infinity when there are none."""
    written = [last_written(event) for _, event in events]
    if len(written) > limit:
        return 0.0
    return max((min(written) + LIFETIME - now).total_seconds(), 0.0) if written else math.inf
