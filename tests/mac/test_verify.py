"""The script for owners of a Mac runs to its end on any system, and the page explains each of its lines."""

import subprocess
from pathlib import Path

import pytest

from mac.verify import CLAIMS

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.e2e


def test_the_page_explains_each_claim_and_no_other():
    """docs/verify-on-a-mac.md has a row for each line of the report, in its order."""
    page = (ROOT / "docs" / "verify-on-a-mac.md").read_text("utf-8")
    rows = [line.split(" | ")[0].removeprefix("| ") for line in page.splitlines() if line.startswith("| ")]
    assert rows[1:] == [sentence for sentence, _ in CLAIMS]


@pytest.mark.ci
def test_a_machine_that_is_no_mac_gets_a_report_with_failures(tmp_path):
    """Each claim is one line that passes or fails, whatever error it raises; the exit code reports failures."""
    report = tmp_path / "report.txt"
    done = subprocess.run(
        [ROOT / "tests" / "mac" / "verify.sh", report], capture_output=True, text=True, check=False, timeout=300
    )
    lines = [line for line in report.read_text("utf-8").splitlines() if line.startswith(("pass  ", "FAIL  "))]
    assert [line[6:].split(": ")[0] for line in lines] == [sentence for sentence, _ in CLAIMS]
    assert done.returncode == 1, done.stdout
    assert "of 26 claims hold" in done.stdout
    assert f"written to {report}" in done.stdout
