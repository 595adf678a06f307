"""What an earlier program has put on a volume is taken into the store: its bytes are linked, and not fetched again.

The Go implementation keeps the weights of a source in a folder of their own, named after the source; files of a
repository by their paths there, a single file by a name of its own choice.
"""

import errno
import os
import shutil
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final

import trio

from llmkube.weights.download.progress import OnProgress, Progress
from llmkube.weights.errors import FetchError
from llmkube.weights.source import BucketFile, HubFile, Remote, WebFile
from llmkube.weights.store import local_files
from llmkube.weights.store.blobs import Store
from llmkube.weights.store.disk import in_threads
from llmkube.weights.store.index import BlobInfo, Record, blob_info, commit_record, find_weights, name_of

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
