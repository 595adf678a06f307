"""Where the state directory is, and that it is this user's alone: what it holds decides which programs run.

A program that works on it holds lock files there, which fall when it ends, however it ends.
"""

import contextlib
import fcntl
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs
import trio

from llmkube.base.errors import UserError
from llmkube.base.settings import resolve, setting
from llmkube.base.trusted_paths import private_folder_weakness
from llmkube.programs.failures import CommandError, ExitCode

_TRUSTED_ENTRIES = ("ca", "journal", "strays")
"""What is in a state directory that is believed file by file."""

STATE_DIR = setting(None, help="Folder for everything that is kept.", in_file=False)

POLL_SECONDS: Final = 0.1
ENGINES_LOCK: Final = "lock"
"""Held by the program that runs engines: an agent, or `llmkube up`."""

SERVER_LOCK: Final = "apiserver.lock"
"""Held by the program that runs the API server: `llmkube apiserver`, or `llmkube up`."""


@attrs.frozen
class StateDirSetting:
    """The one setting that says where all the others are."""

    state_dir: Path | None = STATE_DIR


def local_state_dir() -> Path:
    """Return the state directory of a program that was given no flag."""
    return state_dir_of(resolve(StateDirSetting, flags={}, environ=os.environ).state_dir)


def check_state_dir(path: Path, *, to_create: bool = False) -> bool:
    """Refuse a state directory into which another user could have put something; return whether it is there.

    What it holds decides which programs run and which servers are believed: this comes before anything in it is read.

    Args:
        path: The folder.
        to_create: Whether it is made if it is not there; then the way to it counts too.

    Raises:
        UserError: It, or what is in it, is not this user's alone.
    """
    try:
        exists = path.is_dir()
        weakness = (
            private_folder_weakness(path, uid=os.geteuid(), inner=_TRUSTED_ENTRIES) if exists or to_create else ""
        )
    except OSError as exc:
        problem = f"the state directory {path} cannot be used ({exc.strerror})"
        raise UserError(f"{problem}; choose another with --state-dir") from exc
    if weakness:
        raise UserError(
            f"the state directory {path} is not safe to use: {weakness}. It has to belong to the user that runs this "
            "program, who alone may write to it; mend that, or choose another with --state-dir"
        )
    return exists


def state_dir_of(chosen: Path | None) -> Path:
    """Return the state directory: the chosen one, else the platform's folder for a user's data."""
    if chosen is not None:
        return chosen.absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "llmkube"
    # XDG base directory specification 0.8: a relative path in the variable is to be ignored.
    data_home = Path(os.environ.get("XDG_DATA_HOME", ""))
    return (data_home if data_home.is_absolute() else Path.home() / ".local" / "share") / "llmkube"


@contextlib.contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold a lock file, with our pid in it.

    Raises:
        UserError: Another program holds it; the sentence names its pid.
    """
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


def lock_holder(path: Path, lock: str = ENGINES_LOCK) -> int | None:
    """Return the pid of the program that holds a state directory, or None when none does."""
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
    """Return the pid of the `llmkube up` that works on a state directory: it alone runs engines and the API server."""
    engines = lock_holder(path, ENGINES_LOCK)
    return engines if engines is not None and engines == lock_holder(path, SERVER_LOCK) else None


async def wait_for_exit(path: Path, pid: int, seconds: float) -> None:
    """Return when the program with this pid works on a state directory no longer.

    Raises:
        CommandError: It still does after so many seconds.
    """
    with trio.move_on_after(seconds):
        while lock_holder(path) == pid:  # noqa: ASYNC110 - a lock falls without an event
            await trio.sleep(POLL_SECONDS)
        return
    raise CommandError(f"the program with pid {pid} still runs after {seconds:g} s", ExitCode.TIMED_OUT)
