"""The list as values: each model by its name and its other names. The file is read when it is first asked for."""

import difflib
import functools
import importlib.resources
from collections.abc import Mapping
from typing import Any, Final

import attrs
import yaml

CHECKED: Final = {
    "several": "its digest is in several public manifests",
    "one": "its digest is in one public manifest",
    "none": "no digest is recorded: it is taken as the source serves it",
}
"""What is known about the digest of a file, in words."""


@attrs.frozen
class Architecture:
    """The numbers of a model's published configuration.

    Attributes:
        name: As llama.cpp names it.
        layers: Blocks.
        width: Elements of a token's vector.
        heads: Of attention.
        kv_heads: Heads for keys and values.
        head_length: Elements of one head.
        inner: Width of the feed-forward part.
        vocabulary: Tokens.
        context: Tokens that it was trained for.
        tied: Whether the embedding is the output matrix as well.
        window: Tokens that layers with a window see; 0 where none has one.
        experts: How many experts a layer has; 0 where it is dense.
        experts_used: How many of them a token asks.
        expert_inner: Width of one expert.
    """

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_length: int
    inner: int
    vocabulary: int
    context: int
    tied: bool = False
    window: int = 0
    experts: int = 0
    experts_used: int = 0
    expert_inner: int = 0


@attrs.frozen
class Entry:
    """One model of the catalog.

    Attributes:
        name: What is typed.
        title: What it is.
        source: Where its weights are, as `spec.source` has it.
        quantization: Of most tensors.
        size_bytes: Of the file.
        licence: As the model's page names it.
        checked: How its digest is known: a key of `CHECKED`.
        architecture: Its numbers.
        sha256: The file's digest; empty where none is recorded.
        mode: What it offers; empty for chat.
        aliases: Other names.
    """

    name: str
    title: str
    source: str
    quantization: str
    size_bytes: int
    licence: str
    checked: str
    architecture: Architecture
    sha256: str = ""
    mode: str = ""
    aliases: tuple[str, ...] = ()

    @property
    def pin(self) -> str:
        """What holds the file to what it was: `revision, sha256`, `sha256`, or nothing."""
        revision = "revision" if "@" in self.source.rpartition("/")[2] else ""
        return ", ".join(filter(None, (revision, "sha256" if self.sha256 else "")))


@functools.cache
def entries() -> Mapping[str, Entry]:
    """Return all models by name, in the order of the list."""
    text = importlib.resources.files("llmkube.cli.catalog").joinpath("models.yaml").read_text(encoding="utf-8")
    return {name: _entry(name, fields) for name, fields in yaml.safe_load(text).items()}


def find(name: str) -> Entry | None:
    """Return the model of a name, or of one of its other names, in any case."""
    wanted = name.lower()
    found = entries()
    return found.get(wanted) or next((each for each in found.values() if wanted in each.aliases), None)


def similar(name: str) -> list[str]:
    """Return the names in the catalog that look like this one, the likeliest first."""
    names = [*entries(), *(alias for each in entries().values() for alias in each.aliases)]
    return difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.7)


def _entry(name: str, fields: Mapping[str, Any]) -> Entry:
    numbers = {_snake(key): value for key, value in fields["architecture"].items()}
    return Entry(
        name=name,
        title=fields["title"],
        source=fields["source"],
        quantization=fields["quantization"],
        size_bytes=fields["size"],
        licence=fields["licence"],
        checked=fields["checked"],
        architecture=Architecture(**numbers),
        sha256=fields.get("sha256", ""),
        mode=fields.get("mode", ""),
        aliases=tuple(fields.get("aliases", ())),
    )


def _snake(key: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in key)
