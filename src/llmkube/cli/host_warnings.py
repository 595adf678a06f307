"""What makes old what a command shows is said before it: a credential of this host's agent, a full disk."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import click

from llmkube.base.errors import UserError
from llmkube.base.full_disk import free_bytes, full_disk
from llmkube.cli.view.output import printable
from llmkube.programs.state_location import check_state_dir
from llmkube.supervisor.values.host_credential import problem_path

_MAX_CHARS: Final = 4096

_LEAST_BYTES: Final = 64 << 10
"""With less the embedded API server's database takes no change, and no journal of an engine is written."""


def warn_credential_problem(folders: Iterable[Path]) -> None:
    """Print, on standard error, what the agents on these state directories have noted."""
    for folder in folders:
        if note := _read_note(folder):
            click.echo(f"the agent on this host: {printable(note)}", err=True)


def _read_note(folder: Path) -> str:
    try:
        check_state_dir(folder)  # another user's note would be a command that he has written
        with problem_path(folder).open(encoding="utf-8", errors="replace") as file:
            return file.readline(_MAX_CHARS).strip()
    except (OSError, UserError):
        return ""


def warn_full_disk(folders: Iterable[Path]) -> None:
    """Print, on standard error, on which disks of these state directories there is no room left."""
    for folder in folders:
        free = free_bytes(folder)
        if free is not None and free < _LEAST_BYTES:
            warning = "what is shown may be old: the programs of this host can write no status"
            click.echo(f"{warning}, because {full_disk(folder)}", err=True)
