"""Check an engine's health while requests wait for it, and end their wait if it is frozen.

One task checks on behalf of all requests of a backend, starting a second after the first of them. After it has found
the engine frozen, it continues until the engine responds again, so that no request has to be the test.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final, NoReturn

import attrs
import trio

from llmkube.router.config.routing_config import Backend, RoutingConfig
from llmkube.router.health.health_state import (
    FROZEN_SECONDS,
    HEALTH_PATH,
    INTERVAL_SECONDS,
    LIVENESS_SECONDS,
    LLAMA_SERVER,
    MAX_WAIT_SECONDS,
    SLOTS_PATH,
    TIMEOUT_SECONDS,
    CacheUse,
    Silence,
    cache_use,
)
from llmkube.router.health.probes import SendCheck, all_permits, send_or_none
from llmkube.router.policy.permits import Permit

FROZEN: Final = f"its engine is frozen: no answer at {HEALTH_PATH} for {FROZEN_SECONDS:g} seconds"

_UNWATCHED: Final = nullcontext()


@attrs.define(eq=False)
class WaitingRequest:
    """A request that waits for an engine.

    Attributes:
        extends: Whether to wait for as long as the engine is alive, because the spec sets no limit.
        began_at: When the request was sent.
        silence: Scope that ends when the backend has been silent for too long; None before the request is sent. Its
            deadline is infinite while the router waits for the client.
        last_received_at: When the last part of the answer arrived; -inf before the first.
        is_frozen: Whether the engine was found frozen during the wait, which ends the scope, too.
    """

    extends: bool
    began_at: float
    silence: trio.CancelScope | None = None
    last_received_at: float = -math.inf
    is_frozen: bool = False

    def begin(self, silence: trio.CancelScope) -> None:
        """Set the scope in which the request waits."""
        self.silence = silence
        if self.is_frozen:
            silence.cancel(reason=FROZEN)

    def extend_deadline(self, now: float) -> None:
        """Extend the deadline after the engine has responded to a health check."""
        if self.extends and self.silence is not None:
            until = min(now + LIVENESS_SECONDS, self.began_at + MAX_WAIT_SECONDS)
            self.silence.deadline = max(self.silence.deadline, until)

    def freeze(self) -> None:
        """End the wait for a frozen engine; never interrupt a write to the client, which would truncate a chunk."""
        self.is_frozen = True
        if self.silence is None:
            return
        if self.last_received_at == -math.inf:
            self.silence.cancel(reason=FROZEN)
        elif self.silence.deadline < math.inf:
            self.silence.deadline = -math.inf


@attrs.define(eq=False)
class _Engine:
    """An engine for which requests wait.

    Attributes:
        silence: Its unanswered health checks.
        waiting: Its requests.
        is_watched: Whether a task checks it.
        is_frozen: Whether it was found frozen and has not responded since.
    """

    silence: Silence = Silence()
    waiting: set[WaitingRequest] = attrs.field(factory=set)
    is_watched: bool = False
    is_frozen: bool = False

    def is_silent(self, now: float) -> bool:
        """Whether one of its requests receives nothing."""
        return any(now - one.last_received_at >= INTERVAL_SECONDS for one in self.waiting)


@attrs.define(eq=False)
class EngineWatch:
    """The engines of one router.

    Attributes:
        send: Sends a health check.
        on_change: Called with a backend's name and the cause when its engine is frozen, and with "" when it responds
            again.
    """

    send: SendCheck
    on_change: Callable[[str, str], None]
    _engines: dict[str, _Engine] = attrs.field(factory=dict)
    _nursery: trio.Nursery | None = None

    def responded(self, name: str, server: str) -> None:
        """Record a response of a backend and its `Server` header."""
        engine = self._of(name)
        engine.silence = engine.silence.responded(server)

    def is_llama(self, name: str) -> bool:
        """Whether a backend has identified itself as llama.cpp's server."""
        engine = self._engines.get(name)
        return engine is not None and engine.silence.is_llama

    def keep_only(self, unchanged: frozenset[str]) -> None:
        """Forget backends that were removed or changed; their tasks end by themselves."""
        self._engines = {name: engine for name, engine in self._engines.items() if name in unchanged}

    def watching(self, permit: Permit, waiting: WaitingRequest) -> AbstractContextManager[None]:
        """Watch the engine while a request waits for it, and freeze the request if the engine is frozen.

        Providers and replicated backends are not watched.

        Args:
            permit: The backend of the request.
            waiting: The request.
        """
        backend = permit.backend
        if backend.provider or backend.is_replicated:  # another engine may respond in place of the one that computes
            return _UNWATCHED
        return self._watching(permit, waiting)

    @contextmanager
    def _watching(self, permit: Permit, waiting: WaitingRequest) -> Iterator[None]:
        engine = self._of(permit.backend.name)
        engine.waiting.add(waiting)
        try:
            self._start_watch_nowait(permit, engine)
            yield
        finally:
            engine.waiting.discard(waiting)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> NoReturn:
        """Check engines until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None  # requests may still run, and a closed nursery accepts no tasks

    def _of(self, name: str) -> _Engine:
        return self._engines.get(name) or self._engines.setdefault(name, _Engine())

    def _start_watch_nowait(self, permit: Permit, engine: _Engine) -> None:
        if self._nursery is not None and not engine.is_watched:
            engine.is_watched = True
            self._nursery.start_soon(self._watch, permit, engine)

    async def _watch(self, permit: Permit, engine: _Engine) -> None:
        name = permit.backend.name
        try:
            await trio.sleep(INTERVAL_SECONDS)
            while engine.waiting or (engine.is_frozen and self._engines.get(name) is engine):
                if engine.is_frozen or engine.is_silent(trio.current_time()):
                    await self._check(permit, engine)
                await trio.sleep(INTERVAL_SECONDS)
        finally:
            engine.is_watched = False

    async def _check(self, permit: Permit, engine: _Engine) -> None:
        sent_at = trio.current_time()
        reply = await send_or_none(self.send, permit, HEALTH_PATH, engine.silence.timeout_seconds(sent_at))
        if reply is not None:
            engine.silence = engine.silence.responded(reply.server)
            if reply.server == LLAMA_SERVER and reply.status == 200:
                for one in engine.waiting:
                    one.extend_deadline(trio.current_time())
        else:
            engine.silence = engine.silence.timed_out(sent_at)
        is_frozen = engine.silence.is_frozen(trio.current_time())
        if is_frozen != engine.is_frozen:
            engine.is_frozen = is_frozen
            if self._engines.get(permit.backend.name) is engine:
                self.on_change(permit.backend.name, FROZEN if is_frozen else "")
        if is_frozen:
            for one in engine.waiting:
                one.freeze()


CACHE_POLL_SECONDS: Final = 5.0
"""Between two polls of an engine."""


@attrs.define(eq=False)
class CacheWatch:
    """Poll the KV cache use of a router's engines while requests are under way.

    Only llama.cpp's server reports it. A request to `/slots` would wake a sleeping engine, so an idle engine is polled
    at `/health` only, and its use is 0. If an engine does not respond, its use is unknown: no figure outlives its
    engine.

    Attributes:
        send: Sends a health check.
        config: Returns the current config.
        in_flight: Requests under way, by the backend's name.
        is_llama: Whether a backend has identified itself as llama.cpp's server; others have no `/slots`.
    """

    send: SendCheck
    config: Callable[[], RoutingConfig]
    in_flight: Mapping[str, int]
    is_llama: Callable[[str], bool]
    _uses: dict[str, tuple[Backend, CacheUse]] = attrs.field(factory=dict)

    def use(self, backend: Backend) -> CacheUse | None:
        """Return the last use that a backend's engine has reported; None if it reports none or did not respond."""
        found = self._uses.get(backend.name)
        return found[1] if found is not None and found[0] == backend else None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> NoReturn:
        """Poll until cancelled."""
        task_status.started()
        while True:
            await trio.sleep(CACHE_POLL_SECONDS)
            permits = [each for each in all_permits(self.config()) if _has_single_engine(each.backend)]
            for name in self._uses.keys() - {each.backend.name for each in permits}:
                del self._uses[name]
            async with trio.open_nursery() as nursery:
                for permit in permits:
                    if self._should_check(permit.backend):
                        nursery.start_soon(self._check, permit)

    def _should_check(self, backend: Backend) -> bool:
        is_busy = bool(self.in_flight.get(backend.name)) and self.is_llama(backend.name)
        return is_busy or self.use(backend) is not None

    async def _check(self, permit: Permit) -> None:
        backend = permit.backend
        is_busy = bool(self.in_flight.get(backend.name))
        reply = await send_or_none(self.send, permit, SLOTS_PATH if is_busy else HEALTH_PATH, TIMEOUT_SECONDS)
        known, found = self.use(backend), None
        if reply is not None and reply.status == 200 and reply.server == LLAMA_SERVER:
            idle = CacheUse(0, known.tokens) if known is not None else None
            found = cache_use(reply.body, backend.splits_cache) if is_busy else idle
        if found is None:
            self._uses.pop(backend.name, None)
        else:
            self._uses[backend.name] = backend, found


def _has_single_engine(backend: Backend) -> bool:
    """Whether the backend is an InferenceService with exactly one engine."""
    return not (backend.provider or backend.is_replicated or backend.missing)
