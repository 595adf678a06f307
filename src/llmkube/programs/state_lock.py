"""Which program works on a state directory: it holds lock files there, which fall when it ends, however it ends."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import trio

from llmkube.base.errors import UserError
from llmkube.programs.failures import CommandError, ExitCode

POLL_SECONDS: Final = 0.1

ENGINES: Final = "lock"
"""Held by the program that runs engines: an agent, or `llmkube up`."""

SERVER: Final = "apiserver.lock"
"""Held by the program that runs the API server: `llmkube apiserver`, or `llmkube up`."""


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
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


def holder_of(path: Path, lock: str = ENGINES) -> int | None:
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


def up_on(path: Path) -> int | None:
    """Return the pid of the `llmkube up` that works on a state directory: it alone runs engines and the API server."""
    engines = holder_of(path, ENGINES)
    return engines if engines is not None and engines == holder_of(path, SERVER) else None


async def wait_gone(path: Path, pid: int, seconds: float) -> None:
    """Return when the program with this pid works on a state directory no longer.

    Raises:
        CommandError: It still does after so many seconds.
    """
    with trio.move_on_after(seconds):
        while holder_of(path) == pid:  # noqa: ASYNC110 - a lock falls without an event
            await trio.sleep(POLL_SECONDS)
        return
    raise CommandError(f"the program with pid {pid} still runs after {seconds:g} s", ExitCode.TIMED_OUT)
