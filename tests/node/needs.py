"""List what this machine lacks for a node; an empty list means that a node can run."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

if __package__ is None or not __package__:  # run as a script: tests/ is where the shared modules are
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

TOOLS = ("apt-get", "dpkg-deb", "ip", "mount", "nsenter", "setpriv", "unshare")
CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "pids")


def lacks() -> tuple[str, ...]:
    """Return a sentence for each thing that is missing; empty where a node can run."""
    if sys.platform != "linux":
        return ("a node needs Linux",)
    found = [f"there is no {name} on PATH" for name in TOOLS if not shutil.which(name)]
    if os.geteuid():
        return (*found, "a node needs root: mounts and namespaces are made")
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    controlled = {word for words in mounts if words[2] == "cgroup" for word in words[3].split(",")}
    if absent := [name for name in CONTROLLERS if name not in controlled]:
        found.append(f"no cgroup hierarchy of version 1 for {', '.join(absent)} is mounted, and version 2 is not used")
    if not found and (problem := _cannot_overlay()):
        found.append(f"namespaces with an overlay cannot be made: {problem}")
    return tuple(found)


def _cannot_overlay() -> str:
    """Return why a private overlay cannot be mounted here; empty when it can."""
    with tempfile.TemporaryDirectory() as folder:
        script = (
            'mount -t tmpfs tmpfs "$0" && mkdir "$0/up" "$0/work" '
            '&& mount -t overlay -o "lowerdir=/usr,upperdir=$0/up,workdir=$0/work" overlay /usr'
        )
        spaces = ("--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup", "--fork", "--mount-proc")
        done = subprocess.run(
            ["unshare", *spaces, "sh", "-c", script, folder], capture_output=True, text=True, check=False
        )
    return done.stderr.strip() if done.returncode else ""


def main() -> int:
    """Print what is missing, one thing a line; 1 if there is anything."""
    missing = lacks()
    sys.stdout.writelines(f"{line}\n" for line in missing)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
