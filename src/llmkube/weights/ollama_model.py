"""A model of Ollama's library, as `ollama://NAME:TAG` names it: the Ollama of a host pulls and keeps it. Pure.

A name with a server in it is refused: who writes a Model must not choose whom a program of this host asks. So is one of
what LLMKube makes in an Ollama: it may be of another namespace, and of weights that took a credential.
"""

import re
from collections.abc import Iterable
from typing import Final

import attrs

from llmkube.weights.errors import SourceError

SCHEME: Final = "ollama"
REMEDY: Final = "name the same model as GGUF at Hugging Face, such as ORG/REPO:Q4_K_M"
"""For who cannot be served by a host's Ollama."""

OWN_NAMESPACE: Final = "llmkube"
"""Of the models that LLMKube makes in an Ollama, each for one service."""

_PART: Final = r"[A-Za-z0-9_][\w.-]{0,79}"
_NAME: Final = re.compile(rf"(?:[A-Za-z0-9_][\w-]{{0,79}}/)?{_PART}(?::{_PART})?", re.ASCII)
_DEFAULT_TAG: Final = "latest"
_DEFAULT_NAMESPACE: Final = "library/"
"""Of names without one: Ollama takes `library/NAME` for `NAME`."""

_PATTERN: Final = re.compile(r"(?:[\w*-]{1,80}/)?[\w.*-]{1,80}(?::[\w.*-]{1,80})?", re.ASCII)


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


@attrs.frozen
class AllowedModels:
    """Which models of its Ollama a host's owner lets Models name.

    Attributes:
        patterns: `NAME`, `NAME:TAG` or `NAMESPACE/NAME:TAG`. `*` stands for anything within one of the three; without a
            tag every tag is meant, and without a namespace none.
    """

    patterns: tuple[str, ...] = ()

    @classmethod
    def of(cls, patterns: Iterable[str]) -> "AllowedModels":
        """Take what an owner has written.

        Raises:
            ValueError: One of them can match no name; says how they are written.
        """
        for pattern in (allowed := tuple(patterns)):
            if not _PATTERN.fullmatch(pattern):
                raise ValueError(f"{pattern!r} is no name of a model: write it as Ollama does, such as llama3.2, or *")
        return cls(allowed)

    def admits(self, model: OllamaModel) -> bool:
        """Whether one of the patterns is that of a model; Ollama tells no case."""
        name = _normalized(model.name)
        return any(re.fullmatch(_pattern_regex(each), name) for each in self.patterns)


def _normalized(name: str) -> str:
    return name.lower().removeprefix(_DEFAULT_NAMESPACE)


def _pattern_regex(pattern: str) -> str:
    name, _, tag = _normalized(pattern).partition(":")
    return ":".join(re.escape(each).replace(r"\*", "[^/:]*") for each in (name, tag or "*"))


def read_name(shown: str, name: str) -> OllamaModel:
    """Read what stands behind `ollama://`; the tag `latest` is meant where there is none.

    Args:
        shown: The source, for messages.
        name: What is read.

    Raises:
        SourceError: Ollama's library can have no such model, or it is one that LLMKube has made.
    """
    if not _NAME.fullmatch(name):
        raise SourceError(f"{shown} names no model of Ollama's library: write ollama://NAME:TAG")
    if name.lower().startswith(f"{OWN_NAMESPACE}/"):
        raise SourceError(f"{shown} is what LLMKube has made for a service: name the source of that service's Model")
    return OllamaModel(name if ":" in name else f"{name}:{_DEFAULT_TAG}")
