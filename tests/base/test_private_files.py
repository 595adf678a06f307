"""Small private files are replaced atomically."""

import errno
import fcntl
import os
import stat
from pathlib import Path

import pytest

import llmkube
from llmkube.base.private_files import (
    ensure_token,
    file_stem,
    make_private_folder,
    remove_temporary_files,
    sync,
    write_private,
)


@pytest.mark.parametrize("content", ["größer", "größer".encode()])
@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_replaced_and_stays_private(tmp_path, content, durable):
    """The new content has mode 0600 for any mode of the old file, and nothing else is left in the folder."""
    path = tmp_path / "note.json"
    path.write_text("a longer text that was there before")
    path.chmod(0o644)
    write_private(path, content, durable=durable)
    assert path.read_text("utf-8") == "größer"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_disk_that_fails_leaves_the_old_file(tmp_path, monkeypatch, step):
    """After an error at any step the old content is whole, and no draft is left behind."""

    def fail(*_):
        raise OSError(28, "No space left on device")

    path = tmp_path / "note.json"
    path.write_text("old")
    monkeypatch.setattr(os if step == "fsync" else Path, step, fail)
    with pytest.raises(OSError, match="No space left"):
        write_private(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_draft_of_a_killed_writer_is_removed(tmp_path, monkeypatch):
    """A draft of a killed writer is removed at the next start, and nothing else is."""
    path = tmp_path / "note.json"
    path.write_text("old")
    monkeypatch.setattr(Path, "replace", lambda *_: os.kill)  # this line is never reached
    write_private(path, "new")
    assert len(list(tmp_path.iterdir())) == 2
    remove_temporary_files(tmp_path)
    assert list(tmp_path.iterdir()) == [path]
    remove_temporary_files(tmp_path / "none")


@pytest.mark.parametrize("length", [1, 246, 247, 253])
def test_a_name_of_any_length_is_a_valid_file_name(length):
    """A name stays unchanged if the longest suffix fits; a longer one is cut, and stays unique."""
    name = "a" * length
    assert len(file_stem(name)) <= 246
    assert (file_stem(name) == name) == (length <= 246)
    assert file_stem("b" + "a" * 252) != file_stem("a" * 253) != file_stem("a" * 252 + "b")


@pytest.mark.parametrize(("refused", "wanted"), [(False, ["full"]), (True, ["full", "fsync"])])
def test_where_fsync_is_not_enough_the_drive_is_flushed(tmp_path, monkeypatch, refused, wanted):
    """On macOS the drive has to flush its cache; a disk without that command is synced as anywhere else."""
    done = []

    def control(_descriptor, command):
        assert command == 51
        done.append("full")
        if refused:
            raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", control)
    monkeypatch.setattr(os, "fsync", lambda _descriptor: done.append("fsync"))
    with (tmp_path / "file").open("wb") as file:
        sync(file.fileno())
    assert done == wanted


def test_a_draft_that_a_starting_program_removes_is_written_again(tmp_path, monkeypatch):
    """A program clears its folder once, when it starts; a missing folder is still an error."""
    replace = Path.replace
    cleared = []

    def late(draft, path):
        if not cleared:
            cleared.append(remove_temporary_files(tmp_path))
        return replace(draft, path)

    monkeypatch.setattr(Path, "replace", late)
    write_private(tmp_path / "note.json", "{}")
    assert [path.name for path in tmp_path.iterdir()] == ["note.json"]
    with pytest.raises(FileNotFoundError):
        write_private(tmp_path / "nowhere" / "note.json", "{}")


def test_the_token_stays_and_is_long(tmp_path):
    """A restart keeps the token, so that kubeconfigs still work."""
    token = ensure_token(tmp_path / "token")
    assert len(token) >= 43
    assert ensure_token(tmp_path / "token") == token
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600


def test_a_private_folder_has_private_parents(tmp_path):
    """`Path.mkdir` would apply its mode to the last folder only; no module relies on that."""
    before = os.umask(0)
    try:
        make_private_folder(tmp_path / "a" / "b" / "c")
        make_private_folder(tmp_path / "a" / "b" / "c")
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("a", "a/b", "a/b/c")] == [0o700] * 3
    tops = {"state_dir.py", "host_name.py", "start_limit.py", "join.py", "blobs.py"}  # not below a state directory
    sources = Path(llmkube.__file__).parent.rglob("*.py")
    lines = {(each.name, line) for each in sources for line in each.read_text().splitlines() if ".mkdir(" in line}
    assert {name for name, line in lines if "parents=True" in line and "mode=" in line} == tops
