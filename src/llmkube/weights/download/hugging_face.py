"""Hugging Face: the files of a repository, the choice of the model among them, and their URLs."""

import json
import re
import urllib.parse
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

from llmkube.base.units import format_bytes
from llmkube.weights.errors import AmbiguousSourceError, FetchError, SourceError, SourceNotFoundError
from llmkube.weights.source import HubFile, HubFolder, HubRepository
from llmkube.weights.split_names import parse_name
from llmkube.weights.urls import BadUrlError, WebUrl, parse_url

ENDPOINT: Final = "https://huggingface.co"
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_COMPANION: Final = re.compile(r"(^|[-_./])(mmproj|imatrix)", re.IGNORECASE)  # files that accompany a model
_MAX_SHOWN: Final = 24

_FOLDER_FILE: Final = re.compile(
    r"(?:model[\w.-]*\.safetensors|[\w][\w.-]*\.(?:json|jinja|model|tiktoken)|(?:merges|vocab)\.txt)", re.ASCII
)
MAX_FILES: Final = 160
"""Maximum number of files of one folder; each is an open file during the download."""

DEFAULT_QUANTIZATION: Final = "Q4_K_M"
"""The default quantization of llama.cpp, Ollama and the hub's own pages."""

_WEIGHTS_TENTHS: Final = 9
"""Maximum share of the memory for weights, in tenths; the rest is for context and buffers."""


@attrs.frozen
class HubEntry:
    """A file of a repository: its path, and its size and digest from the hub."""

    path: str
    size_bytes: int | None = None
    sha256: str | None = None


@attrs.frozen
class Listing:
    """The files of a repository at one commit."""

    commit: str
    files: Mapping[str, HubEntry]


def parse_endpoint(text: str) -> WebUrl:
    """Parse the address of the hub or of a mirror.

    Raises:
        SourceError: It is not a URL.
    """
    try:
        return parse_url(text.rstrip("/"))[0]
    except BadUrlError as exc:
        raise SourceError(f"the hub's address {text!r} is not valid: {exc}") from exc


def file_url(endpoint: WebUrl, file: HubFile) -> WebUrl:
    """Return the URL of one file (`/ORG/REPO/resolve/REVISION/PATH`)."""
    path = "/".join(urllib.parse.quote(part, safe="") for part in file.path.split("/"))
    return _hub_url(endpoint, f"{file.repository}/resolve/{urllib.parse.quote(file.revision, safe='')}/{path}")


def listing_url(endpoint: WebUrl, repository: str, revision: str) -> WebUrl:
    """Return the URL of the list of a repository's files; `blobs` adds sizes and digests."""
    found = _hub_url(endpoint, f"api/models/{repository}/revision/{urllib.parse.quote(revision, safe='')}")
    return attrs.evolve(found, target=f"{found.target}?blobs=true")


def parse_listing(shown: str, body: bytes) -> Listing:
    """Parse the hub's response to `listing_url`.

    Raises:
        FetchError: It is not a listing.
    """
    try:
        data = json.loads(body)
        entries = [_entry(sibling) for sibling in data["siblings"]]
        commit = data.get("sha") or ""
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        raise FetchError(f"{shown}: the hub's list of files cannot be decoded") from exc
    return Listing(commit if _COMMIT.fullmatch(str(commit)) else "", {entry.path: entry for entry in entries})


@attrs.frozen
class Choice:
    """The chosen model of a repository.

    Attributes:
        file: Its file, or the first of its parts.
        reason: The reason of the choice, for people; empty if there was no choice.
    """

    file: HubFile
    reason: str = ""


def choose(source: HubRepository, listing: Listing, *, memory_bytes: int | None = None) -> Choice:
    """Return the model of a repository.

    The requested quantization, otherwise the only one, otherwise Q4_K_M, otherwise the largest one that fits.

    Args:
        source: The repository.
        listing: Its files.
        memory_bytes: This host's memory budget for models; None if unknown.

    Raises:
        SourceNotFoundError: It has no GGUF file, or not that quantization; the message lists the existing ones.
        AmbiguousSourceError: It has several models, or several quantizations of which none can be chosen; the message
            lists them with their sizes.
    """
    paths = [path for path in listing.files if path.lower().endswith(".gguf") and not _COMPANION.search(path)]
    models: dict[str, tuple[str, ...]] = {}
    for path in paths:
        try:
            parts = source.file(path).parts
        except SourceError:
            continue  # not a valid file name
        models[parts[0]] = parts
    if not models:
        raise SourceNotFoundError(
            f"{source.redacted} has no .gguf file; look for a repository with GGUF in its name, or convert the model"
        )
    names = [f"{first} ({_size(listing, parts)})" for first, parts in sorted(models.items())]
    more = f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
    shown = f"{', '.join(names[:_MAX_SHOWN])}{more}"
    if len(models) == 1 and not source.quantization:
        return Choice(source.file(next(iter(models))))
    wanted = (source.quantization or DEFAULT_QUANTIZATION).lower()
    matching = [first for first in models if parse_name(first)[1].lower() == wanted]
    is_one_model = len({parse_name(first)[0].lower() for first in models}) == 1
    if len(matching) == 1 and (source.quantization or is_one_model):
        reason = "" if source.quantization else f"{DEFAULT_QUANTIZATION}, one of {len(models)} in {source.name}"
        return Choice(source.file(matching[0]), reason)
    if not source.quantization and not matching and memory_bytes and is_one_model:
        sizes = {first: _bytes_of(listing, parts) or 0 for first, parts in models.items()}
        limit_bytes = memory_bytes * _WEIGHTS_TENTHS // 10
        fitting = [first for first, size in sizes.items() if 0 < size <= limit_bytes]
        if fitting:
            largest = max(fitting, key=lambda first: (sizes[first], first))
            fit = f"the largest of {len(models)} in {source.name} that fits into {format_bytes(memory_bytes)} of memory"
            model, quantization = parse_name(largest)
            return Choice(source.file(largest), f"{quantization or model}, {fit}; it has no {DEFAULT_QUANTIZATION}")
    if source.quantization and not matching:
        raise SourceNotFoundError(f"{source.redacted}: the repository has no {source.quantization}; it has {shown}")
    example = source.file(min(matching or models)).redacted
    raise AmbiguousSourceError(
        f"{source.redacted} has {len(matching) if source.quantization else len(models)} models; "
        f"choose one, such as {example}: {shown}"
    )


def entries_of(file: HubFile, listing: Listing) -> tuple[HubEntry, ...]:
    """Return the entries of all parts of a model, in order.

    Raises:
        SourceNotFoundError: One is missing.
    """
    missing = [path for path in file.parts if path not in listing.files]
    if missing:
        shown = f", of {len(file.parts)} parts" if len(file.parts) > 1 else ""
        raise SourceNotFoundError(f"{file.redacted}: the repository has no {', '.join(missing[:5])}{shown}")
    return tuple(listing.files[path] for path in file.parts)


def folder_entries(source: HubFolder, listing: Listing) -> tuple[HubEntry, ...]:
    """Return the files of a repository that form a folder for an engine, by name.

    These are the top-level files with weights in safetensors, configuration, tokenizer and chat template; no code.

    Raises:
        SourceNotFoundError: It is not such a folder.
        AmbiguousSourceError: It has too many files.
    """
    files = {
        path: entry for path, entry in listing.files.items() if _FOLDER_FILE.fullmatch(path) and entry.size_bytes != 0
    }
    if not any(path.endswith(".safetensors") for path in files) or "config.json" not in files:
        hint = (
            "; it has weights in gguf: set Model.spec.format to gguf"
            if any(path.lower().endswith(".gguf") for path in listing.files)
            else ""
        )
        raise SourceNotFoundError(
            f"{source.redacted} is not a folder of safetensors: config.json and model*.safetensors are required{hint}"
        )
    if len(files) > MAX_FILES:
        raise AmbiguousSourceError(f"{source.redacted} has {len(files)} files; more than {MAX_FILES} are not supported")
    return tuple(files[path] for path in sorted(files))


def _hub_url(endpoint: WebUrl, path: str) -> WebUrl:
    return attrs.evolve(endpoint, target=f"{endpoint.path.rstrip('/')}/{path}")


def _entry(sibling: Any) -> HubEntry:
    lfs = sibling.get("lfs") or {}
    digest, size = lfs.get("sha256") or lfs.get("oid"), lfs.get("size") or sibling.get("size")
    return HubEntry(
        str(sibling["rfilename"]),
        size if isinstance(size, int) and size >= 0 else None,
        digest if isinstance(digest, str) and _DIGEST.fullmatch(digest) else None,
    )


def _size(listing: Listing, parts: Iterable[str]) -> str:
    size = _bytes_of(listing, parts)
    return format_bytes(size) if size is not None else "size unknown"


def _bytes_of(listing: Listing, parts: Iterable[str]) -> int | None:
    sizes = [listing.files[part].size_bytes if part in listing.files else None for part in parts]
    known = [size for size in sizes if size is not None]
    return sum(known) if known and len(known) == len(sizes) else None
