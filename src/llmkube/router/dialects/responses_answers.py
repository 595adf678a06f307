"""Translates answers of chat completions for clients of OpenAI's Responses API. Pure.

The same code handles whole answers and streams: pieces are added to output items, and each addition is an event. A text
or reasoning item ends when another item starts; tool calls stay open, interleaved, until the end of the answer.
https://platform.openai.com/docs/api-reference/responses-streaming
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from llmkube.router.dialects.dialect import (
    AnswerTranslator,
    DialectError,
    JsonObject,
    choice_in,
    count_in,
    dumped,
    index_of,
    message_of,
    named_event,
    object_in,
    objects_in,
    text_in,
)
from llmkube.router.dialects.error_shapes import CONTEXT_FULL
from llmkube.router.dialects.responses_tools import TextInput, ToolNames

INCOMPLETE: Final[Mapping[str, str]] = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Reason in `incomplete_details`, by `finish_reason` of the chat completion."""
_COMMENT: Final = b": waiting\n\n"
MAX_CHARACTERS: Final = 16 << 20
"""Limit for an answer, which is held until its end because the last events repeat it; a longer one is an error."""
_CALL_CHARACTERS: Final = 256
_DELTAS: Final[Mapping[str, str]] = {
    "output_text": "response.output_text",
    "refusal": "response.refusal",
    "reasoning_text": "response.reasoning_text",
    "function_call": "response.function_call_arguments",
    "custom_tool_call": "response.custom_tool_call_input",
}
"""Events with the pieces of each type of a part or a call; the last word is the member of a call that has them."""
_FIELDS: Final[Mapping[str, str]] = {
    "content": "output_text",
    "refusal": "refusal",
    "reasoning_content": "reasoning_text",
}
"""Type of the content part for each text field of a chat message."""

SaveResponse = Callable[[JsonObject, list[JsonObject]], bool]
"""Stores a finished response and its output items; returns whether it was stored."""


def responses_error(status: int, error: Mapping[str, Any]) -> JsonObject:
    """Return an error in OpenAI's format."""
    kind, code = error.get("type"), error.get("code")
    usual = "invalid_request_error" if status < 500 else "server_error"
    body = {"message": message_of(error), "type": kind if isinstance(kind, str) and kind else usual, "param": None}
    return {"error": body | {"code": str(code) if isinstance(code, str | int) else None}}


def usage_of_chat(chat: Mapping[str, Any]) -> JsonObject | None:
    """Translate the usage; None if the backend did not report it."""
    usage = object_in(chat.get("usage"), "usage")
    if not usage:
        return None
    cached = count_in(object_in(usage.get("prompt_tokens_details"), "prompt_tokens_details"), "cached_tokens")
    details = object_in(usage.get("completion_tokens_details"), "completion_tokens_details")
    reasoning = count_in(details, "reasoning_tokens")
    prompt, answer = count_in(usage, "prompt_tokens"), count_in(usage, "completion_tokens")
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": min(cached, prompt), "cache_write_tokens": 0},
        "output_tokens": answer,
        "output_tokens_details": {"reasoning_tokens": min(reasoning, answer)},
        "total_tokens": prompt + answer,
    }


@attrs.define(eq=False)
class _Item:
    """One output item.

    Attributes:
        body: Item without the members that are built from pieces.
        part: Type of its open part; "" for a tool call.
        parts: Complete parts.
        pieces: Pieces of the open part, or of a call's arguments.
        is_open: Whether more pieces may be added.
        text: Reads the input of a call whose tool takes a text; None for others.
    """

    body: JsonObject
    part: str
    parts: list[JsonObject] = attrs.field(factory=list)
    pieces: list[str] = attrs.field(factory=list)
    is_open: bool = True
    text: TextInput | None = None

    def rendered(self, status: str) -> JsonObject:
        """Return the whole item with a status."""
        if not self.part:
            return self.body | {_member_of(self): "".join(self.pieces), "status": status}
        if self.body["type"] == "reasoning":
            return self.body | {"content": self.parts}
        return self.body | {"content": self.parts, "status": status}


@attrs.define(eq=False, kw_only=True)
class ResponsesTranslator(AnswerTranslator):
    """Translates the answers to one request.

    Attributes:
        echo: Members of a response that repeat its request.
        items: Items of the request itself, without its history.
        asked: The request.
        names: Names of its tools in the chat completion.
        store: Whether the client allows storing the response.
        previous_id: ID of the response that the request continues; "" for a new conversation.
        response_id: ID of the response.
        now: Returns the Unix time.
        save: Stores the finished response, before its end is sent to the client.
    """

    echo: JsonObject = attrs.field(factory=dict, repr=False)
    items: tuple[JsonObject, ...] = attrs.field(repr=False)
    asked: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    names: ToolNames = attrs.field(factory=ToolNames, repr=False)
    store: bool = True
    previous_id: str = ""
    response_id: str = "resp_0"
    now: Callable[[], int] = lambda: 0
    save: SaveResponse = lambda _response, _output: False
    _created_at: int = 0
    _started: bool = False
    _sequence: int = 0
    _output: list[_Item] = attrs.field(factory=list)
    _text_at: int | None = None
    _calls: dict[int, int] = attrs.field(factory=dict)
    _characters: int = 0
    _reason: str = "stop"
    _usage: JsonObject | None = None

    refusal = staticmethod(responses_error)
    streamed_code = CONTEXT_FULL  # Codex

    def answer(self, body: Mapping[str, Any]) -> JsonObject:
        """Return a response."""
        self._created_at = self.now()
        self._add(body, "message")
        self._close_all()
        return self._finished()

    def event(self, body: Mapping[str, Any]) -> bytes:
        """Translate one event."""
        return self._encode([*self._start_events(), *self._add(body, "delta")])

    def waiting(self) -> bytes:
        """Return a comment."""
        return _COMMENT

    def end(self) -> bytes:
        """Return the end of a response."""
        events = [*self._start_events(), *self._close_all()]
        response = self._finished()
        return self._encode([*events, {"type": f"response.{response['status']}", "response": response}])

    def failed(self, error: Mapping[str, Any]) -> bytes:
        """Return the end of a failed response, and an error event, which makes clients raise."""
        body = responses_error(502, error)["error"]
        beginning = self._start_events()
        output = [item.rendered("incomplete") for item in self._output]
        failure = {"code": body["code"] or "server_error", "message": body["message"]}
        response = self._response("failed", output) | {"error": failure, "store": False}
        last = {"type": "error", "error": body, "code": body["code"], "message": body["message"], "param": None}
        return self._encode([*beginning, {"type": "response.failed", "response": response}, last])

    # -- input -------------------------------------------------------------------------------------------------------

    def _start_events(self) -> list[JsonObject]:
        if self._started:
            return []
        self._started = True
        self._created_at = self.now()
        response = self._response("in_progress", [])
        return [{"type": f"response.{each}", "response": response} for each in ("created", "in_progress")]

    def _add(self, body: Mapping[str, Any], place: str) -> list[JsonObject]:
        """Add a chat completion, or one event of it; return the resulting events."""
        events: list[JsonObject] = []
        self._usage = usage_of_chat(body) or self._usage
        choice = choice_in(body)
        message = object_in(choice.get(place), place)
        for name in ("reasoning_content", "content", "refusal"):
            if text := text_in(message, name):
                events += self._add_text(_FIELDS[name], text)
        for at, call in enumerate(objects_in(message.get("tool_calls"), "tool_calls")):
            events += self._add_call(at if place == "message" else index_of(call), call)
        if choice.get("finish_reason"):
            self._reason = str(choice["finish_reason"])
        return events

    def _add_text(self, part: str, text: str) -> list[JsonObject]:
        self._count_characters(len(text))
        events: list[JsonObject] = []
        if self._text_at is None or self._output[self._text_at].part != part:
            events += self._close_text()
            at = self._text_at = len(self._output)
            kind = "reasoning" if part == "reasoning_text" else "message"
            name = self._item_id("rs" if kind == "reasoning" else "msg", at)
            body: JsonObject = {"id": name, "type": kind}
            if kind == "reasoning":
                body["summary"] = []
            else:
                body["role"] = "assistant"
            events += self._open(_Item(body, part))
            events.append(self._item_event(at, "response.content_part.added", part=_part_of(part, "")))
        at = self._text_at
        self._output[at].pieces.append(text)
        more: JsonObject = {"logprobs": []} if part == "output_text" else {}
        return [*events, self._item_event(at, f"{_DELTAS[part]}.delta", delta=text, **more)]

    def _add_call(self, index: int, call: Mapping[str, Any]) -> list[JsonObject]:
        events: list[JsonObject] = []
        function = object_in(call.get("function"), "function")
        if index not in self._calls:
            self._count_characters(_CALL_CHARACTERS)
            events += self._close_text()
            at = self._calls[index] = len(self._output)
            name, call_id = text_in(function, "name"), text_in(call, "id")
            if not name:
                raise DialectError("the backend sent a tool call without a function name")
            call_id = call_id or self._item_id("call", at)
            tool = self.names.tool(name)
            prefix, kind = ("ctc", "custom_tool_call") if tool.is_text else ("fc", "function_call")
            body = {"id": self._item_id(prefix, at), "type": kind, "call_id": call_id, "name": tool.name}
            body |= {"namespace": tool.namespace} if tool.namespace else {}
            events += self._open(_Item(body, "", text=TextInput() if tool.is_text else None))
        at = self._calls[index]
        arguments = function.get("arguments")
        text = dumped(arguments) if isinstance(arguments, dict) else text_in(function, "arguments")
        if text:
            self._count_characters(len(text))
            events += self._add_input(at, text)
        return events

    def _add_input(self, at: int, text: str, *, is_last: bool = False) -> list[JsonObject]:
        item = self._output[at]
        if item.text:
            text = item.text.take(text, is_last=is_last)
        elif is_last and not item.pieces:  # a call without arguments; clients parse JSON
            text = "{}"
        item.pieces.append(text)
        return [self._item_event(at, f"{_DELTAS[item.body['type']]}.delta", delta=text)] if text else []

    def _count_characters(self, characters: int) -> None:
        self._characters += characters
        if self._characters > MAX_CHARACTERS:
            raise DialectError(f"the answer is longer than {MAX_CHARACTERS} characters")

    # -- items -------------------------------------------------------------------------------------------------------

    def _open(self, item: _Item) -> list[JsonObject]:
        self._output.append(item)
        at = len(self._output) - 1
        return [{"type": "response.output_item.added", "output_index": at, "item": item.rendered("in_progress")}]

    def _close(self, at: int) -> list[JsonObject]:
        item, events = self._output[at], []
        item.is_open = False
        if item.part:
            text = "".join(item.pieces)
            part = _part_of(item.part, text)
            item.parts.append(part)
            field = "refusal" if item.part == "refusal" else "text"
            more: JsonObject = {"logprobs": []} if item.part == "output_text" else {}
            events.append(self._item_event(at, f"{_DELTAS[item.part]}.done", **{field: text}, **more))
            events.append(self._item_event(at, "response.content_part.done", part=part))
        else:
            events += self._add_input(at, "", is_last=True)
            named = {} if item.text else {"name": item.body["name"]}
            named[_member_of(item)] = "".join(item.pieces)
            events.append(self._item_event(at, f"{_DELTAS[item.body['type']]}.done", **named))
        rendered = item.rendered(self._status_of_item(at))
        return [*events, {"type": "response.output_item.done", "output_index": at, "item": rendered}]

    def _close_text(self) -> list[JsonObject]:
        at, self._text_at = self._text_at, None
        return [] if at is None else self._close(at)

    def _close_all(self) -> list[JsonObject]:
        return [event for at, item in enumerate(self._output) if item.is_open for event in self._close(at)]

    def _item_event(self, at: int, kind: str, **more: Any) -> JsonObject:
        item = self._output[at]
        event = {"type": kind, "item_id": item.body["id"], "output_index": at}
        return event | ({"content_index": 0} if item.part else {}) | more

    def _item_id(self, kind: str, at: int) -> str:
        return f"{kind}_{self.response_id.removeprefix('resp_')}_{at}"

    # -- the response ------------------------------------------------------------------------------------------------

    def _status_of_item(self, at: int) -> str:
        is_cut = self._reason in INCOMPLETE and at == len(self._output) - 1
        return "incomplete" if is_cut else "completed"

    def _finished(self) -> JsonObject:
        """Store the finished response, if allowed, and return it."""
        output = [item.rendered(self._status_of_item(at)) for at, item in enumerate(self._output)]
        reason = INCOMPLETE.get(self._reason)
        response = self._response("incomplete" if reason else "completed", output)
        response["incomplete_details"] = {"reason": reason} if reason else None
        response["completed_at"] = None if reason else self.now()
        if self.store:
            response["store"] = self.save(response, output)
        return response

    def _response(self, status: str, output: list[JsonObject]) -> JsonObject:
        return {
            "id": self.response_id,
            "object": "response",
            "created_at": self._created_at,
            "completed_at": None,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "output": output,
            "usage": self._usage,
            "store": self.store,
            **self.echo,
        }

    def _encode(self, events: list[JsonObject]) -> bytes:
        found = b""
        for event in events:
            found += named_event(event | {"sequence_number": self._sequence})
            self._sequence += 1
        return found


def _member_of(call: _Item) -> str:
    return _DELTAS[call.body["type"]].rpartition("_")[2]


def _part_of(kind: str, text: str) -> JsonObject:
    if kind == "refusal":
        return {"type": kind, "refusal": text}
    return {"type": kind, "text": text} | ({"annotations": [], "logprobs": []} if kind == "output_text" else {})


@attrs.define(eq=False, kw_only=True)
class InputTokensTranslator(ResponsesTranslator):
    """Translates the number of tokens of a request, which is not stored."""

    def answer(self, body: Mapping[str, Any]) -> JsonObject:
        """Return the number of tokens."""
        return {"object": "response.input_tokens", "input_tokens": count_in(body, "input_tokens")}
