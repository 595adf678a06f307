"""A log file's last lines, and what is appended to it, across rotation by copy-truncate and by rename."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import attrs
import trio

BLOCK_BYTES: Final = 64 * 1024
POLL_SECONDS: Final = 0.25
"""How often a followed file is looked at: the OS offers no event that works on both Linux and macOS."""


@attrs.define(eq=False)
class LogFile:
    """One open log: `take` returns what is new in it. Blocks on the disk, for no longer than a block takes.

    Attributes:
        path: Where the log is; another file may take its place.
    """

    path: Path
    _descriptor: int = -1
    _offset: int = 0

    def open_last(self, lines: int | None) -> None:
        """Open the file such that its last lines come first; None means all of it.

        Raises:
            OSError: It cannot be read.
        """
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        self._offset = 0 if lines is None else start_of_last(self._descriptor, lines)

    def take(self) -> bytes:
        """Return the next bytes, or b"" while there are none.

        A file that is shorter than what was read of it was truncated, so all of it is new; a file that was replaced is
        read to its end before its successor is opened.
        """
        size = os.fstat(self._descriptor).st_size
        if size < self._offset:
            self._offset = 0
        piece = os.pread(self._descriptor, BLOCK_BYTES, self._offset)
        if not piece and self._was_replaced():
            try:
                successor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return b""  # rotated once more since the look at it: the next look finds what has come
            os.close(self._descriptor)
            self._descriptor, self._offset = successor, 0
            piece = os.pread(self._descriptor, BLOCK_BYTES, 0)
        self._offset += len(piece)
        return piece

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _was_replaced(self) -> bool:
        try:
            current = self.path.stat()
        except OSError:
            return False  # between two files; the old one may still grow
        opened = os.fstat(self._descriptor)
        return (current.st_ino, current.st_dev) != (opened.st_ino, opened.st_dev)


@asynccontextmanager
async def open_log(path: Path, lines: int | None) -> AsyncIterator[LogFile]:
    """Hold a log open at its last lines.

    Raises:
        OSError: It cannot be read.
    """
    log = LogFile(path)
    await trio.to_thread.run_sync(log.open_last, lines)
    try:
        yield log
    finally:
        log.close()


async def copy_log(path: Path, lines: int | None, write: Callable[[bytes], None], *, follow: bool) -> None:
    """Write a log from its last lines on: what is in it now, or with `follow` what is appended to it, until cancelled.

    Raises:
        OSError: It cannot be read.
    """
    async with open_log(path, lines) as log:
        while True:
            piece = await trio.to_thread.run_sync(log.take)
            if piece:
                write(piece)
            elif follow:
                await trio.sleep(POLL_SECONDS)
            else:
                return


def start_of_last(descriptor: int, lines: int) -> int:
    """Return where the last lines of a file begin, reading backwards no further than needed; a file of none gives 0."""
    end = os.fstat(descriptor).st_size
    if lines <= 0:
        return end
    position, wanted = end, lines
    while position > 0:
        start = max(position - BLOCK_BYTES, 0)
        block = os.pread(descriptor, position - start, start)
        if position == end and block.endswith(b"\n"):
            wanted += 1  # the newline at the very end begins no line
        found = len(block)
        while (found := block.rfind(b"\n", 0, found)) >= 0:
            wanted -= 1
            if wanted == 0:
                return start + found + 1
        position = start
    return 0
