"""Undo the fixes for macOS, one at a time: a test fails. Mutants of counts and exits are next to their tests."""

import os
import re
from types import SimpleNamespace

import psutil
import pytest

from cookies import new_cookie
from llmkube.runtimes.process import exits
from llmkube.supervisor.host import processes
from llmkube.supervisor.power import powermetrics
from llmkube.weights.store import disk, local_files
from supervisor.engine import test_launcher, test_orphans
from supervisor.host import test_darwin, test_processes
from supervisor.power import test_powermetrics
from supervisor.service import test_metal
from weights.store import test_disk, test_local_files

NEVER = re.compile("nothing says this")


def metal_default_device_alone(patch):
    """Read only the default device, not the list of all devices."""
    patch.setattr(test_darwin.FakeMetal, "all_devices", lambda self: [])
    return lambda: test_darwin.test_a_daemon_finds_the_device_in_the_list_of_all(None, [107], 107)


def no_cautious_share(patch):
    """Take a GPU that reports nothing to have nearly all of the memory."""
    patch.setattr(test_darwin.DarwinMemory, "device_limit", lambda self, total_bytes: (int(total_bytes * 0.9), ""))
    return test_darwin.test_a_mac_without_a_device_is_an_error


def lines_of_metal_ignored(patch):
    """Treat ggml's report of a failed command like any other line."""
    patch.setattr(exits, "_METAL", NEVER)

    def seen():
        assert test_metal.failure_of((test_metal.FAILED,), test_metal.LLAMA) is not None

    return seen


def memory_of_metal_ignored(patch):
    """Treat a lack of memory on the GPU like any other failed command."""
    patch.setattr(exits, "_METAL_MEMORY", NEVER)
    lines = (test_metal.FAILED, test_metal.MEMORY)
    return lambda: test_metal.test_lines_of_a_gpu_that_has_failed(lines, "there was not enough memory")


def leaders_by_their_environment_alone(patch):
    """Ignore a wrapper whose environment macOS hides."""
    patch.setattr(processes, "session_of", lambda process: process.pid)
    return lambda: test_processes.test_a_wrapper_that_hides_its_environment_is_found_by_its_session(patch, new_cookie())


def wrapper_of_no_record(patch):
    """Treat an engine below a wrapper that was never recorded as an orphan."""
    real = test_orphans.match_processes
    patch.setattr(test_orphans, "match_processes", lambda *args: real(*args[:4], lambda process: 0))
    return test_orphans.test_a_leader_that_hides_its_environment_is_found_by_its_session


def system_error_of_psutil(patch):
    """Stop the scan of all processes at the first error of psutil."""

    def mark(process, variable):
        try:
            return process.environ().get(variable, "")
        except (psutil.Error, OSError):
            return ""

    patch.setattr(processes, "_mark", mark)
    return lambda: test_processes.test_a_process_that_is_reaped_during_the_scan_is_skipped(patch, new_cookie())


def statvfs_alone(patch):
    """Take the free disk space from statvfs, which wraps at 2^32 blocks."""
    patch.setattr(disk, "free_bytes", lambda folder: os.statvfs(folder).f_bavail * 4096)

    def on_a_mac(free, important, modulo):
        patch.setattr(disk.os, "statvfs", lambda _: SimpleNamespace(f_bavail=free // 4096 % modulo))

    said = (20 << 40, 20 << 40, 1 << 32)
    return lambda: test_disk.test_on_a_mac_the_larger_of_two_figures_is_used(on_a_mac, "/", said, 20 << 40)


def sum_that_never_comes(patch):
    """End a sample only at the line of the sum."""
    feed = powermetrics.PowerReader.feed
    patch.setattr(
        powermetrics.PowerReader, "feed", lambda reader, line: (feed(reader, line), None)["Combined" not in line]
    )
    return test_powermetrics.test_a_system_that_writes_no_sum_gets_ours


def killed_without_a_word(patch):
    """Report only the exit code of a program that macOS kills at once."""
    patch.setattr(test_launcher, "explain_early_kill", lambda code, platform: "")
    return lambda: test_launcher.test_a_program_that_macos_kills_at_once_is_not_signed(-9, "darwin", True)


def advice_for_another_program(patch):
    """Grant the access to files to the program that was typed, and not to the one that runs."""
    typed = SimpleNamespace(Process=lambda: SimpleNamespace(exe=lambda: "/opt/python/bin/python3"))
    patch.setattr(local_files, "psutil", typed)
    return lambda: test_local_files.test_a_folder_that_macos_guards_is_not_blamed_on_permissions(patch)


MUTANTS = [
    metal_default_device_alone,
    no_cautious_share,
    lines_of_metal_ignored,
    memory_of_metal_ignored,
    leaders_by_their_environment_alone,
    wrapper_of_no_record,
    system_error_of_psutil,
    statvfs_alone,
    sum_that_never_comes,
    killed_without_a_word,
    advice_for_another_program,
]


@pytest.mark.soak
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_each_undone_fix_fails_a_test(mutant, monkeypatch):
    """Without the fix the test fails, by an assertion or with the error that users met."""
    test = mutant(monkeypatch)
    with pytest.raises((AssertionError, OSError, SystemError)):
        test()
