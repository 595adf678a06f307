"""The stream that a client reads: events as they come, and an end that is clean only if the answer was whole."""

from typing import Any, Final

import attrs
import orjson
import trio

from llmkube.base.http.exchange import StreamExchange
from llmkube.base.http.message import Headers, Response, encode_lines
from llmkube.router.continuation.joined_answer import JoinedAnswer
from llmkube.router.dialects.dialect import Answers, DialectError
from llmkube.router.dispatch.event_stream import DONE, EventSplitter, data_of, error_event

COMMENT_SECONDS: Final = 5.0
"""How often a client that waits for a stream hears that it is not forgotten."""

LOADING_COMMENT: Final = b": the model is loading\n\n"
QUEUE_COMMENT: Final = b": the request waits for its turn\n\n"

_EVENT_STREAM: Final = "text/event-stream"
_LINES: Final = (("Cache-Control", "no-cache"), ("X-Accel-Buffering", "no"))
_SET_HERE: Final = ("content-type", "cache-control", "content-length", "transfer-encoding", "connection")


@attrs.define(eq=False)
class ClientStream:
    """A stream of events as the answer to one request.

    Attributes:
        exchange: The request.
        answers: Translates what a backend says; None passes it on.
        joined: What was said so far, for another engine to go on with; None of an answer that is no stream.
    """

    exchange: StreamExchange
    answers: Answers | None = None
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
        kind = ("Content-Type", self.answers.media_type if self.answers else _EVENT_STREAM)
        lines = encode_lines((*headers.without(*_SET_HERE), kind, *_LINES)) + framing
        await self.exchange.send(self.exchange.begin(200, lines))

    async def send(self, events: bytes) -> None:
        """Send events, or nothing if there are none.

        Raises:
            DialectError: One cannot be said in the client's dialect.
        """
        await self._send(self._translated(events) if self.answers else events)

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
        last = self.answers.end() if self.answers else DONE
        if self.answers is None or self.answers.media_type == _EVENT_STREAM:
            last = b": server-timing %b\n\n%b" % (timing.encode(), last)
        await self._send(last, b"0\r\n\r\n")
        self.exchange.complete = True

    async def fail(self, error: dict[str, Any]) -> None:
        """Say what is wrong, and break off: no client takes what it has for a whole answer."""
        await self._send(self.answers.failed(error) if self.answers else error_event(error))
        self.exchange.keep_alive = False

    async def respond(self, response: Response) -> None:
        """Give the client a whole answer.

        Raises:
            DialectError: It cannot be said in the client's dialect; the client has nothing of it.
        """
        await self.exchange.respond(translated(response, self.answers) if self.answers else response)

    def _translated(self, events: bytes) -> bytes:
        assert self.answers is not None
        found = b""
        for event in EventSplitter().feed(events):
            data = data_of(event)
            if data is None:
                found += self.answers.waiting()
            elif data.strip() != b"[DONE]":
                found += self.answers.event(orjson.loads(data))
        return found


def translated(response: Response, answers: Answers) -> Response:
    """Return a whole answer as its client reads it.

    Raises:
        DialectError: It cannot be said in the client's dialect.
    """
    said = answers.whole(response.status, orjson.loads(response.body))
    try:
        return Response(response.status, response.headers, orjson.dumps(said))
    except orjson.JSONEncodeError as exc:
        raise DialectError(f"it is nested too deeply: {exc}") from exc


async def comment_until(done: trio.Event, client: ClientStream, comment: bytes) -> None:
    """Tell a client that waits for a stream again and again that it is not forgotten, until the event."""
    while not done.is_set():
        with trio.move_on_after(COMMENT_SECONDS):
            await done.wait()
        if not done.is_set():
            await client.send(comment)
