"""Asks an engine of ours whether it lives while requests wait for it, and takes them away from one that is frozen.

One task asks for all requests of a backend, from a second after the first of them began. After an engine was found
frozen it goes on until the engine answers again, so that no request has to try that out.
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
"""That begin to be watched at the same moment; of more, a later request begins it."""


@attrs.define(eq=False)
class WaitingRequest:
    """One request that an engine is asked for.

    Attributes:
        extends: Whether the request waits on while the engine lives: its spec gives no limit.
        began_at: When it went out.
        silence: The scope that ends when the backend was silent for too long; None before the request has gone out. Its
            deadline is infinite while the client is waited for.
        last_received_at: When a part of its answer came last; -inf before the first.
        is_frozen: Whether the engine was found frozen while it waited, which ends the scope as well.
    """

    extends: bool
    began_at: float
    silence: trio.CancelScope | None = None
    last_received_at: float = -math.inf
    is_frozen: bool = False

    def begin(self, silence: trio.CancelScope) -> None:
        """Take the scope that the request waits in."""
        self.silence = silence
        if self.is_frozen:
            silence.cancel(reason=FROZEN)

    def extend_deadline(self, now: float) -> None:
        """Take an answer of the engine for a sign of life."""
        if self.extends and self.silence is not None:
            until = min(now + LIVENESS_SECONDS, self.began_at + MAX_WAIT_SECONDS)
            self.silence.deadline = max(self.silence.deadline, until)

    def freeze(self) -> None:
        """End the wait for a frozen engine; never a write to the client, who would have half of a piece."""
        self.is_frozen = True
        if self.silence is None:
            return
        if self.last_received_at == -math.inf:
            self.silence.cancel(reason=FROZEN)
        elif self.silence.deadline < math.inf:
            self.silence.deadline = -math.inf


@attrs.define(eq=False)
class _Engine:
    """One that requests wait for.

    Attributes:
        silence: What is known of it.
        waiting: Its requests.
        is_watched: Whether a task asks it.
        is_frozen: Whether it was found frozen, and has not answered since.
    """

    silence: Silence = Silence()
    waiting: set[WaitingRequest] = attrs.field(factory=set)
    is_watched: bool = False
    is_frozen: bool = False

    def is_silent(self, now: float) -> bool:
        """Whether one of its requests hears nothing."""
        return any(now - one.last_received_at >= INTERVAL_SECONDS for one in self.waiting)


@attrs.define(eq=False)
class EngineWatch:
    """The engines of one router.

    Attributes:
        send: Asks one.
        on_change: Told of a backend whose engine is frozen and why, or answers again, which is "".
    """

    send: SendCheck
    on_change: Callable[[str, str], None]
    _engines: dict[str, _Engine] = attrs.field(factory=dict)
    _sender: trio.MemorySendChannel[tuple[Permit, _Engine]] = attrs.field(init=False)
    _receiver: trio.MemoryReceiveChannel[tuple[Permit, _Engine]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._sender, self._receiver = trio.open_memory_channel[tuple[Permit, _Engine]](_MAX_BACKENDS)

    def responded(self, name: str, server: str) -> None:
        """Note what a backend calls itself in an answer."""
        engine = self._of(name)
        engine.silence = engine.silence.responded(server)

    def is_llama(self, name: str) -> bool:
        """Whether a backend has called itself llama.cpp's server."""
        engine = self._engines.get(name)
        return engine is not None and engine.silence.is_llama

    def keep_only(self, unchanged: frozenset[str]) -> None:
        """Forget backends that are no more, or are others under the same name; their tasks end by themselves."""
        self._engines = {name: engine for name, engine in self._engines.items() if name in unchanged}

    def watching(self, permit: Permit, waiting: WaitingRequest) -> AbstractContextManager[None]:
        """Freeze a request that waits if its engine is frozen; a provider, or one of several engines, never is.

        Args:
            permit: The backend that the request goes to.
            waiting: The request; it waits for the engine, however long, while that shows that it lives.
        """
        backend = permit.backend
        if backend.provider or backend.is_replicated:  # another of them may answer for the one that computes
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
        """Ask until cancelled."""
        async with trio.open_nursery() as nursery:
            task_status.started()
            while True:
                permit, engine = await self._receiver.receive()
                nursery.start_soon(self._watch, permit, engine)
        raise AssertionError("requests never end")

    def _of(self, name: str) -> _Engine:
        return self._engines.setdefault(name, _Engine())

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
