"""What a service's model is called in Ollama's store. Pure."""

import hashlib
import re
from typing import Final

from llmkube.weights.ollama_model import OWN_NAMESPACE

_ALLOWED: Final = re.compile(r"[^a-z0-9._-]+")
_LONGEST: Final = 80
"""What a part of a name may have (`types/model/name.go` of Ollama, 0.17.4)."""


def store_name(namespace: str, name: str, *what: object) -> str:
    """Return what a service's model is called in Ollama's store.

    While a service is given other weights or another context, the models of both have to have names.

    Args:
        namespace: The service's.
        name: The service's.
        what: The weights, and what they are served with.
    """
    tag = hashlib.sha256(repr(what).encode()).hexdigest()[:8]
    return f"{OWN_NAMESPACE}/{_ALLOWED.sub('-', f'{namespace}_{name}'.lower())[:_LONGEST]}:{tag}"
