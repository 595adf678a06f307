"""What `llmkube fetch` does for a controller besides fetching: read the header of a file, remove what no Model names.

A folder's files are hard links to what the store has, so removing one frees nothing as long as the store keeps its
records: those go with the folder, unless another folder shows the same files.
"""

import errno
import os
import re
import shutil
from collections.abc import Iterable
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final

import trio

from llmkube.programs.fetch_job.reports import told_gguf
from llmkube.weights.download.progress import OnProgress, Progress
from llmkube.weights.errors import FetchError, FileSetError
from llmkube.weights.formats.gguf import read_header
from llmkube.weights.source import BucketFile, HubFile, Remote, WebFile
from llmkube.weights.split_names import part_names
from llmkube.weights.store import local_files
from llmkube.weights.store.blobs import Store, open_store
from llmkube.weights.store.cache import prune
from llmkube.weights.store.disk import in_threads
from llmkube.weights.store.index import BlobInfo, Record, blob_info, commit_record, find_weights, name_of, records
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


_NO_LINK: Final = {errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOTSUP}


def files_in(folder: Path, source: Remote) -> tuple[Path, ...]:
    """Return the files of a source in a folder of an earlier cache, all of its parts; none if one is missing."""
    if isinstance(source, HubFile | BucketFile):
        names = [PurePosixPath(part) for part in source.parts]
        found = [next((p for p in (folder / name, folder / name.name) if p.is_file()), None) for name in names]
        return tuple(path for path in found if path is not None) if None not in found else ()
    if isinstance(source, WebFile) and len(source.parts) == 1 and folder.is_dir():
        only = [path for path in folder.iterdir() if path.suffix == ".gguf" and path.is_file()]
        return tuple(only) if len(only) == 1 else ()
    return ()


async def adopt(
    folder: Path,
    source: Remote,
    store: Store,
    *,
    sha256: str | None,
    progress: OnProgress,
    limiter: trio.CapacityLimiter,
) -> None:
    """Take the weights of a source from a folder of an earlier cache into the store, if they are there.

    What the store has already is left as it is; what has another digest than it must have is not taken.

    Raises:
        FetchError: The disk fails.
    """
    run_sync = in_threads(limiter)
    name = await run_sync(partial(name_of, store, source))
    if await run_sync(partial(find_weights, store, name)) is not None:
        return
    found = await run_sync(partial(files_in, folder, source))
    if not found or (sha256 is not None and len(found) > 1):
        return
    pieces = []
    for path in found:
        seen = await run_sync(partial(local_files.take_snapshot, path))

        def verifying(done: int, total: int = seen.size_bytes) -> None:
            progress(Progress("verifying", done, total))

        digest = await local_files.hash_file(seen, verifying, run_sync)
        if sha256 not in (None, digest):
            return
        pieces.append(await run_sync(partial(_take, store, path, digest)))
    await run_sync(partial(commit_record, store, name, Record(source.redacted), pieces))


def _take(store: Store, path: Path, digest: str) -> BlobInfo:
    blob = store.blobs / digest
    try:
        if not blob.exists():
            try:
                os.link(path, blob, follow_symlinks=True)
            except OSError as exc:
                if exc.errno not in _NO_LINK:
                    raise
                fresh = store.incoming / digest
                shutil.copyfile(path, fresh)
                fresh.replace(blob)
        return blob_info(blob)
    except OSError as exc:
        raise FetchError(f"cannot take {path} into the model store: {exc.strerror or exc}") from exc
