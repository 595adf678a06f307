"""No test writes out the cookie of a process (tests/cookies.py)."""

import re
from pathlib import Path

import pytest

WRITTEN = re.compile(r"""(\b(cookie|COOKIE) ?= ?|COOKIE_VARIABLE: |\bEnding\()\w?["']""")


def written_in(text):
    return [line.strip() for line in text.splitlines() if WRITTEN.search(line)]


@pytest.mark.parametrize(
    "line",
    [
        'Command(argv, {}, work, log, cookie="0123")',
        'Command(argv, {}, work, log, cookie=f"cookie of {name}")',
        'ending = Ending("none", Grace(1, 1), Shutdown())',
        'COOKIE = "engine"',
        'env={**os.environ, COOKIE_VARIABLE: "c"}',
    ],
)
def test_a_cookie_that_is_written_out_is_found(line):
    """Also one in the text of a program that a test runs."""
    assert written_in(f"import os\n{line}\n") == [line]


def test_every_cookie_of_a_process_is_a_new_one():
    """`sim` starts no processes, and draws its cookies."""
    tests = Path(__file__).parent
    files = [path for path in tests.rglob("*.py") if path != Path(__file__) and tests / "sim" not in path.parents]
    assert files
    found = {str(path.relative_to(tests)): written_in(path.read_text("utf-8")) for path in files}
    assert {path: lines for path, lines in found.items() if lines} == {}
