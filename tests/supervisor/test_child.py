import os
import signal
import sys

import psutil
import pytest
import trio

from llmkube.supervisor.child import SpawnError, open_child
from llmkube.supervisor.lifecycle import Exit
from llmkube.supervisor.orphans import OWNER_VARIABLE, end_orphans
from llmkube.supervisor.ports import Command
from waiting import until

pytestmark = pytest.mark.e2e

STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('up', flush=True)
time.sleep(600)
"""

FAMILY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])
print(child.pid, flush=True)
time.sleep(600)
"""


def command(tmp_path, code, **env):
    return Command(
        (sys.executable, "-c", code), {"PATH": os.environ["PATH"], **env}, tmp_path / "work", tmp_path / "log"
    )


def opened(tmp_path, code, grace_seconds=5.0, **env):
    return open_child(command(tmp_path, code, **env), grace_seconds=grace_seconds, log_cap_bytes=1 << 20)


async def first_line(child):
    await until(lambda: child._command.log_path.stat().st_size > child._log_offset)
    return (await child.last_lines(1))[0]


def alive(pid):
    if not psutil.pid_exists(pid):
        return False
    return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


async def test_an_exit_is_an_event_with_its_code_and_its_last_words(tmp_path):
    """A process that ends by itself is noticed without a poll, and what it said last is kept."""
    with trio.fail_after(20):
        async with opened(tmp_path, "print('a'); print('b'); raise SystemExit(3)") as child:
            assert await child.wait() == Exit(3)
            assert await child.last_lines(5) == ("a", "b")


async def test_leaving_the_context_ends_a_child_that_ignores_term(tmp_path):
    """A child that ignores TERM is killed when its grace is over, and reaped."""
    with trio.fail_after(20):
        async with opened(tmp_path, STUBBORN, grace_seconds=0.2) as child:
            await first_line(child)
        assert await child.wait() == Exit(-signal.SIGKILL)


async def test_cancelling_the_body_still_ends_the_child(tmp_path):
    """A cancelled attempt leaves no process behind."""
    with trio.fail_after(20):
        with trio.CancelScope() as attempt:
            async with opened(tmp_path, "import time; print('up', flush=True); time.sleep(600)") as child:
                await first_line(child)
                attempt.cancel(reason="test")
                await trio.sleep_forever()
        assert not alive(child.pid)


async def test_grandchildren_go_too(tmp_path):
    """A helper that the engine started does not survive it."""
    with trio.fail_after(20):
        async with opened(tmp_path, FAMILY) as child:
            grandchild = int(await first_line(child))
            assert alive(grandchild)
        await until(lambda: not alive(grandchild))  # it is init's to reap


async def test_several_stubborn_children_share_one_grace(tmp_path):
    """Stops run side by side: while one child sits out its grace, the others do too."""
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            up = []

            async def run(number):
                async with opened(tmp_path / str(number), STUBBORN, grace_seconds=1.0) as child:
                    await first_line(child)
                    up.append(trio.current_time())
                    await trio.sleep_forever()

            for number in range(4):
                nursery.start_soon(run, number)
            await until(lambda: len(up) == 4)
            nursery.cancel_scope.cancel(reason="test")
            before = trio.current_time()
        assert trio.current_time() - before < 4.0  # the sum of the graces


async def test_a_missing_program_is_named(tmp_path):
    """A program that does not exist is an error that names it, and no process."""
    missing = Command(("/no/such/engine",), {}, tmp_path / "work", tmp_path / "log")
    with pytest.raises(SpawnError, match="/no/such/engine"):
        async with open_child(missing, grace_seconds=1, log_cap_bytes=1):
            raise AssertionError("it started")


async def test_only_our_own_orphans_are_ended(tmp_path):
    """A process that carries another agent's mark, or none, is never signalled."""
    sleeper = "import time; print('up', flush=True); time.sleep(600)"
    with trio.fail_after(30):
        async with (
            opened(tmp_path / "a", sleeper, **{OWNER_VARIABLE: str(tmp_path / "ours")}) as ours,
            opened(tmp_path / "b", sleeper, **{OWNER_VARIABLE: str(tmp_path / "theirs")}) as theirs,
        ):
            await first_line(ours)
            await first_line(theirs)
            ended = await trio.to_thread.run_sync(lambda: end_orphans(str(tmp_path / "ours"), grace_seconds=5))
            assert ended == 1
            await ours.wait()
            assert alive(theirs.pid)
