"""Private folders, and small private files that are replaced atomically: for their owner only."""

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

MAX_STEM: Final = 246
"""Longest file name without its suffix, in bytes: most file systems allow 255; the longest suffix is `.log.next`."""

_TEMPORARY_PREFIX: Final = ".new-"
_DIGEST_CHARS: Final = 16
_PRIVATE: Final = 0o700


def file_stem(name: str) -> str:
    """Return the file name for an object's name; the end of a name that is too long is replaced by a digest.

    Names of objects have up to 253 characters. None has a tilde, so the result is never the name of another object.
    """
    if len(name) <= MAX_STEM:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{name[: MAX_STEM - _DIGEST_CHARS - 1]}~{digest}"


def make_private_folder(path: Path) -> None:
    """Create a folder and its missing parents, each with mode 0700; existing ones keep their mode.

    `Path.mkdir` applies its mode to the last folder only.
    """
    try:
        path.mkdir(mode=_PRIVATE, exist_ok=True)
    except FileNotFoundError:
        make_private_folder(path.parent)
        path.mkdir(mode=_PRIVATE, exist_ok=True)


def sync(descriptor: int) -> None:
    """Flush a file's content or a folder's entries, so that they survive a power failure; blocks for milliseconds.

    On macOS, fsync leaves data in the drive's cache, to be written in any order; F_FULLFSYNC writes it (fsync(2)).
    Some network file systems do not support that: there fsync has to suffice.

    Raises:
        OSError: The disk reports an error.
    """
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        with contextlib.suppress(OSError):
            fcntl.fcntl(descriptor, full)
            return
    os.fsync(descriptor)


def write_private(path: Path, content: str | bytes, *, durable: bool = True) -> None:
    """Replace a file, with mode 0600: a reader gets the whole old file or the whole new one, even after a crash.

    Args:
        path: The file, in a folder that exists.
        content: Text is written as UTF-8.
        durable: Whether this also holds after a power failure, which costs a sync (milliseconds).

    Raises:
        OSError: The write failed; the old file is unchanged.
    """
    try:
        _replace(path, content, durable=durable)
    except FileNotFoundError:
        # A program that is starting has removed the temporary file as a killed writer's. It does so only once.
        _replace(path, content, durable=durable)


def _replace(path: Path, content: str | bytes, *, durable: bool) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=_TEMPORARY_PREFIX)  # O_EXCL and 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            if durable:
                file.flush()
                sync(file.fileno())
        Path(temporary).replace(path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise


def remove_temporary_files(folder: Path) -> None:
    """Remove the temporary files that killed writers have left in a folder. Blocks.

    A writer whose file is removed meanwhile writes it again.
    """
    for temporary in folder.glob(f"{_TEMPORARY_PREFIX}*"):
        with contextlib.suppress(OSError):  # harmless, and the next start tries again
            temporary.unlink()


@contextlib.contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder of mode 0700 that replaces `folder` after the block, or is removed if the block fails.

    A folder that is not empty cannot be replaced in one step: for a moment, neither is there.
    """
    fresh = Path(tempfile.mkdtemp(dir=folder.parent, prefix=_TEMPORARY_PREFIX))
    old = fresh.with_name(f"{fresh.name}-old")
    try:
        yield fresh
        with contextlib.suppress(FileNotFoundError):
            folder.rename(old)
        fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def ensure_token(path: Path) -> str:
    """Return the token stored at `path`; the first call generates it from 256 random bits."""
    if path.exists():
        token = path.read_text(encoding="ascii").strip()
        if token:
            return token
    token = secrets.token_urlsafe(32)
    write_private(path, token.encode("ascii"))
    return token
