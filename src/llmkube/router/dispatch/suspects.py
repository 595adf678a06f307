"""Requests that were in an engine when it died, and those that are refused because they end engines.

Any request in an engine that dies may be the cause, before the first token of its answer or after. Each of them is a
suspect: it is tried at one further engine, while no other suspect is; tenants take turns. If that engine dies too, the
request is the cause, unless another one was in both engines. It is then refused to its tenant for a while. In this time
that tenant's other requests wait for the suspects of others, and are the likely cause of exits: no other tenant's
request that was in an engine with one of them is refused.
"""

import hashlib
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import Final, TypeVar

import attrs
import trio

from llmkube.base.http.message import Origin
from llmkube.router.dispatch.verdicts import Cause, Failure
from llmkube.router.fair_queue import FairQueue

REFUSED_SECONDS: Final = 600.0
"""Time for which a request that ended two engines is refused, and for which a suspect is remembered."""

MAX_ENTRIES: Final = 1000
"""Limit for suspects, and for refused requests; the oldest is dropped."""

ALONE_SECONDS: Final = 5.0
"""Time after the first token of a suspect's answer during which no other suspect is tried: a cause shows soon."""

MAX_ALONE_SECONDS: Final = 30.0
"""Limit for the time before it: a long request must not make the suspects of other tenants time out."""

MAX_DEATHS: Final = 2
"""Engines that may die while they compute one request: it is tried at one further engine after the first."""

_HASHED_BYTES: Final = 1 << 20
"""A longer body is identified by its length, beginning and end, since hashing blocks all other tasks."""

CULPRIT: Final = Failure(
    Cause.CULPRIT,
    "two engines exited while they computed this request, and no other request was in both; it is refused for "
    f"{REFUSED_SECONDS / 60:.0f} minutes; change it, for instance its grammar, its schema or its length",
)

Key = tuple[str, bytes]
"""Tenant, and digest of path and body."""

T = TypeVar("T")
K = TypeVar("K")


@attrs.define(eq=False)
class Suspect:
    """One request, which may be the cause of an engine's exit.

    Attributes:
        deaths: Number of engines that died while they computed it.
    """

    tenant: str
    path: str
    body: bytes = attrs.field(repr=False)
    deaths: int = 0

    @cached_property
    def key(self) -> Key:
        """Tenant and digest."""
        size, half = len(self.body), _HASHED_BYTES // 2
        found = hashlib.blake2b(f"{self.path} {size} ".encode(), digest_size=16)
        for part in (self.body,) if size <= _HASHED_BYTES else (self.body[:half], self.body[-half:]):
            found.update(part)
        return self.tenant, found.digest()


@attrs.define(eq=False)
class Suspects:
    """Requests in engines, suspects and refused requests, of all routes of a router."""

    _running: dict[str, set[Suspect]] = attrs.field(factory=dict)
    _deaths: dict[str, tuple[frozenset[Key], set[Suspect], Origin | None]] = attrs.field(factory=dict)
    """Requests in the engine that died last, those of them that have not reported it yet, and its address."""
    _suspected: "OrderedDict[Key, tuple[float, frozenset[Key]]]" = attrs.field(factory=OrderedDict)
    _refused: "OrderedDict[Key, float]" = attrs.field(factory=OrderedDict)
    _blamed: "OrderedDict[str, float]" = attrs.field(factory=OrderedDict)  # tenants with a refused request
    _queue: FairQueue[trio.Event] = attrs.field(factory=lambda: FairQueue(1))  # of those that wait, by tenant
    _alone: Suspect | None = None  # the last suspect that was tried: it has the one slot of the queue
    _alone_until: float = -math.inf
    _alone_changed: trio.Event = attrs.field(factory=trio.Event)

    def is_refused(self, request: Suspect) -> bool:
        """Return whether a request has ended two engines lately."""
        return bool(self._refused) and self._refused.get(request.key, 0.0) > trio.current_time()

    def _enter(self, engine: str, request: Suspect) -> None:
        self._running.setdefault(engine, set()).add(request)

    def leave(self, engine: str, request: Suspect) -> None:
        """Record that a request is no longer in an engine, if it was."""
        running = self._running.get(engine, set())
        running.discard(request)
        if not running:
            self._running.pop(engine, None)
        self._end_alone(request, -math.inf)

    def died(self, engine: str, request: Suspect, address: Origin | None = None) -> bool:
        """Record that an engine died with a request; return whether the request is the cause, and refused from now.

        Without `address`, every report after the first is another death. With it, one at the same address is not: an
        exiting process still accepts connections, and a restarted engine has another port.
        """
        keys, unreported, dead = self._deaths.get(engine, (frozenset(), set(), None))
        if request not in unreported and address is not None and address == dead:
            return False
        if request not in unreported:  # the first request that notices
            unreported = self._running.get(engine, set()) | {request}
            keys = frozenset(each.key for each in unreported)
            self._deaths[engine] = keys, unreported, address
            for each in unreported:
                each.body = b""  # the digest is enough; `_deaths` keeps these requests
        unreported.discard(request)
        request.deaths += 1
        now = trio.current_time()
        until, before = self._suspected.pop(request.key, (0.0, keys))
        others = {tenant for tenant, _ in keys} - {request.tenant}
        if until > now and before & keys == {request.key} and not any(map(self._is_blamed, others)):
            _remember(self._refused, request.key, now + REFUSED_SECONDS)
            _remember(self._blamed, request.tenant, now + REFUSED_SECONDS)
            return True
        _remember(self._suspected, request.key, (now + REFUSED_SECONDS, before & keys if until > now else keys))
        return False

    def is_shared(self, engine: str, request: Suspect) -> bool:
        """Return whether an engine has requests of other tenants, or had when it died with this one."""
        died, _, _ = self._deaths.get(engine, (frozenset(), set(), None))
        there = {each.tenant for each in self._running.get(engine, ())}
        there |= {tenant for tenant, _ in died} if request.key in died else set()
        return bool(there - {request.tenant})

    def _is_blamed(self, tenant: str) -> bool:
        return bool(self._blamed) and self._blamed.get(tenant, 0.0) > trio.current_time()

    def answered(self, request: Suspect) -> None:
        """Record that a request was answered, and so did not end its engine."""
        if self._suspected:
            self._suspected.pop(request.key, None)

    def attempt(
        self, engine: str, request: Suspect, seconds: float, send: Callable[[], Awaitable[T]]
    ) -> Awaitable[T | Failure]:
        """Send a request to an engine, until `leave`; a suspect waits for others at most some seconds.

        Others wait until `leave`, or for `ALONE_SECONDS` after `send` has returned; at most for `MAX_ALONE_SECONDS`.
        """
        is_suspect = bool(self._suspected) and request.key in self._suspected
        if is_suspect or (self._is_blamed(request.tenant) and self._alone_until > trio.current_time()):
            return self._attempt_later(engine, request, seconds, send, alone=is_suspect)
        self._enter(engine, request)
        return send()

    async def _attempt_later(
        self, engine: str, request: Suspect, seconds: float, send: Callable[[], Awaitable[T]], *, alone: bool
    ) -> T | Failure:
        turn = trio.Event()
        self._queue.offer(request.tenant, turn, 1)  # one that is dropped waits in vain
        try:
            with trio.move_on_after(seconds):
                while not turn.is_set():
                    with trio.move_on_after(self._admit_next()):
                        await self._alone_changed.wait()
            if not turn.is_set():
                return Failure(Cause.TIMEOUT, "the wait for others that were in an engine when it exited was too long")
            if alone:
                self._alone, self._alone_until = request, trio.current_time() + MAX_ALONE_SECONDS
        finally:
            self._queue.remove(request.tenant, turn)
            if turn.is_set() and self._alone is not request:
                self._queue.ended(request.tenant, 1, 1)
            self._wake()
        self._enter(engine, request)
        found = await send()
        self._end_alone(request, trio.current_time() + ALONE_SECONDS)
        return found

    def _admit_next(self) -> float:
        """Admit the next request if no suspect is being tried; return the time until this may change."""
        if (left := self._alone_until - trio.current_time()) > 0:
            return left
        if self._alone is not None:
            self._queue.ended(self._alone.tenant, 1, 1)
            self._alone = None
        for turn in (admitted := self._queue.admit()):
            turn.set()
            self._wake()
        return 0 if admitted else math.inf

    def _wake(self) -> None:
        self._alone_changed.set()
        self._alone_changed = trio.Event()

    def _end_alone(self, request: Suspect, at: float) -> None:
        if self._alone is request:
            self._alone_until = min(at, self._alone_until)
            self._wake()


def _remember(entries: "OrderedDict[K, T]", key: K, value: T) -> None:
    entries[key] = value
    entries.move_to_end(key)
    while len(entries) > MAX_ENTRIES:
        entries.popitem(last=False)
