"""The folder of an oMLX of ours, which a later front removes should this one be killed.

A live front holds the lock of its folder, and the kernel drops a dead one's. All of it blocks.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs

PREFIX: Final = "llmkube-omlx-own-"
"""Not that of earlier releases, which hold no lock of theirs."""

_TRIES: Final = 5


@attrs.frozen
class OwnFolder:
    """A folder that is held.

    Attributes:
        path: Where it is; for this user alone.
    """

    path: Path
    _fd: int

    def remove(self) -> None:
        """Remove it with all that is in it, and let it go; a link in it is removed, and not what it leads to."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._fd)


def new_folder() -> OwnFolder:
    """Make one.

    Raises:
        OSError: It cannot be made.
    """
    for _ in range(_TRIES):
        path = Path(tempfile.mkdtemp(prefix=PREFIX))
        if (fd := _held(path)) is not None:
            return OwnFolder(path, fd)
        # Another front has taken it for an abandoned one, in the moment between the two steps.
    raise OSError(errno.ENOLCK, f"no folder in {tempfile.gettempdir()} can be locked; set TMPDIR to another disk")


def remove_abandoned() -> tuple[Path, ...]:
    """Remove the folders whose fronts are dead, and return them: of this user, and never what only is called so."""
    return tuple(_abandoned(Path(tempfile.gettempdir())))


def _abandoned(parent: Path) -> Iterator[Path]:
    for path in parent.glob(f"{PREFIX}*"):
        if (fd := _held(path)) is not None:
            OwnFolder(path, fd).remove()
            yield path


def _held(path: Path) -> int | None:
    """Return the lock of a folder; None if it is not ours, is another front's, or has gone."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) == stat.S_IRWXU:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(found, path.lstat()):
                    return fd
        except OSError:
            pass
        os.close(fd)
    return None
