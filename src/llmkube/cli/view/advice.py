"""What to do about a service or a Model that fails, by its reason. Pure."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml

from llmkube.cli.view.output import printable
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.service_health import Health

_ADVICE: Final[Mapping[str, str]] = yaml.safe_load(Path(__file__).with_name("advice.yaml").read_text("utf-8"))


def advice(reason: str, key: Key) -> str:
    """Return what a user can do about a failure; for a reason of another program, where more is shown."""
    text = _ADVICE.get(reason, "`llmkube status {name}` shows more")
    return text.format(name=key.name, namespace=key.namespace)


def explain(key: Key, health: Health) -> str:
    """Return why a service cannot be served, in the words of the program that knows it, and what to do about it."""
    message = printable(health.message)
    failure = f"{health.reason}: {message}" if message else health.reason
    todo = f"What to do: {advice(health.reason, key)}"
    if health.serving:
        return f"InferenceService {key}: {refusal_text(health)}\n{todo}"
    return f"InferenceService {key} cannot be served: {failure}\n{todo}"


def refusal_text(health: Health) -> str:
    """Say what is wrong with the newest spec, and that an engine serves all the same."""
    message = printable(health.headline)
    failure = message if message == health.reason else f"{health.reason}: {message}"
    # What is said of an engine that serves from an older spec says so itself.
    return f"the newest spec was refused ({failure}); the previous one still serves" if health.faulty_kind else failure
