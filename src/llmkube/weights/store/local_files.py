"""Files on this host that other programs may change at any time: snapshots, and reads that detect a change."""

import errno
import hashlib
import os
import stat
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import psutil
import trio

from llmkube.base.trusted_paths import open_file
from llmkube.weights.errors import FetchError, WeightsNotFoundError
from llmkube.weights.store.disk import RunSync

CHUNK_BYTES: Final = 8 << 20
"""Large enough to hide the cost of a thread, small enough to cancel soon."""

OpenFile = Callable[[Path], int]
"""Returns a descriptor of a file for reading, which the caller closes."""


@attrs.frozen
class FileSnapshot:
    """The stat of a file; an equal snapshot later means that the file has not changed."""

    path: Path
    size_bytes: int
    mtime_ns: int
    device: int
    inode: int

    @property
    def identity(self) -> str:
        """Changes with the file's size or modification time."""
        return f"{self.path}:{self.size_bytes}:{self.mtime_ns}"

    @classmethod
    def at(cls, path: Path, found: os.stat_result) -> "FileSnapshot":
        """Return the snapshot of a path from its stat."""
        return cls(path, found.st_size, found.st_mtime_ns, found.st_dev, found.st_ino)


def take_snapshot(path: Path) -> FileSnapshot:
    """Return a snapshot of a file.

    Raises:
        WeightsNotFoundError: It is not a regular, non-empty file.
        FetchError: The disk fails.
    """
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError) as exc:
        raise WeightsNotFoundError.at(path, describe_read_error(exc)) from exc
    except OSError as exc:
        raise FetchError(f"{path} cannot be read: {exc.strerror or exc}") from exc
    if not stat.S_ISREG(found.st_mode) or found.st_size == 0:
        raise WeightsNotFoundError.at(path, "it is not a regular, non-empty file")
    return FileSnapshot.at(path, found)


def describe_read_error(error: OSError) -> str:
    """Return why a file cannot be read, and the fix, for the host's owner.

    macOS reports EPERM if access is denied for a reason other than the file's permissions. The program to allow is the
    running one: a framework build of Python starts Python.app instead of `sys.executable`.
    """
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return "there is no such file"
    if sys.platform == "darwin" and error.errno == errno.EPERM:
        program = psutil.Process().exe()
        return (
            "background programs on macOS may not read it; move it out of Desktop, Documents, Downloads, iCloud and "
            f"external disks, or allow {program} under System Settings, Privacy & Security, Full Disk Access, "
            "and restart it"
        )
    if isinstance(error, PermissionError):
        return "LLMKube's user may not read it; change its permissions, or those of its folder"
    return error.strerror or str(error)


async def hash_file(
    snapshot: FileSnapshot, verifying: Callable[[int], None], run_sync: RunSync, opener: OpenFile = open_file
) -> str:
    """Return the SHA-256 of a file in lower-case hex.

    Args:
        snapshot: The file, as of when it was checked.
        verifying: Called after each chunk with the number of bytes read.
        run_sync: Runs the blocking reads.
        opener: Opens the file for each chunk.

    Raises:
        FetchError: It cannot be read, or changes meanwhile.
        WeightsError: Raised by `opener`.
    """
    await trio.lowlevel.checkpoint()
    digest = hashlib.sha256()

    def hash_chunk(offset: int) -> None:
        """Open the file for each chunk, so that a thread that hangs on a dead network disk can be abandoned."""
        try:
            with os.fdopen(opener(snapshot.path), "rb", buffering=0) as file:
                if FileSnapshot.at(snapshot.path, os.fstat(file.fileno())) != snapshot:
                    raise FetchError(f"{snapshot.path} was changed while it was being read")
                file.seek(offset)
                digest.update(file.read(CHUNK_BYTES))
        except OSError as exc:
            raise FetchError(f"{snapshot.path} cannot be read: {exc.strerror or exc}") from exc

    for offset in range(0, snapshot.size_bytes, CHUNK_BYTES):
        await run_sync(partial(hash_chunk, offset))
        verifying(min(offset + CHUNK_BYTES, snapshot.size_bytes))
    return digest.hexdigest()
