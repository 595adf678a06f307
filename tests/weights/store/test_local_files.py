"""Files of this host that are not ours."""

import errno

import pytest

from llmkube.weights.errors import (
    WeightsNotFoundError,
)
from llmkube.weights.store import local_files as module


def test_a_folder_that_macos_guards_is_not_blamed_on_permissions(tmp_path, monkeypatch):
    """Where macOS keeps background programs out (EPERM), the advice is its privacy settings and not chmod."""
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")

    def guarded(*_args, **_kwargs):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(module.os, "open", guarded)
    monkeypatch.setattr(module.sys, "platform", "darwin")
    with pytest.raises(WeightsNotFoundError, match="Full Disk Access"):
        module.take_snapshot(path)
