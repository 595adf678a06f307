"""Relays a started stream to the client, event by event, and returns how it ended.

If the stream breaks off and another engine can continue it, the client's stream is left open. It ends cleanly only if
the answer is complete.

Backpressure: nothing is read ahead of the client. A backend times out only if it is silent for too long; the time spent
waiting for the client does not count.
"""

import enum
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs
import orjson
import trio

from llmkube.base.event_stream import EventParser, OversizedEventError
from llmkube.base.http.errors import HttpError
from llmkube.base.http.exchange import StreamExchange
from llmkube.base.http.message import Response
from llmkube.router.continuation.joined_answer import JoinedAnswer
from llmkube.router.continuation.token_count import JoinError
from llmkube.router.dialects.dialect import AnswerTranslator, DialectError, data_event
from llmkube.router.dispatch.attempt import Stream
from llmkube.router.dispatch.event_stream import DONE, AnswerEvent, Kind
from llmkube.router.health.engine_watch import WaitingRequest
from llmkube.router.refusals import error_object

COMMENT_SECONDS: Final = 5.0
"""Interval of keep-alive comments to a client that waits for a stream."""

LOADING_COMMENT: Final = b": the model is loading\n\n"
QUEUE_COMMENT: Final = b": the request waits for its turn\n\n"

_EVENT_STREAM: Final = "text/event-stream"
_STREAM_LINES: Final = b"Content-Type: %b\r\nCache-Control: no-cache\r\nX-Accel-Buffering: no\r\n"


@attrs.define(eq=False)
class ClientStream:
    """The client's side of one request: sends a stream of events or a whole answer.

    Attributes:
        translator: Translates answers of backends; None forwards them.
        joined: Answer so far, for another engine to continue; None if the client does not request a stream.
    """

    exchange: StreamExchange
    translator: AnswerTranslator | None = None
    joined: JoinedAnswer | None = None

    @property
    def begun(self) -> bool:
        """Whether the head of the answer was sent: its status cannot change any more."""
        return self.exchange.begun

    async def begin(self, lines: bytes) -> None:
        """Send the head with these header lines, unless it was sent already."""
        if self.begun:
            return
        if not self.exchange.chunks_allowed:
            self.exchange.keep_alive = False  # the end of the connection is the end of the body
        framing = b"Transfer-Encoding: chunked\r\n" if self.exchange.chunks_allowed else b""
        media_type = self.translator.media_type if self.translator else _EVENT_STREAM
        lines += _STREAM_LINES % media_type.encode("ascii") + framing
        await self.exchange.send(self.exchange.begin(200, lines))

    async def send(self, events: bytes) -> None:
        """Send events, if there are any.

        Raises:
            DialectError: One cannot be translated to the client's dialect.
        """
        await self._send(self._translated(events) if self.translator else events)

    async def _send(self, events: bytes, last: bytes = b"") -> None:
        if events:
            chunked = self.exchange.chunks_allowed
            await self.exchange.send(b"%x\r\n%b\r\n%b" % (len(events), events, last) if chunked else events)

    async def end(self, timing: str) -> None:
        """End the stream of a complete answer.

        Args:
            timing: `Server-Timing` value: a comment in the last event, if the format has comments. It has no empty line
                of its own, for which some clients dispatch an event.

        Raises:
            DialectError: The answer is incomplete in the client's dialect; the end was not sent.
        """
        last = self.translator.end() if self.translator else DONE
        if self.translator is None or self.translator.media_type == _EVENT_STREAM:
            last = b": server-timing %b\n%b" % (timing.encode(), last)
        await self._send(last, b"0\r\n\r\n")
        self.exchange.complete = True

    async def fail(self, error: dict[str, Any], *, is_whole: bool = False) -> None:
        """Send an error and close the connection, so that no client takes the answer for a complete one.

        Args:
            error: The error.
            is_whole: Whether the error is the whole answer: then the stream has a clean end.
        """
        events = self.translator.failed(error) if self.translator else data_event({"error": error})
        await self._send(events, b"0\r\n\r\n" if is_whole else b"")
        self.exchange.complete, self.exchange.keep_alive = is_whole, False

    async def finish(self) -> None:
        """Send the clean end of a stream that has its last event."""
        if self.exchange.chunks_allowed:
            await self.exchange.send(b"0\r\n\r\n")
        self.exchange.complete = True

    async def respond(self, status: int, lines: bytes, body: bytes) -> None:
        """Send a whole answer: a JSON object, and header lines.

        Raises:
            DialectError: It cannot be translated to the client's dialect; nothing was sent.
        """
        if self.translator is not None:
            body = translated(status, body, self.translator)
        await self.exchange.respond_with(status, lines, body)

    def _translated(self, events: bytes) -> bytes:
        assert self.translator is not None
        found = b""
        for event in EventParser().feed(events):
            if event.data is None:
                found += self.translator.waiting()
            else:
                found += self.translator.event(orjson.loads(event.data))
        return found


def translated(status: int, body: bytes, translator: AnswerTranslator) -> bytes:
    """Return the body of a whole answer in the client's dialect.

    Raises:
        DialectError: It cannot be translated.
    """
    try:
        return orjson.dumps(translator.complete(status, orjson.loads(body)))
    except orjson.JSONEncodeError as exc:
        raise DialectError(f"it is nested too deeply: {exc}") from exc


async def refuse(exchange: StreamExchange, response: Response, error: dict[str, Any]) -> None:
    """Send an error: a whole response, or the last event if a stream in OpenAI's format has begun."""
    if exchange.begun:
        await ClientStream(exchange).fail(error, is_whole=True)
    else:
        await exchange.respond(response)


async def comment_until(done: trio.Event, client: ClientStream, comment: bytes) -> None:
    """Send keep-alive comments to a client that waits for a stream, until the event is set."""
    while not done.is_set():
        with trio.move_on_after(COMMENT_SECONDS):
            await done.wait()
        if not done.is_set():
            await client.send(comment)


UNTRANSLATABLE: Final = "the backend's answer cannot be translated to the client's dialect"

_DRAIN_SECONDS: Final = 0.1
"""Time to read the end of the backend's body after its answer, so that the connection can be reused."""


class Ending(enum.Enum):
    """Ending of a stream; the values appear in the audit log."""

    COMPLETE = "ok"
    ERROR = "backend_error"
    SILENT = "backend_silent"
    BROKEN = "broken_off"
    GARBAGE = "malformed"
    CUT = "cut_short"
    UNTRANSLATABLE = "untranslatable"
    UNJOINED = "not_joined"
    CULPRIT = "ended_engines"


BREAKS: Final = frozenset({Ending.SILENT, Ending.BROKEN, Ending.CUT})
"""Endings of a stream whose engine failed."""

_DEATHS: Final = frozenset({Ending.BROKEN, Ending.CUT})
"""Those whose engine may have exited."""

_MESSAGES: Final = {
    Ending.SILENT: "the backend stopped sending before the end of its answer",
    Ending.BROKEN: "the connection to the backend failed before the end of its answer",
    Ending.GARBAGE: "the backend sent an invalid event",
    Ending.CUT: "the backend ended the stream before the end of its answer",
    Ending.UNJOINED: "the backend failed, and the output of another one did not continue its answer",
}


async def relay(
    stream: Stream,
    client: ClientStream,
    waiting: WaitingRequest,
    timing: Callable[[], str],
    died: Callable[[], bool] = bool,
) -> Ending:
    """Relay a stream to its end.

    Send an error event unless it is complete, can be continued by another engine, or has ended engines.

    Args:
        stream: Stream of the backend.
        client: Receiver.
        waiting: Shared with the engine watch: gets the time of the last data, and is marked if the engine is frozen.
        timing: Returns the `Server-Timing` value; called once the answer is complete.
        died: Records that the engine died, and returns whether the request is the cause.
    """
    joined = client.joined
    try:
        ending = await _pass_events(stream, client, waiting)
        is_culprit = ending in _DEATHS and died()
        if joined is not None and ending in BREAKS:
            closing_events = joined.release() if joined.is_finished else joined.closing_events()
            if closing_events:
                await client.send(closing_events)
                await client.end(timing())
                return Ending.COMPLETE
            if is_culprit or not joined.mark_interrupted():
                return Ending.CULPRIT if is_culprit else ending
        if ending is Ending.COMPLETE:
            await client.send(joined.release() if joined is not None else b"")
            await client.end(timing())
    except DialectError as exc:
        await client.fail(error_object(502, f"{UNTRANSLATABLE}: {exc}", f"stream_{Ending.UNTRANSLATABLE.value}"))
        return Ending.UNTRANSLATABLE
    except JoinError as exc:
        assert joined is not None, "only a JoinedAnswer raises JoinError"
        ending, joined.obstacle = Ending.UNJOINED, str(exc)
    if ending is Ending.COMPLETE:
        await _drain(stream)
    elif ending is Ending.ERROR:
        error = stream.state.error or {}
        await client.fail(error_object(502, "the backend failed", "backend_error") | error)
    else:
        await fail(client, ending)
    return ending


async def fail(client: ClientStream, ending: Ending) -> None:
    """End an interrupted stream with an error."""
    await client.fail(error_object(502, _MESSAGES[ending], f"stream_{ending.value}"))


async def _pass_events(stream: Stream, client: ClientStream, waiting: WaitingRequest) -> Ending:
    waiting.last_received_at = trio.current_time()
    await client.send(_visible_events(stream, client, stream.events))
    with trio.CancelScope() as silence:
        waiting.begin(silence)
        until = trio.current_time() + stream.silence_seconds
        while not stream.state.done:
            if waiting.is_frozen:
                return Ending.SILENT
            silence.deadline = until
            try:
                piece = await stream.answer.receive_some()
                events = stream.state.feed(piece) if piece else stream.state.end()
            except HttpError:
                return Ending.BROKEN
            except OversizedEventError:
                return Ending.GARBAGE
            silence.deadline = float("inf")
            waiting.last_received_at = trio.current_time()
            bad = next((at for at, event in enumerate(events) if event.kind in (Kind.ERROR, Kind.GARBAGE)), None)
            await client.send(_visible_events(stream, client, events[:bad]))
            if bad is not None and events[bad].kind is Kind.ERROR:
                return Ending.ERROR
            if not piece:
                return Ending.COMPLETE if stream.state.is_complete and bad is None else Ending.CUT
            if bad is not None:
                return Ending.GARBAGE
            if events:
                until = trio.current_time() + stream.silence_seconds
    return Ending.SILENT if silence.cancelled_caught else Ending.COMPLETE


def _visible_events(stream: Stream, client: ClientStream, read: Sequence[AnswerEvent]) -> bytes:
    """Return the events for the client, without `[DONE]`, which `ClientStream.end` sends.

    Raises:
        JoinError: They do not continue the client's answer.
    """
    hides, joined = stream.hides_usage, client.joined
    if joined is None or joined.is_passthrough:
        return b"".join(
            each.encoded for each in read if each.kind is not Kind.DONE and not (hides and each.kind is Kind.USAGE)
        )
    found = []
    for kind, encoded, body in read:
        if kind is Kind.COMMENT:
            found.append(encoded)
        elif kind is not Kind.DONE:
            found.append(joined.take(body, encoded, hidden=hides and kind is Kind.USAGE))
    return b"".join(found)


async def _drain(stream: Stream) -> None:
    with trio.move_on_after(_DRAIN_SECONDS):
        try:
            while not stream.answer.reusable and await stream.answer.receive_some():
                pass
        except HttpError:
            return
