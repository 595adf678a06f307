"""A disk without room is known by two error numbers, and what helps is said wherever one is met."""

import contextlib
import errno
import os
from pathlib import Path
from typing import Final

from llmkube.base.units import format_bytes

DISK_FULL_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""The disk, or what this user may take of it, has no room left."""


def is_disk_full(error: OSError) -> bool:
    """Whether a write has failed for want of room."""
    return error.errno in DISK_FULL_ERRNOS


def free_bytes(folder: Path) -> int | None:
    """Return how many bytes of the folder's disk are free to this user; None when the system does not say."""
    with contextlib.suppress(OSError):
        stats = os.statvfs(folder)
        return stats.f_bavail * stats.f_frsize
    return None


def full_disk(folder: Path) -> str:
    """Say that the disk of a folder is full, and what helps."""
    free = free_bytes(folder)
    known = f" ({format_bytes(free)} are free)" if free is not None else ""
    return f"the disk of {folder} is full{known}; free some space on it, and this goes on by itself"
