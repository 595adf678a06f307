"""Failed starts in a row, counted on disk: launchd has no limit of its own, and starts a program for ever.

A start counts until it has gone well for a minute. A new boot begins anew: what was wrong may have been the machine.
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
    """How often in a row a program has not started, in this boot, and why the last time.

    Attributes:
        boot: What tells this boot from others.
        count: Starts that have not gone well, so far.
        problem: One sentence; empty when a start just ended.
    """

    boot: str
    count: int = 0
    problem: str = ""


def failed_starts_path(state_dir: Path) -> Path:
    """Return where the count is; there is no file after a start that went well."""
    return state_dir / _FILE


def read_failed_starts(state_dir: Path, boot: str) -> FailedStarts:
    """Return the count; one of another boot, or a file that is none, counts as zero."""
    try:
        content = json.loads(failed_starts_path(state_dir).read_text("utf-8"))
        found = FailedStarts(str(content["boot"]), int(content["count"]), str(content["problem"]))
    except (OSError, ValueError, KeyError, TypeError):
        return FailedStarts(boot)
    return found if found.boot == boot else FailedStarts(boot)


def reset_failed_starts(state_dir: Path) -> None:
    """Begin to count anew."""
    failed_starts_path(state_dir).unlink(missing_ok=True)


@contextlib.contextmanager
def counted_start(state_dir: Path, boot: str) -> Iterator[None]:
    """Count the block as a failed start if it ends before `reset_failed_starts` is called, unless it ends well.

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
    """Return when the program has run for a minute, which ends the count."""
    await trio.sleep(STABLE_SECONDS)
    await trio.to_thread.run_sync(reset_failed_starts, state_dir)


def _write(state_dir: Path, starts: FailedStarts) -> None:
    write_private(failed_starts_path(state_dir), json.dumps(attrs.asdict(starts)), durable=False)


VERSION_SECONDS: Final = 10.0
"""How long an interpreter may take to say its version; macOS checks a new program's signature at its first start."""

_INTERPRETER_FILE: Final = "interpreter.json"


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
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=VERSION_SECONDS, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return Interpreter(path, str(program.resolve()), "")
    output = done.stdout.split()
    return Interpreter(path, str(program.resolve()), output[1] if done.returncode == 0 and len(output) == 2 else "")


def record_interpreter(state_dir: Path) -> None:
    """Write down which one a job is installed with."""
    write_private(state_dir / _INTERPRETER_FILE, json.dumps(attrs.asdict(own_interpreter())))


def recorded_interpreter(state_dir: Path) -> Interpreter | None:
    """Return the one that was written down; None where nothing can be read."""
    try:
        content = json.loads((state_dir / _INTERPRETER_FILE).read_text("utf-8"))
        return Interpreter(str(content["path"]), str(content["program"]), str(content["version"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def interpreter_problem(state_dir: Path) -> str:
    """Say what has become of the interpreter that a job was installed with; "" when it is the same, or not known."""
    installed = recorded_interpreter(state_dir)
    return compare_interpreters(installed, interpreter_at(installed.path)) if installed is not None else ""


def compare_interpreters(installed: Interpreter, now: Interpreter) -> str:
    """Say what has become of a job's interpreter, and what to do about it; "" when it is the same; pure."""
    fix = "run `llmkube agent install` again"
    if not now.program:
        return f"{installed.path} is gone, which the job was installed with (Python {installed.version}); {fix}"
    if not now.version:
        return f"{installed.path} does not run any more (Python {installed.version} at the install); {fix}"
    if now.version != installed.version:
        return (
            f"{installed.path} is Python {now.version}, and was {installed.version} when the job was installed: its "
            f"packages may not fit, and what macOS allowed it may have to be allowed anew; {fix}"
        )
    if now.program != installed.program:
        return (
            f"{installed.path} leads to {now.program} now, and led to {installed.program} when the job was installed: "
            f"what macOS allowed it may have to be allowed anew; {fix}"
        )
    return ""
