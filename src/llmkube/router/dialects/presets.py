"""Settings of the model id that a request names (`spec.presets`), applied to a chat or a completion. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from llmkube.base.json_text import loads_well_formed
from llmkube.router.budgets.meter import LIMIT_FIELDS
from llmkube.router.config.routing_config import Preset
from llmkube.router.dialects.dialect import DialectError, dumped

_PROMPTS: Final = ("messages", "prompt", "input_prefix")
"""Fields of a request whose answer is generated; `input_prefix` is llama.cpp's, for infills."""

_SAMPLING: Final = ("temperature", "top_p", "top_k", "min_p")
_REASONING: Final = ("reasoning_effort", "reasoning", "reasoning_budget", "thinking", "enable_thinking", "think")
_SYSTEM: Final = ("system", "developer")
_SWITCH: Final = "enable_thinking"
MAX_BYTES: Final = 16 << 20
"""Longest body that is parsed."""


def with_settings(body: Mapping[str, Any], preset: Preset | None) -> Mapping[str, Any]:
    """Return a request with the settings of its preset where it has none itself; null counts as none.

    Args:
        body: A chat, or a completion of any of llama.cpp's paths; another request is returned as it is.
        preset: Settings of its model id; None for none.
    """
    if preset is None or all(body.get(name) is None for name in _PROMPTS):
        return body
    found = dict(body)
    for name in _SAMPLING:
        if (value := getattr(preset, name)) is not None and body.get(name) is None:
            found[name] = value
    if preset.max_tokens is not None and all(body.get(name) is None for name in LIMIT_FIELDS):
        found["max_tokens"] = preset.max_tokens
    messages = body.get("messages")
    if not isinstance(messages, list):
        return found
    switches = body.get("chat_template_kwargs") or {}
    is_free = all(body.get(name) is None for name in _REASONING) and isinstance(switches, dict)
    if preset.thinking is not None and is_free and _SWITCH not in switches:
        found["chat_template_kwargs"] = {**switches, _SWITCH: preset.thinking}
    if preset.system and not any(isinstance(turn, dict) and turn.get("role") in _SYSTEM for turn in messages):
        found["messages"] = [{"role": "system", "content": preset.system}, *messages]
    return found


def encoded_with_settings(content: bytes, preset: Preset) -> bytes:
    """Return an encoded request with the settings of its preset; as `with_settings`.

    Raises:
        DialectError: It is not a JSON object, or too long to be parsed.
    """
    if len(content) > MAX_BYTES:
        raise DialectError(f"the body has {len(content)} bytes; the limit for a model with presets is {MAX_BYTES}")
    try:
        body = loads_well_formed(content)
    except ValueError as exc:
        raise DialectError(f"the body must be a JSON object: {exc}") from exc
    return dumped(with_settings(body, preset)).encode() if isinstance(body, dict) else content
