"""Settings of the model id that a request names (`spec.presets`), applied to a chat or a completion. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from llmkube.router.budgets.meter import LIMIT_FIELDS
from llmkube.router.config.routing_config import Adapter, Preset, preset_in
from llmkube.router.dialects.dialect import DialectError, arguments_of, dumped

_PROMPTS: Final = ("messages", "prompt", "input_prefix")
"""Fields of a request whose answer is generated; `input_prefix` is llama.cpp's, for infills."""

_SAMPLING: Final = ("temperature", "top_p", "top_k", "min_p")
_REASONING: Final = ("reasoning_effort", "reasoning", "reasoning_budget", "thinking", "enable_thinking", "think")
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
    if preset.system and not any(
        isinstance(turn, dict) and turn.get("role") in {"system", "developer"} for turn in messages
    ):
        found["messages"] = [{"role": "system", "content": preset.system}, *messages]
    return found


class NotLoadedError(DialectError):
    """The engine does not have an adapter of the request; it may be loading."""


def with_adapters(
    body: Mapping[str, Any], model: str, adapters: tuple[Adapter, ...], presets: tuple[Preset, ...]
) -> Mapping[str, Any]:
    """Return a request with the scale of each adapter of its engine: without it, llama.cpp may reuse another's cache.

    Args:
        body: As for `with_settings`.
        model: Model id of the request.
        adapters: Adapters of the engine, in order.
        presets: Presets of the service; that of the model id names the adapters that apply, besides those without a
            name.

    Raises:
        DialectError: It selects adapters itself.
        NotLoadedError: The engine does not have an adapter that it names.
    """
    if not (adapters or any(each.adapters for each in presets)) or all(body.get(name) is None for name in _PROMPTS):
        return body
    if body.get("lora") is not None:
        raise DialectError('lora selects adapters by number; omit it, and send the name of one as the "model"')
    preset = preset_in(presets, model)
    chosen = {each.name: each.scale for each in preset.adapters} if preset is not None else {}
    if missing := chosen.keys() - {each.name for each in adapters}:
        raise NotLoadedError(f"the engine does not have the adapter {min(missing)}; retry later")
    if not adapters:
        return body
    scales = (chosen.get(each.name, 0.0) if each.name else each.scale for each in adapters)
    return {"cache_prompt": True, **body, "lora": [{"id": at, "scale": scale} for at, scale in enumerate(scales)]}


def encoded_with_settings(
    content: bytes, model: str, adapters: tuple[Adapter, ...], presets: tuple[Preset, ...]
) -> bytes:
    """Return an encoded request with the settings of its preset, and the adapters of its engine.

    Raises:
        DialectError: It is not a JSON object, or too long to be parsed; or as `with_adapters`.
    """
    if len(content) > MAX_BYTES:
        raise DialectError(f"the body has {len(content)} bytes; the limit for a model with presets is {MAX_BYTES}")
    body = arguments_of(content.decode("utf-8", "replace"), "the body")
    return dumped(with_adapters(with_settings(body, preset_in(presets, model)), model, adapters, presets)).encode()
