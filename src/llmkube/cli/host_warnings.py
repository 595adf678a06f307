"""Warnings that a command's output may be out of date: a credential problem of this host's agent, a full disk."""

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

_MIN_FREE_BYTES: Final = 64 << 10
"""With less free, neither the embedded API server's database nor an engine's journal can be written."""


def warn_of_old_output(folders: Iterable[Path]) -> None:
    """Print, on standard error, problems that the agents of these state directories have recorded, and full disks."""
    for folder in folders:
        if note := _read_note(folder):
            click.echo(f"the agent on this host: {printable(note)}", err=True)
        free = free_bytes(folder)
        if free is not None and free < _MIN_FREE_BYTES:
            warning = "the output may be out of date: programs on this machine cannot write status"
            click.echo(f"{warning}, because {full_disk(folder)}", err=True)


def _read_note(folder: Path) -> str:
    try:
        check_state_dir(folder)  # in another user's folder, that user would choose the command to run
        with problem_path(folder).open(encoding="utf-8", errors="replace") as file:
            return file.readline(_MAX_CHARS).strip()
    except (OSError, UserError):
        return ""
