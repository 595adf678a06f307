"""Which helm is taken, and what is said when none can be had; nothing here is built or downloaded."""

import shutil
from pathlib import Path

import pytest

from charts.chart_tools import build, find_tool, tools_dir
from charts.helm_runs import tool
from go_programs import BuildError


def program(path: Path, says: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho {says}\n")
    path.chmod(0o755)
    return path


def test_a_tool_that_was_built_here_is_taken_before_path(tmp_path):
    """The cache wins over PATH, where any version may lie."""
    program(tmp_path / "bin" / "helm", "v3.1.0")
    environ = {"LLMKUBE_ENVTEST_CACHE": str(tmp_path / "cache"), "PATH": str(tmp_path / "bin")}
    assert find_tool("helm", environ) == str(tmp_path / "bin" / "helm")
    built = program(tools_dir(environ) / "helm", "v3.2.0")
    assert find_tool("helm", environ) == str(built)


def test_a_helm_of_another_major_version_is_not_taken(tmp_path):
    """Helm 4 has other flags, so it counts as none."""
    program(tmp_path / "bin" / "helm", "v4.0.0")
    assert find_tool("helm", {"LLMKUBE_ENVTEST_CACHE": str(tmp_path), "PATH": str(tmp_path / "bin")}) == ""


def test_without_apt_the_way_out_is_named(tmp_path):
    """Where promtool cannot be unpacked, the message says to install it."""
    with pytest.raises(BuildError, match=r"no promtool on PATH: install it.* no apt-get"):
        build(["promtool"], lambda _: None, {"LLMKUBE_ENVTEST_CACHE": str(tmp_path), "PATH": str(tmp_path)})


def test_a_missing_tool_fails_a_test_and_names_what_builds_it(tmp_path, monkeypatch):
    """Nobody is left with a green run in which the chart was not looked at."""
    monkeypatch.setenv("LLMKUBE_ENVTEST_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shutil.which("helm") is None
    with pytest.raises(pytest.fail.Exception, match=r"needs helm.*python tests/charts/chart_tools.py helm"):
        tool("helm")
