import os
import sys

import pytest

from lacking import no_descriptors
from llmkube.supervisor.host import procfs
from llmkube.supervisor.host.procfs import parse_counter, parse_meminfo
from supervisor.host.linux_files import MEMINFO


def test_meminfo_is_read_in_bytes():
    """Entries in kB become bytes; those that count pages stay as they are."""
    found = parse_meminfo(MEMINFO)
    assert (found["MemTotal"], found["HugePages_Total"]) == (24684084 * 1024, 4)


@pytest.mark.parametrize(
    ("text", "pages"), [("pswpin 1\npswpout 42\npswpout_x 9\n", 42), ("pgpgin 3\n", None), ("", None)]
)
def test_a_counter_is_found_by_its_name(text, pages):
    """A missing counter is None."""
    assert parse_counter(text, "pswpout") == pages


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_this_process_is_read():
    """The kernel's entries of this process have its parent, its environment, and a memory size above 0."""
    pid = os.getpid()
    stat = procfs.read_stat(pid)
    assert stat.state in {"R", "S"}
    assert stat.resident_bytes > 1 << 20
    assert stat.start_ticks == procfs.read_stat(pid).start_ticks
    assert pid in procfs.list_pids()
    assert procfs.read_parent(pid) == os.getppid()
    assert 0 < procfs.read_pss_bytes(pid) <= procfs.read_stat(pid).resident_bytes
    assert b"PATH=" in procfs.read_environment(pid)
    assert procfs.read_disk_bytes(pid) >= 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_exited_process_has_no_entries():
    """No reader of one process raises for an unused pid."""
    pid = 2**22 + 1
    assert procfs.read_stat(pid) is procfs.read_parent(pid) is procfs.read_pss_bytes(pid) is None
    assert procfs.read_disk_bytes(pid) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_without_descriptors_the_list_of_processes_is_an_error():
    """A host without a free descriptor is not a host without processes."""
    with no_descriptors():
        assert procfs.read_stat(os.getpid()) is None
        with pytest.raises(OSError, match="Too many open files"):
            procfs.list_pids()
