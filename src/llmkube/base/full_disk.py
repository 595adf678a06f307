"""Detect a full disk, and suggest a fix."""

import contextlib
import errno
import os
from pathlib import Path
from typing import Final

from llmkube.base.units import format_bytes

DISK_FULL_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""The disk is full, or the quota of this user is used up."""


def is_disk_full(error: OSError) -> bool:
    """Return whether a write failed because the disk is full."""
    return error.errno in DISK_FULL_ERRNOS


def free_bytes(folder: Path) -> int | None:
    """Return the bytes on the folder's disk that are free to this user; None if the system does not report them."""
    with contextlib.suppress(OSError):
        stats = os.statvfs(folder)
        return stats.f_bavail * stats.f_frsize
    return None


def full_disk(folder: Path) -> str:
    """Return the message for a folder whose disk is full."""
    free = free_bytes(folder)
    known = f" ({format_bytes(free)} free)" if free is not None else ""
    return f"the disk of {folder} is full{known}; free some space on it, and work resumes automatically"
