"""The store keeps fetched weights by what they contain, so that no text of a user ever becomes a path.

```
<root>/                     0700; all that is in it is 0600
├── blobs/sha256/<digest>   complete, synced, named by its own SHA-256
├── index/<hash>.json       which blobs a source led to: `weights.records`; the hash is of the source
├── sets/<hash>/model-*     the parts of a split model side by side: hard links to blobs, by their digests
├── partial/<hash>          downloads to take up again: `weights.partial`
├── incoming/<random>       one writer each, which holds a lock on it for as long as it lives
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
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs

from llmkube.base.private_files import sync, write_private
from llmkube.weights.errors import FetchError

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


class BlobWriter:
    """Receive bytes in a private file that gets a name only when it is complete: no reader sees half a blob."""

    def __init__(self, incoming: Path, blobs: Path) -> None:
        fd, name = tempfile.mkstemp(dir=incoming)  # O_EXCL and 0600
        self._fd = fd
        self._path = Path(name)
        self._blobs = blobs
        self._hash = hashlib.sha256()
        self._size_bytes = 0
        fcntl.flock(fd, fcntl.LOCK_EX)  # tells another process's open_store that this one is not abandoned

    def write(self, data: bytes) -> None:
        """Append the bytes; FetchError when the disk is full or gone."""
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as exc:
            raise _cannot_write(self._path.parent, exc) from exc
        self._hash.update(data)
        self._size_bytes += len(data)

    def commit(self) -> WeightsFile:
        """Make the bytes durable under their own digest, in place of whatever carried that name."""
        digest = self._hash.hexdigest()
        final = self._blobs / digest
        try:
            sync(self._fd)
            self._path.replace(final)
            sync_folder(self._blobs)
        except OSError as exc:
            raise _cannot_write(self._blobs, exc) from exc
        return _blob(final, self._size_bytes)

    def close(self) -> None:
        """Let go of the file; what was not committed is gone. Call it once, whatever happened."""
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        os.close(self._fd)


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
        return self.partial / _checked(key)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep others, also other processes, from adding or removing names; short, and never nested."""
        fd = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

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
            raise _cannot_write(self.root, exc) from exc
        return hmac.digest(key, text.encode("utf-8", "surrogatepass"), "sha256").hex()

    def find(self, sha256: str, size_bytes: int) -> WeightsFile | None:
        """Return the blob of that digest, or None if there is no regular file of that size under it."""
        path = self.blobs / _checked(sha256)
        try:
            found = path.lstat()
        except FileNotFoundError:
            return None
        return _blob(path, size_bytes) if stat.S_ISREG(found.st_mode) and found.st_size == size_bytes else None

    def new_writer(self) -> BlobWriter:
        """Return a writer for one blob; its `close` is owed."""
        try:
            return BlobWriter(self.incoming, self.blobs)
        except OSError as exc:
            raise _cannot_write(self.incoming, exc) from exc


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


def _checked(sha256: str) -> str:
    if not DIGEST.fullmatch(sha256):
        raise ValueError(f"not a SHA-256 in lower-case hex: {sha256!r}")
    return sha256


def _blob(path: Path, size_bytes: int) -> WeightsFile:
    return WeightsFile(path, size_bytes, path.name, f"sha256:{path.name}")


def _cannot_write(folder: Path, exc: OSError) -> FetchError:
    return FetchError(f"cannot write to the model store in {folder}: {exc.strerror or exc}")


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
