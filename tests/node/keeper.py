"""Start a node in namespaces of its own, and remove it completely, however its parent ends.

    python -m node.keeper      prints {"pid": …, "ready": …} when the node is ready, and ends it when stdin ends

The chain is parent → keeper → unshare → process 1. When the parent dies, the keeper's stdin ends: it kills the node and
removes its cgroups. When the keeper is killed as well, the kernel kills the node (`--pdeathsig`, `--kill-child`);
mounts, networks and processes go with their namespaces, and the empty cgroups at the next start.
"""

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

PREFIX = "llmkube-node-"
NAMESPACES = ("--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup")
REMOVE_SECONDS = 10.0


def hierarchies() -> tuple[Path, ...]:
    """Return where the machine has mounted cgroups of version 1."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return tuple(Path(words[1]) for line in lines if (words := line.split())[2] == "cgroup")


def sweep() -> None:
    """Remove the cgroups of nodes whose keeper is gone: it was killed before it could."""
    for hierarchy in hierarchies():
        for group in hierarchy.glob(f"{PREFIX}*"):
            if not psutil.pid_exists(int(re.sub(r"\D", "", group.name) or 0)):
                _remove(group)


def _make_groups(name: str) -> Iterator[Path]:
    for hierarchy in hierarchies():
        group = hierarchy / name
        group.mkdir()
        for setting in ("cpuset.cpus", "cpuset.mems"):  # a new group has none, and takes no process before
            if (group / setting).exists():
                (group / setting).write_text((hierarchy / setting).read_text())
        yield group


def _remove(group: Path) -> None:
    """Remove a group and what is below; a group stays busy for a moment after its last process."""
    deadline = time.monotonic() + REMOVE_SECONDS
    while group.is_dir():
        try:
            for folder, _, _ in os.walk(group, topdown=False):
                Path(folder).rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _command() -> Sequence[str]:
    inside = [sys.executable, "-m", "node.reaper", sys.executable, "-m", "node.supervisor"]
    return ["setpriv", "--pdeathsig", "KILL", "unshare", *NAMESPACES, "--fork", "--kill-child", "--mount-proc", *inside]


def main() -> int:
    """Keep a node; 1 when it does not come up or ends by itself, and stderr has the reason."""
    sweep()
    groups = tuple(_make_groups(f"{PREFIX}{os.getpid()}"))
    try:
        return _keep(groups)
    finally:
        for group in groups:
            _remove(group)


def _keep(groups: Sequence[Path]) -> int:
    def join() -> None:
        for group in groups:
            (group / "cgroup.procs").write_text("0")

    # from this thread, the main one: the kernel watches the thread that started the child, not the process
    command = _command()
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        preexec_fn=join,  # noqa: PLW1509 (the keeper has one thread)
    ) as node:
        try:
            assert node.stdout is not None
            readable, _, _ = select.select([node.stdout, sys.stdin], [], [])
            if node.stdout not in readable:
                return 0  # the parent has ended meanwhile
            ready = node.stdout.readline()
            if not ready:
                return 1
            (first,) = psutil.Process(node.pid).children()
            sys.stdout.write(json.dumps({"pid": first.pid, **json.loads(ready)}) + "\n")
            sys.stdout.flush()
            readable, _, _ = select.select([node.stdout, sys.stdin], [], [])
            return 1 if node.stdout in readable else 0
        finally:
            node.kill()


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))  # through the finally clauses
    sys.exit(main())
