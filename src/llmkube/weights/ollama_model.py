"""A model of Ollama's library, as `ollama://NAME:TAG` names it: the Ollama of a host pulls and keeps it. Pure.

A name with a server in it is refused: who writes a Model must not choose whom a program of this host asks.
"""

import re
from typing import Final

import attrs

from llmkube.weights.errors import SourceError

SCHEME: Final = "ollama"
REMEDY: Final = "name the same model as GGUF at Hugging Face, such as ORG/REPO:Q4_K_M"
"""For who cannot be served by a host's Ollama."""

_PART: Final = r"[A-Za-z0-9_][\w.-]{0,79}"
_NAME: Final = re.compile(rf"(?:[A-Za-z0-9_][\w-]{{0,79}}/)?{_PART}(?::{_PART})?", re.ASCII)
_DEFAULT_TAG: Final = "latest"


@attrs.frozen
class OllamaModel:
    """A model of Ollama's library.

    Attributes:
        name: As Ollama has it, `NAME:TAG` or `NAMESPACE/NAME:TAG`.
    """

    name: str

    @property
    def redacted(self) -> str:
        """The source, for messages; nothing in it is secret."""
        return f"{SCHEME}://{self.name}"


def read_name(shown: str, name: str) -> OllamaModel:
    """Read what stands behind `ollama://`; the tag `latest` is meant where there is none.

    Args:
        shown: The source, for messages.
        name: What is read.

    Raises:
        SourceError: Ollama's library can have no such model.
    """
    if not _NAME.fullmatch(name):
        raise SourceError(f"{shown} names no model of Ollama's library: write ollama://NAME:TAG")
    return OllamaModel(name if ":" in name else f"{name}:{_DEFAULT_TAG}")
