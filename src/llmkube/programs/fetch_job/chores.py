"""What `llmkube fetch` does for a controller besides fetching: read the header of a file, remove what no Model names.

A folder's files are hard links to what the store has, so removing one frees nothing as long as the store keeps its
records: those go with the folder, unless another folder shows the same files.
"""

import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from llmkube.programs.fetch_job.termination_message import told_gguf
from llmkube.weights.errors import FetchError, FileSetError
from llmkube.weights.formats.gguf import read_header
from llmkube.weights.split_names import part_names
from llmkube.weights.store.blobs import Store, open_store
from llmkube.weights.store.cache import prune
from llmkube.weights.store.index import records
from llmkube.weights.store.local_files import take_snapshot

_KEY: Final = re.compile(r"[0-9a-f]{16}")

Inode = tuple[int, int]  # device and number


def inspect_file(path: Path) -> dict[str, Any]:
    """Return what a GGUF file says of itself; of a split model, `path` is its first part, and the size is of all.

    Raises:
        WeightsError: It is no GGUF file that an engine could load, or a part of it is missing.
        FetchError: It cannot be read.
    """
    parts = [take_snapshot(path.with_name(name)) for name in part_names(path.name)]
    return {
        "path": path.name,
        "sizeBytes": sum(part.size_bytes for part in parts),
        "files": [part.path.name for part in parts][:16],
        "gguf": told_gguf(read_header(path)),
    }


def prune_folders(folder: Path, store_path: Path, keys: Iterable[str]) -> dict[str, Any]:
    """Remove these folders, and what only they have shown of the store; one that is not there is no error.

    Raises:
        FileSetError: A key is not one.
        FetchError: The disk fails.
    """
    wanted = sorted(set(keys))
    for key in wanted:
        if not _KEY.fullmatch(key):
            raise FileSetError(f"{key!r} is no key of a folder: those are 16 hex digits")
    removed, freed = [], 0
    try:
        store = open_store(store_path)
        shown: set[Inode] = set()
        for key in wanted:
            place = folder / key
            if not place.is_dir() or place.is_symlink():
                continue
            shown |= {_inode(path) for path in place.rglob("*") if path.is_file() and not path.is_symlink()}
            shutil.rmtree(place)
            removed.append(key)
        if shown:
            freed = prune(store, (), only=_unshown(store, shown)).freed_bytes
    except OSError as exc:
        raise FetchError(f"cannot remove from {folder}: {exc.strerror or exc}") from exc
    return {"removed": removed, "freedBytes": freed}


def _unshown(store: Store, shown: set[Inode]) -> set[str]:
    """Return the records of files that were shown and are linked from nowhere but the store any more."""
    inside: dict[Inode, int] = {}
    for place in (store.blobs, store.sets):
        for path in place.rglob("*"):
            if path.is_file() and not path.is_symlink():
                inside[_inode(path)] = inside.get(_inode(path), 0) + 1
    found = set()
    for key, record in records(store):
        blobs = [store.blobs / piece.sha256 for piece in record.pieces]
        if all(
            blob.is_file() and _inode(blob) in shown and blob.stat().st_nlink == inside[_inode(blob)] for blob in blobs
        ):
            found.add(key)
    return found


def _inode(path: Path) -> Inode:
    seen = path.stat()
    return seen.st_dev, seen.st_ino
