"""The Python that a job was installed with, and whether it is still that one.

A job names its interpreter by a path. Homebrew moves what is behind such a path with each upgrade, or takes it away,
and macOS ties what a user has allowed (files, the local network) to the program itself: after a change it asks again,
which no user sees of a job.
"""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Final

import attrs

from llmkube.base.private_files import write_private

ASK_SECONDS: Final = 10.0
"""How long an interpreter may take to say its version; macOS checks a new program's signature at its first start."""

_FILE: Final = "interpreter.json"


@attrs.frozen
class Interpreter:
    """A Python.

    Attributes:
        path: As a job names it.
        program: The file that this leads to; "" where there is none.
        version: Its version, such as `3.12.4`; "" where it does not say.
    """

    path: str
    program: str
    version: str


def own_interpreter() -> Interpreter:
    """Return the one that runs this."""
    return Interpreter(sys.executable, os.path.realpath(sys.executable), platform.python_version())


def interpreter_at(path: str) -> Interpreter:
    """Look at what a path leads to now, and ask it for its version; blocks."""
    program = Path(path)
    if not program.exists():
        return Interpreter(path, "", "")
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=ASK_SECONDS, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return Interpreter(path, str(program.resolve()), "")
    said = done.stdout.split()
    return Interpreter(path, str(program.resolve()), said[1] if done.returncode == 0 and len(said) == 2 else "")


def record_interpreter(state_dir: Path) -> None:
    """Write down which one a job is installed with."""
    write_private(state_dir / _FILE, json.dumps(attrs.asdict(own_interpreter())))


def recorded_interpreter(state_dir: Path) -> Interpreter | None:
    """Return the one that was written down; None where nothing can be read."""
    try:
        content = json.loads((state_dir / _FILE).read_text("utf-8"))
        return Interpreter(str(content["path"]), str(content["program"]), str(content["version"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def interpreter_news(state_dir: Path) -> str:
    """Say what has become of the interpreter that a job was installed with; "" when it is the same, or not known."""
    installed = recorded_interpreter(state_dir)
    return changes(installed, interpreter_at(installed.path)) if installed is not None else ""


def changes(installed: Interpreter, now: Interpreter) -> str:
    """Say what has become of a job's interpreter, and what to do about it; "" when it is the same; pure."""
    again = "run `llmkube agent install` again"
    if not now.program:
        return f"{installed.path} is gone, which the job was installed with (Python {installed.version}); {again}"
    if not now.version:
        return f"{installed.path} does not run any more (Python {installed.version} at the install); {again}"
    if now.version != installed.version:
        return (
            f"{installed.path} is Python {now.version}, and was {installed.version} when the job was installed: its "
            f"packages may not fit, and what macOS allowed it may have to be allowed anew; {again}"
        )
    if now.program != installed.program:
        return (
            f"{installed.path} leads to {now.program} now, and led to {installed.program} when the job was installed: "
            f"what macOS allowed it may have to be allowed anew; {again}"
        )
    return ""
