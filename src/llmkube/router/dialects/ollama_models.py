"""Lists of models in Ollama's format. Pure.

Ollama's clients require a size and a digest. A router does not know the file of a model: the size is 0, and the digest
is that of the name, which makes it stable.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

VERSION: Final = "0.12.0"
"""Version of the implemented API; clients compare it with the version that they need."""

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
    """Return all models, for `/api/tags`.

    Args:
        ids: Model ids.
        created: Unix time for `modified_at`.
    """
    since = time_of(created)
    return {"models": [_model(each) | {"modified_at": since} for each in ids]}


def running(ids: Sequence[str]) -> Mapping[str, Any]:
    """Return the models with a running engine, for `/api/ps`."""
    return {"models": [_model(each) | {"size_vram": 0} for each in ids]}


def shown(tags: Collection[str], created: int) -> Mapping[str, Any]:
    """Return one model, for `/api/show`.

    Args:
        tags: Capabilities, as in `Backend.capabilities`.
        created: Unix time for `modified_at`.
    """
    capabilities = sorted({_CAPABILITIES[each] for each in tags if each in _CAPABILITIES}) or ["completion"]
    return {"details": _DETAILS, "model_info": {}, "capabilities": capabilities, "modified_at": time_of(created)}


def _model(name: str) -> dict[str, Any]:
    digest = hashlib.sha256(name.encode()).hexdigest()
    return {"name": name, "model": name, "size": 0, "digest": digest, "details": _DETAILS}


def time_of(seconds: int) -> str:
    """Return a Unix time in Ollama's format."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
