"""The state directory belongs to one user and to one program at a time."""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from llmkube.base.errors import UserError


@contextlib.contextmanager
def held_state_dir(path: Path, *locks: str) -> Iterator[Path]:
    """Create the folder (0700) and hold lock files in it; a lock falls when the process ends, however it ends.

    Args:
        path: The folder.
        locks: What to hold: `lock` by whoever runs engines (the default), `apiserver.lock` by who runs the API server.

    Raises:
        UserError: The folder cannot be used, or another program holds it; the sentence names its pid.
    """
    with contextlib.ExitStack() as stack:
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.chmod(0o700)  # an older folder, or one made under another umask
            for name in locks or ("lock",):
                stack.enter_context(_held(path / name))
        except OSError as exc:
            problem = f"the state directory {path} cannot be used ({exc.strerror})"
            raise UserError(f"{problem}; choose another with --state-dir") from exc
        yield path


def holder_of(path: Path, lock: str = "lock") -> int | None:
    """Return the pid of the program that holds a state directory, or None when nobody does."""
    try:
        with (path / lock).open(encoding="ascii", errors="replace") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                pid = file.read(32).strip()
                return int(pid) if pid.isdecimal() else None
    except OSError:
        return None
    return None


@contextlib.contextmanager
def temporary_state_dir() -> Iterator[Path]:
    """Give a fresh folder that is removed, with everything in it, at the end."""
    with tempfile.TemporaryDirectory(prefix="llmkube-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)  # made by mkdtemp: 0700, and nobody else knows its name


@contextlib.contextmanager
def _held(path: Path) -> Iterator[None]:
    # Not inherited by children (PEP 446): an engine that outlives us must not keep the folder locked.
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+", encoding="ascii", errors="replace") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = lock.read(32).strip() or "unknown"
            raise UserError(
                f"the state directory {path.parent} is in use by the llmkube process with pid {owner}; "
                "stop that one, or choose another folder with --state-dir"
            ) from None
        lock.seek(0)
        lock.truncate()
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield
        # The file stays: removing a lock file lets two programs hold "the" lock, one on each inode.
