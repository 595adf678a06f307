"""An engine's log: an append-only file per service, rotated by copy-truncate because the engine holds it open.

| file | whose |
|---|---|
| `chat.log` | the engine that serves, or that will as soon as it answers |
| `chat.log.1` | what was there before: copied when the file outgrew its cap, or an engine's that has been replaced |
| `chat.log.next` | an engine that is to replace the one that serves |
"""

import os
import shutil
from collections import deque
from pathlib import Path

from llmkube.base.full_disk import is_disk_full
from llmkube.base.private_files import file_stem
from llmkube.k8s.resource import Key

MAX_READ_BYTES = 256 * 1024
"""At most this much of a log's end is read to show its last lines."""

MAX_LINE_CHARS = 500
"""A longer line is cut: a condition is read by people."""


def log_path(state_dir: Path, key: Key) -> Path:
    """Return where the engine of a service writes to."""
    return state_dir / "logs" / key.namespace / f"{file_stem(key.name)}.log"


def old_log(path: Path) -> Path:
    """Return where the older part of a log is kept."""
    return path.with_name(f"{path.name}.1")


def next_log(path: Path) -> Path:
    """Return where an engine writes to that is to replace another one, until it does."""
    return path.with_name(f"{path.name}.next")


def service_of(path: Path) -> str:
    """Return whose log it is, as `<namespace>/<name>`; a name that is too long for a file is `file_stem` of it."""
    return f"{path.parent.name}/{path.name.removesuffix('.next').removesuffix('.log')}"


def open_for_append(path: Path) -> tuple[int, int]:
    """Open a log for appending, 0600, and return its present size and the file descriptor (the caller closes it)."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    return os.fstat(descriptor).st_size, descriptor


def read_lines(path: Path, offset: int, count: int) -> tuple[str, ...]:
    """Return up to `count` last lines written at or after `offset`; empty lines and an unreadable file give none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = offset if offset <= size else 0  # the file was truncated meanwhile: all of it is newer
            file.seek(max(start, size - MAX_READ_BYTES))
            text = file.read(MAX_READ_BYTES).decode("utf-8", "replace")
    except OSError:
        return ()
    lines = deque((line[:MAX_LINE_CHARS] for line in text.splitlines() if line.strip()), maxlen=count)
    return tuple(lines)


def rotate(path: Path, cap_bytes: int) -> bool:
    """Copy a log that has outgrown its cap to `<name>.1` and truncate it in place; return whether it did.

    What the engine writes between the copy and the truncation is lost: the price of not holding a pipe. On a full disk
    all of it is: the room that it takes is what other programs lack. No log is worth an engine, so nothing is raised
    here; what cannot be done now is tried again at the next look.
    """
    try:
        if path.stat().st_size <= cap_bytes:
            return False
        try:
            shutil.copyfile(path, old_log(path))
        except OSError as error:
            if not is_disk_full(error):
                return False
            old_log(path).unlink(missing_ok=True)
        os.truncate(path, 0)
    except OSError:
        return False
    return True
