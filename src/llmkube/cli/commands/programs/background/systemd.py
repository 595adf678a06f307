"""The systemd user unit that runs `llmkube up` at every login.

Quoting: systemd.syntax(7). Settings: systemd.service(5).
"""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Final

from llmkube.base.errors import UserError
from llmkube.base.package_data import read_text

UNIT: Final = "llmkube-up.service"
_CALL_SECONDS: Final = 60.0


def unit_text(argv: Sequence[str], log: Path, *, stop_seconds: float) -> str:
    """Return the content of the unit file.

    Args:
        argv: The program and its arguments.
        log: File to which standard output and error are appended.
        stop_seconds: Time to stop, in which engines finish requests in flight.
    """
    return Template(read_text(__package__, UNIT)).substitute(
        command=" ".join(map(_quoted, argv)), log=_specifiers(str(log)), stop_seconds=f"{stop_seconds:g}"
    )


def unit_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the unit file (systemd.unit(5))."""
    config = environ.get("XDG_CONFIG_HOME") or ""
    root = Path(config) if Path(config).is_absolute() else Path(environ.get("HOME") or Path.home()) / ".config"
    return root / "systemd" / "user" / UNIT


def systemctl(*args: str) -> str:
    """Run `systemctl --user` and return its output.

    Raises:
        UserError: This machine has no systemd, or the call failed; the message has systemctl's error.
    """
    program = shutil.which("systemctl")
    if program is None:
        raise UserError("this machine has no systemd; run `llmkube up` in the background with `llmkube up start`")
    command = [program, "--user", *args]
    try:
        done = subprocess.run(  # noqa: S603 - no shell, and the program that PATH names
            command, check=False, capture_output=True, text=True, timeout=_CALL_SECONDS
        )
    except subprocess.TimeoutExpired as exc:
        raise UserError(f"`systemctl --user {' '.join(args)}` took more than {_CALL_SECONDS:g} s") from exc
    if done.returncode:
        raise UserError(f"`systemctl --user {' '.join(args)}`: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("$", "$$")
    return f'"{_specifiers(escaped)}"'


def _specifiers(text: str) -> str:
    return text.replace("%", "%%")
