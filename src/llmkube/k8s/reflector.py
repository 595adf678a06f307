"""Keep a local copy of a collection true, whatever the server and the network do to the watch.

The copy errs on the side of keeping: an outage, a failed or partial list, an old answer or a page of HTML never remove
anything. What removes an object is a DELETED event, or a whole list without it; and a list that loses more than half of
what is known (an empty one, in particular), or that is older than what has been seen, is believed only when a second
quorum read says so too. And then it is read again a few times: a watch never mentions what exists and does not change,
so an object missing from two lists by mistake would be lost. With `cautious`, the same applies to deletions
that a watch sends one soon after the other: once they take more than half, a list ten seconds later decides. A single
one is believed at once.

How stale the copy can get: a dead connection is noticed after `watch.READ_IDLE_SECONDS`. The next attempt is a list
when `RESUMES_BEFORE_LIST` in a row have failed, or have ended without one event or bookmark; and at once when a watch
was silent for all of those seconds from its beginning. An open watch is no proof that the server knows our place: after
a restore of etcd, kube-apiserver accepts a resourceVersion from its future and never says a word.
"""

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
"""kube-apiserver itself gives up on a request after 60 s."""

STABLE_SECONDS: Final = 10.0
"""A watch that lived this long was a success: back-off starts afresh."""

CONFIRM_SECONDS: Final = 10.0
"""Before a doubtful list is believed: long enough for a server that is just starting to have found its data."""

DELETION_GAP_SECONDS: Final = 5.0
"""Deletions with no longer pause between them are one loss; `kubectl delete --all` sends 50 a second."""

RECHECK_SECONDS: Final = (15, 30, 60, 60, 120)
"""After a doubtful list has been believed more of them follow, each so long after the one before."""

RESUMES_BEFORE_LIST: Final = 3
"""A restored etcd answers 504 or nothing, never 410, to a version from its future: resuming alone would never end."""

WATCH_SECONDS: Final = (240, 300)
"""Each watch's length is drawn from this range, so that a fleet does not reconnect in step."""

RECONNECT: Final = Backoff(base_seconds=0.8, cap_seconds=30.0, factor=2.0, jitter=0.5)

_log = structlog.get_logger()


class Cache(Generic[T]):
    """The last known state of a collection, read without waiting; only its reflector writes to it.

    Attributes:
        synced: Set once the first whole list is in.
        answered: Set once the API server has answered a list, be it with a refusal.
        refusal: Why the last list failed; empty since one has come.
        unconfirmed: What a watch says was deleted, and a list has still to confirm; until then it counts as existing.
        confirm_at: When that list is due, in seconds of Trio's clock.
    """

    def __init__(self) -> None:
        self.synced = trio.Event()
        self.answered = trio.Event()
        self.refusal = ""
        self.unconfirmed: set[Key] = set()
        self.confirm_at = 0.0
        self._before_loss: frozenset[Key] = frozenset()  # what there was before the deletions that go on now
        self._loss_ends_at = 0.0
        self._position = ""
        self._versions: dict[Key, str] = {}  # every object that exists, readable or not
        self._objects: dict[Key, T] = {}
        self._decode_errors: dict[Key, DecodeError] = {}

    def expect(self, keys: Iterable[Key]) -> None:
        """Before the first list: these objects existed at the last look; a list without them is doubtful."""
        self._versions |= dict.fromkeys(keys, "")

    @property
    def position(self) -> str:
        """The resourceVersion up to which the server's changes are in; empty before the first list."""
        return self._position

    def get(self, key: Key) -> T | None:
        """Return the object as last seen, or None when there is none as far as we know."""
        return self._objects.get(key)

    def items(self) -> tuple[tuple[Key, T], ...]:
        """Return all objects with their keys, as a snapshot."""
        return tuple(self._objects.items())

    def values(self) -> tuple[T, ...]:
        """Return all objects, as a snapshot."""
        return tuple(self._objects.values())

    def decode_error(self, key: Key) -> DecodeError | None:
        """Say why an object's newest state could not be read; `get` still returns the last readable one."""
        return self._decode_errors.get(key)

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, key: object) -> bool:
        return key in self._objects

    def apply(self, event: WatchEvent[T]) -> bool:
        """Take in one event; True when it changed an object, False for bookmarks and for what is known."""
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
        """Say whether a list contradicts what is known so much that a second read must confirm it."""
        lost = self._versions.keys() - {Key.of(raw) for raw in listing.raw}
        return len(lost) * 2 > len(self._versions) or is_older(listing.resource_version, self._position)

    def must_confirm(self, event: WatchEvent[T], buffered: Callable[[], Iterable[WatchEvent[T]]], now: float) -> bool:
        """Say whether a deletion must be confirmed first, as it and those around it take more than half; note it if so.

        Args:
            event: A DELETED event, not applied yet.
            buffered: Returns the events that have come with it.
            now: Seconds of Trio's clock.
        """
        key = event.key
        if key not in self._versions or is_older(event.resource_version, self._versions[key]):
            return False  # known already
        if not self.unconfirmed:
            if now >= self._loss_ends_at:
                self._before_loss = frozenset(self._versions)
            self._loss_ends_at = now + DELETION_GAP_SECONDS
            final_types = {key: "DELETED"} | {one.key: one.type for one in buffered() if one.type != "BOOKMARK"}
            left = {one for one in self._versions if final_types.get(one) != "DELETED"}
            if not is_mass_deletion(len(self._before_loss - left), len(self._before_loss)):
                return False
            self.confirm_at = now + CONFIRM_SECONDS
        self.unconfirmed.add(key)
        return True

    def replace(self, listing: Listing[T]) -> list[Key]:
        """Take in a whole list; return the keys whose state changed, those of vanished objects first."""
        if is_older(
            listing.resource_version, self._position
        ):  # the server's history was set back: versions mean nothing
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
        """Note that a list has failed; what is known stays."""
        self.refusal = str(error)
        if error.code:
            self.answered.set()

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
            _log.warning("cannot read object", kind=kind.RESOURCE.kind, key=str(key), error=str(error))
            self._decode_errors[key] = error
        return True


def _check_names(key: Key) -> None:
    """Take no object whose name a real API server would refuse: hosts name files and folders after objects.

    Raises:
        DecodeError: The name or the namespace is no DNS-1123 subdomain.
    """
    for field, name in (("metadata.name", key.name), ("metadata.namespace", key.namespace)):
        if name and not is_object_name(name):  # what is of the cluster has no namespace; the client took the name
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
    fatal: Collection[int] = (),
    rng: random.Random,
    backoff: Backoff = RECONNECT,
) -> Never:
    """Fill `cache` and keep it true until cancelled; no failure of the API server ends this, but one of `fatal`.

    Args:
        client: Where to list and watch.
        kind: What to watch.
        cache: Written here and nowhere else; wait for `cache.synced` before believing an absence.
        notify: Called with the key of every object that changed, vanished, or is `unconfirmed`, after the cache was
            updated. It must not block; what it raises is a bug and travels up.
        namespace: None watches all.
        label_selector: As kubectl takes it.
        cautious: Whether deletions that take more than half within seconds wait for a list to confirm them.
        fatal: HTTP statuses that are raised, for a collection that the program can do without.
        rng: Spreads watch lengths and back-off.
        backoff: Delays after failures in a row.

    Raises:
        ApiError: One of `fatal`.
    """
    where: dict[str, Any] = {"namespace": namespace, "label_selector": label_selector}
    read = partial(_list, client, kind, where)
    must_list = True
    failures = 0
    empty_runs = 0  # watches in a row that ended without having said anything
    rechecks: tuple[int, ...] = ()  # when lists are still to come because a doubtful one was believed
    while True:
        stable = False
        problem: ApiError | None = None
        try:
            if must_list:
                rechecks = RECHECK_SECONDS if await _refresh(kind, read, cache, notify) else rechecks[1:]
                must_list, empty_runs = False, 0
            watch_seconds = rechecks[0] if rechecks else rng.randint(*WATCH_SECONDS)
            opening = client.open_watch(kind, resource_version=cache.position, timeout_seconds=watch_seconds, **where)
            async with opening as watch:
                opened_at = trio.current_time()
                try:
                    await _apply_events(watch, cache, notify, cautious=cautious)
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
            error=str(problem or "the server ended it at once"),
            failures=failures,
            retry_seconds=round(delay_seconds, 1),
        )
        await trio.sleep(delay_seconds)


def _must_relist(problem: ApiError | None, empty_runs: int) -> bool:
    """Say whether a watch ended in a way that the next one from the same place would only repeat."""
    return isinstance(problem, GoneError | WatchDataError) or (isinstance(problem, WatchSilentError) and empty_runs > 0)


async def _list(client: Client, kind: type[T], where: Mapping[str, Any]) -> Listing[T]:
    with trio.move_on_after(LIST_SECONDS):
        return await client.list(kind, **where)
    raise TransportError(f"list of {kind.RESOURCE.plural} took longer than {LIST_SECONDS:g} s")


async def _refresh(
    kind: type[T], read: Callable[[], Awaitable[Listing[T]]], cache: Cache[T], notify: Callable[[Key], None]
) -> bool:
    """List into the cache; a doubtful list is read once more, and the second answer counts.

    Where a watch has sent what is doubtful, the list is the second answer.

    Returns:
        Whether what was believed is doubtful still; so is a first list that is empty, which delays nothing.
    """
    unconfirmed = frozenset(cache.unconfirmed)
    if unconfirmed:
        await trio.sleep_until(cache.confirm_at)
    listing = await read()
    if not unconfirmed and cache.is_suspect(listing):
        _log.warning(
            "list lacks most objects; listing again",
            kind=kind.RESOURCE.kind,
            listed=len(listing.raw),
            known=len(cache),
        )
        await trio.sleep(CONFIRM_SECONDS)
        listing = await read()
    suspect = cache.is_suspect(listing) or not (listing.raw or cache.synced.is_set())
    changed = cache.replace(listing)
    cache.refusal = ""
    cache.answered.set()
    cache.synced.set()
    if unconfirmed:
        gone = sum(key not in cache for key in unconfirmed)
        _log.info("list has confirmed deletions", kind=kind.RESOURCE.kind, gone=gone, reported=len(unconfirmed))
    for key in changed:
        notify(key)
    return suspect


async def _apply_events(watch: Watch[T], cache: Cache[T], notify: Callable[[Key], None], *, cautious: bool) -> None:
    """Take in events until the server ends the watch in good order, or a loss is due to be confirmed."""
    with trio.CancelScope() as confirm_scope:
        while (event := await watch.next_event()) is not None:
            if cautious and event.type == "DELETED" and cache.must_confirm(event, watch.buffered, trio.current_time()):
                if confirm_scope.deadline > cache.confirm_at:
                    _log.warning(
                        "most objects were deleted at once: a list will confirm it",
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
    """Say whether deletions take more than half of what there was; a single deletion is never doubted."""
    return lost > 1 and 2 * lost > before


def is_older(version: str, than: str) -> bool:
    """Compare resourceVersions; False when either is not a number.

    They are etcd revisions in every server that kube-apiserver's storage conformance covers (KEP-5504 makes this a
    promise); anything else is compared for equality only.
    """
    return version.isdecimal() and than.isdecimal() and int(version) < int(than)


def newer_position(known: str, version: str) -> str:
    """Return the position after an event: never backwards, whatever a confused server sends."""
    return known if not version or is_older(version, known) else version
