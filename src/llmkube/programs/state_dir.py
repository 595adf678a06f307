"""Hold the state directory: it belongs to one user, and to one program at a time."""

import contextlib
import fcntl
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from llmkube.base import full_disk
from llmkube.base.errors import ExternalError, UserError
from llmkube.base.units import format_bytes
from llmkube.k8s.crd.placement import ON_REQUEST
from llmkube.programs.state_location import ENGINES_LOCK, SERVER_LOCK, check_state_dir, hold_lock, running_up_pid
from llmkube.supervisor.host.processes import OWNER_VARIABLE, end_all, find_marked
from llmkube.supervisor.values.settings import METAL_GRACE_SECONDS

FIRST_START_BYTES: Final = 4 << 20
"""Space for certificates, database, journal and logs, which take less than 1 MiB before anything is served."""

_FOLDERS: Final = ("journal", "keys", "logs", "routers", "work")
"""Folders that earlier versions left open to other users; the state directory itself was closed."""

_KNOWN: Final = "loads-on-request"
"""File that exists once the user of the state directory knows that models are loaded on request."""

_LOADING_NOTE: Final = (
    "New: models are loaded when a request needs them, and make room for others when no request uses them. "
    "To keep each one loaded, as before: --activation Always (docs/explanations/memory.md)."
)

_TEMPORARY: Final = "llmkube-ephemeral-"
"""Prefix of temporary state directories."""


class FullDiskError(ExternalError):
    """The disk of the state directory is full."""


@contextlib.contextmanager
def hold_state_dir(path: Path, *locks: str) -> Iterator[Path]:
    """Create the folder (0700) and hold lock files in it; the kernel releases them when the process exits.

    Args:
        path: The folder.
        locks: Locks to hold: `lock` to run engines (the default), `apiserver.lock` to run the API server.

    Raises:
        UserError: The folder cannot be used, other users may write to it, or another program holds it; the message
            then has its pid.
        FullDiskError: The disk is too full for a first start, or became full during the block.
    """
    check_state_dir(path, to_create=True)
    with contextlib.ExitStack() as stack:
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.chmod(0o700)  # for an existing folder, or one created under another umask
            for name in _FOLDERS:
                if (path / name).is_dir() and not (path / name).is_symlink():
                    (path / name).chmod(0o700)
            if not any(path.iterdir()) and (full_disk.free_bytes(path) or 0) < FIRST_START_BYTES:
                raise _full_disk_error(path)
            if locks and (pid := running_up_pid(path)) is not None:
                problem = f"llmkube up is already running (pid {pid}) with the state directory {path}"
                raise UserError(f"{problem}; stop it with `llmkube up stop`, or choose another with --state-dir")
            for name in locks or (ENGINES_LOCK,):
                stack.enter_context(hold_lock(path / name))
        except OSError as exc:
            if is_disk_full(exc):
                raise _full_disk_error(path) from exc
            problem = f"the state directory {path} cannot be used ({exc.strerror})"
            raise UserError(f"{problem}; choose another with --state-dir") from exc
        try:
            yield path
        except Exception as exc:
            if is_disk_full(exc):
                raise _full_disk_error(path) from exc
            raise


def loading_note(path: Path, activation: str) -> str:
    """Return what has changed for the user of a state directory of an earlier version, once; "" for other users.

    Args:
        path: The state directory; it is recorded there that its user knows.
        activation: The mode of services that set none.
    """
    known = path / _KNOWN
    is_new = known.exists() or not (path / "kubeconfig").exists()
    known.touch(mode=0o600)
    return "" if is_new or activation != ON_REQUEST else _LOADING_NOTE


def is_disk_full(error: BaseException) -> bool:
    """Whether the only cause of an error is a full disk; for a group, of each of its errors."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_disk_full(each) for each in error.exceptions)
    if isinstance(error, OSError) and error.errno in full_disk.DISK_FULL_ERRNOS:
        return True
    if isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
        return True
    return error.__cause__ is not None and is_disk_full(error.__cause__)


def _full_disk_error(path: Path) -> FullDiskError:
    folder = path if path.is_dir() else path.parent
    free, needed = format_bytes(full_disk.free_bytes(folder) or 0), format_bytes(FIRST_START_BYTES)
    problem = f"the disk of the state directory {path} is full: {free} are free, and LLMKube needs {needed} to start"
    return FullDiskError(f"{problem}, and space for models; free some space, or choose another disk with --state-dir")


@contextlib.contextmanager
def temporary_state_dir() -> Iterator[Path]:
    """Hold a new folder that is removed at the end; first, remove the leftovers of killed programs.

    Nothing else removes them: each run has a folder with a new name, and engines are marked with the name of theirs.
    """
    for leftover in Path(tempfile.gettempdir()).glob(f"{_TEMPORARY}*"):
        with contextlib.suppress(OSError):  # in use, another user's, or just removed
            _remove_leftover(leftover)
    with (
        tempfile.TemporaryDirectory(prefix=_TEMPORARY, ignore_cleanup_errors=True) as folder,
        # mkdtemp creates it with mode 0700 and an unpredictable name
        hold_state_dir(Path(folder), ENGINES_LOCK, SERVER_LOCK) as path,
    ):
        yield path


def _remove_leftover(folder: Path) -> None:
    if folder.lstat().st_uid != os.getuid():
        return
    with (folder / ENGINES_LOCK).open(encoding="ascii", errors="replace") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if lock.read():  # the pid is written under the lock; an empty file is about to be locked by a new program
            end_all(find_marked(OWNER_VARIABLE, str(folder)), grace_seconds=METAL_GRACE_SECONDS)
            shutil.rmtree(folder, ignore_errors=True)
