from contextlib import asynccontextmanager

import pytest
from click.testing import CliRunner

from cli.memory_cluster import open_cluster_client
from llmkube.cli import target_cluster
from llmkube.cli.commands.tools.files import demo_manifests
from llmkube.cli.main import cli
from llmkube.cli.target_cluster import Cluster
from llmkube.programs.server_side_apply import Applier


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run a command against a fresh cluster with the demo's objects; `prepare` may change it first.

    `after` is called with the client when the command has finished or failed. The state directory is empty, whatever
    runs on this machine; `up_dir` is that of a cluster that is this user's `llmkube up`.
    """
    monkeypatch.setenv("LLMKUBE_STATE_DIR", str(tmp_path / "no-state"))

    def run(*args, prepare=None, after=None, demo=True, up_dir=None, **kwargs):
        @asynccontextmanager
        async def open_cluster(where):
            async with open_cluster_client() as client:
                if demo:
                    await Applier(client).apply_all(demo_manifests(), lambda _: None)
                if prepare is not None:
                    await prepare(client)
                try:
                    yield Cluster(client, where.namespace or "default", up_dir=up_dir)
                finally:
                    if after is not None:
                        await after(client)  # noqa: ASYNC102 - a test's command is not cancelled

        monkeypatch.setattr(target_cluster, "open_cluster", open_cluster)
        return CliRunner().invoke(cli, args, **kwargs)

    return run
