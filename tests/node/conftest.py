"""One real node for the whole session, on whose network the tests run; a namespace of its own for each test."""

import ctypes
import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest
import trio

from llmkube.k8s.auth.load import load_config
from llmkube.k8s.builtins import Namespace
from llmkube.k8s.client import Client, open_client
from llmkube.k8s.crd.meta import ObjectMeta
from llmkube.k8s.resource import Key
from node.build import lacking
from node.images import images
from node.needs import lacks
from node.objects import volume
from node.release import Release, opened
from node.running_node import Node
from node.wiring import STATE

STOP_SECONDS = 60.0
CLONE_NEWNET = 0x40000000
TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node that lives for the session; it is a process of its own, which holds on to our pipe."""
    if missing := lacks():
        pytest.fail("a node cannot run here: " + "; ".join(missing))
    absent = [*lacking(), *(image.name for image in images() if not image.archive.is_file())]
    if absent:
        pytest.fail(f"a node needs {', '.join(absent)}: `make node` builds them")
    folder = tmp_path_factory.mktemp("node")
    command = [sys.executable, "-m", "node.keeper"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=TESTS, text=True, start_new_session=True
    ) as keeper:
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        try:
            line = keeper.stdout.readline()
            if not line:
                pytest.fail("the node did not start: stderr says why")
            started = json.loads(line)
            files = Path(f"/proc/{started['pid']}/root{STATE}")
            shutil.copy(files / "admin.kubeconfig", folder / "admin.kubeconfig")
            with _on_network_of(started["pid"]):
                yield Node(started["pid"], started["machines"], folder / "admin.kubeconfig", started["seconds"])
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


@pytest.fixture(scope="session")
def release(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """The chart, installed for the session."""
    with opened(node, tmp_path_factory.mktemp("release")) as installed:
        yield installed


@pytest.fixture
async def client(node: Node) -> AsyncGenerator[Client, None]:
    """A client with every right."""
    async with open_client(load_config(node.kubeconfig)) as opened:
        yield opened


@pytest.fixture
async def namespace(node: Node, client: Client) -> AsyncGenerator[str, None]:
    """A namespace of its own under Pod Security `restricted`, with a volume for weights; deleted afterwards."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    await client.create(Namespace(metadata=ObjectMeta(name=name, labels=labels)))
    (node.state / "volumes" / name).mkdir()
    cache = volume(name, f"{STATE}/volumes/{name}", claim="llmkube-model-cache", namespace=name)
    await node.apply("default", cache)
    yield name
    with trio.move_on_after(10.0):
        await client.delete(Namespace, Key("", name))
