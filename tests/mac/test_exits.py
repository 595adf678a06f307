"""The end of a process on a Mac: hidden from kqueue while its memory is freed, then reported, then reaped."""

import contextlib
import os
import signal
import subprocess
import sys
import threading

import pytest
import trio

from llmkube.supervisor.host import processes
from llmkube.supervisor.host.exit_events import (
    NOTE_EXIT,
    NOTE_EXIT_CSERROR,
    NOTE_EXIT_DETAIL,
    NOTE_EXIT_MEMORY,
    NOTE_EXITSTATUS,
    UNKNOWN_EXIT,
    ExitEvent,
    decode_exit,
    wait_exit,
)
from mac.macs import StandInKqueue
from waiting import until

pytestmark = pytest.mark.e2e

SLEEPS = (sys.executable, "-c", "import time; time.sleep(600)")
TICKS = 5


@pytest.fixture(autouse=True)
def on_a_mac(monkeypatch):
    monkeypatch.setattr(processes, "sys", type("Mac", (), {"platform": "darwin"}))


@pytest.mark.parametrize(
    ("flags", "data", "ended"),
    [
        (NOTE_EXIT, 0, UNKNOWN_EXIT),
        (NOTE_EXIT | NOTE_EXITSTATUS, 3 << 8, ExitEvent(3)),
        (NOTE_EXIT | NOTE_EXITSTATUS, signal.SIGKILL, ExitEvent(-signal.SIGKILL)),
        (NOTE_EXIT | NOTE_EXITSTATUS | NOTE_EXIT_DETAIL | NOTE_EXIT_MEMORY, 9, ExitEvent(-9, for_memory=True)),
        (NOTE_EXIT | NOTE_EXITSTATUS | NOTE_EXIT_DETAIL | NOTE_EXIT_CSERROR, 9, ExitEvent(-9, for_signature=True)),
        (NOTE_EXIT | NOTE_EXIT_MEMORY, 0, UNKNOWN_EXIT),  # this bit has a meaning only with NOTE_EXIT_DETAIL
    ],
)
def test_the_content_of_an_event(flags, data, ended):
    """Status, jetsam and code signing are distinguished; an event without them has an unknown exit code."""
    assert decode_exit(flags, data) == ended


async def loop_turns_while(wait):
    """Return the code of a child whose exit takes long, and the number of event loop turns meanwhile.

    The child is hidden from kqueue, and exits only when the loop has turned. A blocked loop is woken by a thread after
    some seconds, without a turn.
    """
    process, kqueue, turns = await trio.lowlevel.open_process(SLEEPS), StandInKqueue(), 0
    kqueue.hidden.add(process.pid)
    rescue = threading.Timer(5, os.kill, (process.pid, signal.SIGKILL))
    rescue.start()
    try:
        async with trio.open_nursery() as nursery:

            async def turn():
                nonlocal turns
                for _ in range(TICKS):
                    await trio.sleep(0.01)
                    turns += 1
                process.kill()

            nursery.start_soon(turn)
            code, turned = await wait(process, kqueue), turns
        return code, turned
    finally:
        rescue.cancel()


async def test_the_loop_is_never_blocked_while_a_process_exits():
    """A child whose exit has begun, which kqueue denies and a blocking waitpid waits for, does not block the loop."""
    (code, _), turns = await loop_turns_while(processes.wait_child)
    assert (code, turns) == (-signal.SIGKILL, TICKS)


@pytest.mark.soak
async def test_mutant_a_blocking_wait_in_the_loop():
    """Trio 0.31 to 0.35 block the loop after ESRCH until the process is gone."""

    async def wait(process, kqueue):
        with contextlib.suppress(ProcessLookupError):
            await kqueue.wait(process.pid, NOTE_EXIT)
        process._proc.wait()
        return process.poll(), None

    (code, _), turns = await loop_turns_while(wait)
    assert (code, turns) == (-signal.SIGKILL, 0)


async def test_an_exit_is_an_event_while_the_process_runs(kqueue):
    """The exit of a running child is an event, with the exit code and the reason."""
    process = await trio.lowlevel.open_process(SLEEPS)
    kqueue.details[process.pid] = NOTE_EXIT_MEMORY
    process.kill()
    assert await processes.wait_child(process, kqueue) in {
        (-signal.SIGKILL, ExitEvent(-signal.SIGKILL, for_memory=True)),
        (-signal.SIGKILL, UNKNOWN_EXIT),  # it had exited before the event was requested
    }
    assert await processes.wait_child(process, kqueue) == (-signal.SIGKILL, UNKNOWN_EXIT)


async def adopted_end(wait_first, kqueue=None):
    """Return the reported exit of a process that the agent did not start, and its exit code from its parent."""
    kqueue = kqueue or StandInKqueue()
    process = subprocess.Popen(SLEEPS, start_new_session=True)  # noqa: ASYNC220 - a process unknown to Trio
    reported = []
    try:
        async with trio.open_nursery() as nursery, processes.open_exit_watch(process.pid, kqueue) as wait:

            async def watch():
                reported.append(await wait())

            wait_first(process, kqueue)
            nursery.start_soon(watch)
            await trio.sleep(0.2)
            before = list(reported)
            kqueue.hidden.discard(process.pid)
            process.kill()
            if before == []:
                await until(lambda: reported or os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG))
                await trio.sleep(0.3)
            process.wait()
            with trio.fail_after(60):
                await until(lambda: reported)
        return before, reported[0]
    finally:
        process.kill()
        process.wait()


def nothing(process, kqueue):
    pass


def hide(process, kqueue):
    kqueue.hidden.add(process.pid)


async def test_the_exit_code_of_an_adopted_engine_is_reported():
    """Kqueue reports the exit status to a program that may signal the process."""
    assert await adopted_end(nothing) == ([], ExitEvent(-signal.SIGKILL))


async def test_an_exit_without_a_status_is_still_an_event():
    """A kernel that refuses the details still reports the exit."""
    assert await adopted_end(nothing, StandInKqueue(refuses=NOTE_EXITSTATUS)) == ([], UNKNOWN_EXIT)


async def test_an_adopted_engine_that_the_kernel_hides_has_not_ended():
    """After ESRCH the process is polled until it is gone: no second engine starts while its memory is not free."""
    assert await adopted_end(hide) == ([], UNKNOWN_EXIT)


@pytest.mark.soak
async def test_mutant_esrch_taken_for_the_end(monkeypatch):
    """An agent that takes ESRCH for an exit reports an engine as exited that still holds its memory."""

    async def believes(events, pid, has_ended):
        return await wait_exit(events, pid, lambda: True)

    monkeypatch.setattr(processes, "wait_exit", believes)
    before, _ = await adopted_end(hide)
    assert before == [UNKNOWN_EXIT]


async def test_a_wait_that_is_cancelled_can_be_repeated(kqueue):
    """When an engine is stopped, the watch of its process is cancelled and its exit is awaited again."""
    process = await trio.lowlevel.open_process(SLEEPS)
    with trio.move_on_after(0.1):
        await processes.wait_child(process, kqueue)
    process.kill()
    with trio.fail_after(60):
        assert (await processes.wait_child(process, kqueue))[0] == -signal.SIGKILL
