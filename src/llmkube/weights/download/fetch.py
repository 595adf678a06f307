"""Fetch a source: return a complete file on this host, or raise an error with a fix."""

import hashlib
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import trio

from llmkube.weights.download.progress import OnProgress, Progress
from llmkube.weights.errors import DigestMismatchError, SourceError, SourceUnsupportedError
from llmkube.weights.formats.shape import GGUFFacts
from llmkube.weights.ollama_model import REMEDY, OllamaModel
from llmkube.weights.source import Builtin, EngineSource, LocalFile, LocalFolder, VolumeSource
from llmkube.weights.store import local_files
from llmkube.weights.store.blobs import Store, WeightsFile
from llmkube.weights.store.disk import in_threads
from llmkube.weights.store.index import PUBLIC, Record, blob_info, commit_record
from llmkube.weights.store.local_sources import LocalSources

Download = Callable[..., Awaitable[WeightsFile]]
"""`Downloader.fetch` with bound credentials and policy: takes a source, `sha256` and `progress`."""

OPAQUE: Final = "opaque:"
"""Beginning of the identity of local files whose format only their engine reads."""

_NO_LOCAL_SOURCES: Final = LocalSources()


async def fetch(
    source: EngineSource,
    store: Store,
    *,
    sha256: str | None = None,
    progress: OnProgress,
    limiter: trio.CapacityLimiter,
    download: Download | None = None,
    local: LocalSources = _NO_LOCAL_SOURCES,
) -> WeightsFile:
    """Return the file of a source, complete and with the right digest.

    Built-in weights are copied into the store. A file on this host is used in place, and read only to verify `sha256`.
    Files on a server are downloaded once. Cancelling takes effect within one chunk; no thread that writes is ever
    abandoned.

    Args:
        source: The source to fetch.
        store: The store for fetched files.
        sha256: The digest that the file must have, in hex; None for no check.
        progress: Called with the progress, in this task.
        limiter: Bounds the worker threads for the disk.
        download: Fetches remote sources into the same store; without it they are refused.
        local: The files of this host that a source may use; by default none.

    Raises:
        WeightsError: The source, the digest or the file is wrong; see the subclasses.
        FetchError: The disk or the network failed.
    """
    if isinstance(source, Builtin):
        return await _copy_builtin(source, store, sha256, progress, limiter)
    if isinstance(source, LocalFile):
        return await _use_in_place(Path(source.path), local, sha256, progress, limiter)
    if isinstance(source, LocalFolder):
        return await _use_folder(source, local, sha256, limiter)
    if isinstance(source, OllamaModel):
        raise SourceUnsupportedError(f"{source.redacted} is only for services on hosts with Ollama; {REMEDY}")
    if isinstance(source, VolumeSource) or download is None:
        scheme = source.scheme if isinstance(source, VolumeSource) else source.identity.partition("://")[0]
        file = "download the file and use its absolute path or file:///PATH"
        remedy = file if download is None else f"use an https://, hf://, s3:// or oci:// source, or {file}"
        raise SourceUnsupportedError(
            f"{source.redacted} cannot be fetched: this host cannot download over {scheme}; {remedy}"
        )
    return await download(source, sha256=sha256, progress=progress)


async def _copy_builtin(
    source: Builtin, store: Store, sha256: str | None, progress: OnProgress, limiter: trio.CapacityLimiter
) -> WeightsFile:
    """Copy the weights into the store, unless it has them already."""
    run_sync = in_threads(limiter)
    file = _builtin_file(source)
    data = await in_threads(limiter, abandon=True)(file.read_bytes)
    progress(Progress("verifying", len(data), len(data)))
    digest = await run_sync(lambda: hashlib.sha256(data).hexdigest())
    _check_digest(file, digest, sha256)
    stored = await run_sync(partial(store.find, digest, len(data)))
    if stored is None:
        stored = await run_sync(partial(store.add, data))
        progress(Progress("copying", len(data), len(data)))
    piece = await run_sync(partial(blob_info, stored.path))
    record = Record(source.identity, audience=PUBLIC)
    return await run_sync(partial(commit_record, store, source.identity, record, [piece]))


async def _use_in_place(
    path: Path, local: LocalSources, sha256: str | None, progress: OnProgress, limiter: trio.CapacityLimiter
) -> WeightsFile:
    reading = in_threads(limiter, abandon=True)  # a dead network disk may block a thread forever, but not the task
    seen = await reading(partial(local.admit, path))
    digest = None
    if sha256 is not None:

        def verifying(done: int) -> None:
            progress(Progress("verifying", done, seen.size_bytes))

        digest = await local_files.hash_file(seen, verifying, reading, local.open)
        _check_digest(path, digest, sha256)
    return WeightsFile(seen.path, seen.size_bytes, digest, seen.identity)


async def _use_folder(
    source: LocalFolder, local: LocalSources, sha256: str | None, limiter: trio.CapacityLimiter
) -> WeightsFile:
    path = Path(source.path)
    if sha256 is not None:
        raise DigestMismatchError(f"one digest cannot describe the files of the folder {path}; remove spec.sha256")
    seen = await in_threads(limiter, abandon=True)(partial(local.admit_folder, path, opaque=source.is_opaque))
    return WeightsFile(seen.path, seen.size_bytes, None, (OPAQUE if source.is_opaque else "") + seen.identity)


def _check_digest(path: Path, digest: str, expected: str | None) -> None:
    """Refuse a file with another digest; the message has neither, so as not to reveal the content of local files."""
    if expected is not None and digest != expected.lower():
        raise DigestMismatchError(
            f"{path} does not have the digest of spec.sha256; replace the file, or correct the digest"
        )


def _builtin_file(source: Builtin) -> Path:
    files = {path.stem: path for path in (Path(__file__).parents[1] / "builtin").glob("*.gguf")}
    if source.name not in files:
        raise SourceError(f"there are no built-in weights {source.name!r}; available: {', '.join(sorted(files))}")
    return files[source.name]


class ModelLibrary(Protocol):
    """A program on this host that stores models, such as Ollama."""

    async def fetch(self, source: OllamaModel, progress: OnProgress) -> tuple[WeightsFile, GGUFFacts]:
        """Pull a model unless present, and return its file and facts.

        Raises:
            WeightsError: There is no such model, or it cannot be served here; the message has a fix.
            FetchError: The program does not answer, or the pull failed.
        """

    async def has(self, source: OllamaModel) -> bool:
        """Return whether the program has the model; False if it does not answer."""

    async def keeps(self, identity: str) -> bool:
        """Return whether a file that `fetch` has returned is still its model's file."""
