"""The store keeps fetched weights by what they contain, so that no text of a user ever becomes a path.

```
<root>/                     0700; all that is in it is 0600
├── blobs/sha256/<digest>   complete, synced, named by its own SHA-256
├── index/<hash>.json       which blobs a source led to: `index`; the hash is of the source
├── sets/<hash>/model-*     the parts of a split model side by side: hard links to blobs, by their digests
├── partial/<hash>          downloads to take up again: `partial`
├── incoming/<digest>       a copy under way of what an earlier program has put on a volume
├── key                     of the digests by which credentials are told apart; made when the first one is
└── lock                    held while names appear or disappear, so that tidying up never meets a half-made entry
```

Everything here blocks on the disk: callers come through a worker thread.
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
        path: Where it lies; absolute.
        size_bytes: Its size.
        sha256: Its digest in lower-case hex; None for a local file that no spec asks to verify.
        identity: Changes whenever the bytes may have changed. It goes into the digest of a launch plan.
        choice: What it was chosen from, for people; empty where there was nothing to choose.
    """

    path: Path
    size_bytes: int
    sha256: str | None
    identity: str
    choice: str = attrs.field(default="", eq=False)


@attrs.frozen
class Store:
    """A folder of blobs that only this user can read; `open_store` makes one."""

    root: Path

    @property
    def blobs(self) -> Path:
        """Where the complete blobs lie."""
        return self.root / "blobs" / "sha256"

    @property
    def incoming(self) -> Path:
        """Where the incomplete ones lie that only their writer can complete."""
        return self.root / "incoming"

    @property
    def partial(self) -> Path:
        """Where downloads lie that can be taken up again."""
        return self.root / "partial"

    @property
    def index(self) -> Path:
        """Where it says which blobs a source led to."""
        return self.root / "index"

    @property
    def sets(self) -> Path:
        """Where the parts of split models lie side by side."""
        return self.root / "sets"

    def partial_path(self, key: str) -> Path:
        """Return where the download with that key lies."""
        return self.partial / _check_digest(key)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep others, also other processes, from adding or removing names; short, and never nested.

        Raises:
            FetchError: The disk fails, here or in the block.
        """
        try:
            fd = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                yield
            finally:
                os.close(fd)
        except OSError as exc:
            raise write_error(self, exc) from exc

    def keyed_digest(self, text: str) -> str:
        """Return a digest that only who can read this store can compare with a guess: 64 hex digits.

        Raises:
            FetchError: The disk fails.
        """
        path = self.root / "key"
        try:
            key = _read_key(path)
            if key is None:
                with self.locked():
                    key = _read_key(path)
                    if key is None:
                        key = secrets.token_bytes(_KEY_BYTES)
                        write_private(path, key)
        except OSError as exc:
            raise write_error(self, exc) from exc
        return hmac.digest(key, text.encode("utf-8", "surrogatepass"), "sha256").hex()

    def find(self, sha256: str, size_bytes: int) -> WeightsFile | None:
        """Return the blob of that digest, or None if there is no regular file of that size under it."""
        path = self.blobs / _check_digest(sha256)
        try:
            found = path.lstat()
        except FileNotFoundError:
            return None
        return _blob(path, size_bytes) if stat.S_ISREG(found.st_mode) and found.st_size == size_bytes else None

    def add(self, data: bytes) -> WeightsFile:
        """Keep a small file, under its own digest and in place of whatever carried that name.

        Raises:
            FetchError: The disk fails.
        """
        blob = self.blobs / hashlib.sha256(data).hexdigest()
        try:
            write_private(blob, data)
            sync_folder(self.blobs)
        except OSError as exc:
            raise write_error(self, exc) from exc
        return _blob(blob, len(data))


def open_store(root: Path) -> Store:
    """Make the folder if need be, private to this user, and remove what dead writers left behind.

    Raises:
        FetchError: The folder cannot be made, or a part of it is a symbolic link or something else than a folder.
    """
    store = Store(root)
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        inner = (root / "blobs", store.blobs, store.index, store.sets, store.partial, store.incoming)
        for folder in (root.resolve(), *inner):
            _make_private(folder)  # root itself may be a link: the user may keep the store on another volume
        _remove_abandoned(store.incoming)
        for folder in (store.blobs, store.index, store.partial):
            remove_temporary_files(folder)
    except OSError as exc:
        raise FetchError(f"cannot use {root} as the model store: {exc.strerror or exc}") from exc
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


def write_error(store: Store, exc: OSError) -> FetchError:
    """Say that the store's disk is full, or what else is wrong with it."""
    if is_disk_full(exc):
        return NoSpaceError(str(store.root), needed_bytes=None, free_bytes=free_bytes(store.root) or 0)
    return FetchError(f"cannot write to the model store in {store.root}: {exc.strerror or exc}")


def _make_private(folder: Path) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(f"{folder} is a symbolic link, not a folder")
    if stat.S_IMODE(found.st_mode) != 0o700:
        folder.chmod(0o700)


def _remove_abandoned(incoming: Path) -> None:
    """Remove the files whose writers are dead: a live one holds its lock, and the kernel drops a dead one's."""
    for path in incoming.iterdir():
        try:
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue  # committed meanwhile, or nothing that we made
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
        except BlockingIOError:
            pass
        finally:
            os.close(fd)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(fd)
    finally:
        os.close(fd)
