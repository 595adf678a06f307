"""A full disk under a state directory is said by the commands that people look with: no status is written then."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import click

from llmkube.base.full_disk import free_bytes, full_disk

_LEAST_BYTES: Final = 64 << 10
"""With less the embedded API server's database takes no change, and no journal of an engine is written."""


def tell_full_disk(folders: Iterable[Path]) -> None:
    """Print, on standard error, on which disks of these state directories there is no room left."""
    for folder in folders:
        free = free_bytes(folder)
        if free is not None and free < _LEAST_BYTES:
            told = "what is shown may be old: the programs of this host can write no status"
            click.echo(f"{told}, because {full_disk(folder)}", err=True)
