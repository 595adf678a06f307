"""Check an engine's health while requests wait for it, and end their wait if it is frozen.

One task checks on behalf of all requests of a backend, starting a second after the first of them. After it has found
the engine frozen, it continues until the engine responds again, so that no request has to be the test.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final, NoReturn

import attrs
import trio

from llmkube.router.health.health_state import (
    FROZEN_SECONDS,
    HEALTH_PATH,
    INTERVAL_SECONDS,
    LIVENESS_SECONDS,
    LLAMA_SERVER,
    MAX_WAIT_SECONDS,
    Silence,
)
from llmkube.router.health.probes import SendCheck, send_or_none
from llmkube.router.policy.permits import Permit

FROZEN: Final = f"its engine is frozen: no answer at {HEALTH_PATH} for {FROZEN_SECONDS:g} seconds"

_UNWATCHED: Final = nullcontext()
_MAX_BACKENDS: Final = 256
"""Backends whose watch can start at the same moment; for further ones, a later request starts it."""


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
    _sender: trio.MemorySendChannel[tuple[Permit, _Engine]] = attrs.field(init=False)
    _receiver: trio.MemoryReceiveChannel[tuple[Permit, _Engine]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._sender, self._receiver = trio.open_memory_channel[tuple[Permit, _Engine]](_MAX_BACKENDS)

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
            task_status.started()
            while True:
                permit, engine = await self._receiver.receive()
                nursery.start_soon(self._watch, permit, engine)
        raise AssertionError("requests never end")

    def _of(self, name: str) -> _Engine:
        return self._engines.get(name) or self._engines.setdefault(name, _Engine())

    def _start_watch_nowait(self, permit: Permit, engine: _Engine) -> None:
        if engine.is_watched:
            return
        try:
            self._sender.send_nowait((permit, engine))
        except trio.WouldBlock:
            return
        engine.is_watched = True

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
