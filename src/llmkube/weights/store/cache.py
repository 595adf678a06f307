"""List, find and prune the models in the store. All functions block on the disk."""

import shutil
from collections.abc import Collection
from pathlib import Path

import attrs

from llmkube.weights.errors import FetchError, SourceError
from llmkube.weights.source import Builtin, Remote, parse_source
from llmkube.weights.store.blobs import Store, sync_folder
from llmkube.weights.store.index import Record, UnverifiedRecord, file_set_name, find_recorded, key_of, name_of, records
from llmkube.weights.store.partial import remove_partial


@attrs.frozen
class CachedModel:
    """One model in the store.

    Attributes:
        key: The hash of its source; `find_cached` also accepts a prefix.
        source: The source without secrets.
        size_bytes: The size of all its parts.
        digests: The digests of its parts, in order.
        fetched_at: RFC 3339; empty for built-in weights.
        path: The path for an engine; None if a part is missing or has been modified.
    """

    key: str
    source: str
    size_bytes: int
    digests: tuple[str, ...]
    fetched_at: str
    path: Path | None


@attrs.frozen
class Pruned:
    """The removed models, or those that would be, by source, and the freed space."""

    models: tuple[str, ...]
    incomplete: int
    freed_bytes: int


def list_cached(store: Store) -> list[CachedModel]:
    """Return the models in the store, by source."""
    found = [_cached(store, key, record) for key, record in records(store)]
    return sorted(found, key=lambda cached: cached.source)


def find_cached(store: Store, text: str) -> list[CachedModel]:
    """Return the models with a source (any form of `spec.source`), or with a prefix of a key."""
    try:
        source = parse_source(text)
        name = name_of(store, source) if isinstance(source, Remote | Builtin) else ""
    except SourceError:
        name = ""
    return [
        cached
        for cached in list_cached(store)
        if text in (cached.source, cached.key)
        or cached.key == key_of(name)
        or (len(text) >= 4 and cached.key.startswith(text))
    ]


def incomplete_bytes(store: Store) -> int:
    """Return the space of unfinished downloads."""
    return sum(map(_disk_bytes, store.partial.iterdir()))


def prune(store: Store, keep: Collection[str], *, only: Collection[str] | None = None, dry_run: bool = False) -> Pruned:
    """Remove unused models, unreferenced blobs, and downloads that no process continues.

    Args:
        store: The store.
        keep: The names (`index.name_of`) of the sources in use, such as those of all Models of a cluster. Their files
            are kept, even if they are in `only`.
        only: Keys of models to remove; None for all that are not in use.
        dry_run: Only return what would be removed.

    Raises:
        FetchError: The disk fails.
    """
    kept_keys = {key_of(identity) for identity in keep}
    with store.locked():
        all_records = dict(records(store))
        removed = {
            key: record for key, record in all_records.items() if key not in kept_keys and (only is None or key in only)
        }
        partials = [path for path in store.partial.iterdir() if only is None and path.suffix != ".json"]
        freed = _remove(store, all_records, removed, tidy=only is None, dry_run=dry_run)
        incomplete = [_disk_bytes(path) if dry_run else remove_partial(path) for path in partials]
    partial_count = len(partials) if dry_run else sum(count > 0 for count in incomplete)
    return Pruned(tuple(sorted(record.source for record in removed.values())), partial_count, freed + sum(incomplete))


def remove_unreferenced(store: Store) -> None:
    """Remove blobs that no record refers to: those of versions that have been replaced.

    Raises:
        FetchError: The disk fails.
    """
    with store.locked():
        _remove(store, dict(records(store)), {}, tidy=True, dry_run=False)


def _remove(
    store: Store, all_records: dict[str, Record], removed: dict[str, Record], *, tidy: bool, dry_run: bool
) -> int:
    """Remove records, and the blobs and sets that no other record needs; return the freed bytes.

    Args:
        store: The store, locked.
        all_records: All records.
        removed: The records to remove.
        tidy: Remove also blobs that no record refers to.
        dry_run: Only count.
    """
    remaining = [record for key, record in all_records.items() if key not in removed]
    blobs = {piece.sha256 for record in remaining for piece in record.pieces}
    sets = {file_set_name(record) for record in remaining if len(record.pieces) > 1 or record.names}
    candidates = {piece.sha256 for record in removed.values() for piece in record.pieces}
    unwanted = [path for path in store.blobs.iterdir() if path.name not in blobs and (tidy or path.name in candidates)]
    freed = sum(map(_disk_bytes, unwanted))
    if not dry_run:
        for key in removed:
            (store.index / f"{key}.json").unlink(missing_ok=True)
        sync_folder(store.index)  # a record must not outlive its blobs
        for folder in [path for path in store.sets.iterdir() if path.name not in sets]:
            shutil.rmtree(folder, ignore_errors=True)
        for path in unwanted:
            path.unlink(missing_ok=True)
    return freed


def _disk_bytes(path: Path) -> int:
    """Return the disk usage of a file; 0 if a download has just renamed or replaced it."""
    try:
        return path.lstat().st_blocks * 512
    except FileNotFoundError:
        return 0


def _cached(store: Store, key: str, record: Record) -> CachedModel:
    digests = tuple(piece.sha256 for piece in record.pieces)
    try:
        found = find_recorded(store, record)
        path = None if found is None or isinstance(found, UnverifiedRecord) else found.path
    except FetchError:
        path = None
    return CachedModel(key, record.source, record.size_bytes, digests, record.fetched_at, path)
