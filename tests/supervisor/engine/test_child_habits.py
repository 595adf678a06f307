"""Standard streams of engines and the remains of an exited one: neither blocks the agent."""

import os
import sys

import psutil
import pytest
import trio

from cookies import new_cookie
from llmkube.supervisor.engine.child import Termination, open_child
from llmkube.supervisor.host.processes import COOKIE_VARIABLE
from llmkube.supervisor.values.lifecycle import Exit
from llmkube.supervisor.values.ports import Command, Grace, Shutdown

pytestmark = pytest.mark.e2e

MEBIBYTES = 64


def opened(tmp_path, code):
    cookie = new_cookie()
    environment = {"PATH": os.environ["PATH"], COOKIE_VARIABLE: cookie}
    command = Command((sys.executable, "-c", code), environment, tmp_path / "work", tmp_path / "log")
    return open_child(command, Termination(cookie, Grace(5.0, 5.0), Shutdown()), log_cap_bytes=1 << 30)


async def test_a_child_that_reads_its_input_finds_none(tmp_path):
    """Standard input is at its end at once, so no engine waits there for a person."""
    with trio.fail_after(60):
        async with opened(tmp_path, "import sys; print('read', len(sys.stdin.read()))") as child:
            assert await child.wait() == Exit(0)
            assert await child.last_lines(1) == ("read 0",)


async def test_unread_output_stalls_no_child(tmp_path):
    """A child that writes far more than a pipe holds finishes although its output is not read."""
    code = f"import sys\nfor _ in range({MEBIBYTES}): sys.stdout.write('x' * (1 << 20))\nprint('done')"
    with trio.fail_after(60):
        async with opened(tmp_path, code) as child:
            assert await child.wait() == Exit(0)
    assert (tmp_path / "log").stat().st_size > MEBIBYTES << 20


@pytest.mark.ci
async def test_a_child_outlives_the_thread_that_has_started_it(tmp_path):
    """A child is bound to no worker thread: those end after ten idle seconds, and would end it too."""
    with trio.fail_after(60):
        async with opened(tmp_path, "import time; time.sleep(600)") as child:
            await trio.sleep(12)
            assert psutil.Process(child.pid).is_running()


async def test_a_child_that_has_ended_leaves_no_zombie(tmp_path):
    """Once its exit is known, no process of its pid is left, not even a zombie."""
    with trio.fail_after(60):
        async with opened(tmp_path, "pass") as child:
            await child.wait()
            assert not psutil.pid_exists(child.pid)
