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
    """A sleeping program in a session of its own, once its environment is visible after the spawn."""
    argv = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]
    process = subprocess.Popen(argv, start_new_session=True, env={**os.environ, **env}, stdout=subprocess.PIPE)
    try:
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_group_that_is_a_strangers_is_not_signalled():
    """A process with the number of an old group started at another time and gets no signal; ours does."""
    with running() as process:
        started = start_of(process.pid)
        send_group(process.pid, f"{started}0", signal.SIGKILL)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)
        send_group(process.pid, started, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL


def test_a_group_whose_start_could_not_be_seen_is_signalled():
    """An engine that was started when nothing could be opened, not even its entry in /proc, still receives TERM."""
    with running() as process:
        send_group(process.pid, "", signal.SIGTERM)
        assert process.wait() == -signal.SIGTERM


def test_a_process_is_known_again_after_the_clock_was_set(monkeypatch):
    """If psutil has the start time, it is the kernel's own figure, which does not move when the clock is set."""
    monkeypatch.setattr(processes, "sys", SimpleNamespace(platform="darwin"))
    module = sys.modules[psutil.Process()._proc.__module__]
    before, boot = start_of(os.getpid()), psutil.boot_time()
    monkeypatch.setattr(module, "boot_time", lambda: boot + 30)
    assert psutil.Process().create_time() != float(before)
    assert start_of(os.getpid()) == before
    assert start_of(2**22 + 1) == ""


def test_without_descriptors_no_process_is_reported_exited():
    """A process that cannot be inspected has no known start, is assumed to listen, and has not exited."""
    with socket.create_server(("127.0.0.1", 0)) as server, running() as process:
        port = server.getsockname()[1]
        assert [listens(pid, port) for pid in (os.getpid(), process.pid)] == [True, False]
        with no_descriptors():
            assert start_of(process.pid) == ""
            assert not is_gone(process.pid)
            assert listens(process.pid, port)
    assert is_gone(process.pid)


def test_a_cookie_scan_that_fails_is_an_error(monkeypatch, sought):
    """Without a descriptor the scan is an error, even when it fails at one of the processes only."""
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


def test_a_process_that_is_reaped_during_the_scan_is_skipped(monkeypatch, sought):
    """Psutil 7.2 raises SystemError on macOS for one that is reaped while it is read: the others are still found."""
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
    """A wrapper whose environment macOS hides, like that of `/bin/sh`, and below it a program with our cookie."""
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
    """It is ours, whichever cookie is searched: its own is not visible on a Mac."""
    with wrapped(monkeypatch, sought) as (wrapper, engine):
        assert {each.pid for each in marked_processes(COOKIE_VARIABLE)[sought]} == {wrapper, engine}
        assert {each.pid for each in processes.find_marked(COOKIE_VARIABLE, sought)} == {wrapper, engine}


@pytest.mark.parametrize("theirs", [{"tells": True}, {"terminal": "/dev/ttys001"}])
def test_a_leader_that_is_not_ours_is_not_signalled(monkeypatch, theirs, sought):
    """A process with a visible environment without our cookie is a stranger, and so is the shell of a terminal."""
    with wrapped(monkeypatch, sought, **theirs) as (_, engine):
        assert {each.pid for each in marked_processes(COOKIE_VARIABLE)[sought]} == {engine}


def test_a_process_that_is_gone_has_no_footprint():
    """A process without an entry has no footprint and no error; one that holds nothing any more is about to exit."""
    sizes = {7: 5, 8: 0}
    assert footprints([7, 8, 2**22 + 1], sizes.get) == {7: 5}
