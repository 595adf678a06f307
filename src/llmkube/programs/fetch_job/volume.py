"""Further tasks of `llmkube fetch`: read headers, remove folders, adopt files, report progress and result.

A folder has hard links to files of the store, so removing it frees no space while the store has their records. These
are removed with the folder, unless another folder has the same files.

Files of an earlier cache on the volume are adopted: they are linked into the store, and not fetched again. The Go
implementation stores the weights of each source in its own folder: files of a repository by their paths there, and a
single file by a name of its choice.

Progress is reported in the log and to the controller over HTTP, the result in the container's termination message.
"""

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final, Never

import attrs
import click
import trio

from llmkube.base.errors import LLMKubeError
from llmkube.base.http.exchange import Exchange
from llmkube.base.http.limits import Limits
from llmkube.base.http.message import Response
from llmkube.base.http.server import run_server
from llmkube.k8s.wire.termination_message import to_bytes, truncate
from llmkube.supervisor.cluster.status import fetch_reason, gguf_status
from llmkube.weights.download.progress import OnProgress, Progress
from llmkube.weights.errors import FetchError, FileSetError
from llmkube.weights.formats.gguf import read_header
from llmkube.weights.formats.shape import GGUFFacts
from llmkube.weights.source import BucketFile, HubFile, Remote, WebFile
from llmkube.weights.split_names import part_names
from llmkube.weights.store import local_files
from llmkube.weights.store.blobs import Store, open_store
from llmkube.weights.store.cache import prune
from llmkube.weights.store.disk import in_threads
from llmkube.weights.store.index import BlobInfo, Record, blob_info, commit_record, find_weights, name_of, records
from llmkube.weights.store.local_files import take_snapshot

PATH: Final = "/progress"

_LINE_SECONDS: Final = 10.0
_LIMITS: Final = Limits(
    max_head_bytes=4096, max_headers=32, max_body_bytes=1024, max_connections=8, idle_seconds=5.0, drain_seconds=1.0
)

_TEXT_BYTES: Final = 256  # of each text of the header
_MESSAGE_BYTES: Final = 3000


@attrs.define(eq=False)
class Gauge:
    """Current progress of the fetch, with a log line now and then."""

    files: int
    file: int = 1
    _current: Progress = Progress("resolving")
    _last_line: tuple[str, str, int] = ("", "", -1)

    def begin(self, file: int) -> None:
        """Start a file, numbered from 1."""
        self.file, self._current = file, Progress("resolving")

    def __call__(self, progress: Progress) -> None:
        """Update the progress of the current file."""
        self._current = progress
        line = (progress.stage, progress.note, int(trio.current_time() // _LINE_SECONDS))
        if line != self._last_line:
            self._last_line = line
            click.echo(str(progress), err=True)

    async def handle(self, exchange: Exchange) -> None:
        """Answer `GET /progress`, without names of files or sources, because every pod of the cluster can send it."""
        request = exchange.request
        if (request.method, request.path) != ("GET", PATH):
            await exchange.respond(Response.json(404, {"error": f"only GET {PATH} is supported"}))
            return
        now = self._current
        fields = {"file": self.file, "files": self.files, "stage": now.stage}
        await exchange.respond(
            Response.json(200, {**fields, "doneBytes": now.done_bytes, "totalBytes": now.total_bytes})
        )


async def run_gauge(gauge: Gauge, port: int, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> Never:
    """Serve the progress on every address of the pod until cancelled; if the port is taken, only this is lost.

    Args:
        gauge: The progress to report.
        port: Port to listen on; 0 for any free one.
        task_status: Started with the port, or 0 if it cannot listen.
    """
    try:
        listeners = await trio.open_tcp_listeners(port)
    except OSError as exc:
        click.echo(f"progress not reported: cannot listen on port {port}: {exc.strerror or exc}", err=True)
        task_status.started(0)
        await trio.sleep_forever()
    task_status.started(listeners[0].socket.getsockname()[1])
    await run_server(gauge.handle, listeners, limits=_LIMITS)


def gguf_status_of(facts: GGUFFacts) -> dict[str, Any]:
    """Return `status.gguf` with its texts truncated, since a termination message is limited."""
    named = gguf_status(facts).items()
    return {name: truncate(value, _TEXT_BYTES) if isinstance(value, str) else value for name, value in named}


def failure_message(error: LLMKubeError) -> dict[str, Any]:
    """Return the reason and the message of a failure."""
    return {"reason": fetch_reason(error), "message": truncate(str(error), _MESSAGE_BYTES)}


def write_result(log: Path, message: Mapping[str, Any]) -> None:
    """Write the termination message; failures are ignored, because outside of a pod the file does not exist."""
    with contextlib.suppress(OSError):
        log.write_bytes(to_bytes(message))


_KEY: Final = re.compile(r"[0-9a-f]{16}")

Inode = tuple[int, int]  # device and number

_LINK_ERRORS: Final = {errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOTSUP}


def inspect_file(path: Path) -> dict[str, Any]:
    """Return size and header facts of a GGUF file; of a split model, `path` is the first part, and the size is of all.

    Raises:
        WeightsError: The file is not a GGUF file that an engine could load, or a part is missing.
        FetchError: The file cannot be read.
    """
    parts = [take_snapshot(path.with_name(name)) for name in part_names(path.name)]
    return {
        "path": path.name,
        "sizeBytes": sum(part.size_bytes for part in parts),
        "files": [part.path.name for part in parts][:16],
        "gguf": gguf_status_of(read_header(path)),
    }


def prune_folders(folder: Path, store_path: Path, keys: Iterable[str]) -> dict[str, Any]:
    """Remove folders, and the files in the store that only they linked to; a missing folder is no error.

    Raises:
        FileSetError: A key is invalid.
        FetchError: The disk fails.
    """
    wanted = sorted(set(keys))
    for key in wanted:
        if not _KEY.fullmatch(key):
            raise FileSetError(f"{key!r} is not a key of a folder, which has 16 hex digits")
    removed, freed = [], 0
    try:
        store = open_store(store_path)
        inodes: set[Inode] = set()
        for key in wanted:
            root = folder / key
            if not root.is_dir() or root.is_symlink():
                continue
            inodes |= {_inode(path) for path in root.rglob("*") if path.is_file() and not path.is_symlink()}
            shutil.rmtree(root)
            removed.append(key)
        if inodes:
            freed = prune(store, (), only=_unlinked_records(store, inodes)).freed_bytes
    except OSError as exc:
        raise FetchError(f"cannot remove from {folder}: {exc.strerror or exc}") from exc
    return {"removed": removed, "freedBytes": freed}


def _unlinked_records(store: Store, inodes: set[Inode]) -> set[str]:
    """Return the keys of records whose files were published before, but now have links only in the store."""
    inside: dict[Inode, int] = {}
    for root in (store.blobs, store.sets):
        for path in root.rglob("*"):
            if path.is_file() and not path.is_symlink():
                inside[_inode(path)] = inside.get(_inode(path), 0) + 1
    found = set()
    for key, record in records(store):
        blobs = [store.blobs / piece.sha256 for piece in record.pieces]
        if all(
            blob.is_file() and _inode(blob) in inodes and blob.stat().st_nlink == inside[_inode(blob)] for blob in blobs
        ):
            found.add(key)
    return found


def _inode(path: Path) -> Inode:
    snapshot = path.stat()
    return snapshot.st_dev, snapshot.st_ino


def cached_files(folder: Path, source: Remote) -> tuple[Path, ...]:
    """Return the files of a source, with all parts, in a folder of an earlier cache; none if one is missing."""
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
    """Adopt the weights of a source from a folder of an earlier cache into the store, if they are there.

    Weights that the store already has are not replaced, and files with a wrong digest are not adopted.

    Raises:
        FetchError: The disk fails.
    """
    run_sync = in_threads(limiter)
    name = await run_sync(partial(name_of, store, source))
    if await run_sync(partial(find_weights, store, name)) is not None:
        return
    found = await run_sync(partial(cached_files, folder, source))
    if not found or (sha256 is not None and len(found) > 1):
        return
    pieces = []
    for path in found:
        snapshot = await run_sync(partial(local_files.take_snapshot, path))

        def report(done: int, total: int = snapshot.size_bytes) -> None:
            progress(Progress("verifying", done, total))

        digest = await local_files.hash_file(snapshot, report, run_sync)
        if sha256 not in (None, digest):
            return
        pieces.append(await run_sync(partial(_link_blob, store, path, digest)))
    await run_sync(partial(commit_record, store, name, Record(source.redacted), pieces))


def _link_blob(store: Store, path: Path, digest: str) -> BlobInfo:
    blob = store.blobs / digest
    try:
        if not blob.exists():
            try:
                os.link(path, blob, follow_symlinks=True)
            except OSError as exc:
                if exc.errno not in _LINK_ERRORS:
                    raise
                fresh = store.incoming / digest
                shutil.copyfile(path, fresh)
                fresh.replace(blob)
        return blob_info(blob)
    except OSError as exc:
        raise FetchError(f"cannot adopt {path} into the model store: {exc.strerror or exc}") from exc
