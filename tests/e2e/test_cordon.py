"""`llmkube agent cordon` with real programs: the process of the engine is gone when it returns, and comes back."""

import os
import subprocess
import sys

import pytest
import trio

from e2e.addresses import own_address
from e2e.separate_programs import open_cluster
from e2e.up_process import engines_in

pytestmark = pytest.mark.e2e


async def types(folder, *words):
    """Type a command for the agent of this folder."""
    command = [sys.executable, "-m", "llmkube", "agent", *words, "--state-dir", str(folder)]
    done = await trio.run_process(command, env=dict(os.environ), capture_stdout=True, stderr=subprocess.STDOUT)
    return done.stdout.decode()


@pytest.mark.ci
async def test_a_host_is_given_back_and_returns(tmp_path):
    """When `cordon` returns no engine runs, `status` says until when, and `uncordon` has the service served again."""
    async with open_cluster(tmp_path) as cluster, cluster.open_agent(own_address()):
        state = tmp_path / "agent"
        await cluster.apply_demo()
        await cluster.wait_ready()
        assert len(engines_in(state)) == 1
        assert "serves nothing until " in await types(state, "cordon", "--for", "2h")
        assert engines_in(state) == []
        assert "cordon      serves nothing until " in await types(state, "status")
        await types(state, "uncordon")
        await cluster.wait_ready()
        assert len(engines_in(state)) == 1
