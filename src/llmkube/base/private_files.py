"""Small private files are replaced as a whole, and no other user of the machine can read them."""

import contextlib
import fcntl
import hashlib
import os
import secrets
import tempfile
from pathlib import Path
from typing import Final

MAX_STEM: Final = 246
"""How long the name of a file may be without its ending, in bytes: most disks take 255, the longest is `.log.next`."""

_TEMPORARY_PREFIX: Final = ".new-"
_DIGEST_CHARS: Final = 16


def file_stem(name: str) -> str:
    """Return the name of an object as that of its file; one that is too long gets a digest instead of its end.

    Objects have up to 253 characters. The tilde is none of them, so that no other object's file is called the same.
    """
    if len(name) <= MAX_STEM:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{name[: MAX_STEM - _DIGEST_CHARS - 1]}~{digest}"


def sync(descriptor: int) -> None:
    """Make what is in a file, or the names in a folder, survive a power cut; blocks for milliseconds.

    On macOS fsync leaves it in the drive's own memory, in no certain order: F_FULLFSYNC has it written (its fsync(2)).
    Not every network disk takes that, and then fsync has to do.

    Raises:
        OSError: The disk does not take it.
    """
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        with contextlib.suppress(OSError):
            fcntl.fcntl(descriptor, full)
            return
    os.fsync(descriptor)


def write_private(path: Path, content: str | bytes, *, durable: bool = True) -> None:
    """Replace a file, mode 0600: a reader, also after a crash, gets all of the old one or of the new one.

    Args:
        path: The file; its folder is there.
        content: Text is written as UTF-8.
        durable: Whether that holds after a power cut as well, which costs a sync: milliseconds.

    Raises:
        OSError: The disk does not take it; the old file is still there.
    """
    try:
        _replace(path, content, durable=durable)
    except FileNotFoundError:
        # A program that starts in this folder has taken the draft for one that a killed writer has left; it looks once.
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
    """Remove what writers have left in a folder that were killed. Blocks.

    One that writes meanwhile writes again.
    """
    for temporary in folder.glob(f"{_TEMPORARY_PREFIX}*"):
        with contextlib.suppress(OSError):  # it does no harm, and the next start tries again
            temporary.unlink()


def ensure_token(path: Path) -> str:
    """Return the token kept at `path`; the first call draws 256 random bits for it."""
    if path.exists():
        token = path.read_text(encoding="ascii").strip()
        if token:
            return token
    token = secrets.token_urlsafe(32)
    write_private(path, token.encode("ascii"))
    return token
