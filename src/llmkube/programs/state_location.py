"""Locate the state directory, and check that only this user may write to it: its content decides which programs run.

A program that uses it holds lock files in it; the kernel releases them when the program exits.
"""

import contextlib
import fcntl
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from llmkube.base.errors import UserError
from llmkube.base.settings import resolve, setting
from llmkube.base.trusted_paths import private_folder_weakness
from llmkube.programs.failures import CommandError, ExitCode

_TRUSTED_ENTRIES = ("ca", "journal", "strays")
"""Entries of a state directory whose files are trusted, and so checked one by one."""

STATE_DIR = setting(None, help="Folder for all state.", in_file=False)

POLL_SECONDS: Final = 0.1
ENGINES_LOCK: Final = "lock"
"""Held by the program that runs engines: an agent, or `llmkube up`."""

SERVER_LOCK: Final = "apiserver.lock"
"""Held by the program that runs the API server: `llmkube apiserver`, or `llmkube up`."""

ADDRESSES_FILE: Final = "addresses"
"""The addresses of the newest `llmkube up`, for people."""


def read_addresses(folder: Path) -> str:
    """Return the addresses of the `llmkube up` on a state directory, one per line; "" while it starts."""
    try:
        return (folder / ADDRESSES_FILE).read_text("utf-8")
    except FileNotFoundError:
        return ""


@attrs.frozen
class StateDirSetting:
    """The setting that locates all others."""

    state_dir: Path | None = STATE_DIR


def local_state_dir(flags: Mapping[str, Any] = {}) -> Path:
    """Return the state directory: from the flags of a program, the environment, or the default."""
    return state_dir_of(resolve(StateDirSetting, flags=flags, environ=os.environ).state_dir)


def check_state_dir(path: Path, *, to_create: bool = False) -> bool:
    """Reject a state directory to which another user could have written; return whether it exists.

    Call this before anything in the folder is read: its content decides which programs run and which servers are
    trusted.

    Args:
        path: The folder.
        to_create: Whether the folder will be created if it does not exist; its parents are checked then, too.

    Raises:
        UserError: Another user could have written to the folder or its content.
    """
    try:
        exists = path.is_dir()
        weakness = ""
        if exists or to_create:
            weakness = private_folder_weakness(path, uid=os.geteuid(), inner=_TRUSTED_ENTRIES)
    except OSError as exc:
        problem = f"the state directory {path} cannot be used ({exc.strerror})"
        raise UserError(f"{problem}; choose another with --state-dir") from exc
    if weakness:
        raise UserError(
            f"the state directory {path} is not safe to use: {weakness}. It must belong to the user that runs this "
            "program, and only that user may write to it; fix that, or choose another with --state-dir"
        )
    return exists


def state_dir_of(chosen: Path | None) -> Path:
    """Return the state directory: the chosen one, else the platform's folder for a user's data."""
    if chosen is not None:
        return chosen.absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "llmkube"
    # XDG Base Directory Specification 0.8: a relative path in the variable must be ignored.
    data_home = Path(os.environ.get("XDG_DATA_HOME", ""))
    return (data_home if data_home.is_absolute() else Path.home() / ".local" / "share") / "llmkube"


@contextlib.contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold a lock file that contains the pid of this process.

    Raises:
        UserError: Another program holds it; the message has its pid.
    """
    # Not inherited by children (PEP 446): an engine that outlives this process must not keep the folder locked.
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
        # The file is not removed: otherwise two programs could hold the lock at once, each on another inode.


def lock_holder(path: Path, lock: str = ENGINES_LOCK) -> int | None:
    """Return the pid of the program that holds a state directory; None if there is none."""
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


def running_up_pid(path: Path) -> int | None:
    """Return the pid of the `llmkube up` on a state directory: the only program that holds both locks."""
    engines = lock_holder(path, ENGINES_LOCK)
    return engines if engines is not None and engines == lock_holder(path, SERVER_LOCK) else None


async def wait_for_exit(path: Path, pid: int, seconds: float) -> None:
    """Return once the program with this pid has released a state directory.

    Raises:
        CommandError: It still holds it after `seconds`.
    """
    with trio.move_on_after(seconds):
        while lock_holder(path) == pid:  # noqa: ASYNC110 - the release of a file lock triggers no event
            await trio.sleep(POLL_SECONDS)
        return
    raise CommandError(f"the program with pid {pid} is still running after {seconds:g} s", ExitCode.TIMED_OUT)
