"""Passes a stream that has begun on to the client, event by event, and says how it ended.

One that breaks off and can go on at another engine is left as it is: the client hears of no end.
That of the stream that it reads is clean only if the answer was whole.

The client's pace is the backend's: nothing is read ahead of it. A backend is waited for as long as it says something in
time; while the client is waited for, no time counts against the backend.
"""

import enum
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs
import orjson
import trio

from llmkube.base.http.errors import HttpError
from llmkube.base.http.exchange import StreamExchange
from llmkube.base.http.message import Headers, Response, encode_lines
from llmkube.router.continuation.joined_answer import JoinedAnswer
from llmkube.router.continuation.token_count import JoinError
from llmkube.router.dialects.dialect import AnswerTranslator, DialectError, data_event
from llmkube.router.dispatch.attempt import Stream
from llmkube.router.dispatch.event_stream import DONE, EventSplitter, Kind, OversizedEventError, data_of
from llmkube.router.health.engine_watch import WaitingRequest
from llmkube.router.refusals import error_object

COMMENT_SECONDS: Final = 5.0
"""How often a client that waits for a stream hears that it is not forgotten."""

LOADING_COMMENT: Final = b": the model is loading\n\n"
QUEUE_COMMENT: Final = b": the request waits for its turn\n\n"

_EVENT_STREAM: Final = "text/event-stream"
_STREAM_HEADERS: Final = (("Cache-Control", "no-cache"), ("X-Accel-Buffering", "no"))
_OWN_HEADERS: Final = ("content-type", "cache-control", "content-length", "transfer-encoding", "connection")


@attrs.define(eq=False)
class ClientStream:
    """A stream of events as the answer to one request.

    Attributes:
        exchange: The request.
        translator: Translates what a backend says; None passes it on.
        joined: What was said so far, for another engine to go on with; None of an answer that is no stream.
    """

    exchange: StreamExchange
    translator: AnswerTranslator | None = None
    joined: JoinedAnswer | None = None

    @property
    def begun(self) -> bool:
        """Whether the client has the head of the answer: its status cannot change any more."""
        return self.exchange.begun

    async def begin(self, headers: Headers) -> None:
        """Send the head, unless that has happened."""
        if self.begun:
            return
        if not self.exchange.chunks_allowed:
            self.exchange.keep_alive = False  # the end of the connection is the end of the body
        framing = b"Transfer-Encoding: chunked\r\n" if self.exchange.chunks_allowed else b""
        kind = ("Content-Type", self.translator.media_type if self.translator else _EVENT_STREAM)
        lines = encode_lines((*headers.without(*_OWN_HEADERS), kind, *_STREAM_HEADERS)) + framing
        await self.exchange.send(self.exchange.begin(200, lines))

    async def send(self, events: bytes) -> None:
        """Send events, or nothing if there are none.

        Raises:
            DialectError: One cannot be said in the client's dialect.
        """
        await self._send(self._translated(events) if self.translator else events)

    async def _send(self, events: bytes, last: bytes = b"") -> None:
        if events:
            chunked = self.exchange.chunks_allowed
            await self.exchange.send(b"%x\r\n%b\r\n%b" % (len(events), events, last) if chunked else events)

    async def end(self, timing: str) -> None:
        """End it: the client has the whole answer.

        Args:
            timing: Where the time went: a comment before the last event, where there are comments.

        Raises:
            DialectError: It is not whole in the client's dialect; the client does not have the end.
        """
        last = self.translator.end() if self.translator else DONE
        if self.translator is None or self.translator.media_type == _EVENT_STREAM:
            last = b": server-timing %b\n\n%b" % (timing.encode(), last)
        await self._send(last, b"0\r\n\r\n")
        self.exchange.complete = True

    async def fail(self, error: dict[str, Any]) -> None:
        """Say what is wrong, and break off: no client takes what it has for a whole answer."""
        await self._send(self.translator.failed(error) if self.translator else data_event({"error": error}))
        self.exchange.keep_alive = False

    async def respond(self, response: Response) -> None:
        """Give the client a whole answer.

        Raises:
            DialectError: It cannot be said in the client's dialect; the client has nothing of it.
        """
        await self.exchange.respond(translated(response, self.translator) if self.translator else response)

    def _translated(self, events: bytes) -> bytes:
        assert self.translator is not None
        found = b""
        for event in EventSplitter().feed(events):
            data = data_of(event)
            if data is None:
                found += self.translator.waiting()
            elif data.strip() != b"[DONE]":
                found += self.translator.event(orjson.loads(data))
        return found


def translated(response: Response, translator: AnswerTranslator) -> Response:
    """Return a whole answer as its client reads it.

    Raises:
        DialectError: It cannot be said in the client's dialect.
    """
    body = translator.complete(response.status, orjson.loads(response.body))
    try:
        return Response(response.status, response.headers, orjson.dumps(body))
    except orjson.JSONEncodeError as exc:
        raise DialectError(f"it is nested too deeply: {exc}") from exc


async def comment_until(done: trio.Event, client: ClientStream, comment: bytes) -> None:
    """Tell a client that waits for a stream again and again that it is not forgotten, until the event."""
    while not done.is_set():
        with trio.move_on_after(COMMENT_SECONDS):
            await done.wait()
        if not done.is_set():
            await client.send(comment)


UNTRANSLATABLE: Final = "the backend's answer cannot be said in the client's dialect"

_DRAIN_SECONDS: Final = 0.1
"""For the end of the backend's body after the end of its answer, so that the connection can be used again."""


class Ending(enum.Enum):
    """How a stream ended; the names are those of the audit log."""

    COMPLETE = "ok"
    ERROR = "backend_error"
    SILENT = "backend_silent"
    BROKEN = "broken_off"
    GARBAGE = "malformed"
    CUT = "cut_short"
    UNTRANSLATABLE = "untranslatable"
    UNJOINED = "not_joined"


BREAKS: Final = frozenset({Ending.SILENT, Ending.BROKEN, Ending.CUT})
"""What becomes of a stream when its engine dies."""

_MESSAGES: Final = {
    Ending.SILENT: "the backend went silent before the end of its answer",
    Ending.BROKEN: "the backend broke off before the end of its answer",
    Ending.GARBAGE: "the backend sent something that is no piece of an answer",
    Ending.CUT: "the backend ended the stream before the end of its answer",
    Ending.UNJOINED: "the backend broke off, and what another one said did not continue its answer",
}


async def relay(begun: Stream, client: ClientStream, waiting: WaitingRequest, timing: Callable[[], str]) -> Ending:
    """Pass a stream on to its end, which is an error event unless it is whole, or unless the answer can go on.

    Args:
        begun: The stream.
        client: Gets it.
        waiting: Learns what is heard of the engine, and says if it is frozen.
        timing: Returns where the time went, once the answer is whole.
    """
    joined = client.joined
    try:
        ending = await _pass_events(begun, client, waiting)
        if joined is not None and ending in BREAKS:
            closing_events = joined.release() if joined.is_finished else joined.closing_events()
            if closing_events:
                await client.send(closing_events)
                await client.end(timing())
                return Ending.COMPLETE
            if not joined.mark_interrupted():
                return ending
        if ending is Ending.COMPLETE:
            await client.send(joined.release() if joined is not None else b"")
            await client.end(timing())
    except DialectError as exc:
        await client.fail(error_object(502, f"{UNTRANSLATABLE}: {exc}", f"stream_{Ending.UNTRANSLATABLE.value}"))
        return Ending.UNTRANSLATABLE
    except JoinError as exc:
        assert joined is not None, "nothing else is joined"
        ending, joined.obstacle = Ending.UNJOINED, str(exc)
    if ending is Ending.COMPLETE:
        await _drain(begun)
    elif ending is Ending.ERROR:
        error = begun.judge.error or {}
        await client.fail(error_object(502, "the backend failed", "backend_error") | error)
    else:
        await fail(client, ending)
    return ending


async def fail(client: ClientStream, ending: Ending) -> None:
    """End a stream that broke off."""
    await client.fail(error_object(502, _MESSAGES[ending], f"stream_{ending.value}"))


async def _pass_events(begun: Stream, client: ClientStream, waiting: WaitingRequest) -> Ending:
    waiting.last_received_at = trio.current_time()
    await client.send(_visible_events(begun, client, begun.events))
    with trio.CancelScope() as silence:
        waiting.begin(silence)
        until = trio.current_time() + begun.silence_seconds
        while not begun.judge.done:
            if waiting.is_frozen:
                return Ending.SILENT
            silence.deadline = until
            try:
                piece = await begun.answer.receive_some()
                events = begun.splitter.feed(piece)
            except HttpError:
                return Ending.BROKEN
            except OversizedEventError:
                return Ending.GARBAGE
            silence.deadline = float("inf")
            waiting.last_received_at = trio.current_time()
            if not piece:
                return Ending.COMPLETE if begun.judge.is_complete and not begun.splitter.rest else Ending.CUT
            read = [(begun.judge.take(event), event) for event in events]
            kinds = [kind for kind, _ in read]
            bad = next((at for at, kind in enumerate(kinds) if kind in (Kind.ERROR, Kind.GARBAGE)), None)
            await client.send(_visible_events(begun, client, read[:bad]))
            if bad is not None:
                return Ending.ERROR if kinds[bad] is Kind.ERROR else Ending.GARBAGE
            if events:
                until = trio.current_time() + begun.silence_seconds
    return Ending.SILENT if silence.cancelled_caught else Ending.COMPLETE


def _visible_events(begun: Stream, client: ClientStream, read: Sequence[tuple[Kind, bytes]]) -> bytes:
    """Return what the client gets of some events; the mark of the end comes when all is known.

    Raises:
        JoinError: They do not continue what the client has.
    """
    hides, joined = begun.hides_usage, client.joined
    if joined is None or joined.is_passthrough:
        return b"".join(event for kind, event in read if kind is not Kind.DONE and not (hides and kind is Kind.USAGE))
    found = []
    for kind, event in read:
        if kind is Kind.DONE:
            continue
        if kind is Kind.COMMENT or (data := data_of(event)) is None:
            found.append(event)
        else:
            found.append(joined.take(data, event, hidden=hides and kind is Kind.USAGE))
    return b"".join(found)


async def _drain(begun: Stream) -> None:
    with trio.move_on_after(_DRAIN_SECONDS):
        try:
            while not begun.answer.reusable and await begun.answer.receive_some():
                pass
        except HttpError:
            return
