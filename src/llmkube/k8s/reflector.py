"""Keep a local copy of a collection up to date, whatever the server and the network do to the watch.

Deletions:

* Only a DELETED event, or a complete list without the object, removes it. An outage, a failed or partial list, an old
  response or a page of HTML never does.
* A list without more than half of the known objects (an empty one, in particular), or older than what has been seen, is
  accepted only when a second quorum read confirms it. Then the collection is listed a few more times: a watch never
  mentions objects that exist and do not change, so one that two lists missed by mistake would be lost.
* With `cautious`, the same applies to deletions that a watch sends within a short time: once they remove more than
  half, a list ten seconds later decides. A single deletion is accepted at once.
* A kind that is no longer served is not a deletion of its objects. The API server deletes the objects of a deleted
  CustomResourceDefinition, and the watch sends these deletions first: with `keep_unserved`, none is accepted while the
  definition is missing or is being deleted.

Staleness:

* A dead connection is detected after `watch.READ_IDLE_SECONDS`.
* After `RESUMES_BEFORE_LIST` consecutive watches that failed, or ended without an event or bookmark, the next attempt
  is a list; immediately when a watch was silent from its start. An open watch does not prove that the server knows our
  resourceVersion: after a restore of etcd, kube-apiserver accepts one from the future and sends nothing.
"""

import math
import random
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, Final, Generic, Never, TypeVar

import structlog
import trio

from llmkube.base.backoff import Backoff
from llmkube.k8s.client import Client, Listing
from llmkube.k8s.codec import DecodeError, decode, resource_version_of, without_managed_fields
from llmkube.k8s.errors import ApiError, GoneError, TransportError, WatchDataError, WatchSilentError
from llmkube.k8s.resource import Key, Object
from llmkube.k8s.watch import Watch, WatchEvent
from llmkube.k8s.wire.names import is_object_name

T = TypeVar("T", bound=Object)

LIST_SECONDS: Final = 60.0
"""The timeout of kube-apiserver itself."""

STABLE_SECONDS: Final = 10.0
"""The age at which a watch is a success, which resets the back-off."""

SERVED_SECONDS: Final = 1.0
"""The interval of the checks whether a kind is served, while deletions arrive."""

CONFIRM_SECONDS: Final = 10.0
"""The wait before a suspect list is confirmed: long enough for a starting server to load its data."""

DELETION_GAP_SECONDS: Final = 5.0
"""Deletions no further apart than this are assessed together; `kubectl delete --all` sends 50 a second."""

RECHECK_SECONDS: Final = (15, 30, 60, 60, 120)
"""The intervals of further lists after a suspect one has been accepted."""

RESUMES_BEFORE_LIST: Final = 3
"""With a restored etcd, a future version gets a 504 or silence, never 410: resuming alone would never recover."""

WATCH_SECONDS: Final = (240, 300)
"""The range of a watch's random duration, so that a fleet does not reconnect in step."""

RECONNECT: Final = Backoff(base_seconds=0.8, cap_seconds=30.0, factor=2.0, jitter=0.5)

_log = structlog.get_logger()


class Cache(Generic[T]):
    """The last known state of a collection, readable without waiting; only its reflector writes to it.

    Attributes:
        synced: Set after the first complete list.
        synced_or_unserved: Set then, or once the API server answers that it does not serve the kind.
        answered: Set after the first response to a list, even a refusal.
        refusal: The error of the last list; empty after a success.
        unconfirmed: Objects that a watch reported as deleted; they remain in the cache until a list confirms it.
        confirm_at: The time of that list, in seconds of Trio's clock.
    """

    def __init__(self) -> None:
        self.synced = trio.Event()
        self.synced_or_unserved = trio.Event()
        self.answered = trio.Event()
        self.refusal = ""
        self.unconfirmed: set[Key] = set()
        self.confirm_at = 0.0
        self._before_deletions: frozenset[Key] = frozenset()  # the objects before the current run of deletions
        self._deletions_end_at = 0.0
        self._position = ""
        self._versions: dict[Key, str] = {}  # every object that exists, readable or not
        self._objects: dict[Key, T] = {}
        self._decode_errors: dict[Key, DecodeError] = {}

    def expect(self, keys: Iterable[Key]) -> None:
        """Before the first list, add objects that existed earlier; a list without them is suspect."""
        self._versions |= dict.fromkeys(keys, "")

    @property
    def position(self) -> str:
        """The resourceVersion up to which changes are applied; empty before the first list."""
        return self._position

    def get(self, key: Key) -> T | None:
        """Return the object as last seen, or None if no such object is known."""
        return self._objects.get(key)

    def items(self) -> tuple[tuple[Key, T], ...]:
        """Return all objects with their keys, as a snapshot."""
        return tuple(self._objects.items())

    def values(self) -> tuple[T, ...]:
        """Return all objects, as a snapshot."""
        return tuple(self._objects.values())

    def decode_error(self, key: Key) -> DecodeError | None:
        """Return the error if an object's newest state is unreadable; `get` still returns the last readable one."""
        return self._decode_errors.get(key)

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, key: object) -> bool:
        return key in self._objects

    def apply(self, event: WatchEvent[T]) -> bool:
        """Apply one event; return False for bookmarks and for known states."""
        before, self._position = self._position, newer_position(self._position, event.resource_version)
        if event.type == "BOOKMARK":
            return False
        key = event.key
        if event.type == "DELETED":
            return not is_older(event.resource_version, self._versions.get(key, "")) and self._forget(key)
        if key not in self._versions and is_older(event.resource_version, before):
            return False  # a replayed event of an object that has been deleted since
        return self._store(event.kind, key, event.raw, lambda: event.object)

    def is_suspect(self, listing: Listing[T]) -> bool:
        """Return whether a list contradicts the known state so strongly that a second read must confirm it."""
        lost = self.lost(listing)
        return len(lost) * 2 > len(self._versions) or is_older(listing.resource_version, self._position)

    def lost(self, listing: Listing[T]) -> set[Key]:
        """Return the known objects that are not in a list."""
        return self._versions.keys() - {Key.of(raw) for raw in listing.raw}

    def must_confirm(self, event: WatchEvent[T], buffered: Callable[[], Iterable[WatchEvent[T]]], now: float) -> bool:
        """Return whether a list must confirm a deletion, because recent ones remove more than half; if so, record it.

        Args:
            event: A DELETED event, not applied yet.
            buffered: Returns the events that were received with it.
            now: Seconds of Trio's clock.
        """
        key = event.key
        if key not in self._versions or is_older(event.resource_version, self._versions[key]):
            return False  # known already
        if not self.unconfirmed:
            if now >= self._deletions_end_at:
                self._before_deletions = frozenset(self._versions)
            self._deletions_end_at = now + DELETION_GAP_SECONDS
            final_types = {key: "DELETED"} | {one.key: one.type for one in buffered() if one.type != "BOOKMARK"}
            left = {one for one in self._versions if final_types.get(one) != "DELETED"}
            if not is_mass_deletion(len(self._before_deletions - left), len(self._before_deletions)):
                return False
            self.confirm_at = now + CONFIRM_SECONDS
        self.unconfirmed.add(key)
        return True

    def replace(self, listing: Listing[T]) -> list[Key]:
        """Apply a complete list; return the keys whose state changed, those of removed objects first."""
        if is_older(listing.resource_version, self._position):  # the server was restored: known versions are void
            self._versions = dict.fromkeys(self._versions, "")
        self._position = listing.resource_version
        self.unconfirmed.clear()
        present = {Key.of(raw): raw for raw in listing.raw}
        gone = sorted(self._versions.keys() - present.keys())
        for key in gone:
            self._forget(key)
        kind = listing.kind
        return gone + [key for key, raw in present.items() if self._store(kind, key, raw, partial(_read, kind, raw))]

    def record_list_error(self, error: ApiError) -> None:
        """Record that a list has failed; the known objects remain."""
        self.refusal = str(error)
        if error.code:
            self.answered.set()
        if error.code == 404:
            self.synced_or_unserved.set()

    def _forget(self, key: Key) -> bool:
        self._objects.pop(key, None)
        self._decode_errors.pop(key, None)
        return self._versions.pop(key, None) is not None

    def _store(self, kind: type[T], key: Key, raw: Mapping[str, Any], read: Callable[[], T]) -> bool:
        version = resource_version_of(raw)
        known = self._versions.get(key)
        if known and (version == known or is_older(version, known)):
            return False
        self._versions[key] = version
        self.unconfirmed.discard(key)
        try:
            _check_names(key)
            self._objects[key] = read()
            self._decode_errors.pop(key, None)
        except DecodeError as error:
            _log.warning("object not readable", kind=kind.RESOURCE.kind, key=str(key), error=str(error))
            self._decode_errors[key] = error
        return True


def _check_names(key: Key) -> None:
    """Reject names that a real API server would refuse: hosts name files and folders after objects.

    Raises:
        DecodeError: The name or the namespace is not a DNS-1123 subdomain.
    """
    for field, name in (("metadata.name", key.name), ("metadata.namespace", key.namespace)):
        if name and not is_object_name(name):  # the client has checked that there is a name
            raise DecodeError(f"expected a DNS-1123 subdomain, got {name!r}", field=field)


async def run_reflector(
    client: Client,
    kind: type[T],
    cache: Cache[T],
    notify: Callable[[Key], None],
    *,
    namespace: str | None = None,
    label_selector: str = "",
    cautious: bool = False,
    keep_unserved: bool = False,
    fatal: Collection[int] = (),
    rng: random.Random,
    backoff: Backoff = RECONNECT,
) -> Never:
    """List and watch a kind into `cache` until cancelled; retry after every failure of the API server except `fatal`.

    Args:
        client: The API server.
        kind: The kind to watch.
        cache: Written only here; wait for `cache.synced` before relying on an absence.
        notify: Called with the key of every object that changed, disappeared or is `unconfirmed`, after the cache was
            updated. It must not block; an exception from it is a bug and propagates.
        namespace: None watches all namespaces.
        label_selector: In kubectl's syntax.
        cautious: Whether deletions of more than half within seconds wait for a list to confirm them.
        keep_unserved: Whether objects are kept while the definition of their kind is missing or being deleted.
        fatal: HTTP statuses that are raised, for a collection that the program can do without.
        rng: Jitter for the watch durations and the back-off.
        backoff: The delays after consecutive failures.

    Raises:
        ApiError: One of `fatal`.
    """
    where: dict[str, Any] = {"namespace": namespace, "label_selector": label_selector}
    check = _DeletionCheck(client, kind, keep_unserved)
    read = partial(_list, client, kind, where)
    must_list = True
    failures = 0
    empty_runs = 0  # consecutive watches that ended without any event
    rechecks: tuple[int, ...] = ()  # remaining intervals of further lists after a suspect one was accepted
    while True:
        stable = False
        problem: ApiError | None = None
        try:
            if must_list:
                rechecks = RECHECK_SECONDS if await _refresh(kind, read, cache, notify, check) else rechecks[1:]
                must_list, empty_runs = False, 0
            watch_seconds = rechecks[0] if rechecks else rng.randint(*WATCH_SECONDS)
            opening = client.open_watch(kind, resource_version=cache.position, timeout_seconds=watch_seconds, **where)
            async with opening as watch:
                opened_at = trio.current_time()
                try:
                    await _apply_events(watch, cache, notify, check, cautious=cautious)
                finally:
                    stable = trio.current_time() - opened_at >= STABLE_SECONDS
                    empty_runs = 0 if watch.received_any else empty_runs + 1
        except ApiError as error:
            if error.code in fatal:
                raise
            problem = error
            if must_list:
                cache.record_list_error(error)
        must_list = must_list or bool(rechecks or cache.unconfirmed) or empty_runs >= RESUMES_BEFORE_LIST
        if stable and problem is None:
            failures = 0
            continue
        failures = 1 if stable else failures + 1
        must_list = must_list or failures >= RESUMES_BEFORE_LIST or _must_relist(problem, empty_runs)
        delay_seconds = backoff.delay(failures, rng)
        _log.warning(
            "watch interrupted",
            kind=kind.RESOURCE.kind,
            error=str(problem or "the server closed it immediately"),
            failures=failures,
            retry_seconds=round(delay_seconds, 1),
        )
        await trio.sleep(delay_seconds)


def _must_relist(problem: ApiError | None, empty_runs: int) -> bool:
    """Return whether resuming from the same resourceVersion would only repeat the failure."""
    return isinstance(problem, GoneError | WatchDataError) or (isinstance(problem, WatchSilentError) and empty_runs > 0)


async def _list(client: Client, kind: type[T], where: Mapping[str, Any]) -> Listing[T]:
    with trio.move_on_after(LIST_SECONDS):
        return await client.list(kind, **where)
    raise TransportError(f"list of {kind.RESOURCE.plural} took longer than {LIST_SECONDS:g} s")


class _DeletionCheck:
    """Checks that a deletion is not that of the whole kind, at most once a second."""

    def __init__(self, client: Client, kind: type[Object], keep_unserved: bool) -> None:
        self._client, self._kind, self._is_on, self._checked_at = client, kind, keep_unserved, -math.inf

    async def __call__(self) -> None:
        """Raise ApiError unless the kind is served and its definition is not being deleted."""
        if not self._is_on or trio.current_time() < self._checked_at + SERVED_SECONDS:
            return
        resource = self._kind.RESOURCE
        if resource.plural not in await self._client.served_kinds(resource.group, resource.version):
            raise ApiError(f"{resource.full_name}: its definition is missing or being deleted; its objects are kept")
        self._checked_at = trio.current_time()


async def _refresh(
    kind: type[T],
    read: Callable[[], Awaitable[Listing[T]]],
    cache: Cache[T],
    notify: Callable[[Key], None],
    check: _DeletionCheck,
) -> bool:
    """List into the cache; a suspect list is read once more, and the second result applies.

    If a watch has sent suspect deletions, the first list is their confirmation.

    Returns:
        Whether the accepted list is still suspect; so is an empty first list, which is applied without delay.
    """
    unconfirmed = frozenset(cache.unconfirmed)
    if unconfirmed:
        await trio.sleep_until(cache.confirm_at)
    listing = await read()
    if not unconfirmed and cache.is_suspect(listing):
        _log.warning(
            "list rejected: most objects are missing; listing again",
            kind=kind.RESOURCE.kind,
            listed=len(listing.raw),
            known=len(cache),
        )
        await trio.sleep(CONFIRM_SECONDS)
        listing = await read()
    if cache.lost(listing):
        await check()
    suspect = cache.is_suspect(listing) or not (listing.raw or cache.synced.is_set())
    changed = cache.replace(listing)
    cache.refusal = ""
    cache.answered.set()
    cache.synced.set()
    cache.synced_or_unserved.set()
    if unconfirmed:
        gone = sum(key not in cache for key in unconfirmed)
        _log.info("deletions checked by a list", kind=kind.RESOURCE.kind, gone=gone, reported=len(unconfirmed))
    for key in changed:
        notify(key)
    return suspect


async def _apply_events(
    watch: Watch[T], cache: Cache[T], notify: Callable[[Key], None], check: _DeletionCheck, *, cautious: bool
) -> None:
    """Apply events until the server ends the watch, or suspect deletions are due to be confirmed."""
    with trio.CancelScope() as confirm_scope:
        while (event := await watch.next_event()) is not None:
            if event.type == "DELETED":
                await check()
            if cautious and event.type == "DELETED" and cache.must_confirm(event, watch.buffered, trio.current_time()):
                if confirm_scope.deadline > cache.confirm_at:
                    _log.warning(
                        "deletions deferred: most objects were deleted at once; a list must confirm them",
                        kind=watch.kind.RESOURCE.kind,
                        known=len(cache),
                        seconds=CONFIRM_SECONDS,
                    )
                confirm_scope.deadline = cache.confirm_at
                notify(event.key)
            elif cache.apply(event):
                notify(event.key)


def _read(kind: type[T], raw: Mapping[str, Any]) -> T:
    return decode(kind, without_managed_fields(raw))


def is_mass_deletion(lost: int, before: int) -> bool:
    """Return whether deletions remove more than half of the objects; a single deletion is never suspect."""
    return lost > 1 and 2 * lost > before


def is_older(version: str, than: str) -> bool:
    """Compare resourceVersions; False when either is not a number.

    They are etcd revisions in every server that passes kube-apiserver's storage conformance tests (KEP-5504 guarantees
    it); other versions are compared only for equality.
    """
    return version.isdecimal() and than.isdecimal() and int(version) < int(than)


def newer_position(known: str, version: str) -> str:
    """Return the position after an event; it never moves backwards, whatever the server sends."""
    return known if not version or is_older(version, known) else version
