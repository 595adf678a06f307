import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from lacking import no_descriptors
from llmkube.supervisor.engine import process_stats
from llmkube.supervisor.engine.process_stats import (
    FRESH_SECONDS,
    PORT_ROUNDS,
    CookieScan,
    EngineProcess,
    Sampler,
    StatsReader,
    read_stat,
)
from llmkube.supervisor.host.processes import families
from llmkube.supervisor.values.liveness import EngineStats
from waiting import until

SPIN = "import time; end = time.monotonic() + 600\nwhile time.monotonic() < end: pass"
REST = "import time; time.sleep(600)"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SPIN!r}])"


@contextmanager
def running(code):
    """A Python program in a session of its own."""
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def engine(pid, port=1, log_path=Path("/nowhere")):
    return EngineProcess(pid, "127.0.0.1", port, log_path)


@pytest.mark.e2e
async def test_cpu_time_of_a_process_moves_while_it_works():
    """Two samples of a busy process differ in CPU time; two of one that sleeps do not."""
    with running(SPIN) as busy, running(REST) as idle:
        first = read_stat(busy.pid).cpu_seconds
        await until(lambda: read_stat(busy.pid).cpu_seconds > first)
        await until(lambda: read_stat(idle.pid).state == "S")
        assert read_stat(idle.pid).resident_bytes > 0


@pytest.mark.e2e
async def test_a_stopped_process_shows_it():
    """SIGSTOP is seen as state T, and SIGCONT as its end."""
    with running(SPIN) as process:
        process.send_signal(signal.SIGSTOP)
        await until(lambda: read_stat(process.pid).state == "T")
        process.send_signal(signal.SIGCONT)
        await until(lambda: read_stat(process.pid).state == "R")


@pytest.mark.e2e
async def test_the_work_of_a_child_process_is_included():
    """CPU time and state of an engine behind a wrapper script are those of the engine."""
    with running(PARENT) as process:
        await until(lambda: families([process.pid])[process.pid])
        (child,) = families([process.pid])[process.pid]
        sweep = StatsReader()
        before = sweep([engine(process.pid)], frozenset())[process.pid].cpu_seconds
        await until(lambda: sweep([engine(process.pid)], frozenset())[process.pid].cpu_seconds > before + 0.05)
        os.kill(child, signal.SIGSTOP)
        await until(lambda: sweep([engine(process.pid)], frozenset())[process.pid].state == "T")


def test_a_process_that_is_gone_is_not_seen():
    """A process that has exited has no sample."""
    with running(REST) as process:
        pass
    assert read_stat(process.pid) is None
    assert StatsReader()([engine(process.pid)], frozenset()) == {}


def test_a_listener_is_seen_in_every_second_sweep():
    """The port of an engine is in the host's table exactly while a process listens there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        sweep = StatsReader()
        looks = [sweep([engine(os.getpid(), port)], frozenset())[os.getpid()] for _ in range(2 * PORT_ROUNDS)]
    assert [look.listening for look in looks] == [None, True, None, True]
    sweep([engine(os.getpid(), port)], frozenset())
    assert sweep([engine(os.getpid(), port)], frozenset())[os.getpid()].listening is False


def test_waiting_connections_are_seen():
    """Connections that wait to be accepted, and unread bytes, are seen on the port; accepted and read ones are not."""
    if sys.platform != "linux":
        pytest.skip("only Linux tells")
    sweep = StatsReader(count=1)

    def look(port):
        sweep._count = 1
        return sweep([engine(os.getpid(), port)], frozenset())[os.getpid()].waiting

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert look(port) is False
        with socket.create_connection(("127.0.0.1", port)) as client:
            assert look(port) is True
            accepted, _ = server.accept()
            with accepted:
                assert look(port) is False
                client.sendall(b"hello")
                assert look(port) is True
                accepted.recv(5)
                assert look(port) is False


def test_without_a_table_the_port_is_tried():
    """If the kernel has no table of listeners, a connection attempt decides."""
    sweep = StatsReader(count=1, has_port_table=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert sweep([engine(os.getpid(), port)], frozenset())[os.getpid()].listening is True
    sweep([engine(os.getpid(), port)], frozenset())
    assert sweep([engine(os.getpid(), port)], frozenset())[os.getpid()].listening is False


@pytest.mark.parametrize("lack", [errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL])
def test_a_port_that_cannot_be_tried_is_unknown(monkeypatch, lack):
    """Without a descriptor or a local port a listener is unknown, and not missing, which would end its engine."""

    def connect(*_):
        raise OSError(lack, os.strerror(lack))

    monkeypatch.setattr(socket, "create_connection", connect)
    sweep = StatsReader(count=1, has_port_table=False)
    assert sweep([engine(os.getpid())], frozenset())[os.getpid()].listening is None


def test_the_log_that_grows_is_seen(tmp_path):
    """The size of the log file is part of a sample; a missing file is empty."""
    log, pid, sweep = tmp_path / "log", os.getpid(), StatsReader()
    assert sweep([engine(pid, log_path=log)], frozenset())[pid].log_bytes == 0
    log.write_text("12345")
    assert sweep([engine(pid, log_path=log)], frozenset())[pid].log_bytes == 5


async def test_an_unchanged_process_keeps_its_sample(tmp_path):
    """An unchanged sample is the same object again, even if ports were sampled in between; a changed one is not."""
    log = tmp_path / "log"
    sweep = StatsReader(has_port_table=False)
    with running(REST) as process:

        def is_the_same():
            looks = [sweep([engine(process.pid, log_path=log)], frozenset())[process.pid] for _ in range(4)]
            return looks[0] is looks[2] and looks[1] is looks[3]

        await until(is_the_same)  # once its interpreter has started
        log.write_text("12345")
        assert sweep([engine(process.pid, log_path=log)], frozenset())[process.pid].log_bytes == 5


def test_psutil_gives_the_same_sample():
    """On a system without /proc psutil gives the same sample, except that running is no sign of progress there."""
    ours, theirs = read_stat(os.getpid()), process_stats._read_by_psutil(os.getpid())
    assert theirs.state == "S"  # although it runs: macOS reports it for all, and it would be taken for progress
    assert abs(ours.cpu_seconds - theirs.cpu_seconds) < 5
    assert theirs.resident_bytes > 0
    assert process_stats._read_by_psutil(2**22 + 1) is None


async def test_without_descriptors_every_process_is_unknown():
    """A process that cannot be inspected has no sample, its port is unknown, and its cookie is not missing."""
    if sys.platform != "linux":
        pytest.skip("elsewhere a look at a process takes no descriptor")
    sampler, own = Sampler(), engine(os.getpid())
    await sampler.cookies.marked_processes("none")  # the worker thread is there from now on
    with no_descriptors():
        assert await sampler.sample(own, loading=True) is None
        assert sampler.sample_nowait(own) is None
        assert process_stats._accepts("127.0.0.1", 1) is None
        with pytest.raises(OSError, match="Too many open files"):
            await sampler.cookies.marked_processes("none")
    assert process_stats._accepts("127.0.0.1", 1) is False
    sampler._sampled_at = float("-inf")
    assert await sampler.sample(own, loading=True) is not None


class Counting:
    """A scan that takes a while and counts its runs."""

    def __init__(self):
        self.engines = []

    def __call__(self, engines, loading):
        self.engines.append(([one.pid for one in engines], loading))
        return {one.pid: EngineStats("S", 1.0) for one in engines if one.pid != 13}


async def test_one_scan_serves_all_samples_of_a_tick():
    """Fifty services that sample together cost one scan."""
    counting = Counting()
    sampler, clock = Sampler(counting), trio.current_time
    for pid in range(1, 51):
        await sampler.sample(engine(pid), loading=False)
    counting.engines.clear()
    sampler._sampled_at = clock() - FRESH_SECONDS
    seen = []

    async def look(pid):
        seen.append(await sampler.sample(engine(pid), loading=pid == 3))

    async with trio.open_nursery() as nursery:
        for pid in range(1, 51):
            nursery.start_soon(look, pid)
    assert len(counting.engines) == 1
    assert len(seen) == 50
    assert seen.count(None) == 1  # of the process that has ended


async def test_a_cheap_sample_equals_a_full_one():
    """Cheap samples share a scan with each other and with full samples; if that takes a thread they see nothing."""
    counting = Counting()
    sampler = Sampler(counting, in_thread=False)
    assert sampler.sample_nowait(engine(1)) == EngineStats("S", 1.0)
    sampler.sample_nowait(engine(2))
    counting.engines.clear()
    assert (
        sampler.sample_nowait(engine(1))
        is sampler.sample_nowait(engine(1))
        is await sampler.sample(engine(1), loading=False)
    )
    assert sampler.sample_nowait(engine(13)) is None  # its process has ended
    assert counting.engines == [([1, 2, 13], frozenset())]
    assert Sampler(counting, in_thread=True).sample_nowait(engine(1)) is None


async def test_an_engine_that_is_not_requested_is_forgotten(monkeypatch):
    """After a minute without a request an engine is not sampled any more."""
    counting = Counting()
    sampler = Sampler(counting)
    await sampler.sample(engine(1), loading=True)
    monkeypatch.setattr(process_stats, "FORGOTTEN_SECONDS", 0.0)
    sampler._sampled_at = float("-inf")
    monkeypatch.setattr(process_stats, "FRESH_SECONDS", 0.0)
    await trio.lowlevel.checkpoint()
    monkeypatch.setattr(process_stats, "FORGOTTEN_SECONDS", 1e-9)
    await sampler.sample(engine(2), loading=False)
    assert counting.engines[0] == ([1], frozenset({1}))
    assert 1 not in counting.engines[-1][0]


async def test_a_cancelled_scan_does_not_block_the_others():
    """The task that scans for all may be cancelled: the next one scans."""
    sampler = Sampler(Counting())
    with trio.CancelScope() as scope:
        scope.cancel()
        await sampler.sample(engine(1), loading=False)
    with trio.fail_after(60):
        assert await sampler.sample(engine(2), loading=False) is not None


async def test_a_wait_for_a_scan_that_hangs_can_be_cancelled():
    """A process on a dead disk may block the scan for cookies for ever, and delays the stop of no engine."""
    may_end = threading.Event()
    cookies = CookieScan(lambda: {"a": ("one",)} if may_end.is_set() else may_end.wait(600))
    with trio.fail_after(60):
        with trio.move_on_after(0.1):
            await cookies.marked_processes("a")
        may_end.set()
        assert await cookies.marked_processes("a") == ("one",)


async def test_concurrent_cookie_scans_are_shared():
    """A request during a scan gets the next one, which starts later and serves all that wait for it."""
    looks, may_end = [], threading.Event()

    def scan():
        looks.append(len(looks) + 1)
        may_end.wait(600)
        return {f"cookie-{number}": (number,) for number in looks}

    cookies, found = CookieScan(scan), []

    async def ask(cookie):
        found.append(tuple(await cookies.marked_processes(cookie)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, "cookie-1")
        await until(lambda: looks == [1])
        for _ in range(50):
            nursery.start_soon(ask, "cookie-2")
        await trio.testing.wait_all_tasks_blocked()
        may_end.set()
    assert looks == [1, 2]
    assert found == [(1,), *[(2,)] * 50]
