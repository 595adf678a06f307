"""`llmkube agent cordon` with real programs: the engine has exited when it returns, until `uncordon`."""

import os
import subprocess
import sys

import pytest
import trio

from e2e.addresses import own_address
from e2e.separate_programs import open_cluster
from e2e.up_process import engines_in

pytestmark = pytest.mark.e2e


async def run_agent(folder, *words):
    """Run a command for the agent of this folder; return its output."""
    command = [sys.executable, "-m", "llmkube", "agent", *words, "--state-dir", str(folder)]
    done = await trio.run_process(command, env=dict(os.environ), capture_stdout=True, stderr=subprocess.STDOUT)
    return done.stdout.decode()


@pytest.mark.ci
async def test_a_cordoned_host_runs_no_engine_until_uncordon(tmp_path):
    """No engine runs when `cordon` returns, `status` shows until when, and `uncordon` starts the service again."""
    async with open_cluster(tmp_path) as cluster, cluster.open_agent(own_address()):
        state = tmp_path / "agent"
        await cluster.apply_demo()
        await cluster.wait_ready()
        assert len(engines_in(state)) == 1
        assert "serves nothing until " in await run_agent(state, "cordon", "--for", "2h")
        assert engines_in(state) == []
        assert "cordon      serves nothing until " in await run_agent(state, "status")
        await run_agent(state, "uncordon")
        await cluster.wait_ready()
        assert len(engines_in(state)) == 1
