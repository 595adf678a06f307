"""The end of a process on a Mac: hidden from kqueue while its memory is freed, then told of, then reaped."""

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
        (NOTE_EXIT | NOTE_EXIT_MEMORY, 0, UNKNOWN_EXIT),  # a bit that means something only beside NOTE_EXIT_DETAIL
    ],
)
def test_what_an_event_says(flags, data, ended):
    """Status, jetsam and code signing are told apart, and nothing is read into an event without them."""
    assert decode_exit(flags, data) == ended


async def loop_turns_while(wait):
    """Return the code of a child whose exit takes long, and how often the event loop turned meanwhile.

    The child is hidden from kqueue, and ends only when the loop has turned. A loop that stands still is woken by a
    thread after some seconds, having turned not once.
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


async def test_the_loop_never_stands_still_while_a_process_ends():
    """A child whose exit has begun, which kqueue denies and a blocking waitpid waits for, costs the loop no turn."""
    (code, _), turns = await loop_turns_while(processes.wait_child)
    assert (code, turns) == (-signal.SIGKILL, TICKS)


@pytest.mark.soak
async def test_mutant_a_blocking_wait_in_the_loop():
    """What Trio 0.31 to 0.35 do after ESRCH stops the loop until the process is gone."""

    async def wait(process, kqueue):
        with contextlib.suppress(ProcessLookupError):
            await kqueue.wait(process.pid, NOTE_EXIT)
        process._proc.wait()
        return process.poll(), None

    (code, _), turns = await loop_turns_while(wait)
    assert (code, turns) == (-signal.SIGKILL, 0)


async def test_an_exit_is_an_event_while_the_process_runs(kqueue):
    """A child that is alive is waited for by an event, and its code and the reason of its end are told."""
    process = await trio.lowlevel.open_process(SLEEPS)
    kqueue.details[process.pid] = NOTE_EXIT_MEMORY
    process.kill()
    assert await processes.wait_child(process, kqueue) in {
        (-signal.SIGKILL, ExitEvent(-signal.SIGKILL, for_memory=True)),
        (-signal.SIGKILL, UNKNOWN_EXIT),  # it had ended before it could be asked for
    }
    assert await processes.wait_child(process, kqueue) == (-signal.SIGKILL, UNKNOWN_EXIT)


async def adopted_end(wait_first, kqueue=None):
    """Return what is told of the end of a process that the agent did not start, and its exit code by its parent."""
    kqueue = kqueue or StandInKqueue()
    process = subprocess.Popen(SLEEPS, start_new_session=True)  # noqa: ASYNC220 - a process that Trio knows nothing of
    told = []
    try:
        async with trio.open_nursery() as nursery, processes.open_exit_watch(process.pid, kqueue) as wait:

            async def watch():
                told.append(await wait())

            wait_first(process, kqueue)
            nursery.start_soon(watch)
            await trio.sleep(0.2)
            before = list(told)
            kqueue.hidden.discard(process.pid)
            process.kill()
            if before == []:
                await until(lambda: told or os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG))
                await trio.sleep(0.3)
            process.wait()
            with trio.fail_after(60):
                await until(lambda: told)
        return before, told[0]
    finally:
        process.kill()
        process.wait()


def nothing(process, kqueue):
    pass


def hide(process, kqueue):
    kqueue.hidden.add(process.pid)


async def test_the_code_of_an_adopted_engine_is_told():
    """Kqueue tells a program that may signal a process how that ended."""
    assert await adopted_end(nothing) == ([], ExitEvent(-signal.SIGKILL))


async def test_a_kernel_that_does_not_tell_the_status_tells_the_end():
    """Where the details are refused the end itself is still an event."""
    assert await adopted_end(nothing, StandInKqueue(refuses=NOTE_EXITSTATUS)) == ([], UNKNOWN_EXIT)


async def test_an_adopted_engine_that_the_kernel_hides_has_not_ended():
    """After ESRCH it is looked for until it is gone: while its memory is not free no second engine starts."""
    assert await adopted_end(hide) == ([], UNKNOWN_EXIT)


@pytest.mark.soak
async def test_mutant_esrch_taken_for_the_end(monkeypatch):
    """An agent that believes ESRCH calls an engine ended that holds its memory."""

    async def believes(events, pid, has_ended):
        return await wait_exit(events, pid, lambda: True)

    monkeypatch.setattr(processes, "wait_exit", believes)
    before, _ = await adopted_end(hide)
    assert before == [UNKNOWN_EXIT]


async def test_a_wait_that_is_cancelled_can_be_repeated(kqueue):
    """The watch of an engine that serves is cancelled when the engine is told to go, and its end waited for anew."""
    process = await trio.lowlevel.open_process(SLEEPS)
    with trio.move_on_after(0.1):
        await processes.wait_child(process, kqueue)
    process.kill()
    with trio.fail_after(60):
        assert (await processes.wait_child(process, kqueue))[0] == -signal.SIGKILL
