"""Fixes for failing services and Models, by reason. Pure."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from llmkube.cli.view.output import printable
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.service_health import Health

_PARTS: Final = {"the draft model: ": "--draft", "the adapters: ": "--lora"}
"""Flags of `llmkube deploy`, by how the message of a service begins."""


@functools.cache
def _table() -> Mapping[str, str]:
    import yaml  # noqa: PLC0415 - what is served needs no advice

    found: Mapping[str, str] = yaml.safe_load(Path(__file__).with_name("advice.yaml").read_text("utf-8"))
    return found


def advice(reason: str, key: Key) -> str:
    """Return the fix for a failure; for an unknown reason, the command that shows more."""
    text = _table().get(reason, "`llmkube status {name}` shows more")
    return text.format(name=key.name, namespace=key.namespace)


def explain(key: Key, health: Health) -> str:
    """Return why a service is not served, or why its newest spec was refused, and the fix."""
    message = printable(health.message)
    failure = f"{health.reason}: {message}" if message else health.reason
    part = next((flag for words, flag in _PARTS.items() if message.startswith(words)), "")
    fix = f"What to do: {f'deploy again with another {part}, or without it' if part else advice(health.reason, key)}"
    if health.serving:
        return f"InferenceService {key}: {refusal_text(health)}\n{fix}"
    return f"InferenceService {key} cannot be served: {failure}\n{fix}"


def refusal_text(health: Health) -> str:
    """Return what is wrong with a service that is served, such as a newest spec that was refused."""
    message = printable(health.headline)
    failure = message if message == health.reason else f"{health.reason}: {message}"
    # Other messages state themselves that an engine with the older spec serves.
    return f"the newest spec was refused ({failure}); the previous one still serves" if health.faulty_kind else failure
