"""Decides whether another engine can continue the answer to a request when its engine dies, and if not, why. Pure.

An answer is continued from its text only: llama.cpp's server continues a final assistant message, or a prompt. Answers
that depend on more than the text so far are not continued: grammar state, token probabilities, parallel answers.
"""

from collections.abc import Mapping
from typing import Any, Final

from llmkube.router.budgets.meter import LIMIT_FIELDS

CHAT: Final = "/chat/completions"
COMPLETIONS: Final = "/completions"

_MODES: Final = ("continue_final_message", "add_generation_prompt")
_GRAMMARS: Final = ("grammar", "json_schema", "functions")
_PROBABILITIES: Final = ("logprobs", "top_logprobs", "n_probs")


def obstacle(path: str, body: Mapping[str, Any]) -> str:
    """Return why another engine cannot continue the answer to a request, for the operator; "" if it can.

    Args:
        path: Path below `/v1`.
        body: Request in OpenAI's format, unvalidated.
    """
    if path not in (CHAT, COMPLETIONS) or body.get("stream") is not True:
        return "it is not a stream of text"
    if any(_is_many(body.get(name)) for name in ("n", "best_of")):
        return "it asks for several answers (n, best_of)"
    if any(_is_wanted(body.get(name)) for name in _PROBABILITIES):
        return "it asks for logprobs"
    if any(body.get(name) for name in _GRAMMARS) or not _is_plain(body.get("response_format")):
        return "it sets a grammar or a response_format, which applies to the whole answer"
    if body.get("tools") and body.get("tool_choice") != "none":
        return "it has tools that the answer may call"
    if body.get("modalities") not in (None, [], ["text"]) or body.get("audio"):
        return "it asks for more than text (modalities, audio)"
    if len({value for value in map(body.get, LIMIT_FIELDS) if is_limit(value)}) > 1:
        return "it sets several different token limits"
    return _obstacle_in_messages(body) if path == CHAT else _obstacle_in_prompt(body)


def is_limit(value: object) -> bool:
    """Return whether a value limits the length of an answer."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _obstacle_in_prompt(body: Mapping[str, Any]) -> str:
    if not isinstance(body.get("prompt"), str):
        return "its prompt is not a string"
    return "it asks for echo or suffix" if body.get("echo") or body.get("suffix") else ""


def _obstacle_in_messages(body: Mapping[str, Any]) -> str:
    messages = body.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    if not isinstance(last, Mapping):
        return "it has no list of messages"
    if last.get("role") != "assistant":
        sets_mode = any(name in body for name in _MODES)
        return "it sets continue_final_message or add_generation_prompt itself" if sets_mode else ""
    if set(last) - {"role", "content"} or not _is_text(last.get("content")):
        return "its final assistant message is more than text"
    return ""


def _is_text(content: object) -> bool:
    if isinstance(content, list):
        return all(isinstance(part, Mapping) and part.get("type") == "text" for part in content)
    return isinstance(content, str)


def _is_many(value: object) -> bool:
    return value is not None and (isinstance(value, bool) or value != 1)


def _is_wanted(value: object) -> bool:
    """Return whether a value requests probabilities; in completions `logprobs: 0` does: that of the token itself."""
    return value is not None and value is not False


def _is_plain(response_format: object) -> bool:
    return response_format is None or (
        isinstance(response_format, Mapping) and response_format.get("type") in (None, "text")
    )
