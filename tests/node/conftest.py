"""One real node for the whole test run, on whose network the tests run; a namespace of its own for each test.

Side by side (`--numprocesses`) the workers share the node: it is the first process's, which they are the children of.
"""

import fcntl
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from xdist.scheduler import LoadScopeScheduling

from llmkube.k8s.auth.kubeconfig import load_config
from llmkube.k8s.builtins import Namespace
from llmkube.k8s.client import Client, open_client
from llmkube.k8s.resource import Key
from node.objects import make_namespace
from node.release import Release, opened
from node.running_node import Node
from node.session import NodeError, opened_node

_SHARED = pytest.StashKey[tuple[Node, Release, ExitStack]]()
_FIRST = ("test_machines", "test_rollout", "test_logs", "test_downloads")
"""Files whose tests take longest."""

_TOGETHER = "test_machines"
"""The file whose tests share the Macs: one worker plays them, one after the other."""


class _ByTest(LoadScopeScheduling):  # type: ignore[misc]
    """Hand tests out one by one, in their order, but for those of one file."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return file if Path(file).stem == _TOGETHER else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Not by `xdist_group`: pytest-xdist 3.8 writes it where pytest 9.2 does not read it."""
    return _ByTest(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest tests first, and last, one after the other, those that must run alone."""

    def order(item: pytest.Item) -> tuple[bool, int]:
        name = item.path.stem
        return item.get_closest_marker("alone") is not None, _FIRST.index(name) if name in _FIRST else len(_FIRST)

    if all(item.get_closest_marker("node") for item in items):  # else it is the whole suite, which has its own order
        items.sort(key=order)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Start the node that workers share; they are started next, and on its network, because this thread is."""
    config = session.config
    if hasattr(config, "workerinput") or not config.getoption("numprocesses") or config.option.collectonly:
        return
    with ExitStack() as opening:
        factory = config._tmp_path_factory  # type: ignore[attr-defined]
        try:
            node = opening.enter_context(opened_node(factory.mktemp("node")))
        except NodeError as error:
            pytest.exit(str(error), returncode=1)
        release = opening.enter_context(opened(node, factory.mktemp("release")))
        config.stash[_SHARED] = node, release, opening.pop_all()


def pytest_configure_node(node: Any) -> None:
    """Tell a worker what it shares."""
    shared, release, _ = node.config.stash[_SHARED]
    attributes = attrs.asdict(shared) | {"kubeconfig": str(shared.kubeconfig)}
    node.workerinput["shared_node"] = {"node": attributes, "home": str(release.home)}


@pytest.hookimpl(trylast=True)  # the workers have ended
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Stop the node that workers have shared."""
    if _SHARED in session.config.stash:
        session.config.stash[_SHARED][2].close()


def _shared(config: pytest.Config) -> Any:
    return getattr(config, "workerinput", {}).get("shared_node")


@pytest.fixture(scope="session")
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node that lives for the session."""
    if shared := _shared(request.config):
        yield Node(**{**shared["node"], "kubeconfig": Path(shared["node"]["kubeconfig"])})
        return
    try:
        with opened_node(tmp_path_factory.mktemp("node")) as started:
            yield started
    except NodeError as error:
        pytest.fail(str(error))


@pytest.fixture(scope="session")
def release(request: pytest.FixtureRequest, node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """The chart, installed for the session."""
    if shared := _shared(request.config):
        yield Release(node, Path(shared["home"]))
        return
    with opened(node, tmp_path_factory.mktemp("release")) as installed:
        yield installed


@pytest.fixture(autouse=True)
def turn(request: pytest.FixtureRequest) -> Iterator[None]:
    """Beside the tests of other workers, or, where a test is marked so, when there are none."""
    shared = _shared(request.config)
    if not shared:
        yield
        return
    with (Path(shared["home"]) / "turns").open("w") as turns:
        fcntl.flock(turns, fcntl.LOCK_EX if request.node.get_closest_marker("alone") else fcntl.LOCK_SH)
        yield


@pytest.fixture
async def client(node: Node) -> AsyncGenerator[Client, None]:
    """A client with every right."""
    async with open_client(load_config(node.kubeconfig)) as opened:
        yield opened


@pytest.fixture
async def namespace(node: Node, client: Client) -> AsyncGenerator[str, None]:
    """A namespace of its own under Pod Security `restricted`, with a volume for weights; deleted afterwards."""
    name = await make_namespace(node)
    yield name
    with trio.move_on_after(10.0):
        await client.delete(Namespace, Key("", name))
