"""Requests that wait until their model is loaded, in all routes of a process.

A request uses its service from its arrival to the end of its answer: the service is loaded for it, and not unloaded
meanwhile. A client that leaves cancels its request, which ends the use.
"""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

import attrs
import trio

from llmkube.base.hold import Hold
from llmkube.base.http.message import Headers
from llmkube.router.backends import HELD_HEADER, Activator, Found, ModelDirectory, UnavailableModel, Waker, not_ready
from llmkube.router.config.routing_config import Backend
from llmkube.router.dispatch.relay import COMMENT_SECONDS, LOADING_COMMENT, ClientStream
from llmkube.router.fair_queue import Shares
from llmkube.router.refusals import queue_refusal

MAX_HELD: Final = 512
"""Requests that wait for one service."""

MAX_HELD_IN_ALL: Final = 768
"""Requests that wait for all services: others of a gateway can still be answered."""

HEAD_SECONDS: Final = 2.0
"""Wait after which a client that requests a stream gets its head."""

_TIMEOUTS: Final = ("x-stainless-timeout", "x-stainless-read-timeout")
"""Headers in which OpenAI's and Anthropic's clients send the seconds that they wait: in JavaScript, in Python."""

_PART_OF_TIMEOUT: Final = 0.95
"""Part of that time after which the error is sent, so that the client receives it."""


@attrs.frozen(eq=False)
class HeldRequest:
    """A request that may have to wait.

    Attributes:
        tenant: Its client.
        arrived_at: Time of its arrival.
        client: Receiver of its answer.
        lines: Header lines of the stream that begins while it waits; None if it gets no stream.
    """

    tenant: str
    arrived_at: float
    client: ClientStream
    lines: bytes | None

    def deadline(self, hold_seconds: float) -> float:
        """Return the end of its wait for a model whose requests wait so long, at all hosts together."""
        lines = self.client.exchange.head.lines
        timeout = _PART_OF_TIMEOUT * min(_seconds_in(lines, name, math.inf) for name in _TIMEOUTS)
        return self.arrived_at - _seconds_in(lines, HELD_HEADER, 0.0) + min(hold_seconds, timeout)


@attrs.frozen(eq=False)
class Holds:
    """The requests that wait.

    Attributes:
        directory: Models and their engines; None if they are not known here.
        activator: Loads and unloads services; None if all are always loaded, or clients have no commands for that.
        waker: Loads services for requests; None if all are always loaded.
    """

    directory: ModelDirectory | None = None
    activator: Activator | None = None
    waker: Waker | None = attrs.field(default=attrs.Factory(lambda self: self.activator, takes_self=True))
    _in_all: Shares = attrs.field(factory=lambda: Shares(MAX_HELD_IN_ALL))
    _of_services: dict[str, Shares] = attrs.field(factory=dict)

    def state_of(self, backend: Backend) -> Found | None:
        """Return the state of a backend; None if it is no service of this directory."""
        return None if self.directory is None or backend.provider else self.directory.lookup(backend.directory_id)

    def using(self, found: Found | None, tenant: str) -> AbstractContextManager[Hold]:
        """Keep a model loaded for a tenant, or load it, in this context.

        Look it up again: a failed load may be repeated.
        """
        if self.waker is None or found is None or not found.service:
            return nullcontext(nullcontext)
        return self.waker.using(found.service, tenant)

    async def wait(self, model_id: str, request: HeldRequest, hold: Hold) -> None:
        """Return once a model is loaded, or will not be; `hold` is the value of the context of `using`.

        Raises:
            RefusedError: It was not loaded in time, or too many requests wait.
        """
        comment_at = trio.current_time() + HEAD_SECONDS if request.lines is not None else math.inf
        found = self._awaited(model_id)
        if found is None:
            return
        with hold(), self._place(found.service, request.tenant) as is_held:
            if not is_held:
                message = f"too many requests wait until model {model_id!r} is loaded; retry later"
                raise queue_refusal(message, found.retry_seconds or 1, has_siblings=True)
            while found is not None:
                now, until = trio.current_time(), request.deadline(found.hold_seconds)
                if now >= until:
                    raise not_ready(model_id, found, f"was not loaded within {now - request.arrived_at:.0f} s")
                if now >= comment_at:
                    await request.client.begin(request.lines or b"")
                    await request.client.send(LOADING_COMMENT)
                    comment_at = now + COMMENT_SECONDS
                elif self.waker is not None:
                    with trio.move_on_at(min(until, comment_at)):
                        await self.waker.wait_changed(found.service)
                found = self._awaited(model_id)

    def _awaited(self, model_id: str) -> UnavailableModel | None:
        """Return the state of a model that is being loaded for requests; None for others."""
        found = None if self.directory is None or self.waker is None else self.directory.lookup(model_id)
        return found.as_of(trio.current_time()) if isinstance(found, UnavailableModel) and found.wakes else None

    @contextmanager
    def _place(self, service: str, tenant: str) -> Iterator[bool]:
        shares = self._of_services.setdefault(service, Shares(MAX_HELD))
        try:
            with self._in_all.hold(tenant, 1) as in_all, shares.hold(tenant, 1) as in_service:
                yield in_all and in_service
        finally:
            if not shares.taken:
                self._of_services.pop(service, None)


def _seconds_in(headers: Headers, name: str, default: float) -> float:
    """Return the positive number in a header."""
    try:
        seconds = float(headers.get(name) or default)
    except ValueError:
        return default
    return seconds if seconds > 0 else default
