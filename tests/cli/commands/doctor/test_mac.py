"""Findings about a Mac, and its jetsam reports; the Mac's tools are read in `tests/mac/test_doctor.py`."""

import json
import os
from functools import partial

import pytest

from cli.commands.doctor.places import check_finding
from llmkube.cli.commands.doctor.mac import (
    assess_firewall,
    assess_gpu_limit,
    assess_guarded_folders,
    assess_power,
    assess_sleep,
    newest_jetsam,
)
from llmkube.supervisor.host.this_machine import GpuLimit

GIB = 1 << 30
WELL = {"on_battery": False, "low_power": False, "restarts": 1}
DOCUMENTS = ["--model-store in /Users/ada/Documents"]
WALL = partial(assess_firewall, "/py", blocks_all=False)


def gpu(limit_bytes, guessed=False):
    return assess_gpu_limit(64 * GIB, GpuLimit(limit_bytes, "Metal", guessed), 48 * GIB)


@pytest.mark.parametrize(
    ("found", "verdict", "words"),
    [
        (gpu(48 * GIB), "pass", "48.0 GiB of 64.0 GiB by Metal"),
        (gpu(None), "pass", "no limit is known"),
        (gpu(62 * GIB), "fail", "`sudo sysctl iogpu.wired_limit_mb=49152`, or 0"),
        (gpu(48 * GIB, guessed=True), "warn", "ssh"),
        (gpu(40 * GIB), "warn", "`sudo sysctl iogpu.wired_limit_mb=49152`"),
        (assess_sleep(0, kept_awake=False), "pass", "it never sleeps"),
        (assess_sleep(1, kept_awake=False), "warn", "`sudo pmset -a sleep 0`"),
        (assess_sleep(1, kept_awake=True), "pass", "engine runs"),
        (assess_sleep(None, kept_awake=False), "warn", "`pmset -g`"),
        (assess_power(**WELL), "pass", "it restarts after a power cut"),
        (assess_power(**{**WELL, "on_battery": True}), "warn", "battery"),
        (assess_power(**{**WELL, "low_power": True}), "warn", "lowpowermode 0"),
        (assess_power(**{**WELL, "restarts": 0}), "warn", "autorestart 1"),
        (assess_power(**{**WELL, "restarts": None}), "pass", "on mains"),
        (WALL(True), "pass", "allows connections to /py"),
        (WALL(True, blocks_all=True), "fail", "--setblockall off"),
        (WALL(False), "fail", '--unblockapp "/py"'),
        (WALL(None), "warn", "cannot show it"),
        (assess_guarded_folders([], "/py"), "pass", "not needed"),
        (assess_guarded_folders(DOCUMENTS, "/py"), "warn", "--model-store in /Users/ada/Documents"),
        (assess_guarded_folders(DOCUMENTS, "/py", "the log"), "fail", "add /py"),
    ],
)
def test_each_check_is_one_finding_with_its_fix(found, verdict, words):
    check_finding(found, verdict, words)


HEADER = {"bug_type": "298", "timestamp": "2026-01-01 12:00:00.00 +0100", "os_version": "macOS 26.1"}


def report(folder, name, body, at):
    path = folder / f"JetsamEvent-{name}.ips"
    path.write_text(f"{json.dumps(HEADER)}\n{body}")
    os.utime(path, (at, at))
    return path.name


def test_the_newest_report_names_the_largest_process(tmp_path):
    """The first line is a header, the rest one JSON object."""
    newest = report(tmp_path, "2026-01-02", json.dumps({"largestProcess": "llama-server", "processes": []}), 2000)
    report(tmp_path, "2026-01-09", json.dumps({"largestProcess": "Xcode"}), 1000)
    assert newest_jetsam(2000.0, tmp_path) == (newest, "llama-server")


def test_unreadable_report_is_still_named(tmp_path):
    """A Mac without reports has none."""
    assert newest_jetsam(2000.0, tmp_path) == ("", "")
    assert newest_jetsam(2000.0, tmp_path / "nowhere") == ("", "")
    for body in ("", "[]", '{"largestProcess": ', "\x00"):
        name = report(tmp_path, "a", body, 1000)
        assert newest_jetsam(2000.0, tmp_path) == (name, "")


def test_old_report_is_ignored(tmp_path):
    report(tmp_path, "a", "{}", 1000)
    assert newest_jetsam(1000 + 6 * 86_400, tmp_path)[0]
    assert newest_jetsam(1000 + 8 * 86_400, tmp_path) == ("", "")
