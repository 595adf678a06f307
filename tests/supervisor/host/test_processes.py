import errno
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import psutil
import pytest

from cookies import new_cookie
from lacking import no_descriptors
from llmkube.supervisor.host import processes
from llmkube.supervisor.host.processes import (
    COOKIE_VARIABLE,
    footprints,
    is_gone,
    listens,
    marked_processes,
    send_group,
    start_of,
)


@pytest.fixture
def sought():
    """Return the cookie of this test's processes; those of other workers, and of the test before, have others."""
    return new_cookie()


@contextmanager
def running(**env):
    """A program that sleeps in a session of its own, and has begun: just after a spawn its environment is not seen."""
    argv = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]
    process = subprocess.Popen(argv, start_new_session=True, env={**os.environ, **env}, stdout=subprocess.PIPE)
    try:
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_group_that_is_a_strangers_is_not_signalled():
    """A process of the number of a group that is gone hears nothing, since it began at another time; ours does."""
    with running() as process:
        started = start_of(process.pid)
        send_group(process.pid, f"{started}0", signal.SIGKILL)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)
        send_group(process.pid, started, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL


def test_a_group_whose_start_could_not_be_seen_is_signalled():
    """An engine that was started when nothing could be opened, not even its entry in /proc, hears TERM all the same."""
    with running() as process:
        send_group(process.pid, "", signal.SIGTERM)
        assert process.wait() == -signal.SIGTERM


def test_a_process_is_known_again_after_the_clock_was_set(monkeypatch):
    """Where psutil tells the start, it is the kernel's own figure, which does not move when somebody sets the clock."""
    monkeypatch.setattr(processes, "sys", SimpleNamespace(platform="darwin"))
    module = sys.modules[psutil.Process()._proc.__module__]
    before, boot = start_of(os.getpid()), psutil.boot_time()
    monkeypatch.setattr(module, "boot_time", lambda: boot + 30)
    assert psutil.Process().create_time() != float(before)
    assert start_of(os.getpid()) == before
    assert start_of(2**22 + 1) == ""


def test_without_descriptors_nobody_is_said_to_be_gone():
    """Who cannot be looked at has no known start, is believed to listen, and is not taken for one that has ended."""
    with socket.create_server(("127.0.0.1", 0)) as server, running() as process:
        port = server.getsockname()[1]
        assert [listens(pid, port) for pid in (os.getpid(), process.pid)] == [True, False]
        with no_descriptors():
            assert start_of(process.pid) == ""
            assert not is_gone(process.pid)
            assert listens(process.pid, port)
    assert is_gone(process.pid)


def test_a_look_for_cookies_that_could_not_be_made_finds_not_nobody(monkeypatch, sought):
    """Without a descriptor the look is an error, also when it fails at one of the processes only."""
    with running(**{COOKIE_VARIABLE: sought}) as process:
        assert [each.pid for each in marked_processes(COOKIE_VARIABLE)[sought]] == [process.pid]
        with no_descriptors(), pytest.raises(OSError, match="Too many open files"):
            marked_processes(COOKIE_VARIABLE)

        def read_bytes(path):
            code = errno.EMFILE if path.parent.name == str(process.pid) else errno.EACCES
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr("pathlib.Path.read_bytes", read_bytes)
        with pytest.raises(OSError, match="Too many open files"):
            marked_processes(COOKIE_VARIABLE)


def test_a_process_that_is_reaped_during_the_look_is_left_out(monkeypatch, sought):
    """Psutil 7.2 raises SystemError on macOS for one that is reaped while it is read: the others are found even so."""
    monkeypatch.setattr(processes, "sys", SimpleNamespace(platform="darwin"))
    real = psutil.Process.environ

    def environ(process):
        if process.pid == gone.pid:
            raise SystemError("<built-in function proc_environ> returned a result with an exception set")
        return real(process)

    with running(**{COOKIE_VARIABLE: sought}) as process, running(**{COOKIE_VARIABLE: sought}) as gone:
        monkeypatch.setattr(psutil.Process, "environ", environ)
        assert [each.pid for each in marked_processes(COOKIE_VARIABLE)[sought]] == [process.pid]
        assert [each.pid for each in processes.find_marked(COOKIE_VARIABLE, sought)] == [process.pid]
        assert process.pid in processes.families([os.getpid()])[os.getpid()]


WRAPPER = """
import subprocess, sys
program = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]
print(subprocess.Popen(program, env={"LLMKUBE_ENGINE": sys.argv[1]}, stdout=-1).stdout.readline(), flush=True)
sys.stdin.read()
"""


@contextmanager
def wrapped(monkeypatch, sought, *, tells=False, terminal=None):
    """A wrapper whose environment this Mac hides, like that of `/bin/sh`, and below it a program with our mark."""
    argv = [sys.executable, "-c", WRAPPER, sought]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    real = psutil.Process.environ

    def environ(process):
        return ({"HOME": "/"} if tells else {}) if process.pid == wrapper.pid else real(process)

    with subprocess.Popen(argv, start_new_session=True, **pipes) as wrapper:
        try:
            wrapper.stdout.readline()
            monkeypatch.setattr(processes, "sys", SimpleNamespace(platform="darwin"))
            monkeypatch.setattr(psutil.Process, "environ", environ)
            monkeypatch.setattr(psutil.Process, "terminal", lambda process: terminal)
            yield wrapper.pid, psutil.Process(wrapper.pid).children()[0].pid
        finally:
            os.killpg(wrapper.pid, signal.SIGKILL)


def test_a_wrapper_that_hides_its_environment_is_found_by_its_session(monkeypatch, sought):
    """It is ours, whichever mark is looked for: its own is not seen on a Mac."""
    with wrapped(monkeypatch, sought) as (wrapper, engine):
        assert {each.pid for each in marked_processes(COOKIE_VARIABLE)[sought]} == {wrapper, engine}
        assert {each.pid for each in processes.find_marked(COOKIE_VARIABLE, sought)} == {wrapper, engine}


@pytest.mark.parametrize("theirs", [{"tells": True}, {"terminal": "/dev/ttys001"}])
def test_a_leader_that_is_not_ours_is_left_alone(monkeypatch, theirs, sought):
    """Who shows an environment without our mark is a stranger, and so is the shell of a terminal."""
    with wrapped(monkeypatch, sought, **theirs) as (_, engine):
        assert {each.pid for each in marked_processes(COOKIE_VARIABLE)[sought]} == {engine}


def test_a_process_that_is_gone_has_no_footprint():
    """Neither the answer nor an error knows of it; one that holds nothing any more is about to be gone."""
    sizes = {7: 5, 8: 0}
    assert footprints([7, 8, 2**22 + 1], sizes.get) == {7: 5}
