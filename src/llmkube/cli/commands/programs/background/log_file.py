"""The log of a program in the background: print it, follow it, rotate it."""

import contextlib
import os
from functools import partial
from pathlib import Path
from typing import Final, Never

import click
import structlog
import trio

from llmkube.cli.view.output import printable
from llmkube.programs.failures import CommandError, ExitCode
from llmkube.programs.page.tail import copy_log
from llmkube.supervisor.engine.logfile import rotate

log = structlog.get_logger(__name__)
CAP_BYTES: Final = 10 * 1024 * 1024
CHECK_SECONDS: Final = 60.0
GUIDE_LINK: Final = Path("/tmp/llmkube-metal-agent.log")  # noqa: S108 - a link for readers, never written through
"""Link to the agent's log that guides refer to; macOS removes old files there, and the agent creates it again."""


def print_log(log: Path, lines: int | None, *, follow: bool, written_by: str) -> None:
    """Print a log.

    Args:
        log: The file.
        lines: Number of last lines to start with; None for all.
        follow: Keep printing what is appended.
        written_by: Sentence that names the commands which create the log, for the error.

    Raises:
        CommandError: The file does not exist.
    """
    if not log.is_file():
        raise CommandError(f"{log} not found: {written_by}", ExitCode.NOT_FOUND)

    def write(piece: bytes) -> None:
        click.echo(printable(piece.decode("utf-8", "replace")), nl=False)

    trio.run(partial(copy_log, log, lines, write, follow=follow))


def last_lines(log: Path, begin: int, count: int) -> str:
    """Return the last lines of a log after a position; "" without a log."""
    try:
        text = log.read_bytes()[begin:].decode("utf-8", "replace")
    except OSError:
        return ""
    return printable("\n".join(text.strip().splitlines()[-count:]).removeprefix("Error: "))


async def maintain_log(path: Path, link: Path | None) -> Never:
    """Rotate the log and restore the link to it, every minute; never return.

    Args:
        path: The log.
        link: Another name of the log; None for none.
    """
    while True:
        await trio.to_thread.run_sync(rotate, path, CAP_BYTES)
        if link is not None and not await trio.to_thread.run_sync(point_link, link, path):
            log.warning("log link not created: another user's file has its name", link=str(link), log=str(path))
            link = None
        await trio.sleep(CHECK_SECONDS)


def point_link(link: Path, log_file: Path) -> bool:
    """Point a link at a log; return False if another user's file, or one that is not a link, has its name."""
    # Every user may write to the link's folder: the link is inspected and replaced, but never followed.
    try:
        found = link.lstat()
    except OSError:
        found = None
    if found is not None:
        if found.st_uid != os.geteuid() or not link.is_symlink():
            return False
        if link.readlink() == log_file:
            return True
        with contextlib.suppress(OSError):
            link.unlink()
    with contextlib.suppress(OSError):  # taken since, or a read-only disk
        link.symlink_to(log_file)
    return link.is_symlink() and link.lstat().st_uid == os.geteuid()
