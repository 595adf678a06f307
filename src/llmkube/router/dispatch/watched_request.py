"""A request that is passed through, watched for its trace: where its time goes, and the tokens of its answer."""

import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import attrs
import orjson
import trio

from llmkube.base.http.exchange import StreamExchange
from llmkube.base.http.forward import Observer
from llmkube.router.budgets.usage import Usage, usage_of
from llmkube.router.dispatch.record import ATTEMPT, Phase, Record, record_of
from llmkube.router.dispatch.spans import spans_of
from llmkube.router.traces import Recorder

TAIL_BYTES: Final = 8 << 10
"""Bytes at the end of an answer that may have its usage."""

_MEMBERS: Final = {
    "usage": re.compile(rb'"usage":(\{(?:[^{}]|\{[^{}]*\})*\})'),
    "timings": re.compile(rb'"timings":(\{[^{}]*\})'),
}


@attrs.define(eq=False)
class WatchedRequest:
    """The record of a request while it is passed through.

    Attributes:
        exchange: The request.
        record: Its record; None if nothing records requests.
        model: Requested model.
    """

    exchange: StreamExchange
    record: Record | None
    model: str
    _first_at: float | None = None
    _tail: bytes = b""

    def add_phase(self, name: str, backend: str, began_at: float) -> None:
        """Record the time since `began_at`."""
        if self.record is not None:
            self.record.add_phase(name, backend, began_at, trio.current_time())

    @contextmanager
    def attempt(self, backend: str) -> Iterator[None]:
        """Record an attempt at an engine; `observer` gets its answer."""
        began_at, self._first_at, self._tail = trio.current_time(), None, b""
        try:
            yield
        finally:
            if self.record is not None:
                self._add_attempt(self.record, backend, began_at)

    @property
    def observer(self) -> Observer | None:
        """Observes the answer; None if nothing records the request."""
        return None if self.record is None else self._see

    def _see(self, piece: bytes) -> None:
        """Take the next bytes of an answer as they are sent."""
        if self._first_at is None:
            self._first_at = trio.current_time()
        self._tail = piece[-TAIL_BYTES:] if len(piece) >= TAIL_BYTES else (self._tail + piece)[-TAIL_BYTES:]

    def _add_attempt(self, record: Record, backend: str, began_at: float) -> None:
        usage, status = usage_in(self._tail), self.exchange.status
        result = "answered" if self.exchange.complete and status < 500 else "not_answered"
        first_at = self._first_at if b"data: " in self._tail else None
        index, now = sum(each.index >= 0 for each in record.phases), trio.current_time()
        record.phases.append(
            Phase(ATTEMPT, backend, began_at, now, index, result, status, first_at=first_at, usage=usage)
        )
        record.update(backend=backend, usage=usage)

    def end(self, recorder: Recorder, refusal: tuple[int, str] | None) -> None:
        """Offer the spans of the request, once it has ended; `refusal` is the status and code of a refused one."""
        record = self.record
        if record is None or record.trace is None:
            return
        status, outcome = self.exchange.status, "ok" if self.exchange.complete else "client_gone"
        if refusal is not None:
            status, outcome = refusal
        elif status >= 400:
            outcome = "upstream_error"
        record.update(status=status, outcome=outcome)
        recorder.offer_nowait(record.trace, spans_of(record, record.trace, {}, self.model, trio.current_time()))


def watch(
    exchange: StreamExchange, path: str, model: str, recorder: Recorder | None, rng: random.Random
) -> WatchedRequest:
    """Begin to watch a request; without a recorder that costs nothing."""
    record = None if recorder is None else record_of(exchange.head, exchange.peer, path, rng, recorder)
    return WatchedRequest(exchange, record, model)


def usage_in(tail: bytes) -> Usage | None:
    """Return the usage in the last bytes of an answer, whole or streamed; None if it has none."""
    fields: dict[str, Any] = {}
    for name, pattern in _MEMBERS.items():
        if found := pattern.findall(tail):
            try:
                fields[name] = orjson.loads(found[-1])
            except orjson.JSONDecodeError:  # the framing of the body splits it
                continue
    return usage_of(fields, None) if fields else None
