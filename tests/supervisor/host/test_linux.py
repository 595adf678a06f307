import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from llmkube.supervisor.host import linux
from llmkube.supervisor.host.linux import (
    Group,
    Headroom,
    LinuxMemory,
    Mount,
    Pressure,
    PssSampler,
    group_of,
    headroom_below,
    headroom_in,
    host_available,
    mapped_files,
    oom_kills,
    open_alarm,
    open_linux_memory,
    open_triggers,
    parse_mounts,
    parse_pressure,
    read_pressure,
)
from llmkube.supervisor.host.procfs import ProcessStat, parse_meminfo, read_pss_bytes, read_stat
from llmkube.supervisor.host.sample import Level
from llmkube.supervisor.host.this_machine import footprints_here, open_host_memory
from supervisor.host.linux_files import MEMINFO

GIB, MIB = 1 << 30, 1 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")
PRESSURE = """\
some avg10={some} avg60=0.12 avg300=0.34 total=190329302
full avg10={full} avg60=0.03 avg300=0.18 total=53186261
"""
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


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
    """Memory that programs have mapped is not available, even if the kernel reports it as such."""
    assert host_available(parse_meminfo(MEMINFO)) == (23210436 - (322628 - 210996)) * 1024


async def test_a_host_without_a_limit_is_its_machine(host):
    """Total and available are the machine's."""
    sample = await host.open().sample()
    assert (sample.total_bytes, sample.available_bytes, sample.level) == (64 * GIB, 32 * GIB, Level.NORMAL)


async def test_the_smaller_of_machine_and_group_wins(host):
    """A limit below the machine's memory is the total; available is the lower of both."""
    host.limit(16 * GIB, 10 * GIB)
    sample = await host.open().sample()
    assert (sample.total_bytes, sample.available_bytes) == (16 * GIB, 6 * GIB)
    host.memory(64 * GIB, 2 * GIB)
    sample = await host.open().sample()
    assert (sample.total_bytes, sample.available_bytes) == (16 * GIB, 2 * GIB)


async def test_a_changed_total_shows_in_the_next_sample(host):
    """A balloon that takes memory from the machine, and a limit that is set or removed, show at once."""
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
    """Below a limit the group's stalls are used and not the machine's; without one the machine's are."""
    host.memory(64 * GIB, 15 * GIB)
    host.write("pressure/memory", PRESSURE.format(some="50.00", full="40.00"))
    assert (await host.open().sample()).level is Level.CRITICAL
    host.limit(60 * GIB, 46 * GIB)
    (host.group / "memory.pressure").write_text(PRESSURE.format(some="11.00", full="2.00"))
    sample = await host.open().sample()
    assert (sample.level, sample.why) == (
        Level.WARNING,
        "programs stalled on memory 11 % of the last 10 s, 14.0 GiB of 60.0 GiB left",
    )


async def test_a_kernel_without_pressure_has_a_level_by_available_memory(host):
    """If stalls are not measured, available memory alone gives the level."""
    shutil.rmtree(host.proc / "pressure")
    host.memory(64 * GIB, 2 * GIB)
    assert (await host.open().sample()).level is Level.CRITICAL


async def test_swapping_is_a_rate(host, autojump_clock):
    """Bytes per second that were swapped out since the last sample; none at the first one."""
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
    """A missing or invalid file makes the level UNKNOWN until it is valid again, and never an error."""
    memory = host.open()
    path = host.proc / name
    before = path.read_text()
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    sample = await memory.sample()
    assert (sample.level, sample.why.partition(":")[0]) == (Level.UNKNOWN, "this machine's memory cannot be read")
    path.write_text(before)
    assert (await memory.sample()).level is Level.NORMAL


async def test_without_triggers_the_wait_never_returns(host, autojump_clock):
    """If no file takes a trigger, the wait for a change never returns."""
    shutil.rmtree(host.proc / "pressure")
    with open_linux_memory(LinuxMemory().thresholds, proc=host.proc) as memory, trio.move_on_after(3600) as scope:
        await memory.wait_change()
    assert scope.cancelled_caught


@on_linux
async def test_this_host_can_be_read():
    """The real /proc gives a level and plausible figures."""
    async with open_host_memory() as memory:
        sample = await memory.sample()
    assert sample.level is not Level.UNKNOWN, sample.why
    assert 0 <= sample.available_bytes <= sample.total_bytes


def test_out_of_memory_kills_are_counted(tmp_path, monkeypatch):
    """The counter of our control group is read, of version 1 or 2; without one, the machine's."""
    monkeypatch.setattr(linux, "own_group", lambda mounts: Group(1, (tmp_path,)))
    assert oom_kills() >= 0
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert oom_kills() == 2
    monkeypatch.setattr(linux, "own_group", lambda mounts: Group(2, (tmp_path,)))
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 4\noom_kill 3\noom_group_kill 0\n")
    assert oom_kills() == 3


def test_pressure_is_read(tmp_path):
    """Both averages over ten seconds come from the first file that exists; without any there is no pressure."""
    file = tmp_path / "memory"
    file.write_text(PRESSURE.format(some="12.50", full="3.01"))
    assert read_pressure([tmp_path / "missing", file]) == Pressure(12.5, 3.01)
    assert read_pressure([tmp_path / "missing"]) == Pressure()


@pytest.mark.parametrize("text", ["", "some avg10=1.00 avg60=0.00 avg300=0.00 total=1\n", "some avg10=x full avg10=y "])
def test_half_a_pressure_file_is_an_error(text):
    """A file with only one of the lines is invalid."""
    with pytest.raises(ValueError, match="no pressure"):
        parse_pressure(text)


@on_linux
async def test_an_exceptional_condition_wakes():
    """Trio's loop, which waits for reading only, is woken by a trigger; urgent data raises the same condition."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        receiver, _ = server.accept()
        with receiver, open_alarm([receiver.fileno()]) as wait:
            client.send(b"ordinary")
            with trio.move_on_after(0.2) as scope:
                await wait()
            assert scope.cancelled_caught
            client.send(b"!", socket.MSG_OOB)
            with trio.fail_after(60):
                await wait()


@on_linux
def test_triggers_are_closed_on_exit():
    def descriptors():
        return len(list(Path("/proc/self/fd").iterdir()))

    before = descriptors()
    with open_triggers([Path("/proc/pressure/memory"), Path("/proc/pressure/nothing")]):
        pass
    assert descriptors() == before


def stat(start_ticks, resident_bytes):
    return ProcessStat("S", 0, 0.0, start_ticks, resident_bytes)


class Measurements:
    """Processes as the kernel shows them, and the number of times that it walked their page tables."""

    def __init__(self, monkeypatch):
        self.stat, self.own, self.walks = stat(1, 8 * GIB), 5 * GIB, 0
        monkeypatch.setattr(linux, "read_stat", lambda pid: self.stat)
        monkeypatch.setattr(linux, "read_pss_bytes", self.walk)
        self.sampler = PssSampler()

    def walk(self, pid):
        self.walks += 1
        return self.own

    def at(self, now):
        return self.sampler.footprints([2**22 + 1], now).get(2**22 + 1)


def test_a_large_process_is_walked_now_and_then(monkeypatch):
    """8 GiB are measured every 12 s; changes of the resident size in between are added to the last figure."""
    kernel = Measurements(monkeypatch)
    assert kernel.at(100.0) == 5 * GIB
    kernel.stat = stat(1, 9 * GIB)
    assert kernel.at(105.0) == 6 * GIB
    kernel.stat = stat(1, 6 * GIB)
    assert (kernel.at(111.9), kernel.walks) == (3 * GIB, 1)
    kernel.own = GIB
    assert (kernel.at(112.0), kernel.walks) == (GIB, 2)


def test_a_pid_that_is_used_again_is_measured(monkeypatch):
    """The measurement of a process is not used for the next one with its pid."""
    kernel = Measurements(monkeypatch)
    assert kernel.at(100.0) == 5 * GIB
    kernel.stat, kernel.own = stat(2, 8 * GIB), 7 * GIB
    assert kernel.at(100.1) == 7 * GIB


def test_an_exited_process_is_forgotten(monkeypatch):
    kernel = Measurements(monkeypatch)
    kernel.at(100.0)
    kernel.stat = None
    assert kernel.at(101.0) is None
    assert not kernel.sampler._known


@contextmanager
def running(code):
    """A Python program that has printed a line and now sleeps; its pid."""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout.readline()
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def holding(mib, *, below=False):
    """A process that holds this much memory, itself or in a child."""
    hold = f"import time; held = bytearray(b'x') * ({mib} << 20); print(flush=True); time.sleep(600)"
    spawn = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {hold!r}])"
    return running(spawn if below else hold)


def mapping(file):
    """A process that has mapped a file and touched every page."""
    return running(
        "import mmap, time\n"
        f"with open({str(file)!r}, 'rb') as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapped:\n"
        f"    touched = sum(mapped[at] for at in range(0, len(mapped), {PAGE}))\n"
        "    print(touched, flush=True)\n"
        "    time.sleep(600)\n"
    )


@on_linux
@pytest.mark.e2e
@pytest.mark.parametrize("below", [False, True])
async def test_a_footprint_includes_children(below):
    """A tree's footprint has the allocations of all its processes, within 24 MiB of Python around them."""
    with holding(64, below=below) as pid:
        async with open_host_memory() as memory:
            found = await memory.footprint([pid, 2**22 + 1])
    assert found.keys() == {pid}
    assert 64 * MIB <= found[pid] < 88 * MIB


@on_linux
@pytest.mark.e2e
def test_shared_memory_is_counted_once(tmp_path):
    """A file of 64 MiB that two processes have mapped is not in both footprints in full."""
    file = tmp_path / "weights"
    file.write_bytes(b"x" * (64 * MIB))
    with mapping(file) as one:
        alone = read_pss_bytes(one)
        with mapping(file):
            assert alone - read_pss_bytes(one) > 30 * MIB


@on_linux
def test_memory_that_may_not_be_divided_is_counted_whole(monkeypatch):
    """If the proportional size may not be read, the resident size is used instead."""
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


NO_LIMIT_V1 = "9223372036854771712\n"

SYSTEMD = "35 24 0:30 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate"
HYBRID = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
DOCKER_V1 = "1 2 0:32 /docker/3f9a /sys/fs/cgroup/memory ro,nosuid - cgroup memory rw,memory"
SPACED = r"9 8 0:30 /a\040b /mnt/my\040groups rw - cgroup2 none rw"

V2, V1 = Mount(2, "/", Path("/sys/fs/cgroup")), Mount(1, "/", Path("/sys/fs/cgroup/memory"))


@pytest.mark.parametrize(
    ("mountinfo", "mounts"),
    [
        (SYSTEMD, (V2,)),
        (HYBRID, (V1, Mount(2, "/", Path("/sys/fs/cgroup/unified")))),
        (DOCKER_V1, (Mount(1, "/docker/3f9a", Path("/sys/fs/cgroup/memory")),)),
        (SPACED, (Mount(2, "/a b", Path("/mnt/my groups")),)),
        ("22 1 8:1 / / rw - ext4 /dev/sda1 rw", ()),
        (f"36 35 0:50 / /home/u/a\u2028b rw - fuse.sshfs sshfs#x rw\n{SYSTEMD}\n", (V2,)),
        (f"36 35 0:50 / /home/u/a\x0cb rw - fuse.sshfs sshfs#x rw\n{SYSTEMD}\n", (V2,)),
        ("", ()),
    ],
)
def test_trees_are_found(mountinfo, mounts):
    """Only trees with the memory controller are found, version 1 first, wherever they are mounted."""
    assert parse_mounts(mountinfo) == mounts


@pytest.mark.parametrize(
    ("mounts", "cgroup", "version", "folders"),
    [
        ((V2,), "0::/\n", 2, ["/sys/fs/cgroup"]),
        (
            (V2,),
            "0::/system.slice/llmkube.service\n",
            2,
            ["/sys/fs/cgroup/system.slice/llmkube.service", "/sys/fs/cgroup/system.slice", "/sys/fs/cgroup"],
        ),
        (
            parse_mounts(HYBRID),
            "7:cpu:/\n4:memory:/jobs/a:b\n3:name=systemd:/x\n0::/elsewhere\n",
            1,
            ["/sys/fs/cgroup/memory/jobs/a:b", "/sys/fs/cgroup/memory/jobs", "/sys/fs/cgroup/memory"],
        ),
        (parse_mounts(DOCKER_V1), "4:memory:/docker/3f9a\n", 1, ["/sys/fs/cgroup/memory"]),
        (parse_mounts(DOCKER_V1), "4:cpu,memory:/docker/3f9a/sub\n", 1, ["/sys/fs/cgroup/memory/sub"]),
        (parse_mounts(DOCKER_V1), "4:memory:/kubepods/other\n", 1, ["/sys/fs/cgroup/memory"]),
        ((V2,), "0::/../../init.scope\n", 2, ["/sys/fs/cgroup"]),
    ],
)
def test_our_group_and_all_above_it_are_found(mounts, cgroup, version, folders):
    """The group's folder comes first and the tree's root last; unmounted ones are not searched."""
    group = group_of(mounts, cgroup)
    assert group.version == version
    assert [str(folder) for folder in group.folders][: len(folders)] == folders
    assert group.folders[-1] in {mount.point for mount in mounts}


@pytest.mark.parametrize(("mounts", "cgroup"), [((), "0::/x\n"), ((V1,), "0::/x\n"), ((V2,), "")])
def test_a_machine_without_the_controller_has_no_group(mounts, cgroup):
    """If no tree fits the process's groups, there is no group."""
    assert group_of(mounts, cgroup) is None


def v2_group(folder, *, limit="max", high="max", current=0, stat=""):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("max", limit), ("high", high), ("current", current), ("stat", stat)):
        (folder / f"memory.{name}").write_text(f"{text}\n")


def stat_v2(*, active=0, inactive=0, mapped=0, shmem=0):
    return f"anon 5\nactive_file {active}\ninactive_file {inactive}\nfile_mapped {mapped}\nshmem {shmem}"


def test_the_smallest_limit_and_the_least_free_memory_apply(tmp_path):
    """A group with free memory in one whose siblings have used everything has none."""
    inner, outer = tmp_path / "slice" / "agent", tmp_path / "slice"
    v2_group(inner, limit=4 * GIB, current=GIB, stat=stat_v2())
    v2_group(outer, limit=8 * GIB, current=7 * GIB + GIB // 2, stat=stat_v2())
    assert headroom_in(Group(2, (inner, outer, tmp_path)), 64 * GIB) == Headroom(4 * GIB, GIB // 2)


def test_a_throttle_is_a_limit(tmp_path):
    """`memory.high` below `memory.max` throttles the group, so it is the limit."""
    v2_group(tmp_path, limit=4 * GIB, high=3 * GIB, current=GIB, stat=stat_v2())
    assert headroom_in(Group(2, (tmp_path,)), 64 * GIB) == Headroom(3 * GIB, 2 * GIB)


def test_no_limit_and_one_above_the_machine_are_the_same(tmp_path):
    """A limit above the machine's memory is ignored, in either version."""
    v2_group(tmp_path / "a", limit="max")
    v2_group(tmp_path / "b", limit=65 * GIB)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "memory.limit_in_bytes").write_text(NO_LIMIT_V1)
    for name, version in (("a", 2), ("b", 2), ("c", 1)):
        assert headroom_in(Group(version, (tmp_path / name, tmp_path)), 64 * GIB) is None


def test_version_1_includes_child_groups(tmp_path):
    """The hierarchical counters of version 1 are read, and not the group's own."""
    (tmp_path / "memory.limit_in_bytes").write_text(f"{GIB}\n")
    (tmp_path / "memory.usage_in_bytes").write_text(f"{GIB // 2}\n")
    own = "active_file 0\ninactive_file 0\nmapped_file 0\nshmem 0\n"
    below = f"total_active_file 100\ntotal_inactive_file {GIB // 4}\ntotal_mapped_file 150\ntotal_shmem 50\n"
    (tmp_path / "memory.stat").write_text(own + below)
    assert headroom_in(Group(1, (tmp_path,)), 64 * GIB) == Headroom(GIB, GIB // 2 + GIB // 4)


@pytest.mark.parametrize(
    ("used", "stat", "available"),
    [
        (0, {}, 1000),
        (900, {}, 100),
        (1000, {"inactive_file": 200, "active_file": 100}, 300),  # cache of files that were only read
        (1000, {"active_file": 300, "file_mapped": 250}, 50),  # weights that an engine has mapped
        (1000, {"active_file": 300, "file_mapped": 400, "shmem": 200}, 100),  # shared memory is not a file
        (1000, {"active_file": 300, "file_mapped": 900}, 0),
        (1200, {}, 0),  # over the limit for a moment
        (100, {"active_file": 900}, 1000),  # never more than the limit
    ],
)
def test_available_memory_is_free_memory_and_unmapped_cache(used, stat, available):
    """Free memory and unmapped cache are available; mapped files are in use."""
    known = {"active_file": 0, "inactive_file": 0, "file_mapped": 0, "shmem": 0} | stat
    assert headroom_below(1000, used, known, version=2) == Headroom(1000, available)


def test_more_shared_memory_than_mapped_is_no_negative_number():
    """Unmapped shared memory (a tmpfs) reduces the mapped files, but not below zero."""
    assert mapped_files(100, 300) == 0


def test_only_a_child_group_of_version_2_has_its_own_stalls():
    """Only a version 2 group below the root has pressure of its own."""
    assert Group(2, (Path("/g/a"), Path("/g"))).pressure_path == Path("/g/a/memory.pressure")
    assert Group(2, (Path("/g"),)).pressure_path is None
    assert Group(1, (Path("/g/a"), Path("/g"))).pressure_path is None


def test_a_limit_that_is_no_number_is_an_error(tmp_path):
    """An invalid limit is not read as no limit."""
    v2_group(tmp_path, limit="lots")
    with pytest.raises(ValueError, match="lots"):
        headroom_in(Group(2, (tmp_path,)), GIB)
