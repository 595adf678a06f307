"""Where the state directory is, and that it is this user's alone: what it holds decides which programs run."""

import os
import sys
from pathlib import Path

import attrs

from llmkube.base.errors import UserError
from llmkube.base.settings import resolve, setting
from llmkube.base.trusted_paths import weakness_of_private

_INNER = ("ca", "journal", "strays")
"""What is in a state directory that is believed file by file."""

STATE_DIR = setting(None, help="Folder for everything that is kept.", in_file=False)


@attrs.frozen
class Place:
    """The one setting that says where all the others are."""

    state_dir: Path | None = STATE_DIR


def local_state_dir() -> Path:
    """Return the state directory of a program that was given no flag."""
    return state_dir_of(resolve(Place, flags={}, environ=os.environ).state_dir)


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
        there = path.is_dir()
        weakness = weakness_of_private(path, uid=os.geteuid(), inner=_INNER) if there or to_create else ""
    except OSError as exc:
        problem = f"the state directory {path} cannot be used ({exc.strerror})"
        raise UserError(f"{problem}; choose another with --state-dir") from exc
    if weakness:
        raise UserError(
            f"the state directory {path} is not safe to use: {weakness}. It has to belong to the user that runs this "
            "program, who alone may write to it; mend that, or choose another with --state-dir"
        )
    return there


def state_dir_of(chosen: Path | None) -> Path:
    """Return the state directory: the chosen one, else the platform's folder for a user's data."""
    if chosen is not None:
        return chosen.absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "llmkube"
    # XDG base directory specification 0.8: a relative path in the variable is to be ignored.
    data_home = Path(os.environ.get("XDG_DATA_HOME", ""))
    return (data_home if data_home.is_absolute() else Path.home() / ".local" / "share") / "llmkube"
