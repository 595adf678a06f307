"""JSON as bytes, and an object's only once: the database, the answer and every watch send the same ones."""

import json
from typing import Any, Final

from llmkube.apiserver.values.identity_cache import IdentityCache

_COMPACT: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def encode(content: Any) -> bytes:
    """Return JSON as bytes, compact, in UTF-8."""
    return _COMPACT.encode(content).encode()


encoded: Final = IdentityCache(encode, capacity=32)
"""Returns the bytes of a stored object; those of the newest few are remembered, while watches still need them."""
