"""Fetching turns a source into a complete file on this host, or says why it cannot and what would work."""

import contextlib
import hashlib
import os
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final, Literal

import attrs
import trio

from llmkube.weights.errors import (
    DigestMismatchError,
    FetchError,
    SourceError,
    SourceUnsupportedError,
    WeightsNotFoundError,
)
from llmkube.weights.source import Builtin, LocalFile, Remote, Source
from llmkube.weights.store import BlobWriter, Store, WeightsFile

__all__ = ["Progress", "WeightsFile", "fetch"]

_CHUNK_BYTES: Final = 8 << 20  # long enough to hide a hop to a thread, short enough to cancel between two
_CLOSE_SECONDS: Final = 10.0  # dropping an incomplete file of many gigabytes takes a file system a while


@attrs.frozen
class Progress:
    """How far a fetch has come: `done_bytes` of `total_bytes` within one stage."""

    stage: Literal["copying", "verifying"]
    done_bytes: int
    total_bytes: int


OnProgress = Callable[[Progress], None]


async def fetch(
    source: Source,
    store: Store,
    *,
    sha256: str | None = None,
    progress: OnProgress,
    limiter: trio.CapacityLimiter,
) -> WeightsFile:
    """Return the file behind a source, complete and of the right digest.

    Built-in weights are copied into the store. A file on this host is used where it lies, and read only if `sha256`
    asks for it. Cancelling takes effect within one chunk; no thread that writes is ever abandoned.

    Args:
        source: What to fetch.
        store: Where to keep it.
        sha256: The digest that it must have, in hex; None to trust it.
        progress: Called after each chunk, in this task.
        limiter: Bounds the worker threads that touch the disk.

    Raises:
        WeightsError: The source, the digest or the file is wrong; see the subclasses.
        FetchError: The disk got in the way.
    """
    if isinstance(source, Remote):
        raise SourceUnsupportedError(
            f"{source.redacted} cannot be fetched: a host cannot download over {source.scheme} yet. "
            "Download the file, and name it by its absolute path or as file:///PATH"
        )
    if isinstance(source, LocalFile):
        return await _use_in_place(Path(source.path), sha256, progress, limiter)
    return await _copy_in(_builtin_file(source), store, sha256, progress, limiter)


async def _copy_in(
    path: Path, store: Store, sha256: str | None, progress: OnProgress, limiter: trio.CapacityLimiter
) -> WeightsFile:
    """Keep a copy in the store, unless the store has it already."""
    before = await trio.to_thread.run_sync(_look, path, limiter=limiter, abandon_on_cancel=True)
    digest = await _hash(before, progress, limiter)
    _compare(before.path, digest, sha256)
    kept = await trio.to_thread.run_sync(store.find, digest, before.size_bytes, limiter=limiter)
    if kept is not None:
        return kept
    async with _open_writer(store, limiter) as writer:

        def copy_chunk(offset: int) -> None:
            writer.write(_read_chunk(before, offset))

        for offset in range(0, before.size_bytes, _CHUNK_BYTES):
            await trio.to_thread.run_sync(copy_chunk, offset, limiter=limiter)
            progress(Progress("copying", min(offset + _CHUNK_BYTES, before.size_bytes), before.size_bytes))
        return await trio.to_thread.run_sync(writer.commit, limiter=limiter)


async def _use_in_place(
    path: Path, sha256: str | None, progress: OnProgress, limiter: trio.CapacityLimiter
) -> WeightsFile:
    look = await trio.to_thread.run_sync(_look, path, limiter=limiter, abandon_on_cancel=True)
    digest = None
    if sha256 is not None:
        digest = await _hash(look, progress, limiter)
        _compare(path, digest, sha256)
    return WeightsFile(path, look.size_bytes, digest, f"{path}:{look.size_bytes}:{look.mtime_ns}")


@attrs.frozen
class _Look:
    """One look at a file; the same look later means that nobody changed it."""

    path: Path
    size_bytes: int
    mtime_ns: int
    device: int
    inode: int

    @classmethod
    def at(cls, path: Path, found: os.stat_result) -> "_Look":
        return cls(path, found.st_size, found.st_mtime_ns, found.st_dev, found.st_ino)


def _look(path: Path) -> _Look:
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
        raise WeightsNotFoundError(
            f"{path} cannot be read by the user that LLMKube runs as; change its permissions, or those of its folder"
        ) from exc
    except OSError as exc:
        raise FetchError(f"cannot look at {path}: {exc.strerror or exc}") from exc
    return _Look.at(path, found)


def _read_chunk(look: _Look, offset: int) -> bytes:
    """Read a chunk on its own, so that a thread stuck on a dead network disk can be left behind."""
    try:
        with look.path.open("rb", buffering=0) as file:
            if _Look.at(look.path, os.fstat(file.fileno())) != look:
                raise FetchError(f"{look.path} changed while it was read")
            file.seek(offset)
            return file.read(_CHUNK_BYTES)
    except OSError as exc:
        raise FetchError(f"cannot read {look.path}: {exc.strerror or exc}") from exc


async def _hash(look: _Look, progress: OnProgress, limiter: trio.CapacityLimiter) -> str:
    await trio.lowlevel.checkpoint()
    digest = hashlib.sha256()

    def hash_chunk(offset: int) -> None:
        digest.update(_read_chunk(look, offset))

    for offset in range(0, look.size_bytes, _CHUNK_BYTES):
        await trio.to_thread.run_sync(hash_chunk, offset, limiter=limiter, abandon_on_cancel=True)
        progress(Progress("verifying", min(offset + _CHUNK_BYTES, look.size_bytes), look.size_bytes))
    return digest.hexdigest()


def _compare(path: Path, digest: str, wanted: str | None) -> None:
    if wanted is not None and digest != wanted.lower():
        raise DigestMismatchError(f"{path} has {digest}, not {wanted.lower()}: replace the file, or correct the digest")


def _builtin_file(source: Builtin) -> Path:
    files = {path.stem: path for path in (Path(__file__).parent / "builtin").glob("*.gguf")}
    if source.name not in files:
        raise SourceError(f"there are no built-in weights {source.name!r}; there is {', '.join(sorted(files))}")
    return files[source.name]


@contextlib.asynccontextmanager
async def _open_writer(store: Store, limiter: trio.CapacityLimiter) -> AsyncIterator[BlobWriter]:
    writer = await trio.to_thread.run_sync(store.new_writer, limiter=limiter)
    try:
        yield writer
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _CLOSE_SECONDS):
            await trio.to_thread.run_sync(writer.close, limiter=limiter)
