"""The store has fetched weights under their digests, so that no text of a user ever becomes a path.

```
<root>/                     0700; all files in it are 0600
├── blobs/sha256/<digest>   complete, synced, named by its own SHA-256
├── index/<hash>.json       the blobs of a source: `index`; the hash is of the source
├── sets/<hash>/model-*     the parts of a split model in one folder: hard links to blobs, by their digests
├── partial/<hash>          downloads that can be resumed: `partial`
├── incoming/<digest>       an unfinished copy of a file that an earlier program has put on a volume
├── key                     of the keyed digests of credentials; created with the first of them
└── lock                    held while names appear or disappear, so that pruning never sees an unfinished entry
```

All functions block on the disk: callers use a worker thread.
"""

import contextlib
import fcntl
import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs

from llmkube.base.full_disk import free_bytes, is_disk_full
from llmkube.base.private_files import remove_temporary_files, sync, write_private
from llmkube.weights.errors import FetchError, NoSpaceError

DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_KEY_BYTES: Final = 32


@attrs.frozen
class WeightsFile:
    """A complete model file on this host.

    Attributes:
        path: Its absolute path.
        size_bytes: Its size.
        sha256: Its digest in lower-case hex; None for a local file without a digest in its spec.
        identity: Changes whenever the bytes may have changed; part of the digest of a launch plan.
        choice: The choice among several files, for people; empty if there was no choice.
        projector: The projector of a model in the repository from which it was chosen; empty if there is none.
    """

    path: Path
    size_bytes: int
    sha256: str | None
    identity: str
    choice: str = attrs.field(default="", eq=False)
    projector: str = attrs.field(default="", eq=False)


@attrs.frozen
class Store:
    """A folder of blobs that only this user can read; `open_store` creates it."""

    root: Path

    @property
    def blobs(self) -> Path:
        """The folder of complete blobs."""
        return self.root / "blobs" / "sha256"

    @property
    def incoming(self) -> Path:
        """The folder of incomplete blobs that only their writer can complete."""
        return self.root / "incoming"

    @property
    def partial(self) -> Path:
        """The folder of downloads that can be resumed."""
        return self.root / "partial"

    @property
    def index(self) -> Path:
        """The folder of the records."""
        return self.root / "index"

    @property
    def sets(self) -> Path:
        """The folder of the sets: the parts of split models."""
        return self.root / "sets"

    def partial_path(self, key: str) -> Path:
        """Return the path of the download with a key."""
        return self.partial / _check_digest(key)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the store, also against other processes; briefly, and never nested.

        Raises:
            FetchError: The disk fails, here or in the block.
        """
        with self.write_errors():
            fd = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                yield
            finally:
                os.close(fd)

    @contextlib.contextmanager
    def write_errors(self) -> Iterator[None]:
        """Report a write that fails in the block as a FetchError: a full disk, or another failure."""
        try:
            yield
        except OSError as exc:
            if is_disk_full(exc):
                free = free_bytes(self.root) or 0
                raise NoSpaceError(str(self.root), needed_bytes=None, free_bytes=free) from exc
            raise FetchError(f"model store {self.root} cannot be written: {exc.strerror or exc}") from exc

    def keyed_digest(self, text: str) -> str:
        """Return a keyed digest, which only a reader of this store can compare with a guess: 64 hex digits.

        Raises:
            FetchError: The disk fails.
        """
        path = self.root / "key"
        with self.write_errors():
            key = _read_key(path)
            if key is None:
                with self.locked():
                    key = _read_key(path)
                    if key is None:
                        key = secrets.token_bytes(_KEY_BYTES)
                        write_private(path, key)
        return hmac.digest(key, text.encode("utf-8", "surrogatepass"), "sha256").hex()

    def find(self, sha256: str, size_bytes: int) -> WeightsFile | None:
        """Return the blob with a digest, or None if there is no regular file of that size."""
        path = self.blobs / _check_digest(sha256)
        try:
            found = path.lstat()
        except FileNotFoundError:
            return None
        return _blob(path, size_bytes) if stat.S_ISREG(found.st_mode) and found.st_size == size_bytes else None

    def add(self, data: bytes) -> WeightsFile:
        """Store a small file under its digest, replacing a file of that name.

        Raises:
            FetchError: The disk fails.
        """
        blob = self.blobs / hashlib.sha256(data).hexdigest()
        with self.write_errors():
            write_private(blob, data)
            sync_folder(self.blobs)
        return _blob(blob, len(data))


def open_store(root: Path) -> Store:
    """Open the store, creating the folder if needed, private to this user; remove the files of dead writers.

    Raises:
        FetchError: The folder cannot be created, or a part of it is not a folder.
    """
    store = Store(root)
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        inner = (root / "blobs", store.blobs, store.index, store.sets, store.partial, store.incoming)
        for folder in (root.resolve(), *inner):
            _make_private(folder)  # root itself may be a link: the store may be on another volume
        for path in store.incoming.iterdir():
            remove_unlocked(path)
        for folder in (store.blobs, store.index, store.partial):
            remove_temporary_files(folder)
    except OSError as exc:
        raise FetchError(f"model store {root} cannot be used: {exc.strerror or exc}") from exc
    return store


def _read_key(path: Path) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        key = file.read(_KEY_BYTES)
    return key if len(key) == _KEY_BYTES else None


def _check_digest(sha256: str) -> str:
    if not DIGEST.fullmatch(sha256):
        raise ValueError(f"not a SHA-256 in lower-case hex: {sha256!r}")
    return sha256


def _blob(path: Path, size_bytes: int) -> WeightsFile:
    return WeightsFile(path, size_bytes, path.name, f"sha256:{path.name}")


def _make_private(folder: Path) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(f"{folder} is a symbolic link, not a folder")
    if stat.S_IMODE(found.st_mode) != 0o700:
        folder.chmod(0o700)


def remove_unlocked(path: Path, *companions: Path, unless_modified_since: float | None = None) -> int:
    """Remove an unfinished file, unless a writer has it locked, and its companions; return the freed bytes.

    A live writer holds the lock of its file; the kernel releases a dead one's.

    Args:
        path: The file.
        companions: Files that are removed with it, if they exist.
        unless_modified_since: Keep the file if it changed after this time, in seconds since the epoch.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return 0  # committed or removed meanwhile, or not created by us
    try:
        found = os.fstat(fd)
        if unless_modified_since is not None and found.st_mtime > unless_modified_since:
            return 0
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for each in (path, *companions):
            each.unlink(missing_ok=True)
    except BlockingIOError:
        return 0
    else:
        return found.st_blocks * 512
    finally:
        os.close(fd)


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that its entries survive a power failure."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(fd)
    finally:
        os.close(fd)
