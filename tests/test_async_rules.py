"""`make check` checks only files that changed, and never hides a finding."""

import sys

import pytest

from async_rules import check

CHECKER = 'import sys; print(*sys.argv[1:], file=open("checked", "a")); sys.exit("bad" in open(sys.argv[1]).read())'


@pytest.fixture
def checked(tmp_path):
    """A function that checks a tree, and returns the exit status and the checked files."""
    (tmp_path / ".flake8").write_text("[flake8]\n")
    (tmp_path / "src").mkdir()

    def run(checker=CHECKER):
        (tmp_path / "checked").write_text("")
        status = check(["src"], tmp_path, tmp_path / "kept", [sys.executable, "-c", checker])
        return status, (tmp_path / "checked").read_text().split()

    return run


def test_a_file_that_passed_is_checked_again_only_after_a_change(tmp_path, checked):
    """A change of the file, of the configuration or of the checker; a file without Trio is not checked."""
    (tmp_path / "src" / "a.py").write_text("import trio\n")
    (tmp_path / "src" / "b.py").write_text("async def f(): ...\n")
    (tmp_path / "src" / "c.py").write_text("import os\n")
    assert checked() == (0, ["src/a.py", "src/b.py"])
    assert checked() == (0, [])
    (tmp_path / "src" / "b.py").write_text("async def g(): ...\n")
    assert checked() == (0, ["src/b.py"])
    (tmp_path / "src" / "b.py").rename(tmp_path / "src" / "d.py")
    assert checked() == (0, ["src/d.py"])
    (tmp_path / ".flake8").write_text("[flake8]\nselect = ASYNC\n")
    assert checked() == (0, ["src/a.py", "src/d.py"])
    assert checked(CHECKER + " ") == (0, ["src/a.py", "src/d.py"])


def test_a_finding_is_reported_until_it_is_gone(tmp_path, checked):
    (tmp_path / "src" / "a.py").write_text("import trio  # bad\n")
    assert checked() == (1, ["src/a.py"])
    assert checked() == (1, ["src/a.py"])
    (tmp_path / "src" / "a.py").write_text("import trio\n")
    assert checked() == (0, ["src/a.py"])


def test_another_version_of_a_package_checks_everything(tmp_path, checked, monkeypatch):
    (tmp_path / "src" / "a.py").write_text("import trio\n")
    assert checked() == (0, ["src/a.py"])
    monkeypatch.setattr("async_rules.metadata.distributions", list)
    assert checked() == (0, ["src/a.py"])
