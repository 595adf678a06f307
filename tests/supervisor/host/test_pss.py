import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from llmkube.supervisor.host import pss
from llmkube.supervisor.host.procfs import ProcessStat, read_pss_bytes, read_stat
from llmkube.supervisor.host.pss import PssSampler
from llmkube.supervisor.host.this_machine import footprints_here, open_host_memory

GIB = 1 << 30


def stat(start_ticks, resident_bytes):
    return ProcessStat("S", 0, 0.0, start_ticks, resident_bytes)


class Measurements:
    """Processes as the kernel shows them, and how often it had to walk their page tables."""

    def __init__(self, monkeypatch):
        self.stat, self.own, self.walks = stat(1, 8 * GIB), 5 * GIB, 0
        monkeypatch.setattr(pss, "read_stat", lambda pid: self.stat)
        monkeypatch.setattr(pss, "read_pss_bytes", self.walk)
        self.sampler = PssSampler()

    def walk(self, pid):
        self.walks += 1
        return self.own

    def at(self, now):
        return self.sampler.footprints([2**22 + 1], now).get(2**22 + 1)


def test_a_large_process_is_walked_now_and_then(monkeypatch):
    """8 GiB are measured every 12 s; between that, what has become resident or has gone is added to the last figure."""
    kernel = Measurements(monkeypatch)
    assert kernel.at(100.0) == 5 * GIB
    kernel.stat = stat(1, 9 * GIB)
    assert kernel.at(105.0) == 6 * GIB
    kernel.stat = stat(1, 6 * GIB)
    assert (kernel.at(111.9), kernel.walks) == (3 * GIB, 1)
    kernel.own = GIB
    assert (kernel.at(112.0), kernel.walks) == (GIB, 2)


def test_a_pid_that_is_used_again_is_measured(monkeypatch):
    """What was measured of a process says nothing of the next one with its pid."""
    kernel = Measurements(monkeypatch)
    assert kernel.at(100.0) == 5 * GIB
    kernel.stat, kernel.own = stat(2, 8 * GIB), 7 * GIB
    assert kernel.at(100.1) == 7 * GIB


def test_who_has_ended_is_forgotten(monkeypatch):
    """A process that has ended has no footprint, and nothing of it is kept."""
    kernel = Measurements(monkeypatch)
    kernel.at(100.0)
    kernel.stat = None
    assert kernel.at(101.0) is None
    assert not kernel.sampler._known


GIB, MIB = 1 << 30, 1 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@contextmanager
def running(code):
    """A Python program that has printed a line and now rests; its pid."""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout.readline()
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def holding(mib, *, below=False):
    """A process that holds so much memory, itself or in a child."""
    hold = f"import time; held = bytearray(b'x') * ({mib} << 20); print(flush=True); time.sleep(600)"
    spawn = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {hold!r}])"
    return running(spawn if below else hold)


def mapping(file):
    """A process that has mapped a file and touched every page of it."""
    return running(
        "import mmap, time\n"
        f"with open({str(file)!r}, 'rb') as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapped:\n"
        f"    touched = sum(mapped[at] for at in range(0, len(mapped), {PAGE}))\n"
        "    print(touched, flush=True)\n"
        "    time.sleep(600)\n"
    )


@linux
@pytest.mark.e2e
@pytest.mark.parametrize("below", [False, True])
async def test_a_footprint_has_what_the_children_hold(below):
    """What a process allocates is in its tree's footprint, within 24 MiB of Python around it, wherever it is held."""
    with holding(64, below=below) as pid:
        async with open_host_memory() as memory:
            found = await memory.footprint([pid, 2**22 + 1])
    assert found.keys() == {pid}
    assert 64 * MIB <= found[pid] < 88 * MIB


@linux
@pytest.mark.e2e
def test_what_two_share_is_counted_once(tmp_path):
    """A file of 64 MiB that two processes have mapped is not in both footprints in full."""
    file = tmp_path / "weights"
    file.write_bytes(b"x" * (64 * MIB))
    with mapping(file) as one:
        alone = read_pss_bytes(one)
        with mapping(file):
            assert alone - read_pss_bytes(one) > 30 * MIB


@linux
def test_memory_that_may_not_be_divided_is_counted_whole(monkeypatch):
    """Where the proportional size may not be read, the resident size stands in for it."""
    read = Path.read_bytes

    def refused(path):
        if path.name == "smaps_rollup":
            raise PermissionError
        return read(path)

    pid = os.getpid()
    assert footprints_here([pid])[pid] > 0
    monkeypatch.setattr(Path, "read_bytes", refused)
    assert read_pss_bytes(pid) is None
    assert abs(footprints_here([pid])[pid] - read_stat(pid).resident_bytes) < 16 * MIB
