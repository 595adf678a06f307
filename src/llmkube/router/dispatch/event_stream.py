"""Events of a streamed answer: parsed, in one form for all backends, and whether the answer is complete. Pure."""

import enum
from typing import Any, Final, NamedTuple

import attrs
import orjson

from llmkube.base.event_stream import EventParser, ServerEvent
from llmkube.base.json_text import loads_well_formed
from llmkube.router.budgets.usage import Usage, has_text, usage_of
from llmkube.router.dialects.chat_form import ChatForm
from llmkube.router.dialects.dialect import DialectError, JsonObject, data_event
from llmkube.router.dialects.messages_backend import MessageEvents
from llmkube.router.dispatch.verdicts import error_in

DONE: Final = b"data: [DONE]\n\n"


class Kind(enum.Enum):
    """Kind of an event."""

    COMMENT = "a comment, or nothing"
    PIECE = "a piece of the answer"
    USAGE = "nothing but the usage"
    ERROR = "an error"
    DONE = "the end"
    GARBAGE = "nothing that can be read"


class AnswerEvent(NamedTuple):
    """One event of an answer.

    Attributes:
        encoded: The event for a client of chat completions. It has no `id` and no `retry`: they are instructions for
            reconnecting to the backend.
        body: Its data; empty for a comment, for the end, and for what cannot be read.
    """

    kind: Kind
    encoded: bytes = b""
    body: JsonObject = {}  # noqa: RUF012 (never changed)


class AnswerState:
    """Reads the events of one answer.

    Attributes:
        error: Error that the backend sent.
        model: Model name that the backend reported.
        done: Whether `[DONE]` was received.
    """

    def __init__(self, model: str, *, uses_messages: bool = False, hides_cache: bool = False) -> None:
        """Read an answer.

        Args:
            model: Name of the model in the client's request.
            uses_messages: Whether the answer is in Anthropic's Messages format.
            hides_cache: Whether the client gets no counters of the backend's prompt cache.
        """
        self._usage: Usage | None = None
        self._has_text = False
        self.error: dict[str, Any] | None = None
        self.model = ""
        self.done = False
        self._parser = EventParser()
        self._messages = MessageEvents() if uses_messages else None
        self._form = ChatForm(model, hides_cache)
        self._finished: dict[int, bool] = {}

    @property
    def usage(self) -> Usage | None:
        """Tokens, if reported so far."""
        return attrs.evolve(self._usage, has_text=self._has_text) if self._usage is not None else None

    @property
    def is_complete(self) -> bool:
        """Whether the answer is complete: `[DONE]` was received, or every choice has a `finish_reason`."""
        return self.done or (bool(self._finished) and all(self._finished.values()))

    def feed(self, piece: bytes) -> list[AnswerEvent]:
        """Process the next bytes and return the events that they complete.

        Raises:
            OversizedEventError: An event is too long.
        """
        return [each for event in self._parser.feed(piece) for each in self._read(event)]

    def end(self) -> list[AnswerEvent]:
        """Process the end of the stream and return its last event, if its empty line is missing."""
        return [each for event in self._parser.end() for each in self._read(event)]

    def _read(self, event: ServerEvent) -> list[AnswerEvent]:
        data = event.data
        if data is None or not data.strip():
            return [AnswerEvent(Kind.COMMENT, b":%b\n\n" % event.comment)]
        if data.strip() == b"[DONE]":
            return self._end()
        body = _parsed(data)
        if event.name == b"error" and error_in(body) is None:
            return [self._take({"error": error_in(body, refused=True) or {"message": data.decode("utf-8", "replace")}})]
        if self._messages is None or not isinstance(body, dict):
            return [self._take(body, data)]
        if body.get("type") == "ping":
            return [AnswerEvent(Kind.COMMENT, b": ping\n\n")]
        try:
            found = [self._take(each) for each in self._messages.take(body)]
        except DialectError:
            return [AnswerEvent(Kind.GARBAGE)]
        return found + self._end() if self._messages.done else found

    def _end(self) -> list[AnswerEvent]:
        was_done, self.done = self.done, True
        return [] if was_done else [AnswerEvent(Kind.DONE, DONE)]

    def _take(self, body: object, data: bytes = b"\n") -> AnswerEvent:
        """Convert and classify an event; `data` is reused if it is one line and nothing has changed."""
        error = error_in(body)
        if error is not None:
            self.error = dict(error)
            return AnswerEvent(Kind.ERROR)
        if not isinstance(body, dict):
            return AnswerEvent(Kind.GARBAGE)
        self._usage = usage_of(body, self._usage)
        self._has_text = self._has_text or has_text(body)
        if isinstance(model := body.get("model"), str):
            self.model = self.model or model
        try:
            is_changed = self._form.convert(body, "delta")
            encoded = data_event(body) if is_changed or b"\n" in data else b"data: %b\n\n" % data
        except (DialectError, orjson.JSONEncodeError):
            return AnswerEvent(Kind.GARBAGE)
        choices = body.get("choices")
        if not isinstance(choices, list):
            return AnswerEvent(Kind.GARBAGE)
        if not choices:
            return AnswerEvent(Kind.USAGE if "usage" in body else Kind.PIECE, encoded, body)
        self._record_finished(choices)
        return AnswerEvent(Kind.PIECE, encoded, body)

    def _record_finished(self, choices: list[Any]) -> None:
        for choice in choices:
            if isinstance(choice, dict):
                index = choice.get("index")
                at = index if isinstance(index, int) else 0
                self._finished[at] = self._finished.get(at, False) or bool(choice.get("finish_reason"))


def _parsed(data: bytes) -> object:
    """Return parsed data; None if it is not JSON. Invalid UTF-8 is replaced, as the format of streams requires."""
    for text in (data, data.decode("utf-8", "replace")):
        try:
            return loads_well_formed(text)
        except orjson.JSONDecodeError:
            continue
    return None
