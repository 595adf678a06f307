"""Attacks by another user of this machine that are really run, for which the tests have to run as root."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

OTHER_UID = 65534
"""The unprivileged user of Linux (65534); the kernel needs no entry in passwd for it."""

needs_second_user = pytest.mark.skipif(
    os.geteuid() != 0, reason="the attack by a second Unix user is not run: only root can act as one; run as root"
)


@contextmanager
def open_common_folder() -> Iterator[Path]:
    """Create a folder that every user can enter; those of pytest are private."""
    with tempfile.TemporaryDirectory(prefix="llmkube-common-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


def start_as_other(script: str, *args: object) -> "subprocess.Popen[bytes]":
    """Run a shell script as the other user; the caller ends it."""
    command = ["/bin/sh", "-c", script, "sh", *map(str, args)]
    return subprocess.Popen(
        command, user=OTHER_UID, group=OTHER_UID, extra_groups=[], cwd="/", stdin=subprocess.DEVNULL
    )


def run_as_other(script: str, *args: object) -> None:
    """Run a shell script as the other user to its end."""
    assert start_as_other(script, *args).wait(timeout=60) == 0
