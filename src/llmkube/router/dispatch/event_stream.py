"""Server-sent events of an answer: splits them, and checks whether the answer is complete. Pure."""

import enum
import re
from typing import Any, Final

import attrs
import orjson

from llmkube.router.budgets.usage import Usage, has_text, usage_of
from llmkube.router.dialects.dialect import DialectError, data_event
from llmkube.router.dialects.messages_backend import MessageEvents
from llmkube.router.dispatch.verdicts import error_in

MAX_EVENT_BYTES: Final = 4 << 20
"""A longer event is a fault of the backend."""

DONE: Final = b"data: [DONE]\n\n"

_END: Final = re.compile(rb"\r\n\r\n|\n\r\n|\n\n|\r\r")
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_LONGEST_END: Final = 4


class OversizedEventError(Exception):
    """An event exceeds `MAX_EVENT_BYTES`."""


class EventSplitter:
    """Splits received bytes into events."""

    def __init__(self) -> None:
        self.rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes and return the complete events, each with its empty line.

        Raises:
            OversizedEventError: An event is too long.
        """
        start = max(0, len(self.rest) - _LONGEST_END + 1)
        self.rest += data
        found, at = [], 0
        while (end := _END.search(self.rest, max(at, start))) is not None:
            found.append(self.rest[at : end.end()])
            at = end.end()
        self.rest = self.rest[at:]
        if len(self.rest) > MAX_EVENT_BYTES:
            raise OversizedEventError(f"an event is longer than {MAX_EVENT_BYTES} bytes")
        return found


class MessagesSplitter(EventSplitter):
    """Splits bytes into events of Anthropic's Messages API, and returns them as events of chat completions."""

    def __init__(self) -> None:
        super().__init__()
        self._events = MessageEvents()

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes and return the complete events, translated.

        Raises:
            OversizedEventError: An event is too long.
        """
        return [each for event in super().feed(data) for each in self._translate(event)]

    def _translate(self, event: bytes) -> list[bytes]:
        data = data_of(event)
        payload = None if data is None else _object_in(data)
        if payload is None:
            return [event]  # a comment, or garbage, which `AnswerState` detects
        if payload.get("type") == "ping":
            return [b": ping\n\n"]
        was_done = self._events.done
        try:
            chunks = self._events.take(payload)
        except DialectError:
            return [b"data: {}\n\n"]  # garbage
        found = [data_event(each) for each in chunks]
        return [*found, DONE] if self._events.done and not was_done else found


class Kind(enum.Enum):
    """Kind of an event."""

    COMMENT = "a comment, or nothing"
    PIECE = "a piece of the answer"
    USAGE = "nothing but the usage"
    ERROR = "an error"
    DONE = "the end"
    GARBAGE = "nothing that can be read"


class AnswerState:
    """Classifies the events of one answer.

    Attributes:
        error: Error that the backend sent.
        model: Model name that the backend reported.
        done: Whether `[DONE]` was received.
    """

    def __init__(self) -> None:
        self._usage: Usage | None = None
        self._has_text = False
        self.error: dict[str, Any] | None = None
        self.model = ""
        self.done = False
        self._finished: dict[int, bool] = {}

    @property
    def usage(self) -> Usage | None:
        """Tokens, if reported so far."""
        return attrs.evolve(self._usage, has_text=self._has_text) if self._usage is not None else None

    @property
    def is_complete(self) -> bool:
        """Whether the answer is complete: `[DONE]` was received, or every choice has a `finish_reason`."""
        return self.done or (bool(self._finished) and all(self._finished.values()))

    def take(self, event: bytes) -> Kind:
        """Process the next event and return its kind."""
        data = data_of(event)
        if data is None:
            return Kind.COMMENT
        if data.strip() == b"[DONE]":
            self.done = True
            return Kind.DONE
        payload = _object_in(data)
        if payload is None:
            return Kind.GARBAGE
        error = error_in(payload)
        if error is not None:
            self.error = dict(error)
            return Kind.ERROR
        self._usage = usage_of(payload, self._usage)
        self._has_text = self._has_text or has_text(payload)
        if isinstance(model := payload.get("model"), str):
            self.model = self.model or model
        choices = payload.get("choices")
        if not isinstance(choices, list):
            return Kind.GARBAGE
        if not choices:
            return Kind.USAGE if "usage" in payload else Kind.PIECE
        self._record_finished(choices)
        return Kind.PIECE

    def _record_finished(self, choices: list[Any]) -> None:
        for choice in choices:
            if isinstance(choice, dict):
                index = choice.get("index")
                at = index if isinstance(index, int) else 0
                self._finished[at] = self._finished.get(at, False) or bool(choice.get("finish_reason"))


def data_of(event: bytes) -> bytes | None:
    """Return the data of an event; None if it has none, like a comment."""
    found = [line[5:] for line in _LINE_END.split(event) if line.startswith(b"data:")]
    return b"\n".join(line.removeprefix(b" ") for line in found) if found else None


def _object_in(data: bytes) -> dict[str, Any] | None:
    try:
        payload = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return payload if isinstance(payload, dict) else None
