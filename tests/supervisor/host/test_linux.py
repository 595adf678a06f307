import os
import shutil
import sys

import pytest
import trio

from llmkube.supervisor.host import linux as linux_memory
from llmkube.supervisor.host.cgroups import Group
from llmkube.supervisor.host.linux import LinuxMemory, host_available, oom_kills, open_linux_memory
from llmkube.supervisor.host.procfs import parse_meminfo
from llmkube.supervisor.host.sample import Level
from llmkube.supervisor.host.this_machine import open_host_memory
from supervisor.host.linux_files import MEMINFO

GIB, MIB = 1 << 30, 1 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")
PRESSURE = """\
some avg10={some} avg60=0.12 avg300=0.34 total=190329302
full avg10={full} avg60=0.03 avg300=0.18 total=53186261
"""
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


class FakeHost:
    """A /proc with a version 2 control group, as files."""

    def __init__(self, folder):
        self.proc, self.groups = folder / "proc", folder / "groups"
        self.group = self.groups / "system.slice" / "llmkube"
        self.group.mkdir(parents=True)
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "pressure").mkdir()
        self.write("self/mountinfo", f"35 24 0:30 / {self.groups} rw - cgroup2 cgroup2 rw\n")
        self.write("self/cgroup", "0::/system.slice/llmkube\n")
        self.memory(64 * GIB, 32 * GIB)
        self.swapped(0)
        self.write("pressure/memory", PRESSURE.format(some="0.00", full="0.00"))

    def write(self, name, text):
        (self.proc / name).write_text(text)

    def memory(self, total, available):
        lines = {"MemTotal": total, "MemAvailable": available, "Mapped": 0, "Shmem": 0}
        self.write("meminfo", "".join(f"{name}: {size // 1024} kB\n" for name, size in lines.items()))

    def swapped(self, pages):
        self.write("vmstat", f"pgpgin 5\npswpin 7\npswpout {pages}\n")

    def limit(self, limit, used):
        stat = "active_file 0\ninactive_file 0\nfile_mapped 0\nshmem 0\n"
        for name, text in (("max", limit), ("high", "max"), ("current", used), ("stat", stat)):
            (self.group / f"memory.{name}").write_text(str(text))

    def open(self):
        return LinuxMemory(proc=self.proc)


@pytest.fixture
def host(tmp_path):
    return FakeHost(tmp_path)


def test_mapped_files_are_in_use():
    """What programs have mapped is not available, whatever the kernel says."""
    assert host_available(parse_meminfo(MEMINFO)) == (23210436 - (322628 - 210996)) * 1024


async def test_a_host_without_a_limit_is_its_machine(host):
    """Total and available are the machine's."""
    sample = await host.open().sample()
    assert (sample.total_bytes, sample.available_bytes, sample.level) == (64 * GIB, 32 * GIB, Level.NORMAL)


async def test_the_smaller_of_machine_and_group_wins(host):
    """A limit below the machine's memory is the total; available is what both can still give."""
    host.limit(16 * GIB, 10 * GIB)
    sample = await host.open().sample()
    assert (sample.total_bytes, sample.available_bytes) == (16 * GIB, 6 * GIB)
    host.memory(64 * GIB, 2 * GIB)
    sample = await host.open().sample()
    assert (sample.total_bytes, sample.available_bytes) == (16 * GIB, 2 * GIB)


async def test_a_changed_total_shows_in_the_next_sample(host):
    """A balloon that takes memory from the machine, and a limit that is set or lifted, show at once."""
    memory = host.open()
    assert (await memory.sample()).total_bytes == 64 * GIB
    host.memory(48 * GIB, 16 * GIB)
    assert (await memory.sample()).total_bytes == 48 * GIB
    host.limit(24 * GIB, GIB)
    assert (await memory.sample()).total_bytes == 24 * GIB
    host.limit("max", GIB)
    assert (await memory.sample()).total_bytes == 48 * GIB


async def test_a_group_is_found_again_after_a_move(host):
    """Limits are those of the group that the agent is in now."""
    memory = host.open()
    host.limit(16 * GIB, GIB)
    host.write("self/cgroup", "0::/system.slice\n")
    assert (await memory.sample()).total_bytes == 64 * GIB


async def test_stalls_of_a_limited_group_are_its_own(host):
    """Below a limit the group's stalls count and not the machine's; without one the machine's do."""
    host.memory(64 * GIB, 15 * GIB)
    host.write("pressure/memory", PRESSURE.format(some="50.00", full="40.00"))
    assert (await host.open().sample()).level is Level.CRITICAL
    host.limit(60 * GIB, 46 * GIB)
    (host.group / "memory.pressure").write_text(PRESSURE.format(some="11.00", full="2.00"))
    sample = await host.open().sample()
    assert (sample.level, sample.why) == (
        Level.WARNING,
        "programs waited for memory for 11 % of 10 s, 14.0 GiB of 60.0 GiB left",
    )


async def test_a_kernel_without_pressure_is_judged_by_what_is_left(host):
    """Where stalls are not measured, sampling alone gives the level."""
    shutil.rmtree(host.proc / "pressure")
    host.memory(64 * GIB, 2 * GIB)
    assert (await host.open().sample()).level is Level.CRITICAL


async def test_swapping_is_a_rate(host, autojump_clock):
    """What has been swapped out since the last look, per second; nothing at the first."""
    memory = host.open()
    host.swapped(1000)
    assert (await memory.sample()).swap_out_bytes_per_second == 0.0
    await trio.sleep(4)
    host.swapped(3000)
    assert (await memory.sample()).swap_out_bytes_per_second == 500.0 * PAGE


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("meminfo", None),
        ("meminfo", ""),
        ("meminfo", "MemTotal: lots kB\n"),
        ("meminfo", "MemTotal:\n"),
        ("meminfo", "MemTotal: 5 kB\nMemFree: 4 kB\n"),
        ("vmstat", None),
        ("vmstat", "pswpout many\n"),
        ("pressure/memory", "some"),
        ("self/cgroup", "nonsense\n"),
    ],
)
async def test_what_cannot_be_read_is_unknown(host, name, text):
    """A file that is gone or says something else makes the level UNKNOWN and never an error; it is not for ever."""
    memory = host.open()
    path = host.proc / name
    before = path.read_text()
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    sample = await memory.sample()
    assert (sample.level, sample.why.partition(":")[0]) == (Level.UNKNOWN, "this host's memory cannot be read")
    path.write_text(before)
    assert (await memory.sample()).level is Level.NORMAL


async def test_without_triggers_nobody_is_woken(host, autojump_clock):
    """Where no file takes a trigger, waiting for a change takes for ever."""
    shutil.rmtree(host.proc / "pressure")
    with open_linux_memory(LinuxMemory().thresholds, proc=host.proc) as memory, trio.move_on_after(3600) as scope:
        await memory.wait_change()
    assert scope.cancelled_caught


@linux
async def test_this_host_can_be_read():
    """The real /proc gives a level, and figures that can be true."""
    async with open_host_memory() as memory:
        sample = await memory.sample()
    assert sample.level is not Level.UNKNOWN, sample.why
    assert 0 <= sample.available_bytes <= sample.total_bytes


def test_kills_for_want_of_memory_are_counted(tmp_path, monkeypatch):
    """The counter of our control group is read, of version 1 or 2; where it has none, the machine's."""
    monkeypatch.setattr(linux_memory, "own_group", lambda mounts: Group(1, (tmp_path,)))
    assert oom_kills() >= 0
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert oom_kills() == 2
    monkeypatch.setattr(linux_memory, "own_group", lambda mounts: Group(2, (tmp_path,)))
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 4\noom_kill 3\noom_group_kill 0\n")
    assert oom_kills() == 3
