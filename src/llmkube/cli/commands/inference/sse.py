"""A stream of server-sent events as engines write it, read piece by piece. Pure.

Only what OpenAI-compatible servers use of https://html.spec.whatwg.org/multipage/server-sent-events.html: `data` lines
and, from llama.cpp, `error` lines; comments and other fields are passed over.
"""

import json
from typing import Any, Final

import attrs

MAX_EVENT_BYTES: Final = 4 * 1024 * 1024
DONE: Final = "[DONE]"


class StreamError(Exception):
    """What came is no stream of chat completions, or the engine says in it that it has failed."""


@attrs.frozen
class Delta:
    """What one event adds to an answer."""

    text: str = ""
    reasoning: str = ""
    finish_reason: str = ""


@attrs.define(eq=False)
class EventReader:
    """Cut a stream into the data of its events, wherever the pieces happen to end.

    Attributes:
        done: The stream has said that it is complete.
    """

    done: bool = False
    _rest: bytearray = attrs.field(factory=bytearray)
    _data: list[str] = attrs.field(factory=list)

    def feed(self, piece: bytes) -> list[Delta]:
        """Take in the next bytes and return what they complete.

        Raises:
            StreamError: An event cannot be read, is an error, or is too long.
        """
        self._rest += piece
        if len(self._rest) > MAX_EVENT_BYTES:
            raise StreamError(f"one line of the answer is longer than {MAX_EVENT_BYTES} bytes")
        *lines, rest = self._rest.split(b"\n")
        self._rest = bytearray(rest)
        found = []
        for raw in lines:
            line = raw.rstrip(b"\r").decode("utf-8", "replace")
            if line:
                self._take(line)
            elif self._data:
                text = "\n".join(self._data)
                self._data.clear()
                if text.strip() == DONE:
                    self.done = True
                else:
                    found.append(parse_event(text))
        return found

    def _take(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "error":
            raise StreamError(error_text(value))


def parse_event(text: str) -> Delta:
    """Read one event of a streamed chat completion.

    Raises:
        StreamError: It is an error, or not a chat completion.
    """
    try:
        event = json.loads(text)
    except (ValueError, RecursionError):
        raise StreamError(f"the engine sent something that is not JSON: {text[:120]!r}") from None
    if isinstance(event, dict) and event.get("error"):
        raise StreamError(error_text(text))
    choices = event.get("choices") if isinstance(event, dict) else None
    if not isinstance(choices, list):
        raise StreamError(f"the engine sent something that is not a chat completion: {text[:120]!r}")
    choice = choices[0] if choices and isinstance(choices[0], dict) else {}  # usage comes in an event without choices
    delta = choice.get("delta")
    delta = delta if isinstance(delta, dict) else {}
    return Delta(_text(delta, "content"), _text(delta, "reasoning_content"), _text(choice, "finish_reason"))


def error_text(text: str) -> str:
    """Return the sentence in an error object, or the beginning of what came instead."""
    try:
        error = json.loads(text)
    except (ValueError, RecursionError):
        return text[:200]
    if isinstance(error, dict):
        error = error.get("error", error)
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or text[:200])


def _text(found: dict[str, Any], name: str) -> str:
    value = found.get(name)
    return value if isinstance(value, str) else ""
