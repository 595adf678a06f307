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
import psutil
import trio

from llmkube.base.trusted_paths import open_file
from llmkube.weights.errors import FetchError, WeightsNotFoundError
from llmkube.weights.store.disk import RunSync

CHUNK_BYTES: Final = 8 << 20
"""Long enough to hide a hop to a thread, short enough to cancel between two."""

OpenFile = Callable[[Path], int]
"""Return a descriptor of a file for reading; its `close` is owed."""


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
    """Look at a file of ours.

    Raises:
        WeightsNotFoundError: There is no regular file with something in it.
        FetchError: The disk fails.
    """
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError) as exc:
        raise WeightsNotFoundError.at(path, describe_read_error(exc)) from exc
    except OSError as exc:
        raise FetchError(f"cannot look at {path}: {exc.strerror or exc}") from exc
    if not stat.S_ISREG(found.st_mode) or found.st_size == 0:
        raise WeightsNotFoundError.at(path, "it is not a regular file with something in it")
    return FileSnapshot.at(path, found)


def describe_read_error(error: OSError) -> str:
    """Say for the host's owner why a file cannot be had, and what helps.

    macOS says EPERM where it is not the file's permissions that forbid it. The program that it wants allowed is the one
    that runs: a framework build of Python starts Python.app in the place of `sys.executable`.
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
        return "the user that LLMKube runs as may not read it; change its permissions, or those of its folder"
    return error.strerror or str(error)


async def hash_file(
    snapshot: FileSnapshot, verifying: Callable[[int], None], run_sync: RunSync, opener: OpenFile = open_file
) -> str:
    """Return the SHA-256 of a file in lower-case hex; `verifying` is called after each chunk with the progress.

    Args:
        snapshot: The file, as it was when it was judged.
        verifying: Is given the bytes that have been read.
        run_sync: Runs the reading elsewhere.
        opener: Opens the file for each chunk.

    Raises:
        FetchError: It cannot be read, or changes meanwhile.
        WeightsError: What `opener` raises.
    """
    await trio.lowlevel.checkpoint()
    digest = hashlib.sha256()

    def hash_chunk(offset: int) -> None:
        """Open the file for it alone, so that a thread stuck on a dead network disk can be left behind."""
        try:
            with os.fdopen(opener(snapshot.path), "rb", buffering=0) as file:
                if FileSnapshot.at(snapshot.path, os.fstat(file.fileno())) != snapshot:
                    raise FetchError(f"{snapshot.path} changed while it was read")
                file.seek(offset)
                digest.update(file.read(CHUNK_BYTES))
        except OSError as exc:
            raise FetchError(f"cannot read {snapshot.path}: {exc.strerror or exc}") from exc

    for offset in range(0, snapshot.size_bytes, CHUNK_BYTES):
        await run_sync(partial(hash_chunk, offset))
        verifying(min(offset + CHUNK_BYTES, snapshot.size_bytes))
    return digest.hexdigest()
