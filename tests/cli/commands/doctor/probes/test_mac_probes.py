"""macOS's reports on programs that it ended; what its tools print is read in `tests/mac/test_doctor.py`."""

import json
import os

from llmkube.cli.commands.doctor.probes.mac_probes import newest_jetsam

HEADER = {"bug_type": "298", "timestamp": "2026-01-01 12:00:00.00 +0100", "os_version": "macOS 26.1"}


def report(folder, name, body, at):
    path = folder / f"JetsamEvent-{name}.ips"
    path.write_text(f"{json.dumps(HEADER)}\n{body}")
    os.utime(path, (at, at))
    return path.name


def test_the_newest_report_names_the_largest_process(tmp_path):
    """Its first line is a header, the rest one JSON object."""
    newest = report(tmp_path, "2026-01-02", json.dumps({"largestProcess": "llama-server", "processes": []}), 2000)
    report(tmp_path, "2026-01-09", json.dumps({"largestProcess": "Xcode"}), 1000)
    assert newest_jetsam(2000.0, tmp_path) == (newest, "llama-server")


def test_a_report_that_cannot_be_read_is_still_one(tmp_path):
    """And a Mac without any has none."""
    assert newest_jetsam(2000.0, tmp_path) == ("", "")
    assert newest_jetsam(2000.0, tmp_path / "nowhere") == ("", "")
    for body in ("", "[]", '{"largestProcess": ', "\x00"):
        name = report(tmp_path, "a", body, 1000)
        assert newest_jetsam(2000.0, tmp_path) == (name, "")


def test_an_old_report_is_none(tmp_path):
    """It would warn for ever."""
    report(tmp_path, "a", "{}", 1000)
    assert newest_jetsam(1000 + 6 * 86_400, tmp_path)[0]
    assert newest_jetsam(1000 + 8 * 86_400, tmp_path) == ("", "")
