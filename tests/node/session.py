"""Open a node for as long as a block lasts, with this thread on its network: for a test run, and for a benchmark."""

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from node.build import lacking
from node.images import images
from node.needs import lacks
from node.running_node import Node
from node.wiring import STATE

STOP_SECONDS = 60.0
CLONE_NEWNET = 0x40000000
TESTS = Path(__file__).parents[1]


class NodeError(Exception):
    """There is no node; the message says what is missing, or where to look."""


@contextmanager
def opened_node(folder: Path) -> Iterator[Node]:
    """Start a node, a process of its own that holds on to our pipe; its kubeconfig and then its logs are in the folder.

    Raises:
        NodeError: This machine lacks something for it, or it did not start.
    """
    if missing := lacks():
        raise NodeError("a node cannot run here: " + "; ".join(missing))
    absent = [*lacking(), *(image.name for image in images() if not image.archive.is_file())]
    if absent:
        raise NodeError(f"a node needs {', '.join(absent)}: `make node` builds them")
    command = [sys.executable, "-m", "node.keeper"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=TESTS, text=True, start_new_session=True
    ) as keeper:
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        try:
            line = keeper.stdout.readline()
            if not line:
                raise NodeError("the node did not start: stderr says why")
            started = json.loads(line)
            files = Path(f"/proc/{started['pid']}/root{STATE}")
            shutil.copy(files / "admin.kubeconfig", folder / "admin.kubeconfig")
            with _on_network_of(started["pid"]):
                yield Node(
                    keeper=keeper.pid,
                    pid=started["pid"],
                    machines=started["machines"],
                    kubeconfig=folder / "admin.kubeconfig",
                    start_seconds=started["seconds"],
                )
            shutil.copytree(files / "logs", folder / "logs")
        finally:
            keeper.stdin.close()
            keeper.wait(STOP_SECONDS)


class _on_network_of:  # noqa: N801 (it reads as a phrase)
    """Put this thread, and the threads and programs that it starts, on the network of another process."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def __enter__(self) -> None:
        self._home = os.open("/proc/self/ns/net", os.O_RDONLY)
        self._enter(f"/proc/{self._pid}/ns/net")

    def __exit__(self, *_: object) -> None:
        self._enter(f"/proc/self/fd/{self._home}")
        os.close(self._home)

    def _enter(self, path: str) -> None:
        libc = ctypes.CDLL(None, use_errno=True)  # os.setns is of Python 3.12
        descriptor = os.open(path, os.O_RDONLY)
        try:
            if libc.setns(descriptor, CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"setns {path}")
        finally:
            os.close(descriptor)
