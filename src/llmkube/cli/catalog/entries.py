"""The list as values: each model by its name and its other names. The file is read when it is first asked for."""

import difflib
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
import yaml

from llmkube.base.package_data import read_text

CHECKS: Final = {
    "several": "its digest is in several public manifests",
    "one": "its digest is in one public manifest",
    "none": "no digest is recorded: it is taken as the source serves it",
}
"""What is known about the digest of a file, in words."""


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
        checked: How its digest is known: a key of `CHECKS`.
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
    architecture: Mapping[str, Any]
    sha256: str = ""
    mode: str = ""
    aliases: Sequence[str] = ()

    @property
    def context(self) -> int:
        """The tokens of context that the model was trained for."""
        return int(self.architecture["context"])

    @property
    def pin(self) -> str:
        """What holds the file to what it was: `revision, sha256`, `sha256`, or nothing."""
        revision = "revision" if "@" in self.source.rpartition("/")[2] else ""
        return ", ".join(filter(None, (revision, "sha256" if self.sha256 else "")))


@functools.cache
def entries() -> Mapping[str, Entry]:
    """Return all models by name, in the order of the list."""
    return {name: Entry(name=name, **fields) for name, fields in _read("models.yaml").items()}


@functools.cache
def architectures() -> Mapping[str, Any]:
    """Return what a file of each architecture holds."""
    return _read("architectures.yaml")


def find(name: str) -> Entry | None:
    """Return the model of a name, or of one of its other names, in any case."""
    wanted = name.lower()
    found = entries()
    return found.get(wanted) or next((each for each in found.values() if wanted in each.aliases), None)


def similar(name: str) -> list[str]:
    """Return the names in the catalog that look like this one, the likeliest first."""
    names = [*entries(), *(alias for each in entries().values() for alias in each.aliases)]
    return difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.7)


def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(read_text(__package__, name))
    return found
