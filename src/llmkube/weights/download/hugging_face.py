"""Hugging Face: which files a repository has, which of them is the model, and where it can be had."""

import json
import re
import urllib.parse
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

from llmkube.base.units import format_bytes
from llmkube.weights.errors import AmbiguousSourceError, FetchError, SourceError, SourceNotFoundError
from llmkube.weights.source import HubFile, HubRepository
from llmkube.weights.urls import BadUrlError, WebUrl, parse_url

ENDPOINT: Final = "https://huggingface.co"
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_BESIDE: Final = re.compile(r"(^|[-_./])(mmproj|imatrix)", re.IGNORECASE)  # files that go with a model, but are none
_MOST_SHOWN: Final = 24


@attrs.frozen
class HubEntry:
    """A file of a repository: its path, and what the hub promises about it."""

    path: str
    size_bytes: int | None = None
    sha256: str | None = None


@attrs.frozen
class Listing:
    """The files of a repository at one commit."""

    commit: str
    files: Mapping[str, HubEntry]


def parse_endpoint(text: str) -> WebUrl:
    """Read the address of the hub, or of a mirror of it.

    Raises:
        SourceError: It is no URL.
    """
    try:
        return parse_url(text.rstrip("/"))[0]
    except BadUrlError as exc:
        raise SourceError(f"the hub's address {text!r} cannot be used: {exc}") from exc


def file_url(endpoint: WebUrl, file: HubFile) -> WebUrl:
    """Return where one file can be had (`/ORG/REPO/resolve/REVISION/PATH`)."""
    path = "/".join(urllib.parse.quote(part, safe="") for part in file.path.split("/"))
    return _below(endpoint, f"{file.repository}/resolve/{urllib.parse.quote(file.revision, safe='')}/{path}")


def listing_url(endpoint: WebUrl, repository: str, revision: str) -> WebUrl:
    """Return where the hub lists a repository's files; `blobs` adds sizes and digests."""
    found = _below(endpoint, f"api/models/{repository}/revision/{urllib.parse.quote(revision, safe='')}")
    return attrs.evolve(found, target=f"{found.target}?blobs=true")


def parse_listing(shown: str, body: bytes) -> Listing:
    """Read what the hub answers to `listing_url`.

    Raises:
        FetchError: It is no listing.
    """
    try:
        data = json.loads(body)
        entries = [_entry(sibling) for sibling in data["siblings"]]
        commit = data.get("sha") or ""
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        raise FetchError(f"{shown}: the hub's list of files cannot be decoded") from exc
    return Listing(commit if _COMMIT.fullmatch(str(commit)) else "", {entry.path: entry for entry in entries})


def choose(source: HubRepository, listing: Listing) -> HubFile:
    """Return the one model in a repository: its file, or the first of its parts.

    Raises:
        SourceNotFoundError: It has no GGUF file.
        AmbiguousSourceError: It has several; the message lists them with their sizes.
    """
    paths = [path for path in listing.files if path.lower().endswith(".gguf") and not _BESIDE.search(path)]
    models: dict[str, tuple[str, ...]] = {}
    for path in paths:
        try:
            parts = source.file(path).parts
        except SourceError:
            continue  # not a valid name of a file
        models[parts[0]] = parts
    if not models:
        raise SourceNotFoundError(
            f"{source.redacted} holds no .gguf file; look for a repository with GGUF in its name, or convert the model"
        )
    if len(models) > 1:
        names = [f"{first} ({_size(listing, parts)})" for first, parts in sorted(models.items())]
        more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
        example = source.file(min(models)).redacted
        raise AmbiguousSourceError(
            f"{source.redacted} holds {len(names)} models; name one of them, such as {example}: "
            f"{', '.join(names[:_MOST_SHOWN])}{more}"
        )
    return source.file(next(iter(models)))


def entries_of(file: HubFile, listing: Listing) -> tuple[HubEntry, ...]:
    """Return the entries of all parts of a model, in order.

    Raises:
        SourceNotFoundError: One is missing.
    """
    missing = [path for path in file.parts if path not in listing.files]
    if missing:
        there = f", of {len(file.parts)} parts" if len(file.parts) > 1 else ""
        raise SourceNotFoundError(f"{file.redacted}: the repository has no {', '.join(missing[:5])}{there}")
    return tuple(listing.files[path] for path in file.parts)


def _below(endpoint: WebUrl, path: str) -> WebUrl:
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
    sizes = [listing.files[part].size_bytes if part in listing.files else None for part in parts]
    known = [size for size in sizes if size is not None]
    return format_bytes(sum(known)) if known and len(known) == len(sizes) else "size unknown"
