import stat

import pytest

from llmkube.supervisor.engine.key_file import (
    KEYS_FOLDER,
    key_path,
    new_key,
    remove_private_files,
    removed_after_exit,
    write_keys,
)
from llmkube.supervisor.values.ports import Shutdown


def written(folder, cookie):
    path = key_path(folder, cookie)
    write_keys(path, (new_key(),))
    return path


def test_keys_are_private_and_never_the_same(tmp_path):
    """One key per line, readable by the user alone, each of 256 random bits."""
    path = key_path(tmp_path, "c")
    keys = (new_key(), new_key())
    write_keys(path, keys)
    assert path.read_text().splitlines() == list(keys)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert len({new_key() for _ in range(100)}) == 100
    assert min(len(new_key()) for _ in range(100)) == 43


@pytest.mark.parametrize("keep", [True, False])
def test_a_file_is_removed_with_its_engine(tmp_path, keep):
    """It is removed when the engine has exited, and stays while the engine does."""
    path = written(tmp_path, "c")
    with removed_after_exit(path, Shutdown(keep=keep)):
        assert path.exists()
    assert path.exists() == keep


def test_files_of_engines_that_are_gone_are_removed(tmp_path):
    """Files that a killed agent has left are removed if their engines have exited, and kept otherwise."""
    ended, living = written(tmp_path, "ended"), written(tmp_path, "living")
    remove_private_files(tmp_path / KEYS_FOLDER, {"living"})
    assert (ended.exists(), living.exists()) == (False, True)
