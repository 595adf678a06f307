"""What a translation is: a request becomes one of chat completions, and its answers become the client's. Pure."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import UnionType
from typing import Any, Final

import attrs
import orjson

EVENT_STREAM: Final = "text/event-stream"
LINES: Final = "application/x-ndjson"

JsonObject = dict[str, Any]


class DialectError(Exception):
    """A request cannot be said in the other dialect; the message names field, value and fix."""


class AnswerTranslator(ABC):
    """Translates the answers to one request into what its client speaks.

    The methods implemented here are those of an answer that is never streamed.
    """

    __slots__ = ()

    media_type: str = EVENT_STREAM
    """Of a stream."""

    @staticmethod
    @abstractmethod
    def refusal(status: int, error: Mapping[str, Any], /) -> Mapping[str, Any]:
        """Return an error as the client reads it."""

    @abstractmethod
    def answer(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a whole answer of a backend as the client reads it."""

    def complete(self, status: int, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a whole answer, or an error."""
        return self.answer(body) if status < 400 else self.refusal(status, error_in_answer(body))

    def event(self, body: Mapping[str, Any]) -> bytes:
        """Return what the client reads of one event of a stream.

        Raises:
            DialectError: It cannot be said; the stream ends with an error.
        """
        raise DialectError("the backend streams an answer that is no stream")

    def waiting(self) -> bytes:
        """Return what tells a client that it is not forgotten."""
        return b""

    def end(self) -> bytes:
        """Return the end of a stream that is whole.

        Raises:
            DialectError: What has come is not whole in the client's dialect.
        """
        return b""

    def failed(self, error: Mapping[str, Any]) -> bytes:
        """Return the end of a stream that is not whole."""
        return orjson.dumps(self.refusal(502, error))


@attrs.frozen(kw_only=True)
class Translation:
    """One request, translated.

    Attributes:
        path: Of the backend's request, below `/v1`.
        body: Of the backend's request.
        translator: Translates what comes back; None passes it on.
        dropped: Fields that have no counterpart and change no answer's meaning, for the audit log.
    """

    path: str
    body: JsonObject = attrs.field(repr=False)
    translator: AnswerTranslator | None = None
    dropped: tuple[str, ...] = ()


@attrs.frozen
class Dialect:
    """One kind of request that clients send.

    Attributes:
        read: Translates a request; raises DialectError if it has no counterpart.
        refusal: Returns an error in the shape that the client reads, by its status.
    """

    read: Callable[[JsonObject], Translation]
    refusal: Callable[[int, Mapping[str, Any]], Mapping[str, Any]]


def message_of(error: Mapping[str, Any]) -> str:
    """Return an error's message; of too long a prompt with how long it is and what there is room for."""
    message = str(error.get("message") or "the request failed")
    needed, available = error.get("n_prompt_tokens"), error.get("n_ctx")
    has_counts = str(needed) in message and str(available) in message
    if isinstance(needed, int) and isinstance(available, int) and not has_counts:
        return f"{message} (the prompt needs {needed} tokens, {available} are available)"
    return message


def error_in_answer(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the error of an answer that is one, also where it is a text."""
    error = body.get("error")
    return error if isinstance(error, dict) else {"message": str(error or "")}


def text_of_block(block: Mapping[str, Any], where: str) -> str:
    """Return the text of a text block.

    Raises:
        DialectError: It is no text block.
    """
    kind, text = block.get("type"), block.get("text")
    if kind != "text" or not isinstance(text, str):
        raise DialectError(f'{where} is of type {kind!r}; write {{"type": "text", "text": …}}')
    return text


def objects_in(value: object, where: str) -> list[JsonObject]:
    """Return a list of objects; none of an absent one.

    Raises:
        DialectError: It is something else.
    """
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise DialectError(f"{where} must be a list of objects")
    return value


def object_in(value: object, where: str) -> JsonObject:
    """Return an object; an empty one of an absent one.

    Raises:
        DialectError: It is something else.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise DialectError(f"{where} must be an object")
    return value


def check_kinds(body: Mapping[str, Any], kinds: Mapping[str, type | UnionType], where: str = "") -> None:
    """Refuse fields of a kind that no backend takes; one that is null counts as absent.

    Raises:
        DialectError: One is.
    """
    for name, value in body.items():
        kind = kinds.get(name)
        if kind is None or value is None:
            continue
        if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            continue
        raise DialectError(f"{where}{name} is {value!r:.80}; write {_KINDS[kind]}, or leave it away")


_KINDS: Final[Mapping[type | UnionType, str]] = {
    bool: "true or false",
    int: "a whole number",
    int | float: "a number",
    str: "a text",
    dict: "an object",
    str | dict: "a text or an object",
    str | list: "a text or a list",
}


def arguments_of(written: object, where: str) -> JsonObject:
    """Return the arguments of a call that a chat completion writes as text.

    Raises:
        DialectError: They are no JSON object.
    """
    if isinstance(written, str) and not written.strip():
        return {}
    try:
        found = orjson.loads(written) if isinstance(written, str) else written
    except orjson.JSONDecodeError as exc:
        raise DialectError(f"{where} must be a JSON object in a string: {exc}") from exc
    return object_in(found, where)


def dumped(value: object) -> str:
    """Return JSON as text.

    Raises:
        DialectError: It is nested too deeply.
    """
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError as exc:
        raise DialectError(f"it is nested too deeply: {exc}") from exc


def call_of(call_id: object, name: object, given: object) -> JsonObject:
    """Return a call as a chat completion writes it: its arguments are text.

    Raises:
        DialectError: They are nested too deeply.
    """
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": dumped(given or {})}}


def cache_of(block: Mapping[str, Any]) -> JsonObject:
    """Return what a block says of Anthropic's cache, where it says something."""
    cached = block.get("cache_control")
    return {"cache_control": cached} if isinstance(cached, dict) else {}


def text_in(body: Mapping[str, Any], name: str) -> str:
    """Return a text; "" of an absent one.

    Raises:
        DialectError: It is something else.
    """
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise DialectError(f"{name} must be a text")
    return value or ""


def index_of(call: Mapping[str, Any]) -> int:
    """Return which call of an answer a piece of a stream belongs to; 0 where it does not say.

    Raises:
        DialectError: It is no index.
    """
    value = call.get("index")
    if value is not None and (not isinstance(value, int) or value < 0):
        raise DialectError(f"tool_calls.index is {value!r}, and no index")
    return value or 0


def count_in(body: Mapping[str, Any], name: str) -> int:
    """Return a number of tokens; 0 where none is said."""
    value = body.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def choice_in(chat: Mapping[str, Any]) -> JsonObject:
    """Return the first choice of an answer, or of one event of it; an empty one where it has none.

    Raises:
        DialectError: It has another shape than a chat completion's.
    """
    choices = objects_in(chat.get("choices"), "choices")
    return choices[0] if choices else {}


def data_event(body: Mapping[str, Any]) -> bytes:
    """Return a server-sent event without a name."""
    return b"data: %b\n\n" % orjson.dumps(body)


def named_event(event: Mapping[str, Any]) -> bytes:
    """Return a server-sent event that is named by its type.

    Raises:
        DialectError: It is nested too deeply.
    """
    return f"event: {event['type']}\ndata: {dumped(event)}\n\n".encode()
