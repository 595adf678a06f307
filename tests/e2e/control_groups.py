"""Control groups with a memory limit, so that programs run short of memory without harming this machine."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest

from llmkube.supervisor.host.linux import Group, Headroom, headroom_in, own_group, own_mounts

MACHINE_BYTES = 1 << 62  # above any limit that a test sets


@attrs.frozen
class ControlGroup:
    """A control group at the top of the tree."""

    folder: Path
    version: int

    @property
    def prefix(self) -> tuple[str, ...]:
        """Command prefix that runs a program, and all that it starts, in the group."""
        return "/bin/sh", "-c", f'echo $$ >"{self.folder}/cgroup.procs" && exec "$@"', "sh"

    @property
    def headroom(self) -> Headroom:
        """The limit and the bytes left below it, as the agent computes them."""
        headroom = headroom_in(Group(self.version, (self.folder,)), MACHINE_BYTES)
        assert headroom is not None
        return headroom

    def pids(self) -> list[int]:
        """The processes in the group."""
        return [int(pid) for pid in (self.folder / "cgroup.procs").read_text().split()]


@contextmanager
def open_control_group(name: str, limit_bytes: int) -> Iterator[ControlGroup]:
    """Create a group, and remove it with all its processes; skip the test where that is not permitted."""
    ours = own_group(own_mounts())
    if ours is None:
        pytest.skip("this machine has no memory control groups")
    top = ours.folders[-1]
    folder = top / f"llmkube-{name}-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as exc:
        pytest.skip(f"no control group can be made in {top}: {exc.strerror}; run the tests as root")
    try:
        if ours.version == 2 and not (folder / "memory.max").exists():
            pytest.skip(f'the memory controller is off below {top}; echo "+memory" >{top}/cgroup.subtree_control')
        limit = "memory.max" if ours.version == 2 else "memory.limit_in_bytes"
        try:
            (folder / limit).write_text(str(limit_bytes))
        except OSError as exc:
            pytest.skip(f"no memory limit can be set in {folder}: {exc.strerror}")
        group = ControlGroup(folder, ours.version)
        yield group
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    for _ in range(500):
        with contextlib.suppress(OSError):
            folder.rmdir()
            return
        for pid in (folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.01)  # until the kernel has removed them
    raise AssertionError(f"{folder} cannot be removed")
