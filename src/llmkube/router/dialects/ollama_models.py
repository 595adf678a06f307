"""What Ollama's API says of the models that a client can ask for. Pure.

Ollama's clients want a size and a digest. A router knows no file of a model: the size is 0, and the digest is that of
the name, so that what is listed twice is the same.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

VERSION: Final = "0.12.0"
"""Of the API that is followed here; clients compare it with what they need."""

LIST_PATHS: Final = ("/api/tags", "/api/ps", "/api/version", "/api/show")
_CAPABILITIES: Final[Mapping[str, str]] = {
    "chat": "completion",
    "tools": "tools",
    "vision": "vision",
    "embedding": "embedding",
    "embeddings": "embedding",
    "thinking": "thinking",
}


_DETAILS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("parent_model", "family", "parameter_size", "quantization_level"), ""),
    "format": "gguf",
    "families": [],
}


def listed(ids: Sequence[str], created: int) -> Mapping[str, Any]:
    """Return the models that there are.

    Args:
        ids: What clients call them.
        created: Since when, in seconds since 1970.
    """
    since = time_of(created)
    return {"models": [_model(each) | {"modified_at": since} for each in ids]}


def running(ids: Sequence[str]) -> Mapping[str, Any]:
    """Return the models that engines of ours serve now."""
    return {"models": [_model(each) | {"size_vram": 0} for each in ids]}


def shown(tags: Collection[str], created: int) -> Mapping[str, Any]:
    """Return what is known of one model.

    Args:
        tags: What it can.
        created: Since when, in seconds since 1970.
    """
    can = sorted({_CAPABILITIES[each] for each in tags if each in _CAPABILITIES}) or ["completion"]
    return {"details": _DETAILS, "model_info": {}, "capabilities": can, "modified_at": time_of(created)}


def _model(name: str) -> dict[str, Any]:
    digest = hashlib.sha256(name.encode()).hexdigest()
    return {"name": name, "model": name, "size": 0, "digest": digest, "details": _DETAILS}


def time_of(seconds: int) -> str:
    """Return a time, in seconds since 1970, as Ollama writes it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
