"""Models of Ollama's library (`ollama://NAME:TAG`), which the Ollama of a host pulls and stores. Pure.

Refused are names with a server, since the author of a Model must not choose the servers that this host contacts, and
the models that LLMKube creates in an Ollama: they may be from another namespace and of weights that require a
credential.
"""

import re
from collections.abc import Iterable
from typing import Final

import attrs

from llmkube.weights.errors import SourceError

SCHEME: Final = "ollama"
REMEDY: Final = "name the same model as GGUF at Hugging Face, such as ORG/REPO:Q4_K_M"
"""The fix where no Ollama of a host can serve the model."""

OWN_NAMESPACE: Final = "llmkube"
"""The namespace of the models that LLMKube creates in an Ollama, each for one service."""

_PART: Final = r"[A-Za-z0-9_][\w.-]{0,79}"
_NAME: Final = re.compile(rf"(?:[A-Za-z0-9_][\w-]{{0,79}}/)?{_PART}(?::{_PART})?", re.ASCII)
_DEFAULT_TAG: Final = "latest"
_DEFAULT_NAMESPACE: Final = "library/"
"""The namespace of names without one: to Ollama, `NAME` is `library/NAME`."""

_PATTERN: Final = re.compile(r"(?:[\w*-]{1,80}/)?[\w.*-]{1,80}(?::[\w.*-]{1,80})?", re.ASCII)


@attrs.frozen
class OllamaModel:
    """A model of Ollama's library.

    Attributes:
        name: In Ollama's form, `NAME:TAG` or `NAMESPACE/NAME:TAG`.
    """

    name: str

    @property
    def redacted(self) -> str:
        """The source for messages; it contains no secrets."""
        return f"{SCHEME}://{self.name}"


@attrs.frozen
class AllowedModels:
    """The models of its Ollama that a host's owner allows in Models.

    Attributes:
        patterns: `NAME`, `NAME:TAG` or `NAMESPACE/NAME:TAG`. `*` matches any text within one of the three; a pattern
            without a tag matches every tag, one without a namespace only names without one.
    """

    patterns: tuple[str, ...] = ()

    @classmethod
    def of(cls, patterns: Iterable[str]) -> "AllowedModels":
        """Return the patterns that an owner has configured.

        Raises:
            ValueError: A pattern cannot match any name; the message shows the form.
        """
        for pattern in (allowed := tuple(patterns)):
            if not _PATTERN.fullmatch(pattern):
                raise ValueError(f"{pattern!r} is not a model name; use Ollama's form, such as llama3.2, or *")
        return cls(allowed)

    def admits(self, model: OllamaModel) -> bool:
        """Return whether a pattern matches a model; as in Ollama, case is ignored."""
        name = _normalized(model.name)
        return any(re.fullmatch(_pattern_regex(each), name) for each in self.patterns)


def _normalized(name: str) -> str:
    return name.lower().removeprefix(_DEFAULT_NAMESPACE)


def _pattern_regex(pattern: str) -> str:
    name, _, tag = _normalized(pattern).partition(":")
    return ":".join(re.escape(each).replace(r"\*", "[^/:]*") for each in (name, tag or "*"))


def read_name(shown: str, name: str) -> OllamaModel:
    """Parse the name after `ollama://`; the tag defaults to `latest`.

    Args:
        shown: The source, for messages.
        name: The name to parse.

    Raises:
        SourceError: The name is invalid, or it is a model that LLMKube has created.
    """
    if not _NAME.fullmatch(name):
        raise SourceError(f"{shown} is not a model of Ollama's library; use ollama://NAME:TAG")
    if name.lower().startswith(f"{OWN_NAMESPACE}/"):
        raise SourceError(f"{shown} was created by LLMKube for a service; use the source of that service's Model")
    return OllamaModel(name if ":" in name else f"{name}:{_DEFAULT_TAG}")
