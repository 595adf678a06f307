"""Models of the catalog by name and alias. The files are read on first use."""

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
    "none": "no digest is recorded: the file is used as the source serves it",
}
"""Text about the digest of a file, by `Entry.checked`."""


@attrs.frozen
class Entry:
    """A model of the catalog.

    Attributes:
        name: Name on the command line.
        title: Full name.
        source: Source of its weights, in the form of `spec.source`.
        quantization: Quantization of most tensors.
        size_bytes: Size of the file.
        licence: Licence, as the model's page names it.
        checked: Evidence for its digest: a key of `CHECKS`.
        architecture: Parameters of its architecture.
        sha256: Digest of the file; empty if none is recorded.
        mode: Kind of requests that it serves; empty for chat.
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
        """The trained context, in tokens."""
        return int(self.architecture["context"])

    @property
    def pin(self) -> str:
        """The parts of the source that pin the file: `revision, sha256`, one of the two, or empty."""
        revision = "revision" if "@" in self.source.rpartition("/")[2] else ""
        return ", ".join(filter(None, (revision, "sha256" if self.sha256 else "")))


@functools.cache
def entries() -> Mapping[str, Entry]:
    """Return all models by name, in the order of the file."""
    return {name: Entry(name=name, **fields) for name, fields in _read("models.yaml").items()}


@functools.cache
def architectures() -> Mapping[str, Any]:
    """Return the tensors and numbers of each architecture."""
    return _read("architectures.yaml")


def find(name: str) -> Entry | None:
    """Return the model with this name or alias, in any case; None if there is none."""
    wanted = name.lower()
    found = entries()
    return found.get(wanted) or next((each for each in found.values() if wanted in each.aliases), None)


def hint_for(name: str) -> str:
    """Return what to do about an unknown name: use a similar one, the most similar first, or read the list."""
    names = [*entries(), *(alias for each in entries().values() for alias in each.aliases)]
    like = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.7)
    return f"did you mean {' or '.join(like)}?" if like else "see `llmkube catalog list`"


def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(read_text(__package__, name))
    return found
