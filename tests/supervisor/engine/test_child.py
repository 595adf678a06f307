import os
import signal
import sys
import threading
from contextlib import ExitStack

import attrs
import psutil
import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from cookies import new_cookie
from lacking import no_descriptors
from llmkube.supervisor.engine import child as owned
from llmkube.supervisor.engine.child import AdoptError, SpawnError, Termination, adopt_child, open_child
from llmkube.supervisor.engine.process_stats import CookieScan, Sampler
from llmkube.supervisor.host import processes
from llmkube.supervisor.host.processes import COOKIE_VARIABLE, OWNER_VARIABLE
from llmkube.supervisor.values.journal import EngineRecord
from llmkube.supervisor.values.lifecycle import Exit
from llmkube.supervisor.values.ports import Command, Grace, Shutdown
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


def opened(tmp_path, code, grace_seconds=5.0, shutdown=None, **env):
    cookie = new_cookie()
    ending = Termination(cookie, Grace(grace_seconds, grace_seconds), shutdown or Shutdown())
    return open_child(command(tmp_path, code, **env, **{COOKIE_VARIABLE: cookie}), ending, log_cap_bytes=1 << 20)


async def first_line(child):
    await until(lambda: child._log_path.stat().st_size > child.log_offset)
    return (await child.last_lines(1))[0]


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_an_exit_is_an_event_with_its_code_and_its_last_lines(tmp_path):
    """A process that ends by itself is noticed without a poll, and its last output is kept."""
    with trio.fail_after(60):
        async with opened(tmp_path, "print('a'); print('b'); raise SystemExit(3)") as child:
            assert await child.wait() == Exit(3)
            assert await child.last_lines(5) == ("a", "b")
        async with opened(tmp_path, "print('c')") as child:  # output of another process in the same file is not its own
            await child.wait()
            assert await child.last_lines(5) == ("c",)


async def test_a_log_beyond_its_cap_is_rotated(tmp_path):
    """Output beyond the cap is moved aside when the log is checked, and a small log is kept."""
    with trio.fail_after(60):
        async with opened(tmp_path, "print('x' * (1 << 21), flush=True); import time; time.sleep(600)") as child:
            log = tmp_path / "log"
            await until(lambda: log.stat().st_size > 1 << 21)  # complete: it writes no more
            await child.read_stats("127.0.0.1", 1, loading=True)
            await until(lambda: log.stat().st_size == 0)
            assert (tmp_path / "log.1").stat().st_size > 1 << 20


async def test_leaving_the_context_ends_a_child_that_ignores_term(tmp_path):
    """A child that ignores TERM is killed when its grace period is over, and reaped."""
    with trio.fail_after(60):
        async with opened(tmp_path, STUBBORN, grace_seconds=0.2) as child:
            await first_line(child)
        assert await child.wait() == Exit(-signal.SIGKILL)


async def test_cancelling_the_body_still_ends_the_child(tmp_path):
    with trio.fail_after(60):
        with trio.CancelScope() as attempt:
            async with opened(tmp_path, "import time; print('up', flush=True); time.sleep(600)") as child:
                await first_line(child)
                attempt.cancel(reason="test")
                await trio.sleep_forever()
        assert not alive(child.pid)


async def test_helpers_end_with_their_engine(tmp_path):
    with trio.fail_after(60):
        async with opened(tmp_path, FAMILY) as child:
            grandchild = int(await first_line(child))
            assert alive(grandchild)
        await until(lambda: not alive(grandchild))  # it is init's to reap


@pytest.mark.ci
async def test_several_stubborn_children_share_one_grace(tmp_path, monkeypatch):
    """Stops run concurrently: while one child uses its grace period, the others do too."""
    sent, real = [], processes.send_group

    def send(pid, started, number):
        sent.append(number)
        real(pid, started, number)

    monkeypatch.setattr(processes, "send_group", send)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            up = []

            async def run(number):
                async with opened(tmp_path / str(number), STUBBORN, grace_seconds=2.0) as child:
                    await first_line(child)
                    up.append(number)
                    await trio.sleep_forever()

            for number in range(4):
                nursery.start_soon(run, number)
            await until(lambda: len(up) == 4)
            nursery.cancel_scope.cancel(reason="test")
    terminated, killed = (
        [at for at, number in enumerate(sent) if number == each] for each in (signal.SIGTERM, signal.SIGKILL)
    )
    assert (len(terminated), len(killed)) == (4, 4)
    assert max(terminated) < min(killed)


async def test_a_missing_program_is_named(tmp_path):
    """A program that does not exist is an error that names it, and starts no process."""
    missing = Command(("/no/such/engine",), {}, tmp_path / "work", tmp_path / "log")
    with pytest.raises(SpawnError, match="/no/such/engine"):
        async with open_child(missing, Termination(new_cookie(), Grace(1, 1), Shutdown()), log_cap_bytes=1):
            raise AssertionError("it started")


async def test_a_log_that_cannot_be_opened_is_named(tmp_path):
    """If the log cannot be opened no process is started, and the error names the file."""
    (tmp_path / "log").mkdir()
    with pytest.raises(SpawnError, match=r"cannot write .*/log, which the engine needs: Is a directory"):
        async with opened(tmp_path, "pass"):
            raise AssertionError("it started")


async def test_without_descriptors_helpers_still_end_with_the_engine(tmp_path):
    """A helper that could not be found while no descriptor was free is ended as soon as one is."""
    code = DOUBLE_FORK.format(ignore="signal.signal(signal.SIGTERM, signal.SIG_DFL)")
    with trio.fail_after(60), ExitStack() as lack:
        async with trio.open_nursery() as nursery, opened(tmp_path, code) as child:
            helper = int(await first_line(child))

            async def recover():
                await child.wait()
                await trio.sleep(0.3)
                assert not processes.is_gone(helper)
                lack.close()

            nursery.start_soon(recover)
            await trio.testing.wait_all_tasks_blocked()
            lack.enter_context(no_descriptors())
        assert not alive(helper)


async def test_a_stop_does_not_wait_for_a_scan_or_a_record_that_hangs(tmp_path, monkeypatch):
    """On a dead disk neither the search for helpers nor the record of stuck ones exceeds its deadline."""
    over, done = threading.Event(), []

    def hang(*_):
        done.append(over.wait(600))

    monkeypatch.setattr(owned, "KILL_SECONDS", 0.2)
    monkeypatch.setattr(owned, "RECORD_SECONDS", 0.2)
    ending, sampler = Termination(new_cookie(), Grace(0.2, 0.2), Shutdown(), hang), Sampler(cookies=CookieScan(hang))
    code = "import time; print('up', flush=True); time.sleep(600)"
    with trio.fail_after(60):
        async with open_child(command(tmp_path, code), ending, log_cap_bytes=1 << 20, sampler=sampler) as child:
            await first_line(child)
        assert done == []  # both hang on
        over.set()
        assert await child.wait() == Exit(-signal.SIGTERM)


async def test_only_our_own_orphans_are_ended(tmp_path):
    """A process with another agent's cookie, or none, is never signalled."""
    sleeper = "import time; print('up', flush=True); time.sleep(600)"
    with trio.fail_after(60):
        async with (
            opened(tmp_path / "a", sleeper, **{OWNER_VARIABLE: str(tmp_path / "ours")}) as ours,
            opened(tmp_path / "b", sleeper, **{OWNER_VARIABLE: str(tmp_path / "theirs")}) as theirs,
        ):
            await first_line(ours)
            await first_line(theirs)
            orphans = await trio.to_thread.run_sync(processes.find_marked, OWNER_VARIABLE, str(tmp_path / "ours"))
            assert [orphan.pid for orphan in orphans] == [ours.pid]
            await trio.to_thread.run_sync(lambda: processes.end_all(orphans, grace_seconds=5))
            await ours.wait()
            assert alive(theirs.pid)


DOUBLE_FORK = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        {ignore}
        print(os.getpid(), flush=True)
        time.sleep(600)
    os._exit(0)
time.sleep(600)
"""


@pytest.mark.parametrize(
    "ignore", ["signal.signal(signal.SIGTERM, signal.SIG_IGN)", "signal.signal(signal.SIGTERM, signal.SIG_DFL)"]
)
async def test_a_helper_that_has_left_the_session_does_not_survive(tmp_path, ignore):
    """A double-forked process in a session of its own ends with the engine, even if it ignores TERM."""
    with trio.fail_after(60):
        async with opened(tmp_path, DOUBLE_FORK.format(ignore=ignore), grace_seconds=0.5) as child:
            helper = int(await first_line(child))
            assert os.getsid(helper) != child.pid
        assert not alive(helper)


async def test_a_stopped_child_receives_term(tmp_path):
    """A child that is stopped by SIGSTOP ends within its grace period, by TERM and not by KILL."""
    with trio.fail_after(60):
        async with opened(tmp_path, "import time; print('up', flush=True); time.sleep(600)") as child:
            await first_line(child)
            os.kill(child.pid, signal.SIGSTOP)
        assert await child.wait() == Exit(-signal.SIGTERM)


EARLIER_AGENT = """
import os, subprocess, sys
log = open(sys.argv[1], "w")
print(subprocess.Popen([sys.executable, "-c", sys.argv[2]], stdout=log, start_new_session=True).pid, flush=True)
os._exit(0)
"""


async def left_behind(tmp_path, code):
    """A process whose agent has exited, as recorded in the journal."""
    cookie, log_path = new_cookie(), tmp_path / "log"
    agent = await trio.run_process(
        [sys.executable, "-c", EARLIER_AGENT, log_path, code],
        env={**os.environ, COOKIE_VARIABLE: cookie},
        capture_stdout=True,
    )
    pid = int(agent.stdout)
    await until(log_path.read_text)
    return EngineRecord(cookie, "127.0.0.1", 1, 0, pid, processes.start_of(pid))


def adopted(tmp_path, record, grace_seconds=5.0, shutdown=None):
    return adopt_child(
        record,
        tmp_path / "log",
        Termination(record.cookie, Grace(grace_seconds, grace_seconds), shutdown or Shutdown()),
        log_cap_bytes=1 << 20,
    )


@pytest.mark.usefixtures("left_process")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_handover_leaves_the_child_running(tmp_path):
    shutdown = Shutdown()
    with trio.fail_after(60):
        async with opened(
            tmp_path, "import time; print('up', flush=True); time.sleep(600)", shutdown=shutdown
        ) as child:
            await first_line(child)
            shutdown.keep = True
        try:
            assert alive(child.pid)
        finally:
            os.kill(child.pid, signal.SIGKILL)
        await child.wait()


async def test_an_adopted_child_is_ended_by_its_new_owner(tmp_path):
    """The adopting agent reads the child's log, and ends the child on exit."""
    with trio.fail_after(60):
        record = await left_behind(tmp_path, "import time; print('up', flush=True); time.sleep(600)")
        assert alive(record.pid)
        async with adopted(tmp_path, record) as child:
            assert alive(child.pid)
            assert await child.last_lines(1) == ("up",)
        assert not alive(record.pid)


async def test_a_log_is_found_under_its_old_name_and_its_new_one(tmp_path):
    """An engine whose agent was killed before or after it renamed the log has its own lines under the new name."""
    beside = tmp_path / "log.next"
    with trio.fail_after(60):
        record = await left_behind(tmp_path, "import time; print('up', flush=True); time.sleep(600)")
        (tmp_path / "log").rename(beside)
        async with adopt_child(
            record, beside, Termination(record.cookie, Grace(5, 5), Shutdown()), log_cap_bytes=1 << 20
        ) as child:
            for _ in range(2):  # the second time the file has its new name already
                child._log_path = beside
                await child.rename_log(tmp_path / "log")
                assert await child.last_lines(1) == ("up",)


async def test_the_exit_of_an_adopted_process_is_an_event(tmp_path):
    """The exit of a process that another agent started is noticed at once, with an unknown code."""
    with trio.fail_after(60):
        record = await left_behind(tmp_path, "import time; print('up', flush=True); time.sleep(600)")
        async with adopted(tmp_path, record) as child, trio.open_nursery() as nursery:
            nursery.start_soon(child.wait)
            await trio.testing.wait_all_tasks_blocked()
            os.kill(record.pid, signal.SIGKILL)
            assert await child.wait() == Exit(None)


@pytest.mark.parametrize("left", [0, 1])  # enough to watch it, but not to identify it
async def test_a_process_that_cannot_be_inspected_is_waited_for(tmp_path, monkeypatch, left):
    """Without descriptors a running engine is neither given up nor adopted, and logged once; an exit is known."""
    monkeypatch.setattr(owned, "RETRY_SECONDS", 0.01)
    with trio.fail_after(60):
        record = await left_behind(tmp_path, "import time; print('up', flush=True); time.sleep(600)")
        with no_descriptors(but=left):

            async def adopt():
                async with adopted(tmp_path, record, shutdown=Shutdown(keep=True)):
                    raise AssertionError("it was taken over without a look")

            with capture_logs() as logs:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(adopt)
                    await until(lambda: left or logs)
                    await trio.sleep(0.2)
                    nursery.cancel_scope.cancel()
            assert len(logs) == 1 - left
            assert not processes.is_gone(record.pid)
            gone = attrs.evolve(record, pid=2**22 + 1)
            with pytest.raises(AdoptError, match="has exited"):
                async with adopted(tmp_path, gone):
                    pass
        async with adopted(tmp_path, record) as child:
            assert child.pid == record.pid
        assert not alive(record.pid)


async def test_a_process_of_the_same_pid_is_not_adopted(tmp_path):
    """A record whose start time is not the process's own is refused, and the process is not signalled."""
    with trio.fail_after(60):
        async with opened(tmp_path, "import time; print('up', flush=True); time.sleep(600)") as other:
            await first_line(other)
            record = EngineRecord(new_cookie(), "127.0.0.1", 1, 0, other.pid, f"{other.started}0")
            with pytest.raises(AdoptError, match=str(other.pid)):
                async with adopted(tmp_path, record):
                    raise AssertionError("adopted")
            assert alive(other.pid)


async def test_only_the_process_tree_that_listens_has_the_port(tmp_path):
    """A port belongs to a child only if the child or one of its descendants listens on it."""
    listen = "import socket, time; s = socket.create_server(('127.0.0.1', 0)); "
    code = listen + "print(s.getsockname()[1], flush=True); time.sleep(600)"
    with trio.fail_after(60):
        async with opened(tmp_path / "a", code) as one, opened(tmp_path / "b", code) as other:
            port = int(await first_line(one))
            await first_line(other)
            assert await one.listens(port)
            assert not await other.listens(port)


@pytest.mark.ci
async def test_a_process_that_could_not_be_inspected_is_ended_anyway(tmp_path, monkeypatch):
    """An engine whose service is deleted before there is a descriptor to watch it with is ended."""
    monkeypatch.setattr(owned, "KILL_SECONDS", 2.0)
    with trio.fail_after(60):
        record = await left_behind(tmp_path, "import time; print('up', flush=True); time.sleep(600)")
        with no_descriptors():
            with trio.move_on_after(0.3):
                async with adopted(tmp_path, record, grace_seconds=1.5):
                    pass
            assert processes.is_gone(record.pid)
