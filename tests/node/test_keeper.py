"""A node leaves nothing behind: no process, mount, network device or cgroup, even when its parent is killed."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import trio

from node.keeper import PREFIX, hierarchies, sweep
from node.wiring import MACHINES
from waiting import until

pytestmark = pytest.mark.node

TESTS = Path(__file__).parents[1]
PATIENCE_SECONDS = 240
PARENT = """
import subprocess, sys
subprocess.Popen([sys.executable, "-m", "node.keeper"], stdin=subprocess.PIPE, start_new_session=True).wait()
"""


def groups_of(pid: int) -> list[Path]:
    return [group for hierarchy in hierarchies() if (group := hierarchy / f"{PREFIX}{pid}").exists()]


def ours() -> list[str]:
    """Return the mounts and network devices of a node that this machine itself has."""
    mounts = [line for line in Path("/proc/self/mounts").read_text().splitlines() if "llmkube-node" in line]
    return [
        *mounts,
        *(path.name for path in Path("/sys/class/net").iterdir() if path.name in {"lan", "cni0", *MACHINES}),
    ]


@pytest.mark.parametrize("killed", ["parent", "parent and keeper"])
async def test_nothing_is_left_of_a_node_whose_parent_is_killed(killed: str):
    """If the keeper is killed as well, empty cgroups are left until the next start."""
    parent = await trio.lowlevel.open_process([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, cwd=TESTS)
    with trio.fail_after(PATIENCE_SECONDS):
        assert parent.stdout is not None
        started = json.loads(await parent.stdout.receive_some())
        (keeper,) = psutil.Process(parent.pid).children()
        everything = [keeper, *keeper.children(recursive=True)]
        assert len(everything) > 10
        assert groups_of(keeper.pid)
        if killed == "parent and keeper":
            keeper.suspend()  # it sees nothing of its parent's end
        parent.send_signal(signal.SIGKILL)
        await parent.wait()
        if killed == "parent and keeper":
            keeper.kill()
        await until(lambda: not any(each.is_running() for each in everything))
        assert not psutil.pid_exists(started["pid"])
        if killed == "parent":
            await until(lambda: not groups_of(keeper.pid))
    assert ours() == []
    for group in groups_of(keeper.pid):
        assert not (group / "cgroup.procs").read_text()
    sweep()  # as the next start does
    assert not groups_of(keeper.pid)
