"""Read the events of one watch; each way in which the stream can fail has one outcome.

| stream                                              | `Watch.next_event`                         |
|-----------------------------------------------------|--------------------------------------------|
| the server ends the response                        | returns None; a partial line is dropped    |
| an ERROR event                                      | raises the error that its `Status` names   |
| a reset                                             | raises `TransportError`: resume            |
| nothing at all for `READ_IDLE_SECONDS`              | raises `WatchSilentError`: resume, once    |
| an endless line, a page of HTML, a wrong kind       | raises `WatchDataError`: do not resume     |
"""

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import Any, Final, Generic, Literal, TypeVar, cast

import attrs
import trio

from llmkube.base import json_text
from llmkube.k8s.codec import VersionDecoder, resource_version_of
from llmkube.k8s.errors import ApiError, WatchDataError, WatchSilentError, error_from_status, excerpt
from llmkube.k8s.resource import Key, Object

T = TypeVar("T", bound=Object)

Receive = Callable[[], Awaitable[bytes]]
"""Returns the next bytes of a response body, b"" at its end; TransportError when the connection breaks."""

EventType = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]

READ_IDLE_SECONDS: Final = 90.0
"""Silence that proves a connection dead: kube-apiserver sends a bookmark every 60 to 75 seconds."""

MAX_LINE_BYTES: Final = 16 * 1024 * 1024
"""No object is larger: etcd refuses requests above 1.5 MiB and kube-apiserver bodies above 3 MiB."""


SHARED_EVENTS: Final = 16
"""Parsed lines that are cached: agent and controller in one process get the same change at nearly the same time."""


@attrs.frozen
class WatchEvent(Generic[T]):
    """One change; the object is decoded on access, so that events whose object is not read cost little."""

    kind: type[T]
    type: EventType  # below `kind`: from here on, `type` means this field
    raw: Mapping[str, Any] = attrs.field(repr=False)
    decoder: VersionDecoder = attrs.field(factory=VersionDecoder, eq=False, repr=False)

    @property
    def key(self) -> Key:
        """The key of the changed object; meaningless for a BOOKMARK."""
        return Key.of(self.raw)

    @property
    def resource_version(self) -> str:
        """The resourceVersion to resume from after this event."""
        return resource_version_of(self.raw)

    @property
    def object(self) -> T:
        """The object after the change, or its last state before the deletion, without managedFields.

        Raises:
            DecodeError: It is malformed.
        """
        return self.decoder.decode(self.kind, self.raw)


class Watch(Generic[T]):
    """The events of one open watch, in order; made by `Client.open_watch`.

    Attributes:
        kind: The watched kind.
        received_any: Whether any event has arrived. Only an event proves that the server knows the resourceVersion that
            we resumed from: for a future one, after a restore of etcd, it answers 200 and then sends nothing.
    """

    def __init__(
        self,
        kind: type[T],
        receive: Receive,
        decoder: VersionDecoder,
        *,
        read_idle_seconds: float = READ_IDLE_SECONDS,
        max_line_bytes: int = MAX_LINE_BYTES,
    ) -> None:
        self.kind = kind
        self._receive = receive
        self._decoder = decoder
        self._read_idle_seconds = read_idle_seconds
        self._max_line_bytes = max_line_bytes
        self._tail = bytearray()
        self._lines: deque[bytes] = deque()
        self.received_any = False

    async def next_event(self) -> WatchEvent[T] | None:
        """Return the next change, or None when the server ends the watch.

        Raises:
            GoneError: The resourceVersion to resume from is too old; list again.
            WatchDataError: The response is not a watch; list again.
            WatchSilentError: Not even a bookmark was received; resume, unless nothing ever was (`received_any`).
            TransportError: The connection broke; resume.
            ApiError: Another ERROR event.
        """
        await trio.lowlevel.checkpoint()  # a burst of buffered events must not starve the other tasks
        while not self._lines:
            chunk = await self._receive_with_timeout()
            if not chunk:
                return None
            self._split(chunk)
        event = parse_event(self.kind, self._lines.popleft(), self._decoder)
        self.received_any = True
        return event

    def buffered(self) -> list[WatchEvent[T]]:
        """Return the received events that `next_event` has not returned yet, up to the first unreadable one."""
        events: list[WatchEvent[T]] = []
        for line in self._lines:
            try:
                events.append(parse_event(self.kind, line, self._decoder))
            except ApiError:
                break
        return events

    async def _receive_with_timeout(self) -> bytes:
        with trio.move_on_after(self._read_idle_seconds):
            return await self._receive()
        raise WatchSilentError(
            f"watch of {self.kind.RESOURCE.plural}: not even a bookmark was received for {self._read_idle_seconds:g} s"
        )

    def _split(self, chunk: bytes) -> None:
        self._tail += chunk
        if b"\n" in chunk:
            *lines, rest = bytes(self._tail).split(b"\n")
            self._lines.extend(line for line in lines if line.strip())
            self._tail = bytearray(rest)
        if len(self._tail) > self._max_line_bytes:
            raise WatchDataError(
                f"watch of {self.kind.RESOURCE.plural} sent a line of more than {self._max_line_bytes} bytes"
            )


def parse_event(kind: type[T], line: bytes, decoder: VersionDecoder) -> WatchEvent[T]:
    """Parse one line of a watch; raises the errors of `Watch.next_event`."""
    resource = kind.RESOURCE
    try:
        event = _read_line(line)
    except (ValueError, RecursionError) as error:
        raise WatchDataError(f"watch of {resource.plural} sent something that is not JSON: {excerpt(line)}") from error
    event_type = event.get("type") if isinstance(event, dict) else None
    obj = event.get("object") if isinstance(event, dict) else None
    if not isinstance(obj, dict):
        raise WatchDataError(f"watch of {resource.plural} sent something that is not an event: {excerpt(line)}")
    if event_type == "ERROR":
        raise error_from_status(obj)
    if event_type not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"):
        raise WatchDataError(f"watch of {resource.plural} sent an event of unknown type {event_type!r}")
    if obj.get("kind") != resource.kind:
        raise WatchDataError(f"watch of {resource.plural} sent an object of kind {obj.get('kind')!r}")
    if event_type != "BOOKMARK" and not has_name(obj):
        raise WatchDataError(f"watch of {resource.plural} sent an object without a name: {excerpt(line)}")
    return WatchEvent(kind, cast("EventType", event_type), obj, decoder)


@lru_cache(maxsize=SHARED_EVENTS)
def _read_line(line: bytes) -> Any:
    return json_text.loads(line)


def has_name(obj: Any) -> bool:
    """Return whether JSON data is an object with a name, as `Key.of` requires."""
    metadata = obj.get("metadata") if isinstance(obj, Mapping) else None
    return isinstance(metadata, Mapping) and isinstance(metadata.get("name"), str) and metadata["name"] != ""
