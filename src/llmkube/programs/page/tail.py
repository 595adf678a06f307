"""Read the last lines of a log file and follow it, across rotation by copy-truncate and by rename."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import attrs
import trio

BLOCK_BYTES: Final = 64 * 1024
POLL_SECONDS: Final = 0.25
"""Interval at which a followed file is polled: no file event works on both Linux and macOS."""


@attrs.define(eq=False)
class LogFile:
    """An open log; `take` returns what is new. Calls block on the disk, for one block at most.

    Attributes:
        path: Path of the log; rotation may replace the file.
    """

    path: Path
    _descriptor: int
    _offset: int

    @classmethod
    def open_last(cls, path: Path, lines: int | None) -> "LogFile":
        """Open the file at its last lines; None means all lines.

        Raises:
            OSError: The file cannot be read.
        """
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return cls(path, descriptor, 0 if lines is None else start_of_last(descriptor, lines))

    def take(self) -> bytes:
        """Return the next bytes, or b"" while there are none.

        A file that is shorter than what has been read was truncated, so all of it is new. A file that was replaced is
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
                return b""  # rotated once more in the meantime: the next call finds the new file
            os.close(self._descriptor)
            self._descriptor, self._offset = successor, 0
            piece = os.pread(self._descriptor, BLOCK_BYTES, 0)
        self._offset += len(piece)
        return piece

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _was_replaced(self) -> bool:
        try:
            current = self.path.stat()
        except OSError:
            return False  # rotation in progress; the old file may still grow
        opened = os.fstat(self._descriptor)
        return (current.st_ino, current.st_dev) != (opened.st_ino, opened.st_dev)


@asynccontextmanager
async def open_log(path: Path, lines: int | None) -> AsyncIterator[LogFile]:
    """Open a log at its last lines, and close it at the end of the block.

    Raises:
        OSError: The log cannot be read.
    """
    log = await trio.to_thread.run_sync(LogFile.open_last, path, lines)
    try:
        yield log
    finally:
        log.close()


async def copy_log(path: Path, lines: int | None, write: Callable[[bytes], None], *, follow: bool) -> None:
    """Write a log from its last lines to its end; with `follow`, keep writing what is appended until cancelled.

    Raises:
        OSError: The log cannot be read.
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
    """Return the offset of a file's last lines, reading backwards from its end; 0 if the file has fewer lines."""
    end = os.fstat(descriptor).st_size
    if lines <= 0:
        return end
    position, wanted = end, lines
    while position > 0:
        start = max(position - BLOCK_BYTES, 0)
        block = os.pread(descriptor, position - start, start)
        if position == end and block.endswith(b"\n"):
            wanted += 1  # no line starts after the final newline
        found = len(block)
        while (found := block.rfind(b"\n", 0, found)) >= 0:
            wanted -= 1
            if wanted == 0:
                return start + found + 1
        position = start
    return 0
