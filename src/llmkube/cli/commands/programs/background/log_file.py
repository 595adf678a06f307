"""What a program in the background has written: printed, followed, or as the reason why it ended."""

from pathlib import Path

import click
import trio

from llmkube.cli.commands.services.tail import POLL_SECONDS, open_log
from llmkube.cli.view.output import printable
from llmkube.programs.failures import CommandError, ExitCode


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

    async def copy() -> None:
        async with open_log(log, lines) as file:
            while True:
                piece = await trio.to_thread.run_sync(file.take)
                if piece:
                    click.echo(printable(piece.decode("utf-8", "replace")), nl=False)
                elif follow:
                    await trio.sleep(POLL_SECONDS)
                else:
                    return

    trio.run(copy)


def last_lines(log: Path, begin: int, count: int) -> str:
    """Return the last lines of what stands in a log from a position on; "" without such a log."""
    try:
        text = log.read_bytes()[begin:].decode("utf-8", "replace")
    except OSError:
        return ""
    return printable("\n".join(text.strip().splitlines()[-count:]).removeprefix("Error: "))
