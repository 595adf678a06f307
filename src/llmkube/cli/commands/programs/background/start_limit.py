"""Limit consecutive failed starts: launchd has no limit of its own and would restart a program forever.

The count is on disk. Running for a minute resets it, and so does a reboot, which may have fixed the cause.
"""

import contextlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs
import trio

from llmkube.base.private_files import write_private

STABLE_SECONDS: Final = 60.0
_FILE: Final = "failed-starts"


@attrs.frozen
class FailedStarts:
    """Consecutive failed starts of a program since the last boot, and the error of the last one.

    Attributes:
        boot: Identifies the boot.
        count: Includes a start that has not been stable for a minute yet.
        problem: Message of the error; empty if the program was killed or still runs.
    """

    boot: str
    count: int = 0
    problem: str = ""


def failed_starts_path(state_dir: Path) -> Path:
    """Return the file with the count; it does not exist after a successful start."""
    return state_dir / _FILE


def read_failed_starts(state_dir: Path, boot: str) -> FailedStarts:
    """Return the count; zero if it is from another boot or cannot be read."""
    try:
        content = json.loads(failed_starts_path(state_dir).read_text("utf-8"))
        found = FailedStarts(str(content["boot"]), int(content["count"]), str(content["problem"]))
    except (OSError, ValueError, KeyError, TypeError):
        return FailedStarts(boot)
    return found if found.boot == boot else FailedStarts(boot)


def reset_failed_starts(state_dir: Path) -> None:
    """Reset the count."""
    failed_starts_path(state_dir).unlink(missing_ok=True)


@contextlib.contextmanager
def counted_start(state_dir: Path, boot: str) -> Iterator[None]:
    """Count the block as a failed start if it raises or is killed before `reset_failed_starts` is called.

    Raises:
        OSError: The count cannot be written.
    """
    state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    current = attrs.evolve(read_failed_starts(state_dir, boot), problem="")
    current = attrs.evolve(current, count=current.count + 1)
    _write(state_dir, current)
    try:
        yield
    except BaseException as exc:
        if failed_starts_path(state_dir).exists():
            _write(state_dir, attrs.evolve(current, problem=str(exc)))
        raise
    reset_failed_starts(state_dir)


async def reset_once_stable(state_dir: Path) -> None:
    """Reset the count after the program has run for a minute."""
    await trio.sleep(STABLE_SECONDS)
    await trio.to_thread.run_sync(reset_failed_starts, state_dir)


def _write(state_dir: Path, starts: FailedStarts) -> None:
    write_private(failed_starts_path(state_dir), json.dumps(attrs.asdict(starts)), durable=False)


VERSION_SECONDS: Final = 10.0
"""Timeout for `python --version`; macOS checks a new program's signature at its first start."""

_INTERPRETER_FILE: Final = "interpreter.json"


@attrs.frozen
class Interpreter:
    """A Python interpreter.

    Attributes:
        path: As in the job's file.
        program: Path with links resolved; "" if it does not exist.
        version: Such as `3.12.4`; "" if it does not run.
    """

    path: str
    program: str
    version: str


def own_interpreter() -> Interpreter:
    """Return the interpreter of this process."""
    return Interpreter(sys.executable, os.path.realpath(sys.executable), platform.python_version())


def interpreter_at(path: str) -> Interpreter:
    """Return the interpreter at a path, and run it to get its version. Blocks."""
    program = Path(path)
    if not program.exists():
        return Interpreter(path, "", "")
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=VERSION_SECONDS, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return Interpreter(path, str(program.resolve()), "")
    output = done.stdout.split()
    return Interpreter(path, str(program.resolve()), output[1] if done.returncode == 0 and len(output) == 2 else "")


def record_interpreter(state_dir: Path) -> None:
    """Record the interpreter that a job is installed with."""
    write_private(state_dir / _INTERPRETER_FILE, json.dumps(attrs.asdict(own_interpreter())))


def recorded_interpreter(state_dir: Path) -> Interpreter | None:
    """Return the recorded interpreter; None if it cannot be read."""
    try:
        content = json.loads((state_dir / _INTERPRETER_FILE).read_text("utf-8"))
        return Interpreter(str(content["path"]), str(content["program"]), str(content["version"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def interpreter_problem(state_dir: Path) -> str:
    """Return what has changed about the interpreter of an installed job; "" if nothing, or if it is not known."""
    installed = recorded_interpreter(state_dir)
    return compare_interpreters(installed, interpreter_at(installed.path)) if installed is not None else ""


def compare_interpreters(installed: Interpreter, now: Interpreter) -> str:
    """Return what has changed about a job's interpreter, and the fix; "" if nothing. Pure."""
    fix = "run `llmkube agent install` again"
    if not now.program:
        return f"{installed.path}, the Python {installed.version} of the job, no longer exists; {fix}"
    if not now.version:
        return f"{installed.path}, the Python {installed.version} of the job, no longer runs; {fix}"
    if now.version != installed.version:
        return (
            f"{installed.path} is Python {now.version}, and was {installed.version} when the job was installed: its "
            f"packages may not be compatible, and macOS may ask for its permissions again; {fix}"
        )
    if now.program != installed.program:
        return (
            f"{installed.path} links to {now.program}, and linked to {installed.program} when the job was installed: "
            f"macOS may ask for its permissions again; {fix}"
        )
    return ""
