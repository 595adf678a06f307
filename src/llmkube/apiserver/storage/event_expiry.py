"""Events expire: an hour after the last write to one it is gone, and of very many only the newest stay.

kube-apiserver gives each Event a lease of etcd's, renewed by every write (`--event-ttl`, 1 h). Here the time of the
last write is read off what the server itself has stamped on the object, so a restart loses nothing.
"""

import math
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from operator import itemgetter
from typing import Final

from llmkube.apiserver.storage.revisions import Object, Ref, Transaction
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.times import parse_timestamp

EVENTS: Final = "events"

LIFETIME: Final = timedelta(hours=1)

MOST_EVENTS: Final = 4096
"""Beyond so many, the oldest go before their time: a program that complains all day must not fill the disk."""

BATCH: Final = 256
"""Removals in one transaction: other writers wait for it."""

_read: Final = lru_cache(maxsize=2 * MOST_EVENTS)(parse_timestamp)  # of all Events once a minute, in whole seconds
_NEVER: Final = datetime.min.replace(tzinfo=UTC)


def overdue(events: Iterable[tuple[Key, Object]], now: datetime, *, most: int = MOST_EVENTS) -> list[Key]:
    """Return which of the Events have had their time, the oldest first."""
    by_age = sorted(((last_written(event), key) for key, event in events), key=itemgetter(0))
    surplus = max(len(by_age) - most, 0)
    return [key for number, (when, key) in enumerate(by_age) if number < surplus or now - when >= LIFETIME]


def last_written(event: Object) -> datetime:
    """Return when the server last accepted a write to the object, to the second."""
    metadata = event["metadata"]
    stamps = [metadata.get("creationTimestamp"), *(entry.get("time") for entry in metadata.get("managedFields") or ())]
    return max(filter(None, map(_read, filter(None, stamps))), default=_NEVER)


def expire(tx: Transaction, now: datetime) -> None:
    """Stage the removal of a batch of Events that have had their time."""
    for key in overdue(tx.store.list(EVENTS), now)[:BATCH]:
        ref = Ref(EVENTS, key)
        event = tx.get(ref)
        if event is not None:
            tx.remove(ref, event)


def seconds_to_next(events: Iterable[tuple[Key, Object]], now: datetime, *, most: int = MOST_EVENTS) -> float:
    """Return when to look again: 0 when something is due, infinity when there is nothing."""
    written = [last_written(event) for _, event in events]
    if len(written) > most:
        return 0.0
    return max((min(written) + LIFETIME - now).total_seconds(), 0.0) if written else math.inf
