"""Answers of chat completions and embeddings for clients that speak Ollama's API: an event is a line of JSON. Pure."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import attrs
import orjson

from llmkube.router.dialects.dialect import (
    LINES,
    DialectError,
    JsonObject,
    NoStream,
    arguments_of,
    count_in,
    error_in_answer,
    index_of,
    object_in,
    objects_in,
    text_in,
    words_of,
)

MOST_CALLS: Final = 256
MOST_HELD: Final = 4 << 20
"""Characters of calls, which a client of Ollama gets as a whole; a stream with more ends with an error."""

_NANOSECONDS: Final = 1_000_000
_LATEST: Final = 253402300799
"""The last second that a date can say."""
_REASONS: Final[Mapping[str, str]] = {"length": "length"}


def ollama_error(error: Mapping[str, Any]) -> JsonObject:
    """Return an error as Ollama's clients read it."""
    return {"error": words_of(error)}


@attrs.define(eq=False, kw_only=True)
class OllamaAnswers:
    """Translates the answers to one request.

    Attributes:
        model: What the client asked for.
        generates: Whether the answer is one of `/api/generate`.
    """

    model: str
    generates: bool = False
    media_type: str = LINES
    _last: JsonObject = attrs.field(factory=dict)
    _reason: str = "stop"
    _calls: dict[int, JsonObject] = attrs.field(factory=dict)
    _held: int = 0

    def whole(self, status: int, said: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a whole answer, or an error."""
        if status >= 400:
            return ollama_error(error_in_answer(said))
        choices = objects_in(said.get("choices"), "choices")
        choice = choices[0] if choices else {}
        message = object_in(choice.get("message"), "message")
        calls = _calls_of(objects_in(message.get("tool_calls"), "tool_calls"))
        thought = message.get("reasoning_content")
        text = str(message.get("content") or message.get("refusal") or "")
        return self._line(said, text, thought=thought, calls=calls) | _ended(said, str(choice.get("finish_reason")))

    def event(self, said: Mapping[str, Any]) -> bytes:
        """Return the line of one event; calls come as a whole, with the last."""
        self._last |= {name: said[name] for name in ("created", "usage", "timings") if said.get(name)}
        for choice in objects_in(said.get("choices"), "choices")[:1]:
            self._reason = str(choice.get("finish_reason") or self._reason)
            delta = object_in(choice.get("delta"), "delta")
            for call in objects_in(delta.get("tool_calls"), "tool_calls"):
                self._add(call)
            text = str(delta.get("content") or delta.get("refusal") or "")
            if text or delta.get("reasoning_content"):
                line = self._line(said, text, thought=delta.get("reasoning_content"))
                return orjson.dumps(line | {"done": False}) + b"\n"
        return b""

    def _add(self, call: Mapping[str, Any]) -> None:
        known = self._calls.setdefault(index_of(call), {"function": {"name": "", "arguments": ""}})["function"]
        said = object_in(call.get("function"), "function")
        for name in ("name", "arguments"):
            piece = text_in(said, name)
            known[name] += piece
            self._held += len(piece)
        if self._held > MOST_HELD or len(self._calls) > MOST_CALLS:
            raise DialectError(f"its calls are more than {MOST_CALLS}, or longer than {MOST_HELD} characters")

    def _line(
        self, said: Mapping[str, Any], text: str, *, thought: object = None, calls: list[JsonObject] | None = None
    ) -> JsonObject:
        line: JsonObject = {"model": self.model}
        if isinstance(created := said.get("created"), int) and 0 < created <= _LATEST:
            line["created_at"] = datetime.fromtimestamp(created, UTC).isoformat().replace("+00:00", "Z")
        if self.generates:
            return line | {"response": text} | ({"thinking": thought} if thought else {})
        message: JsonObject = {"role": "assistant", "content": text}
        if thought:
            message["thinking"] = thought
        if calls:
            message["tool_calls"] = calls
        return line | {"message": message}

    def waiting(self) -> bytes:
        """Return a line without text."""
        return orjson.dumps(self._line({}, "") | {"done": False}) + b"\n"

    def end(self) -> bytes:
        """Return the last line, with calls, reason and tokens."""
        calls = _calls_of([self._calls[at] for at in sorted(self._calls)])
        return orjson.dumps(self._line(self._last, "", calls=calls) | _ended(self._last, self._reason)) + b"\n"

    def failed(self, error: Mapping[str, Any]) -> bytes:
        """Return the line of an error."""
        return orjson.dumps(ollama_error(error)) + b"\n"


def _calls_of(calls: list[JsonObject]) -> list[JsonObject]:
    found: list[JsonObject] = []
    for at, call in enumerate(calls):
        function = object_in(call.get("function"), "function")
        given = arguments_of(function.get("arguments"), f"tool_calls[{at}].function.arguments")
        found.append({"function": {"name": function.get("name"), "arguments": given}})
    return found


def _ended(said: Mapping[str, Any], reason: str) -> JsonObject:
    usage, timings = object_in(said.get("usage"), "usage"), object_in(said.get("timings"), "timings")
    read, written = (_nanoseconds(timings.get(name)) for name in ("prompt_ms", "predicted_ms"))
    return {
        "done": True,
        "done_reason": _REASONS.get(reason, "stop"),
        "total_duration": read + written,
        "load_duration": 0,
        "prompt_eval_count": count_in(usage, "prompt_tokens"),
        "prompt_eval_duration": read,
        "eval_count": count_in(usage, "completion_tokens"),
        "eval_duration": written,
    }


def _nanoseconds(milliseconds: object) -> int:
    if not isinstance(milliseconds, int | float) or not 0 <= milliseconds < _LATEST:
        return 0
    return int(milliseconds * _NANOSECONDS)


@attrs.define(eq=False, kw_only=True)
class EmbedAnswers(NoStream):
    """Translates the answer to a request for vectors.

    Attributes:
        model: What the client asked for.
    """

    model: str
    media_type: str = LINES

    def whole(self, status: int, said: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the vectors in the order of their texts, or an error."""
        if status >= 400:
            return ollama_error(error_in_answer(said))
        found = sorted(objects_in(said.get("data"), "data"), key=lambda one: count_in(one, "index"))
        prompt = count_in(object_in(said.get("usage"), "usage"), "prompt_tokens")
        return {
            "model": self.model,
            "embeddings": [each.get("embedding") for each in found],
            "total_duration": 0,
            "load_duration": 0,
            "prompt_eval_count": prompt,
        }

    def failed(self, error: Mapping[str, Any]) -> bytes:
        """Return an error."""
        return orjson.dumps(ollama_error(error))
