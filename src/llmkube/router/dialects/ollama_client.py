"""Translates requests of clients of Ollama's API to chat completions and embeddings, and their answers. Pure.

https://github.com/ollama/ollama/blob/main/docs/api.md. An answer is a stream unless the request disables it; an event
is a line of JSON. A request without a prompt loads or unloads the model, and has no answer of a backend. Features of
Ollama's own server (a template, raw prompts, a context of token IDs) are refused; settings of its engine
(`options.num_ctx`) are left out, and logged in the audit log, and so is `keep_alive` where it has no effect.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs
import orjson

from llmkube.base.errors import UserError
from llmkube.base.units import parse_duration
from llmkube.router.dialects.dialect import (
    LINES,
    AnswerTranslator,
    DialectError,
    JsonObject,
    Translation,
    arguments_of,
    call_of,
    check_kinds,
    choice_in,
    count_in,
    index_of,
    message_of,
    object_in,
    objects_in,
    text_in,
)
from llmkube.router.dialects.ollama_models import MODEL_NAME, time_of

MAX_CALLS: Final = 256
MAX_CALL_CHARACTERS: Final = 4 << 20
"""Characters of tool calls, which Ollama's clients get as a whole; a stream with more ends with an error."""

_NANOSECONDS: Final = 1_000_000
_MAX_TIMESTAMP: Final = 253402300799
"""The last second of year 9999, the maximum of `datetime`."""


def ollama_error(_status: int, error: Mapping[str, Any]) -> JsonObject:
    """Return an error in Ollama's format."""
    return {"error": message_of(error)}


@attrs.define(eq=False, kw_only=True)
class OllamaTranslator(AnswerTranslator):
    """Translates the answers to one request.

    Attributes:
        model: Model name in the client's request.
        is_generate: Whether the request is for `/api/generate`.
    """

    model: str
    is_generate: bool = False
    _begun: int = 0
    _last: JsonObject = attrs.field(factory=dict)
    _reason: str = "stop"
    _calls: dict[int, JsonObject] = attrs.field(factory=dict)
    _call_characters: int = 0

    media_type = LINES
    refusal = staticmethod(ollama_error)

    def begin(self, now: int) -> None:
        """Take the time for lines of backends that send none: clients require it."""
        self._begun = now

    def answer(self, body: Mapping[str, Any]) -> JsonObject:
        """Return the only line of an answer."""
        choice = choice_in(body)
        message = object_in(choice.get("message"), "message")
        calls = _calls_of(objects_in(message.get("tool_calls"), "tool_calls"))
        thought = message.get("reasoning_content")
        text = str(message.get("content") or message.get("refusal") or "")
        return self._line(body, text, thought=thought, calls=calls) | _stats(body, str(choice.get("finish_reason")))

    def event(self, body: Mapping[str, Any]) -> bytes:
        """Return the line of one event; tool calls are sent as a whole, in the last line."""
        self._last |= {name: body[name] for name in ("created", "usage", "timings") if body.get(name)}
        choice = choice_in(body)
        self._reason = str(choice.get("finish_reason") or self._reason)
        delta = object_in(choice.get("delta"), "delta")
        for call in objects_in(delta.get("tool_calls"), "tool_calls"):
            self._add(call)
        text = str(delta.get("content") or delta.get("refusal") or "")
        if not text and not delta.get("reasoning_content"):
            return b""
        line = self._line(body, text, thought=delta.get("reasoning_content"))
        return orjson.dumps(line | {"done": False}) + b"\n"

    def _add(self, call: Mapping[str, Any]) -> None:
        known = self._calls.setdefault(index_of(call), {"function": {"name": "", "arguments": ""}})["function"]
        body = object_in(call.get("function"), "function")
        for name in ("name", "arguments"):
            piece = text_in(body, name)
            known[name] += piece
            self._call_characters += len(piece)
        if self._call_characters > MAX_CALL_CHARACTERS or len(self._calls) > MAX_CALLS:
            raise DialectError(f"it has more than {MAX_CALLS} tool calls, or {MAX_CALL_CHARACTERS} characters in them")

    def _line(
        self, body: Mapping[str, Any], text: str, *, thought: object = None, calls: list[JsonObject] | None = None
    ) -> JsonObject:
        created = body.get("created")
        seconds = created if isinstance(created, int) and 0 < created <= _MAX_TIMESTAMP else self._begun
        line: JsonObject = {"model": self.model, "created_at": time_of(seconds)}
        if self.is_generate:
            return line | {"response": text} | ({"thinking": thought} if thought else {})
        message: JsonObject = {"role": "assistant", "content": text}
        if thought:
            message["thinking"] = thought
        if calls:
            message["tool_calls"] = calls
        return line | {"message": message}

    def end(self) -> bytes:
        """Return the last line, with tool calls, reason and usage."""
        calls = _calls_of([self._calls[at] for at in sorted(self._calls)])
        return orjson.dumps(self._line(self._last, "", calls=calls) | _stats(self._last, self._reason)) + b"\n"

    def failed(self, error: Mapping[str, Any]) -> bytes:
        """Return the line of an error."""
        return super().failed(error) + b"\n"


@attrs.define(eq=False, kw_only=True)
class LoadTranslator(OllamaTranslator):
    """Answers a request without a prompt, which loads the model, or unloads it.

    Attributes:
        done: `load` or `unload`.
    """

    done: str = "load"

    def answer(self, body: Mapping[str, Any]) -> JsonObject:
        """Return the only line."""
        return self._line(body, "") | {"done": True, "done_reason": self.done}


def _calls_of(calls: list[JsonObject]) -> list[JsonObject]:
    found: list[JsonObject] = []
    for at, call in enumerate(calls):
        function = object_in(call.get("function"), "function")
        given = arguments_of(function.get("arguments"), f"tool_calls[{at}].function.arguments")
        found.append({"function": {"name": function.get("name"), "arguments": given}})
    return found


def _stats(body: Mapping[str, Any], reason: str) -> JsonObject:
    usage, timings = object_in(body.get("usage"), "usage"), object_in(body.get("timings"), "timings")
    read, written = (_nanoseconds(timings.get(name)) for name in ("prompt_ms", "predicted_ms"))
    return {
        "done": True,
        "done_reason": reason if reason == "length" else "stop",
        "total_duration": read + written,
        "load_duration": 0,
        "prompt_eval_count": count_in(usage, "prompt_tokens"),
        "prompt_eval_duration": read,
        "eval_count": count_in(usage, "completion_tokens"),
        "eval_duration": written,
    }


def _nanoseconds(milliseconds: object) -> int:
    if not isinstance(milliseconds, int | float) or not 0 <= milliseconds < _MAX_TIMESTAMP:
        return 0
    return int(milliseconds * _NANOSECONDS)


@attrs.define(eq=False, kw_only=True)
class EmbedTranslator(AnswerTranslator):
    """Translates the answer to a request for embeddings.

    Attributes:
        model: Model name in the client's request.
        is_single: Whether the request is for `/api/embeddings`, which has one text and one embedding.
    """

    model: str
    is_single: bool = False
    media_type = LINES
    refusal = staticmethod(ollama_error)

    def answer(self, body: Mapping[str, Any]) -> JsonObject:
        """Return the embeddings in the order of their texts."""
        found = sorted(objects_in(body.get("data"), "data"), key=lambda one: count_in(one, "index"))
        if self.is_single:
            return {"embedding": found[0].get("embedding") if found else []}
        prompt = count_in(object_in(body.get("usage"), "usage"), "prompt_tokens")
        return {
            "model": self.model,
            "embeddings": [each.get("embedding") for each in found],
            "total_duration": 0,
            "load_duration": 0,
            "prompt_eval_count": prompt,
        }


_OPTIONS: Final[Mapping[str, str]] = {"num_predict": "max_tokens"} | {
    name: name
    for name in (
        *("frequency_penalty", "min_p", "presence_penalty", "repeat_last_n", "repeat_penalty", "seed", "stop"),
        *("temperature", "top_k", "top_p", "typical_p"),
    )
}
_KINDS: Final = {name: int | float for name in _OPTIONS if name != "stop"}
_REFUSED: Final = ("context", "raw", "suffix", "template")
_READ: Final = frozenset({"model", MODEL_NAME, "tools", "format", "options", "stream", "think", *_REFUSED})
_READ_OF_CHAT: Final = _READ | {"messages"}
_READ_OF_GENERATE: Final = _READ | {"prompt", "system", "images"}
_IMAGE_TYPES: Final[Mapping[str, str]] = {"iVBOR": "png", "/9j/": "jpeg", "R0lGOD": "gif", "UklGR": "webp"}
"""Image types by the start of their base64."""


def read_chat(body: JsonObject) -> Translation:
    """Translate a request at `/api/chat`."""
    turns = objects_in(body.get("messages"), "messages")
    if not turns:
        return _load(body, LoadTranslator(model=str(body.get("model"))))
    return _translated(body, list(_turns(turns)), OllamaTranslator(model=str(body.get("model"))))


def read_generate(body: JsonObject) -> Translation:
    """Translate a request at `/api/generate`: a prompt for the model's own template."""
    prompt, system = text_in(body, "prompt"), text_in(body, "system")
    if not prompt:
        return _load(body, LoadTranslator(model=str(body.get("model")), is_generate=True))
    turns: list[JsonObject] = [{"role": "user", "content": _content(prompt, body.get("images"), "images")}]
    if system:
        turns.insert(0, {"role": "system", "content": system})
    return _translated(body, turns, OllamaTranslator(model=str(body.get("model")), is_generate=True))


def read_embed(body: JsonObject) -> Translation:
    """Translate a request at `/api/embed`."""
    value = body.get("input")
    texts = [value] if isinstance(value, str) and value else value or []
    if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
        raise DialectError("input must be a string or a list of strings")
    check_kinds(body, {"dimensions": int})
    return _embedding(body, texts, "input", EmbedTranslator(model=str(body.get("model"))))


def read_embeddings(body: JsonObject) -> Translation:
    """Translate a request at `/api/embeddings`, the older path for one text."""
    texts = [text] if (text := text_in(body, "prompt")) else []
    return _embedding(body, texts, "prompt", EmbedTranslator(model=str(body.get("model")), is_single=True))


def _embedding(body: JsonObject, texts: list[str], field: str, translator: EmbedTranslator) -> Translation:
    if not texts:
        return _load(body, translator)
    names = ("model", MODEL_NAME, field) if translator.is_single else ("model", MODEL_NAME, field, "dimensions")
    embeddings: JsonObject = {"model": body.get("model"), "input": texts}
    if "dimensions" in names and "dimensions" in body:
        embeddings["dimensions"] = body["dimensions"]
    left_out = tuple(name for name in body if name not in names)
    return Translation(
        path="/embeddings", body=embeddings, translator=translator, dropped=left_out, keep_seconds=_keep_seconds(body)
    )


def _load(body: JsonObject, translator: AnswerTranslator) -> Translation:
    """Return a request to load or unload a model."""
    seconds = _keep_seconds(body)
    if seconds == 0 and isinstance(translator, LoadTranslator):
        translator.done = "unload"
    return Translation(path="", body={"model": body.get("model")}, translator=translator, keep_seconds=seconds)


def _keep_seconds(body: Mapping[str, Any]) -> float | None:
    """Return the seconds of `keep_alive`, a number or one of Go's durations; infinite if negative, None if absent."""
    value = body.get("keep_alive")
    if value is None:
        return None
    text = str(value).strip()
    try:
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise UserError("it is neither a number nor a text")
        seconds = parse_duration(text.removeprefix("-"))
    except UserError as exc:
        raise DialectError(
            f'keep_alive is {value!r:.80}; write seconds, "5m", 0 to unload it, or -1 to keep it loaded'
        ) from exc
    return math.inf if seconds and text.startswith("-") else seconds


def _translated(body: JsonObject, turns: list[JsonObject], translator: OllamaTranslator) -> Translation:
    if found := [name for name in _REFUSED if body.get(name)]:
        raise DialectError(f"{found[0]} is set, which only Ollama's own server supports; omit it")
    chat: JsonObject = {"model": body.get("model"), "messages": turns}
    if body.get("stream") is not False:
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    if tools := objects_in(body.get("tools"), "tools"):
        chat["tools"] = tools
    if wanted := body.get("format"):
        chat["response_format"] = _format(wanted)
    if isinstance(think := body.get("think"), bool):
        chat["chat_template_kwargs"] = {"enable_thinking": think}
    elif isinstance(think, str):
        chat["reasoning_effort"] = think
    elif think is not None:
        raise DialectError(f"think is {think!r:.80}; write true, false or a level")
    options = object_in(body.get("options"), "options")
    check_kinds(options, _KINDS, "options.")
    stops = options.get("stop") or []
    if not isinstance(stops, str | list) or not all(isinstance(each, str) for each in stops):
        raise DialectError("options.stop must be a string or a list of strings")
    if options.get("num_predict") in (-1, -2):  # both mean no limit
        options = {name: each for name, each in options.items() if name != "num_predict"}
    chat |= {_OPTIONS[name]: each for name, each in options.items() if name in _OPTIONS}
    read = _READ_OF_GENERATE if translator.is_generate else _READ_OF_CHAT
    dropped = [name for name in body if name not in read]
    dropped += [f"options.{name}" for name in options if name not in _OPTIONS]
    return Translation(
        path="/chat/completions",
        body=chat,
        translator=translator,
        dropped=tuple(dropped),
        keep_seconds=_keep_seconds(body),
    )


def _format(wanted: object) -> JsonObject:
    if wanted == "json":
        return {"type": "json_object"}
    if not isinstance(wanted, dict):
        raise DialectError(f'format is {wanted!r}; write "json" or a JSON schema')
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": wanted, "strict": True}}


def _turns(turns: list[JsonObject]) -> Iterator[JsonObject]:
    """Yield the messages. Tool calls get IDs, which their results get by the client's ID, by name or in order."""
    calls = 0
    pending: list[tuple[str, object, object]] = []
    for at, turn in enumerate(turns):
        where, role = f"messages[{at}]", turn.get("role")
        body: JsonObject = {"role": role, "content": _content(turn.get("content"), turn.get("images"), where)}
        if role == "assistant":
            if thought := text_in(turn, "thinking"):
                body["reasoning_content"] = thought
            named: list[JsonObject] = []
            for call in objects_in(turn.get("tool_calls"), f"{where}.tool_calls"):
                function = object_in(call.get("function"), f"{where}.tool_calls.function")
                check_kinds(function, {"name": str, "arguments": dict}, f"{where}.tool_calls.function.")
                named.append(call_of(f"call_{calls}", function.get("name"), function.get("arguments")))
                pending.append((f"call_{calls}", function.get("name"), call.get("id")))
                calls += 1
            if named:
                body["tool_calls"] = named
        elif role == "tool":
            body["tool_call_id"] = _pop_call_id(pending, turn, where)
        elif role not in ("system", "user"):
            raise DialectError(f"{where}.role is {role!r}; write system, user, assistant or tool")
        yield body


def _pop_call_id(pending: list[tuple[str, object, object]], turn: JsonObject, where: str) -> str:
    tool, given = turn.get("tool_name"), turn.get("tool_call_id")
    matches = [at for at, (_, name, _) in enumerate(pending) if tool in (None, "", name)]
    if not matches:
        raise DialectError(f"{where} is a result of {tool!r}, which no earlier message calls")
    return pending.pop(next((at for at in matches if given and pending[at][2] == given), matches[0]))[0]


def _content(text: object, images: object, where: str) -> str | list[JsonObject]:
    if text is not None and not isinstance(text, str):
        raise DialectError(f"{where}.content must be a string")
    if not images:
        return text or ""
    if not isinstance(images, list) or not all(isinstance(each, str) for each in images):
        raise DialectError(f"{where}.images must be a list of base64 images")
    parts: list[JsonObject] = [{"type": "image_url", "image_url": {"url": _data_url(each)}} for each in images]
    return [{"type": "text", "text": text}, *parts] if text else parts


def _data_url(image: str) -> str:
    kind = next((kind for begin, kind in _IMAGE_TYPES.items() if image.startswith(begin)), "png")
    return f"data:image/{kind};base64,{image}"
