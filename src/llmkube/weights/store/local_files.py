"""Files on this host that other programs may change at any time: a snapshot of one, and bytes only while it is true."""

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
import trio

from llmkube.weights.errors import FetchError, WeightsNotFoundError
from llmkube.weights.store.disk import RunSync

CHUNK_BYTES: Final = 8 << 20
"""Long enough to hide a hop to a thread, short enough to cancel between two."""


@attrs.frozen
class FileSnapshot:
    """What a stat says of a file; an equal snapshot later means that the file has not changed."""

    path: Path
    size_bytes: int
    mtime_ns: int
    device: int
    inode: int

    @classmethod
    def at(cls, path: Path, found: os.stat_result) -> "FileSnapshot":
        """Keep what a stat of the path found."""
        return cls(path, found.st_size, found.st_mtime_ns, found.st_dev, found.st_ino)


def take_snapshot(path: Path) -> FileSnapshot:
    """Check that there is a readable regular file with something in it."""
    try:
        found = path.stat()
        if stat.S_ISDIR(found.st_mode):
            raise WeightsNotFoundError(f"{path} is a folder; name the .gguf file in it")
        if not stat.S_ISREG(found.st_mode):
            raise WeightsNotFoundError(f"{path} is not a regular file")
        if found.st_size == 0:
            raise WeightsNotFoundError(f"{path} is empty; copy the file again")
        # only opening tells: macOS keeps background programs out of folders whose permission bits would let them in
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
    except (FileNotFoundError, NotADirectoryError) as exc:
        raise WeightsNotFoundError(f"there is no file {path} on this host; check the path, or copy it there") from exc
    except PermissionError as exc:
        raise WeightsNotFoundError(f"{path} cannot be read by {_remedy(exc)}") from exc
    except OSError as exc:
        raise FetchError(f"cannot look at {path}: {exc.strerror or exc}") from exc
    return FileSnapshot.at(path, found)


def _remedy(error: PermissionError) -> str:
    """Who may not, and what helps: macOS says EPERM where it is not the file's permissions that forbid it."""
    if sys.platform == "darwin" and error.errno == errno.EPERM:
        return (
            "background programs on macOS; move it out of Desktop, Documents, Downloads, iCloud and external disks, or "
            f"allow {sys.executable} under System Settings, Privacy & Security, Full Disk Access, and restart it"
        )
    return "the user that LLMKube runs as; change its permissions, or those of its folder"


def read_chunk(take_snapshot: FileSnapshot, offset: int) -> bytes:
    """Read a chunk on its own, so that a thread stuck on a dead network disk can be left behind."""
    try:
        with take_snapshot.path.open("rb", buffering=0) as file:
            if FileSnapshot.at(take_snapshot.path, os.fstat(file.fileno())) != take_snapshot:
                raise FetchError(f"{take_snapshot.path} changed while it was read")
            file.seek(offset)
            return file.read(CHUNK_BYTES)
    except OSError as exc:
        raise FetchError(f"cannot read {take_snapshot.path}: {exc.strerror or exc}") from exc


async def hash_file(take_snapshot: FileSnapshot, verifying: Callable[[int], None], run_sync: RunSync) -> str:
    """Return the SHA-256 of a file in lower-case hex; `verifying` is called after each chunk with the progress.

    Raises:
        FetchError: It cannot be read, or changes meanwhile.
    """
    await trio.lowlevel.checkpoint()
    digest = hashlib.sha256()

    def hash_chunk(offset: int) -> None:
        digest.update(read_chunk(take_snapshot, offset))

    for offset in range(0, take_snapshot.size_bytes, CHUNK_BYTES):
        await run_sync(partial(hash_chunk, offset))
        verifying(min(offset + CHUNK_BYTES, take_snapshot.size_bytes))
    return digest.hexdigest()
