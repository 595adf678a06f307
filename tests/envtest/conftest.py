"""A real cluster for the tests of this folder: one for the whole session, a namespace of its own for each test."""

import json
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import httpx  # noqa: ASYNC127 (the project's settled choice)
import pytest
import trio

from envtest.build import ESSENTIAL, assets_dir
from go_programs import missing
from llmkube.k8s.auth.kubeconfig import load_config
from llmkube.k8s.auth.transport import AuthTransport
from llmkube.k8s.builtins import Namespace
from llmkube.k8s.client import Client, open_client
from llmkube.k8s.crd.meta import ObjectMeta
from llmkube.k8s.resource import Key

STOP_SECONDS = 60.0


@pytest.fixture(scope="session")
def assets() -> Path:
    """The folder that holds etcd, kube-apiserver and perhaps more."""
    folder = assets_dir()
    lacking = missing(folder, ESSENTIAL)
    if lacking:
        pytest.skip(
            f"needs {' and '.join(lacking)} in {folder}: run `make envtest`, or name a folder in KUBEBUILDER_ASSETS"
        )
    return folder


@pytest.fixture(scope="session")
def real_kubeconfig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The administrator of a real cluster: the one of LLMKUBE_TEST_KUBECONFIG, or one that lives for the session.

    Async fixtures last for one test, so the control plane of a session is a process of its own. It holds on to our
    pipe: when the test run is killed, it ends by itself.
    """
    if os.environ.get("LLMKUBE_TEST_KUBECONFIG"):
        yield Path(os.environ["LLMKUBE_TEST_KUBECONFIG"])
        return
    folder = request.getfixturevalue("assets")
    work_dir = tmp_path_factory.mktemp("control-plane")
    command = [sys.executable, "-m", "envtest", "--work-dir", str(work_dir)]
    if missing(folder, ("kube-controller-manager",)):
        command.append("--no-controllers")
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1], text=True
    ) as plane:
        assert plane.stdin is not None
        assert plane.stdout is not None
        try:
            ready = plane.stdout.readline()
            if not ready:
                pytest.fail(f"the control plane did not start; its logs are in {work_dir}")
            yield Path(json.loads(ready)["kubeconfig"])
        finally:
            plane.stdin.close()
            plane.wait(STOP_SECONDS)


@pytest.fixture
async def client(real_kubeconfig: Path) -> AsyncGenerator[Client, None]:
    """A client with every right."""
    async with open_client(load_config(real_kubeconfig)) as opened:
        yield opened


@pytest.fixture
async def http(real_kubeconfig: Path) -> AsyncGenerator[httpx.AsyncClient, None]:
    """The same rights without the typed client: for contracts that look at the wire."""
    config = load_config(real_kubeconfig)
    transport = AuthTransport(config)
    async with httpx.AsyncClient(transport=transport, base_url=config.server, timeout=None, trust_env=False) as opened:
        yield opened


@pytest.fixture
async def namespace(client: Client) -> AsyncGenerator[str, None]:
    """A namespace of its own, deleted afterwards without waiting; no two tests share a name."""
    name = f"llmkube-test-{uuid.uuid4().hex[:8]}"
    await client.create(Namespace(metadata=ObjectMeta(name=name)))
    yield name
    with trio.move_on_after(10.0):
        await client.delete(Namespace, Key("", name))
