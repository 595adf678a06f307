"""The state directory belongs to one user and to one program at a time."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from llmkube.base.errors import UserError
from llmkube.cli.config import check_state_dir
from llmkube.cli.state_lock import ENGINES, SERVER, held
from llmkube.supervisor.host.processes import OWNER_VARIABLE, end_all, marked

_TEMPORARY: Final = "llmkube-ephemeral-"
"""No state directory that a user has chosen is called so."""

_GRACE_SECONDS: Final = 10.0  # between TERM and KILL, for an engine without requests


@contextlib.contextmanager
def held_state_dir(path: Path, *locks: str) -> Iterator[Path]:
    """Create the folder (0700) and hold lock files in it; a lock falls when the process ends, however it ends.

    Args:
        path: The folder.
        locks: What to hold: `lock` to run engines (the default), `apiserver.lock` to run the API server.

    Raises:
        UserError: The folder cannot be used, is not this user's alone, or another program holds it; the sentence names
            its pid.
    """
    check_state_dir(path, to_create=True)
    with contextlib.ExitStack() as stack:
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.chmod(0o700)  # an older folder, or one made under another umask
            for name in locks or (ENGINES,):
                stack.enter_context(held(path / name))
        except OSError as exc:
            problem = f"the state directory {path} cannot be used ({exc.strerror})"
            raise UserError(f"{problem}; choose another with --state-dir") from exc
        yield path


@contextlib.contextmanager
def temporary_state_dir() -> Iterator[Path]:
    """Hold a fresh folder that is removed, with everything in it, at the end; first, remove what killed programs left.

    No other program would: the next one has a folder of another name, and engines carry the name of theirs.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{_TEMPORARY}*"):
        with contextlib.suppress(OSError):  # in use, another user's, or gone since
            _remove_left(left)
    with (
        tempfile.TemporaryDirectory(prefix=_TEMPORARY, ignore_cleanup_errors=True) as folder,
        held_state_dir(Path(folder), ENGINES, SERVER) as path,  # by mkdtemp: 0700, and its name is known to us alone
    ):
        yield path


def _remove_left(folder: Path) -> None:
    if folder.lstat().st_uid != os.getuid():
        return
    with (folder / ENGINES).open(encoding="ascii", errors="replace") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if lock.read():  # the pid is written under the lock; an empty file is one that is about to be held
            end_all(marked(OWNER_VARIABLE, str(folder)), grace_seconds=_GRACE_SECONDS)
            shutil.rmtree(folder, ignore_errors=True)
