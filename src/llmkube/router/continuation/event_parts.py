"""What is in one event of a stream of completions, as far as answers are joined by it. Pure."""

from collections.abc import Mapping
from typing import Any, Final

import orjson

_DELTA: Final = frozenset({"role", "content"})
_CHOICE: Final = frozenset({"index", "delta", "text", "finish_reason"})
_NOT_TEXT: Final = {
    "tool_calls": "the answer calls a tool",
    "function_call": "the answer calls a tool",
    "reasoning_content": "the answer has thoughts (reasoning_content)",
    "logprobs": "the answer has logprobs",
}


def choice_of(said: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """Return the one choice of an event, if it has one, and what of it cannot be joined by its text; "" if all can."""
    choices = said.get("choices")
    if not isinstance(choices, list) or not choices:
        return None, ""
    choice = choices[0]
    if len(choices) > 1 or not isinstance(choice, dict) or choice.get("index") not in (0, None):
        return None, "the answer has several choices"
    parts = [(name, each) for name, each in choice.items() if name not in _CHOICE]
    if isinstance(delta := choice.get("delta"), dict):
        parts += [(name, each) for name, each in delta.items() if name not in _DELTA]
    strange = next((name for name, each in parts if each), "")
    return choice, _NOT_TEXT.get(strange, f"the answer has {strange!r:.40}") if strange else ""


def text_of(choice: Mapping[str, Any] | None) -> str:
    """Return the text that an event adds."""
    if choice is None:
        return ""
    delta = choice.get("delta")
    text = delta.get("content") if isinstance(delta, dict) else choice.get("text")
    return text if isinstance(text, str) else ""


def has_role(choice: Mapping[str, Any] | None) -> bool:
    """Return whether an event says who speaks."""
    delta = choice.get("delta") if choice is not None else None
    return isinstance(delta, dict) and "role" in delta


def event_of(said: Mapping[str, Any]) -> bytes:
    """Return an event that says this."""
    return b"data: %b\n\n" % orjson.dumps(said)
