from pathlib import Path

import pytest

from llmkube.supervisor.host.linux import (
    Group,
    Headroom,
    Mount,
    group_of,
    headroom_below,
    headroom_in,
    mapped_files,
    parse_mounts,
)

GIB = 1 << 30
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
    """The group's folder comes first and the tree's top last; what is not mounted here is not looked for."""
    group = group_of(mounts, cgroup)
    assert group.version == version
    assert [str(folder) for folder in group.folders][: len(folders)] == folders
    assert group.folders[-1] in {mount.point for mount in mounts}


@pytest.mark.parametrize(("mounts", "cgroup"), [((), "0::/x\n"), ((V1,), "0::/x\n"), ((V2,), "")])
def test_a_machine_without_the_controller_has_no_group(mounts, cgroup):
    """Where no tree fits what the process is in, there is no group."""
    assert group_of(mounts, cgroup) is None


def v2_group(folder, *, limit="max", high="max", current=0, stat=""):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("max", limit), ("high", high), ("current", current), ("stat", stat)):
        (folder / f"memory.{name}").write_text(f"{text}\n")


def stat_v2(*, active=0, inactive=0, mapped=0, shmem=0):
    return f"anon 5\nactive_file {active}\ninactive_file {inactive}\nfile_mapped {mapped}\nshmem {shmem}"


def test_the_smallest_limit_and_the_least_room_win(tmp_path):
    """A roomy group in one whose siblings have used everything has no room."""
    inner, outer = tmp_path / "slice" / "agent", tmp_path / "slice"
    v2_group(inner, limit=4 * GIB, current=GIB, stat=stat_v2())
    v2_group(outer, limit=8 * GIB, current=7 * GIB + GIB // 2, stat=stat_v2())
    assert headroom_in(Group(2, (inner, outer, tmp_path)), 64 * GIB) == Headroom(4 * GIB, GIB // 2)


def test_being_throttled_counts_as_a_limit(tmp_path):
    """`memory.high` below `memory.max` is where a group stops getting memory at full speed, so it is the limit."""
    v2_group(tmp_path, limit=4 * GIB, high=3 * GIB, current=GIB, stat=stat_v2())
    assert headroom_in(Group(2, (tmp_path,)), 64 * GIB) == Headroom(3 * GIB, 2 * GIB)


def test_no_limit_and_one_above_the_machine_are_the_same(tmp_path):
    """A limit that the machine cannot reach does not count, in either version."""
    v2_group(tmp_path / "a", limit="max")
    v2_group(tmp_path / "b", limit=65 * GIB)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "memory.limit_in_bytes").write_text(NO_LIMIT_V1)
    for name, version in (("a", 2), ("b", 2), ("c", 1)):
        assert headroom_in(Group(version, (tmp_path / name, tmp_path)), 64 * GIB) is None


def test_version_1_counts_the_groups_below_too(tmp_path):
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
        (1000, {"active_file": 300, "file_mapped": 400, "shmem": 200}, 100),  # shared memory is no file
        (1000, {"active_file": 300, "file_mapped": 900}, 0),
        (1200, {}, 0),  # over the limit for a moment
        (100, {"active_file": 900}, 1000),  # never more than the limit
    ],
)
def test_room_is_what_nobody_misses(used, stat, available):
    """Free memory and unmapped cache are room; mapped files are in use."""
    known = {"active_file": 0, "inactive_file": 0, "file_mapped": 0, "shmem": 0} | stat
    assert headroom_below(1000, used, known, version=2) == Headroom(1000, available)


def test_more_shared_memory_than_mapped_is_no_negative_number():
    """Shared memory that nobody has mapped (a tmpfs) hides mapped files, and does no more."""
    assert mapped_files(100, 300) == 0


def test_where_a_group_tells_of_its_own_stalls():
    """Only a version 2 group below the top has pressure of its own."""
    assert Group(2, (Path("/g/a"), Path("/g"))).pressure_path == Path("/g/a/memory.pressure")
    assert Group(2, (Path("/g"),)).pressure_path is None
    assert Group(1, (Path("/g/a"), Path("/g"))).pressure_path is None


def test_a_limit_that_is_no_number_is_an_error(tmp_path):
    """Nonsense in a limit is not read as no limit."""
    v2_group(tmp_path, limit="lots")
    with pytest.raises(ValueError, match="lots"):
        headroom_in(Group(2, (tmp_path,)), GIB)
