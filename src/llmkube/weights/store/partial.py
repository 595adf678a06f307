"""An incomplete file in the store: a download can be resumed, and never mixes two versions.

Next to the bytes is a metadata file with their version, the size of the whole, and the number of bytes that are synced.
After a power failure only the synced bytes are used: a file system may have kept the length and lost the content.
All functions block on the disk.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Final

import attrs

from llmkube.base.private_files import sync, write_private
from llmkube.weights.errors import FetchError
from llmkube.weights.http_responses import Validator
from llmkube.weights.store.blobs import Store, remove_unlocked, sync_folder

_HASH_CHUNK_BYTES: Final = 8 << 20
_WRITE_BYTES: Final = 256 << 10
"""Per system call. With 4 MiB, ext4 on Linux 6.18 takes five to ten times the processor time, to find large ranges of
free memory. Below 64 KiB the cost of the calls becomes noticeable."""
_MAX_METADATA_BYTES: Final = 16 * 1024


@attrs.frozen
class PartialInfo:
    """The version of the file that is downloaded, and its size if known."""

    validator: Validator = Validator()
    total_bytes: int | None = None


@attrs.define(eq=False)
class Partial:
    """An incomplete file, locked by us; `open_partial` returns one, which the caller closes.

    Attributes:
        size_bytes: The number of bytes that are present and hashed.
        info: The version and size of the file.
        unhashed_bytes: The bytes of an earlier process that `rehash` has not read yet.
    """

    store: Store
    path: Path
    _fd: int
    info: PartialInfo = PartialInfo()
    size_bytes: int = 0
    unhashed_bytes: int = 0
    _digest: "hashlib._Hash" = attrs.field(factory=hashlib.sha256)

    @property
    def sha256(self) -> str:
        """The digest of the bytes so far, in lower-case hex."""
        return self._digest.hexdigest()

    def rehash(self) -> None:
        """Hash the next piece of an earlier process's bytes; if it is unreadable, drop it and all bytes after it."""
        try:
            data = os.pread(self._fd, min(_HASH_CHUNK_BYTES, self.unhashed_bytes), self.size_bytes)
        except OSError:
            data = b""  # a bad sector in the prefix: everything after it is downloaded again
        self._digest.update(data)
        self.size_bytes += len(data)
        self.unhashed_bytes = self.unhashed_bytes - len(data) if data else 0
        if not self.unhashed_bytes:
            os.ftruncate(self._fd, self.size_bytes)

    def begin(self, info: PartialInfo) -> None:
        """Drop the bytes so far, and expect the version in `info`."""
        self._digest = hashlib.sha256()
        self.size_bytes = self.unhashed_bytes = 0
        self.info = info
        self._write_metadata(0)
        os.ftruncate(self._fd, 0)

    def append(self, data: bytes | memoryview) -> None:
        """Append and hash bytes, all or none; another thread may be syncing meanwhile.

        Raises:
            NoSpaceError: The disk is full.
            FetchError: The disk fails.
        """
        start, done = self.size_bytes, 0
        view = memoryview(data)
        with self.store.write_errors():
            try:
                while done < len(view):
                    done += os.pwrite(self._fd, view[done : done + _WRITE_BYTES], start + done)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, start)
                raise
        self._digest.update(view)
        self.size_bytes += done

    def read(self, offset: int, length: int) -> bytes:
        """Return some of the bytes so far."""
        return os.pread(self._fd, max(0, min(length, self.size_bytes - offset)), offset)

    def checkpoint(self) -> None:
        """Sync the bytes so far, so that they survive a power failure; bytes appended meanwhile are not included."""
        size_bytes = self.size_bytes
        with self.store.write_errors():
            sync(self._fd)
        self._write_metadata(size_bytes)

    def commit(self) -> Path:
        """Move the file to the blobs, named by its digest; `checkpoint` must have been called."""
        final = self.store.blobs / self.sha256
        with self.store.write_errors():
            self.path.replace(final)
            sync_folder(self.store.blobs)
            _metadata_path(self.path).unlink(missing_ok=True)
        return final

    def close(self) -> None:
        """Close the file; its bytes are kept for the next attempt, unless it is empty."""
        try:
            if not _same_file(self.path, self._fd):
                return
            if self.size_bytes == 0:
                self.path.unlink()
                _metadata_path(self.path).unlink(missing_ok=True)
            elif not self.unhashed_bytes:
                self.checkpoint()
        except (OSError, FetchError):
            pass
        finally:
            os.close(self._fd)

    def _write_metadata(self, synced_bytes: int) -> None:
        text = json.dumps(
            {
                "etag": self.info.validator.etag,
                "lastModified": self.info.validator.last_modified,
                "totalBytes": self.info.total_bytes,
                "syncedBytes": synced_bytes,
            }
        )
        with self.store.write_errors():
            write_private(_metadata_path(self.path), text)


def open_partial(store: Store, key: str) -> Partial | None:
    """Open or create the file with a key; return None while another process has it.

    The key is 64 hex digits: a digest of the identity of the download.

    Raises:
        FetchError: The disk fails, or there is something else than a regular file.
    """
    path = store.partial_path(key)
    with store.write_errors():
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
            keep_open = False
            try:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise FetchError(f"{path} is not a regular file; remove it")
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return None
                if _same_file(path, fd):  # otherwise it was committed or removed between our open and our lock
                    partial = _resume(store, path, fd)
                    keep_open = True
                    return partial
            finally:
                if not keep_open:
                    os.close(fd)


def remove_partial(path: Path, *, unless_modified_since: float | None = None) -> int:
    """Remove an incomplete file that no process has locked; return the freed bytes.

    Args:
        path: One of the files in the store's folder of partials.
        unless_modified_since: Keep the file if it changed after this time, in seconds since the epoch.
    """
    return remove_unlocked(path, _metadata_path(path), unless_modified_since=unless_modified_since)


def _resume(store: Store, path: Path, fd: int) -> Partial:
    partial = Partial(store, path, fd)
    info, synced_bytes = _read_metadata(_metadata_path(path))
    if synced_bytes > 0 and os.fstat(fd).st_size >= synced_bytes:
        partial.info, partial.unhashed_bytes = info, synced_bytes
    else:
        partial.begin(PartialInfo())
    return partial


def _read_metadata(path: Path) -> tuple[PartialInfo, int]:
    """Return an earlier process's metadata and the number of synced bytes; empty if it cannot be decoded."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            data = json.loads(file.read(_MAX_METADATA_BYTES))
        etag, modified, total, synced = (data[k] for k in ("etag", "lastModified", "totalBytes", "syncedBytes"))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return PartialInfo(), 0
    texts = isinstance(etag, str) and isinstance(modified, str)
    numbers = isinstance(synced, int) and (total is None or isinstance(total, int))
    return (PartialInfo(Validator(etag, modified), total), synced) if texts and numbers else (PartialInfo(), 0)


def _metadata_path(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def _same_file(path: Path, fd: int) -> bool:
    try:
        on_disk, opened = path.lstat(), os.fstat(fd)
    except OSError:
        return False
    return (on_disk.st_dev, on_disk.st_ino) == (opened.st_dev, opened.st_ino)
