"""Objects of built-in kinds as the server would store them, and what it says of bad ones."""

from typing import Any

from llmkube.apiserver.kinds.kind_info import BUILTIN_KINDS
from llmkube.apiserver.writes import strategy

KINDS = {kind.resource.kind: kind for kind in BUILTIN_KINDS}


TAG = {"name": "a", "namespace": "default"}


def judged(kind: str, old: dict[str, Any] | None = None, **parts: Any) -> list[str]:
    """Return the errors of an object as text; it is an update when `old` is given."""
    info = KINDS[kind]
    tag = dict(TAG) if info.resource.namespaced else {"name": "a"}
    if old is not None:
        tag["resourceVersion"] = "1"
    completed, _ = strategy.complete(info, {"metadata": tag, **parts})
    return [str(error) for error in strategy.check(info, strategy.prepare(info, completed, old), old)]


def made(kind: str, **parts: Any) -> dict[str, Any]:
    """A stored object of a kind."""
    info = KINDS[kind]
    tag = TAG if info.resource.namespaced else {"name": "a"}
    completed, _ = strategy.complete(info, {"metadata": dict(tag), **parts})
    return strategy.prepare(info, completed, None)


SLICE = {"addressType": "IPv4", "ports": []}
