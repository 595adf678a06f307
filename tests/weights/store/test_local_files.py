"""Files of this host that other programs may change."""

import errno

import psutil
import pytest

from llmkube.weights.errors import WeightsNotFoundError
from llmkube.weights.store import local_files as module


def test_a_folder_that_macos_guards_is_not_blamed_on_permissions(monkeypatch):
    """Where macOS keeps background programs out (EPERM), the advice is its privacy settings and not chmod."""
    guarded = PermissionError(errno.EPERM, "Operation not permitted")
    assert "change its permissions" in module.describe_read_error(guarded)
    monkeypatch.setattr(module.sys, "platform", "darwin")
    monkeypatch.setattr(module.sys, "executable", "/opt/python/bin/python3")  # which starts Python.app
    assert f"allow {psutil.Process().exe()} under" in module.describe_read_error(guarded)
    assert "Full Disk Access" in module.describe_read_error(guarded)
    assert "change its permissions" in module.describe_read_error(PermissionError(errno.EACCES, "Permission denied"))


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: path.touch(), lambda _: None])
def test_a_snapshot_is_of_a_file_with_something_in_it(tmp_path, make):
    """A folder, an empty file and a missing one are no weights."""
    make(tmp_path / "m.gguf")
    with pytest.raises(WeightsNotFoundError):
        module.take_snapshot(tmp_path / "m.gguf")
