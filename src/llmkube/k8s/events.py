"""Record Events about objects; the caller never waits and never fails.

Events are best effort: a lost Event is acceptable, a delayed service is not.

* `emit_nowait` only adds to a table of bounded size; Events that do not fit are dropped and counted.
* Equal Events about the same object are one Event whose `count` rises, even before it is written.
* Messages that differ each time (a pid, a number of attempts) are bounded: after `MAX_MESSAGES_PER_REASON` messages
  with one reason, an object's further messages share one Event that has the newest.
* Each object may cause `BURST` writes at once and then one per `REFILL_SECONDS`: a crash loop is one line with a count,
  and a hundred different messages about one object do not displace those about another.
* If the server is unavailable, writes are retried with back-off; if it refuses an Event, the Event is dropped.

The Events are core/v1 (`count`, `firstTimestamp`, `lastTimestamp`), which `kubectl describe` and `kubectl get events`
read, with both `reportingComponent` and `reportingInstance` and the older `source`.
"""

import datetime
import random
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any, Final, Literal, Never, TypeVar

import attrs
import structlog
import trio

from llmkube.base.backoff import Backoff
from llmkube.base.errors import ExternalError
from llmkube.base.messages import redact, shorten
from llmkube.k8s.builtins import Event
from llmkube.k8s.client import Client
from llmkube.k8s.codec import encode
from llmkube.k8s.crd.meta import ObjectReference
from llmkube.k8s.errors import AlreadyExistsError, ApiError, ForbiddenError, NotFoundError
from llmkube.k8s.rbac import Permission
from llmkube.k8s.resource import Key, Object
from llmkube.k8s.wire.times import timestamp
from llmkube.k8s.workqueue import WorkQueue, run_workers

PERMISSIONS: Final = (Permission(Event, frozenset({"create", "patch"})),)

EventType = Literal["Normal", "Warning"]

MAX_PENDING: Final = 256
"""Maximum number of pending Events."""

MAX_PENDING_PER_OBJECT: Final = 16
"""Maximum number of pending Events about one object; beyond it, the oldest is dropped."""

MAX_REMEMBERED: Final = 1024
"""Maximum number of remembered series, and of objects with rate limits; the oldest are forgotten."""

MAX_MESSAGES_PER_REASON: Final = 5
"""Maximum number of separate Events for messages with the same reason about one object."""

BURST: Final = 10
REFILL_SECONDS: Final = 30.0
WRITE_SECONDS: Final = 10.0
WORKERS: Final = 2
RETRY: Final = Backoff(base_seconds=1.0, cap_seconds=60.0)

STALE_SECONDS: Final = 1800.0
"""The age at which an unwritten Event is dropped; kube-apiserver stores Events for an hour."""

MAX_MESSAGE_BYTES: Final = 1024
MAX_REASON_CHARS: Final = 128
"""Limits of events.k8s.io, to and from which core Events are converted."""

_log = structlog.get_logger()


@attrs.frozen
class Series:
    """The identity of an Event; only time and count vary, and the message where `message` is empty."""

    about: ObjectReference
    type: EventType
    reason: str
    message: str


def _reference(obj: Object) -> ObjectReference:
    resource, metadata = obj.RESOURCE, obj.metadata
    return ObjectReference(
        api_version=resource.api_version,
        kind=resource.kind,
        namespace=metadata.namespace,
        name=metadata.name,
        uid=metadata.uid,
    )


def _object_name(about: ObjectReference) -> str:
    return f"{about.kind} {Key(about.namespace, about.name)}"


@attrs.define
class _PendingEvent:
    """The occurrences since the last write."""

    count: int
    first: datetime.datetime
    last: datetime.datetime
    pending_since: float  # monotonic
    message: str  # the newest


K = TypeVar("K")
V = TypeVar("V")


def _remember(table: OrderedDict[K, V], key: K, value: V) -> None:
    """Store a value as the newest of at most `MAX_REMEMBERED`."""
    table[key] = value
    table.move_to_end(key)
    if len(table) > MAX_REMEMBERED:
        table.popitem(last=False)


@attrs.define(eq=False)
class EventRecorder:
    """Record events about objects; `run` is the task that writes them.

    Attributes:
        component: The reporting program: `llmkube-controller`, `llmkube-agent`.
        instance: The host or the pod of the program.
        utcnow: The wall clock, for the timestamps.
        rng: For names and the jitter of retries.
        dropped: The number of lost Events: there were too many, or the server refused them.
    """

    component: str
    instance: str
    utcnow: Callable[[], datetime.datetime]
    rng: random.Random
    dropped: int = attrs.field(default=0, init=False)
    _pending: OrderedDict[Series, _PendingEvent] = attrs.field(factory=OrderedDict, init=False)
    _pending_per_object: Counter[ObjectReference] = attrs.field(factory=Counter, init=False)
    _messages: OrderedDict[tuple[ObjectReference, EventType, str], list[str]] = attrs.field(
        factory=OrderedDict, init=False
    )
    _written: OrderedDict[Series, tuple[Key, int]] = attrs.field(factory=OrderedDict, init=False)  # name and count
    # remaining writes of an object, and the monotonic time of that count
    _buckets: OrderedDict[ObjectReference, tuple[float, float]] = attrs.field(factory=OrderedDict, init=False)
    _queue: WorkQueue[ObjectReference] = attrs.field(init=False)
    _forbidden: bool = attrs.field(default=False, init=False)
    _progress: trio.Event = attrs.field(factory=trio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        self._queue = WorkQueue(self.rng, RETRY)

    def emit_nowait(self, about: Object, reason: str, message: str, *, type: EventType = "Normal") -> None:  # noqa: A002 (the API's word)
        """Record an Event; never waits, never raises, and the Event may be dropped.

        Args:
            about: The object as read from the API server, with its uid.
            reason: A CamelCase word for programs, such as `CrashLoopBackOff`.
            message: A sentence for people; credentials are redacted, and it is shortened to 1 KiB.
            type: `Warning` if it needs a person's attention.
        """
        text = shorten(redact(message), MAX_MESSAGE_BYTES)
        self._put(self._series(_reference(about), type, reason[:MAX_REASON_CHARS], text), text, self.utcnow())

    async def run(self, client: Client) -> Never:
        """Write pending Events until cancelled; failures of the API server are never raised."""

        async def handle(about: ObjectReference) -> float | None:
            return await self._write_pending(client, about)

        await run_workers(self._queue, handle, workers=WORKERS)

    async def wait_written(self) -> None:
        """Wait until no Event is pending; for a shutdown, with a deadline set by the caller."""
        await trio.lowlevel.checkpoint()
        while self._pending:
            await self._progress.wait()

    def _series(self, about: ObjectReference, type_: EventType, reason: str, message: str) -> Series:
        """Return the series of a message: its own, or the shared one beyond `MAX_MESSAGES_PER_REASON`."""
        known = self._messages.get((about, type_, reason), [])
        _remember(self._messages, (about, type_, reason), known)
        if message not in known:
            if len(known) >= MAX_MESSAGES_PER_REASON:
                return Series(about, type_, reason, "")
            known.append(message)
        return Series(about, type_, reason, message)

    def _put(self, series: Series, message: str, now: datetime.datetime) -> None:
        pending = self._pending.get(series)
        if pending is not None:
            pending.count += 1
            pending.last, pending.message = now, message
            return
        if self._pending_per_object[series.about] >= MAX_PENDING_PER_OBJECT:
            self._drop(next(one for one in self._pending if one.about == series.about))
        elif len(self._pending) >= MAX_PENDING:
            self._drop(next(iter(self._pending)))
        self._pending[series] = _PendingEvent(1, now, now, trio.current_time(), message)
        self._pending_per_object[series.about] += 1
        self._queue.add_nowait(series.about)

    def _drop(self, series: Series) -> None:
        self.dropped += self._take(series).count
        _log.debug("event dropped", about=_object_name(series.about), reason=series.reason, dropped=self.dropped)

    def _take(self, series: Series) -> _PendingEvent:
        pending = self._pending.pop(series)
        self._pending_per_object[series.about] -= 1
        if not self._pending_per_object[series.about]:
            del self._pending_per_object[series.about]
        self._progress.set()
        self._progress = trio.Event()
        return pending

    async def _write_pending(self, client: Client, about: ObjectReference) -> float | None:
        """Write one object's Events; return the seconds after which to continue if its rate limit is reached."""
        while (series := next((one for one in self._pending if one.about == about), None)) is not None:
            pause_seconds = self._spend(about)
            if pause_seconds:
                return pause_seconds
            await self._write_series(client, series)
        return None

    async def _write_series(self, client: Client, series: Series) -> None:
        pending = self._pending[series]
        if trio.current_time() - pending.pending_since > STALE_SECONDS:
            self._drop(series)
            return
        count, last = pending.count, pending.last  # both may grow during the write
        try:
            with trio.fail_after(WRITE_SECONDS):
                written = await self._write(client, series, attrs.evolve(pending))
        except (NotFoundError, ForbiddenError) as error:  # the namespace is gone or terminating, or access is denied
            if isinstance(error, ForbiddenError) and not self._forbidden:
                self._forbidden = True
                _log.warning("events forbidden", error=str(error))
            self._discard(series)
            return
        except ExternalError as error:
            _log.info("event not written; it will be retried", about=_object_name(series.about), error=str(error))
            raise
        except trio.TooSlowError as slow:
            raise ExternalError(f"event not written: no answer within {WRITE_SECONDS:g} s") from slow
        except ApiError as refused:
            _log.warning("event refused", about=_object_name(series.about), reason=series.reason, error=str(refused))
            self._discard(series)
            return
        _remember(self._written, series, written)
        remaining = self._pending.get(series)
        if remaining is not None and remaining.count > count:
            remaining.count -= count
            remaining.first = last
        elif remaining is not None:
            self._take(series)

    def _discard(self, series: Series) -> None:
        if series in self._pending:  # a busy object's Event may have been dropped during the write
            self._drop(series)

    async def _write(self, client: Client, series: Series, pending: _PendingEvent) -> tuple[Key, int]:
        """Raise the count of the existing Event, or create one."""
        written = self._written.get(series)
        if written is not None:
            key, count = written[0], written[1] + pending.count
            patch = {"count": count, "lastTimestamp": timestamp(pending.last), "message": pending.message}
            try:
                await client.patch(Event, key, patch)
            except NotFoundError:  # the server deletes Events after an hour; then the series starts again
                del self._written[series]
            else:
                return key, count
        while True:
            manifest = self._manifest(series, pending)
            key = Key.of(manifest)
            try:
                await client.request_json("POST", Event.RESOURCE.path(key.namespace), body=manifest)
            except AlreadyExistsError:  # another Event has the same random 64 bits
                continue
            return key, pending.count

    def _manifest(self, series: Series, pending: _PendingEvent) -> dict[str, Any]:
        about = series.about
        head = about.name[:230].rstrip(".-")  # with the suffix at most 253 characters, a DNS-1123 subdomain
        return {
            **Event.RESOURCE.type_meta,
            "metadata": {"name": f"{head}.{self.rng.getrandbits(64):016x}", "namespace": about.namespace or "default"},
            "involvedObject": encode(about),
            "type": series.type,
            "reason": series.reason,
            "message": pending.message,
            "count": pending.count,
            "firstTimestamp": timestamp(pending.first),
            "lastTimestamp": timestamp(pending.last),
            "source": {"component": self.component, "host": self.instance},
            "reportingComponent": self.component,
            "reportingInstance": self.instance,
        }

    def _spend(self, about: ObjectReference) -> float:
        """Take one write from an object's allowance and return 0, or return the seconds until one is available."""
        now = trio.current_time()
        remaining, at = self._buckets.get(about, (float(BURST), now))
        remaining = min(float(BURST), remaining + (now - at) / REFILL_SECONDS)
        granted = remaining >= 1.0
        _remember(self._buckets, about, (remaining - granted, now))
        # One second more than needed: a pause that floating point rounds to zero would be a busy loop.
        return 0.0 if granted else (1.0 - remaining) * REFILL_SECONDS + 1.0
