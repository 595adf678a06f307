"""An engine's log: an append-only file per service, rotated by copy-truncate because the engine holds it open.

| file | content |
|---|---|
| `chat.log` | the engine that serves, or will serve once it answers |
| `chat.log.1` | older output: copied when the file outgrew its cap, or of a replaced engine |
| `chat.log.next` | a new engine that will replace the serving one |
"""

import os
import shutil
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from llmkube.base.full_disk import is_disk_full
from llmkube.base.private_files import file_stem, make_private_folder
from llmkube.k8s.resource import Key

MAX_READ_BYTES = 256 * 1024
"""Maximum size of the part of a log that is read at its end, or where the output of an engine begins."""

MAX_LINE_CHARS = 500
"""Length to which lines are truncated, since they appear in conditions."""


def log_path(state_dir: Path, key: Key) -> Path:
    """Return the log of a service's engine."""
    return state_dir / "logs" / key.namespace / f"{file_stem(key.name)}.log"


def old_log(path: Path) -> Path:
    """Return the file with the older part of a log."""
    return path.with_name(f"{path.name}.1")


def next_log(path: Path) -> Path:
    """Return the log of an engine that has yet to replace another one."""
    return path.with_name(f"{path.name}.next")


def service_of(path: Path) -> str:
    """Return the service of a log as `<namespace>/<name>`; a name that is too long for a file is its `file_stem`."""
    return f"{path.parent.name}/{path.name.removesuffix('.next').removesuffix('.log')}"


def open_for_append(path: Path) -> tuple[int, int]:
    """Open a log for appending, mode 0600; return its current size and the file descriptor, which the caller closes."""
    make_private_folder(path.parent)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    return os.fstat(descriptor).st_size, descriptor


def read_lines(path: Path, offset: int, count: int) -> tuple[str, ...]:
    """Return up to `count` last non-empty lines written at or after `offset`; none if the file cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = offset if offset <= size else 0  # the file has been truncated since: everything in it is newer
            file.seek(max(start, size - MAX_READ_BYTES))
            text = file.read(MAX_READ_BYTES).decode("utf-8", "replace")
    except OSError:
        return ()
    return tuple(deque(_lines_of(text), maxlen=count))


def read_first_lines(path: Path, offset: int) -> tuple[str, ...]:
    """Return the non-empty lines written from `offset` on, in 256 KiB at most; none if the file cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return tuple(_lines_of(file.read(MAX_READ_BYTES).decode("utf-8", "replace")))
    except OSError:
        return ()


def _lines_of(text: str) -> Iterator[str]:
    return (line[:MAX_LINE_CHARS] for line in text.splitlines() if line.strip())


def rotate(path: Path, cap_bytes: int) -> bool:
    """Copy a log that has outgrown its cap to `<name>.1` and truncate it in place; return whether it did.

    Output between the copy and the truncation is lost: that is the price of not using a pipe. On a full disk the whole
    log is discarded to free space. Errors are not raised, since a log must not stop an engine; the next sample retries.
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
