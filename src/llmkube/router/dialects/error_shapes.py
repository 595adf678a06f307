"""Errors in the shapes in which engines and providers write them, as OpenAI's error objects. Pure.

OpenAI's own is `{"error": {"message": …}}`. Others are a list of it (Gemini), the object without `error` (vLLM,
Mistral), `{"detail": …}` with a text or a list of invalid fields (servers on FastAPI), an event of a stream, and text.
"""

import re
from typing import Any, Final

import orjson

from llmkube.base.event_stream import EventParser
from llmkube.base.package_data import read_table

MAX_CHARACTERS: Final = 2000
"""Limit for an error that is not JSON."""

_WORDS: Final = ("message", "msg", "detail", "error_description", "error_message", "error", "errors", "title")
"""Fields with the words of an error, best first."""
_FIELDS: Final = ("type", "param", "code", "status")
_MAX_BYTES: Final = 64 << 10

CONTEXT_FULL: Final = "context_length_exceeded"
"""OpenAI's code for a request that does not fit into the context."""

_WORDS_OF: Final = {
    name: tuple(re.compile(each, re.IGNORECASE | re.DOTALL) for each in patterns)
    for name, patterns in read_table(__package__, "engine_errors").items()
}


def error_of(answer: object, *, refused: bool = False) -> dict[str, Any] | None:
    """Return the error in an answer; None if it has none.

    Args:
        answer: Parsed body, or parsed data of an event.
        refused: Whether the status of the answer, or the name of the event, is that of an error: any shape is one then.

    One about a full context has OpenAI's code, and llama.cpp's counts of tokens.
    """
    error = _error_of(answer, refused=refused)
    found = find_words("full", str(error.get("message"))) if error else None
    if error is None or (found is None and error.get("type") != "exceed_context_size_error"):
        return error
    counts = {"n_prompt_tokens": int(found["n"]), "n_ctx": int(found["m"])} if found and found.lastindex else {}
    return counts | error | {"code": CONTEXT_FULL}


def find_words(name: str, text: str) -> re.Match[str] | None:
    """Return the first match in an error of the patterns of one list in `engine_errors.toml`."""
    return next((match for each in _WORDS_OF[name] if (match := each.search(text[:MAX_CHARACTERS]))), None)


def _error_of(answer: object, *, refused: bool) -> dict[str, Any] | None:
    if isinstance(answer, list) and answer and isinstance(answer[0], dict) and answer[0].get("error"):
        answer = answer[0]
    if not isinstance(answer, dict):
        return {"message": words} if refused and (words := _words(answer)) else None
    error = answer.get("error")
    if isinstance(error, dict) and error:
        return error if isinstance(error.get("message", ""), str) else error | {"message": _words(error)}
    if not refused and answer.get("object") != "error" and not (isinstance(error, str) and error):
        return None
    words = _words(answer)
    if isinstance(error, str) and error != words:
        words = f"{error}: {words}"  # a name, and a sentence
    kept = {name: answer[name] for name in _FIELDS if isinstance(answer.get(name), str | int)}
    return {"message": words} | kept if words else None


def parsed_refusal(body: bytes) -> object:
    """Return the parsed body of a refusal: JSON, the data of an event, or text; None for HTML and for nothing."""
    beginning = body[:_MAX_BYTES]
    parser = EventParser()
    events = [*parser.feed(beginning), *parser.end()]
    for data in (body, *(event.data for event in events if event.data)):
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError:
            continue
    text = beginning.decode("utf-8", "replace").strip()
    return None if text.startswith("<") else text[:MAX_CHARACTERS] or None


def _words(value: object, depth: int = 4) -> str:
    """Return the words in the value of an error's field; "" if it has none."""
    if isinstance(value, str):
        return value.strip()
    if depth and isinstance(value, list):
        return "; ".join(filter(None, (_words(each, depth - 1) for each in value[:8])))
    if not depth or not isinstance(value, dict):
        return ""
    words = next((found for name in _WORDS if (found := _words(value.get(name), depth - 1))), "")
    place = value.get("loc")  # the path of an invalid field
    return f"{'.'.join(map(str, place))}: {words}" if words and isinstance(place, list) else words
