"""Interface of dialects: requests are translated to chat completions, and answers to the client's dialect. Pure."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import UnionType
from typing import Any, Final

import attrs
import orjson

from llmkube.base.json_text import loads_well_formed

EVENT_STREAM: Final = "text/event-stream"
LINES: Final = "application/x-ndjson"

JsonObject = dict[str, Any]


class DialectError(Exception):
    """A request is refused, or cannot be translated to the other dialect; the message names field, value and fix.

    Attributes:
        code: Error code.
    """

    code = "invalid_value"


class AnswerTranslator(ABC):
    """Translates the answers to one request into its client's dialect.

    The methods implemented here are for answers that are never streamed.
    """

    __slots__ = ()

    media_type: str = EVENT_STREAM
    """Media type of a stream."""

    streamed_code: str | None = None
    """Code of an error that clients that request a stream read only from its end."""

    def begin(self, now: int) -> None:
        """Take the Unix time of the request, before any other call."""
        return

    @staticmethod
    @abstractmethod
    def refusal(status: int, error: Mapping[str, Any], /) -> Mapping[str, Any]:
        """Return an error in the client's dialect."""

    @abstractmethod
    def answer(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a whole answer in the client's dialect."""

    def complete(self, status: int, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a whole answer or an error in the client's dialect."""
        return self.answer(body) if status < 400 else self.refusal(status, error_in_answer(body))

    def event(self, body: Mapping[str, Any]) -> bytes:
        """Translate one event of a stream.

        Raises:
            DialectError: It cannot be translated; the stream ends with an error.
        """
        raise DialectError("the backend streamed an answer that this API cannot stream")

    def waiting(self) -> bytes:
        """Return a keep-alive for a client that waits."""
        return b""

    def end(self) -> bytes:
        """Return the end of a complete stream.

        Raises:
            DialectError: The answer is incomplete in the client's dialect.
        """
        return b""

    def failed(self, error: Mapping[str, Any]) -> bytes:
        """Return the end of an incomplete stream."""
        return orjson.dumps(self.refusal(502, error))


@attrs.frozen(kw_only=True)
class Translation:
    """A translated request.

    Attributes:
        path: Path of the backend's request, below `/v1`; "" if the translator answers without a backend.
        body: Body of the backend's request.
        translator: Translates the answers; None forwards them.
        dropped: Fields without a counterpart that do not change the meaning of an answer, for the audit log.
        keep_seconds: Time for which the model stays loaded after the request: 0 unloads it, infinite keeps it; None if
            the client does not set it.
    """

    path: str
    body: JsonObject = attrs.field(repr=False)
    translator: AnswerTranslator | None = None
    dropped: tuple[str, ...] = ()
    keep_seconds: float | None = None


@attrs.frozen
class Dialect:
    """API of one path.

    Attributes:
        read: Translates a request; raises DialectError if it has no counterpart.
        refusal: Returns an error in the client's format, given its status.
    """

    read: Callable[[JsonObject], Translation]
    refusal: Callable[[int, Mapping[str, Any]], Mapping[str, Any]]


def message_of(error: Mapping[str, Any]) -> str:
    """Return the message of an error; if the prompt is too long, with the tokens needed and available."""
    message = str(error.get("message") or "the request failed")
    needed, available = error.get("n_prompt_tokens"), error.get("n_ctx")
    has_counts = str(needed) in message and str(available) in message
    if isinstance(needed, int) and isinstance(available, int) and not has_counts:
        return f"{message} (the prompt needs {needed} tokens, {available} are available)"
    return message


def error_in_answer(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the error in an answer; a string becomes its message."""
    error = body.get("error")
    return error if isinstance(error, dict) else {"message": str(error or "")}


_DICTS: Final = frozenset({dict})


def objects_in(value: object, where: str) -> list[JsonObject]:
    """Return a list of objects; empty if absent.

    Raises:
        DialectError: The value has another type.
    """
    if value is None:
        return []
    if not isinstance(value, list) or not _DICTS.issuperset(map(type, value)):
        raise DialectError(f"{where} must be a list of objects")
    return value


def object_in(value: object, where: str) -> JsonObject:
    """Return an object; empty if absent.

    Raises:
        DialectError: The value has another type.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise DialectError(f"{where} must be an object")
    return value


def check_kinds(body: Mapping[str, Any], kinds: Mapping[str, type | UnionType], where: str = "") -> None:
    """Refuse fields of a type that no backend accepts; null is treated as absent.

    Raises:
        DialectError: A field has the wrong type.
    """
    for name, value in body.items():
        kind = kinds.get(name)
        if kind is None or value is None:
            continue
        if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            continue
        raise DialectError(f"{where}{name} is {value!r:.80}; write {_KINDS[kind]}, or omit it")


_KINDS: Final[Mapping[type | UnionType, str]] = {
    bool: "true or false",
    int: "an integer",
    int | float: "a number",
    str: "a string",
    dict: "an object",
    str | dict: "a string or an object",
    str | list: "a string or a list",
}


def arguments_of(written: object, where: str) -> JsonObject:
    """Parse the arguments of a tool call in a chat completion.

    Raises:
        DialectError: They are not a JSON object.
    """
    if isinstance(written, str) and not written.strip():
        return {}
    try:
        found = loads_well_formed(written) if isinstance(written, str) else written
    except orjson.JSONDecodeError as exc:
        raise DialectError(f"{where} must be a JSON object in a string: {exc}") from exc
    return object_in(found, where)


def dumped(value: object) -> str:
    """Return a value as JSON.

    Raises:
        DialectError: It is nested too deeply.
    """
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError as exc:
        raise DialectError(f"it is nested too deeply: {exc}") from exc


def call_of(call_id: object, name: object, given: object) -> JsonObject:
    """Return a tool call of a chat completion: its arguments are a JSON string.

    Raises:
        DialectError: They are nested too deeply.
    """
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": dumped(given or {})}}


def cache_of(block: Mapping[str, Any]) -> JsonObject:
    """Return the `cache_control` member of a block, if any."""
    cached = block.get("cache_control")
    return {"cache_control": cached} if isinstance(cached, dict) else {}


def text_in(body: Mapping[str, Any], name: str) -> str:
    """Return a string member; "" if absent.

    Raises:
        DialectError: The value has another type.
    """
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise DialectError(f"{name} must be a string")
    return value or ""


def index_of(call: Mapping[str, Any]) -> int:
    """Return the index of the tool call that a piece of a stream belongs to; 0 if absent.

    Raises:
        DialectError: It is not an index.
    """
    value = call.get("index")
    if value is not None and (not isinstance(value, int) or value < 0):
        raise DialectError(f"tool_calls.index is {value!r}, which is not an index")
    return value or 0


def count_in(body: Mapping[str, Any], name: str) -> int:
    """Return a number of tokens; 0 if absent."""
    value = body.get(name)
    return value if type(value) is int and value > 0 else 0


def choice_in(chat: Mapping[str, Any]) -> JsonObject:
    """Return the first choice of an answer or of an event; empty if absent.

    Raises:
        DialectError: It is not a chat completion.
    """
    choices = objects_in(chat.get("choices"), "choices")
    return choices[0] if choices else {}


def data_event(body: Mapping[str, Any]) -> bytes:
    """Return a server-sent event without a name."""
    return b"data: %b\n\n" % orjson.dumps(body)


def named_event(event: Mapping[str, Any]) -> bytes:
    """Return a server-sent event named by its `type`.

    Raises:
        DialectError: It is nested too deeply.
    """
    return f"event: {event['type']}\ndata: {dumped(event)}\n\n".encode()
