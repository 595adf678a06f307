"""Converts what backends write as a chat completion to one form, before anything else reads it. Pure.

Backends differ in their names of thoughts and of reasons, in text that is a list of parts, and in the marks of tool
calls. All translators, and clients of chat completions, get one form: `model` as the client wrote it, thoughts in
`reasoning_content`, text as a string, tool calls numbered from 0 with IDs and arguments, and OpenAI's reasons. A part
of a text that is neither text nor a thought (a citation, a picture) is left out.
"""

import re
from typing import Any, Final, Literal

import attrs
import orjson

from llmkube.router.dialects.dialect import DialectError, JsonObject, dumped, object_in, objects_in, text_in
from llmkube.router.dialects.providers import REASONS, TABLE, with_signature

MAX_CALLS: Final = 1024
"""Tool calls of one answer; more are a fault of the backend."""

_WRITES: Final = TABLE["writes"]
_WITHOUT_CACHE: Final = ("prompt_tokens", "completion_tokens", "total_tokens", "completion_tokens_details")
"""Members of `usage` that do not depend on what was cached; prices do."""

_NOT_IN_IDS: Final = re.compile(r"[^A-Za-z0-9_-]")
_MAX_WRITTEN: Final = 64 << 10


@attrs.define(eq=False)
class _Call:
    """One tool call.

    Attributes:
        index: Its number.
        label: `index` of the backend.
        own_id: ID that the backend gave; "" if it gave none.
        sent_id: ID for the client.
        written: Arguments so far, up to a limit; None for a call without a function.
    """

    index: int
    label: object
    own_id: str
    sent_id: str
    name: str
    written: str | None = None

    @property
    def is_partial(self) -> bool:
        """Whether its arguments have begun and are incomplete."""
        try:
            return bool(self.written) and not isinstance(orjson.loads(self.written or ""), dict)
        except orjson.JSONDecodeError:
            return True


@attrs.define(eq=False)
class ChatForm:
    """Converts one answer, whole or event by event.

    Attributes:
        model: Name of the model in the client's request.
        hides_cache: Whether the client gets no counters of the backend's prompt cache, since other tenants share it.
    """

    model: str
    hides_cache: bool = False
    _calls: dict[object, list[_Call]] = attrs.field(factory=dict)

    def convert(self, body: JsonObject, place: Literal["message", "delta"]) -> bool:
        """Convert an answer in place and return whether anything has changed.

        Args:
            body: A whole answer, or an event.
            place: Member of its choices that has the text.

        Raises:
            DialectError: Its tool calls cannot be read.
        """
        changed, choices = False, body.get("choices")
        if body.get("model") != self.model and isinstance(body.get("model"), str):
            body["model"], changed = self.model, True
        if choices is None and isinstance(body.get("usage"), dict) and place == "delta":
            body["choices"], changed = [], True
        if self.hides_cache and not body.keys().isdisjoint(("usage", "timings")):
            usage, changed = object_in(body.get("usage"), "usage"), True
            body.pop("timings", None)
            body["usage"] = {name: usage[name] for name in _WITHOUT_CACHE if name in usage} or None
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                changed = self._convert_choice(choice, place, body.get("id")) or changed
        return changed

    def _convert_choice(self, choice: JsonObject, place: str, answer_id: object) -> bool:
        message = choice.get(place) or {}
        if not isinstance(message, dict):
            return False
        changed = unify_texts(message)
        pieces = objects_in(message.get("tool_calls"), "tool_calls")
        calls = self._calls.setdefault(str(choice.get("index") or 0), []) if pieces or self._calls else []
        fixed = [_fixed(piece, calls, answer_id, is_whole=place == "message") for piece in pieces]
        reason = choice.get("finish_reason")
        found = REASONS.get(reason.lower(), reason) if isinstance(reason, str) else reason
        if calls and reason:
            found = "tool_calls" if found == "stop" else found
            for call in calls:
                if call.written == "":  # clients parse arguments as JSON
                    call.written = "{}"
                    fixed.append({"index": call.index, "function": {"arguments": "{}"}})
        if fixed != pieces or choice.get(place, message) is None:
            choice[place], changed = message | ({"tool_calls": fixed} if fixed else {}), True
        if found != reason:
            choice["finish_reason"], changed = found, True
        return changed


def unify_texts(message: JsonObject) -> bool:
    """Convert the text and the thoughts of a message, or of a piece of one; return whether anything has changed."""
    changed, content = False, message.get("content")
    if isinstance(content, list | dict):
        message["content"], changed = None, True
        for name, text in _texts_in(content if isinstance(content, list) else [content]).items():
            message[name] = message.get(name) or text
    if not (message.keys().isdisjoint(_WRITES["thoughts"]) or message.get("reasoning_content")):
        thoughts = next((message[name] for name in _WRITES["thoughts"] if message.get(name)), "")
        text = "".join(_texts_in(thoughts).values()) if isinstance(thoughts, list) else thoughts
        if isinstance(text, str) and text:
            message["reasoning_content"], changed = text, True
    return changed


def _texts_in(parts: list[Any]) -> dict[str, str]:
    """Return the texts of a list of parts, by the field of a message that has them."""
    found: dict[str, str] = {}
    for part in parts:
        typed = part if isinstance(part, dict) else {"text": part}
        name, member = _WRITES["parts"].get(str(typed.get("type", "text")), ("", ""))
        text = typed.get(member)
        if isinstance(text, list):  # Mistral's thoughts
            text = "".join(str(each["text"]) for each in text if isinstance(each, dict) and each.get("text"))
        if name and isinstance(text, str):
            found[name] = found.get(name, "") + text
    return found


def _fixed(piece: JsonObject, calls: list[_Call], answer_id: object, *, is_whole: bool) -> JsonObject:
    """Return a piece of a tool call with the number, ID and type of its call, which gets its arguments."""
    function = dict(object_in(piece.get("function"), "function"))
    name, own_id = text_in(function, "name"), text_in(piece, "id")
    fixed, label, at = dict(piece), piece.get("index"), len(calls)
    call = None if is_whole else _continued(calls, name, own_id, label)
    if call is None:
        if at == MAX_CALLS:
            raise DialectError(f"the answer has more than {MAX_CALLS} tool calls")
        is_new = own_id and all(own_id not in (each.own_id, each.sent_id) for each in calls)
        made_id = f"call_{_NOT_IN_IDS.sub('', str(answer_id or ''))[-64:]}_{at}"
        call = _Call(at, label, own_id, with_signature(own_id if is_new else made_id, piece), name)
        calls.append(call)
        fixed = {"type": "function"} | piece | {"id": call.sent_id}
    else:
        fixed |= {"id": call.sent_id} if own_id else {}
        if name == call.name:
            function.pop("name", None)  # repeated; some clients append it
        call.name += text_in(function, "name")
    if "function" in piece:
        given = function.get("arguments") or ("{}" if is_whole else "")
        function["arguments"] = given if isinstance(given, str) else dumped(given)
        call.written = ((call.written or "") + function["arguments"])[:_MAX_WRITTEN].lstrip()
        fixed["function"] = function
    return fixed if is_whole else fixed | {"index": call.index}


def _continued(calls: list[_Call], name: str, own_id: str, label: object) -> _Call | None:
    """Return the call that a piece continues; None if it begins one."""
    same = [call for call in calls if label is None or call.label in (None, label)]
    known = next((call for call in reversed(same) if own_id and call.own_id == own_id), None)
    if known is not None or not same:
        return known
    last = same[-1]
    if own_id:  # a new ID begins a call, unless it is a part of one
        is_part = last.is_partial or not (last.own_id or last.written)
        return last if not name and is_part else None
    if not name or not last.name or last.is_partial:
        return last
    return last if not last.written and (last.own_id or name == last.name) else None
