"""What a program in the background has written: printed, followed, or as the reason why it ended."""

import contextlib
import os
from functools import partial
from pathlib import Path
from typing import Final, Never

import click
import structlog
import trio

from llmkube.cli.commands.services.tail import copy_log
from llmkube.cli.view.output import printable
from llmkube.programs.failures import CommandError, ExitCode
from llmkube.supervisor.engine.logfile import rotate

log = structlog.get_logger(__name__)
CAP_BYTES: Final = 10 * 1024 * 1024
LOOK_SECONDS: Final = 60.0
GUIDE_LINK: Final = Path("/tmp/llmkube-metal-agent.log")  # noqa: S108 - a link for readers, never written through
"""Where guides look for the agent's log; macOS removes what is old there, and the agent makes it anew."""


def print_log(log: Path, lines: int | None, *, follow: bool, written_by: str) -> None:
    """Print a log.

    Args:
        log: The file.
        lines: Begin with so many last lines; None for all.
        follow: Stay, and print what is written from now on.
        written_by: What makes such a file, for who has none.

    Raises:
        CommandError: There is no such file.
    """
    if not log.is_file():
        raise CommandError(f"there is no {log}: {written_by}", ExitCode.NOT_FOUND)

    def write(piece: bytes) -> None:
        click.echo(printable(piece.decode("utf-8", "replace")), nl=False)

    trio.run(partial(copy_log, log, lines, write, follow=follow))


def last_lines(log: Path, begin: int, count: int) -> str:
    """Return the last lines of what stands in a log from a position on; "" without such a log."""
    try:
        text = log.read_bytes()[begin:].decode("utf-8", "replace")
    except OSError:
        return ""
    return printable("\n".join(text.strip().splitlines()[-count:]).removeprefix("Error: "))


async def maintain_log(path: Path, link: Path | None) -> Never:
    """Never return: look at the log every minute, and at the link to it.

    Args:
        path: The log.
        link: A name that other programs know it by; None for none.
    """
    while True:
        await trio.to_thread.run_sync(rotate, path, CAP_BYTES)
        if link is not None and not await trio.to_thread.run_sync(point_link, link, path):
            log.warning("another user's file has the name of the link to this log", link=str(link), log=str(path))
            link = None
        await trio.sleep(LOOK_SECONDS)


def point_link(link: Path, log_file: Path) -> bool:
    """Have a link name a log; return False where another user's file, or one that is no link, has its name.

    It stands in a folder that every user may write to: it is looked at and replaced, and never followed.
    """
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
