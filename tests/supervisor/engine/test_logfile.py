import os

import pytest

from llmkube.k8s.resource import Key
from llmkube.supervisor.engine.logfile import (
    log_path,
    next_log,
    old_log,
    open_for_append,
    read_lines,
    rotate,
    service_of,
)


def write(path, text):
    offset, descriptor = open_for_append(path)
    os.write(descriptor, text.encode())
    os.close(descriptor)
    return offset


def test_only_the_lines_of_this_incarnation_are_shown(tmp_path):
    """Lines that an earlier process wrote to the same file are not taken for the new one's."""
    path = tmp_path / "ns" / "chat.log"
    write(path, "old 1\nold 2\n")
    offset = write(path, "new 1\n\nnew 2\nnew 3\n")
    assert read_lines(path, offset, 2) == ("new 2", "new 3")
    assert read_lines(path, offset, 20) == ("new 1", "new 2", "new 3")


def test_a_log_is_private(tmp_path):
    """Only the owner may read the prompts of a model."""
    path = tmp_path / "ns" / "chat.log"
    write(path, "x")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_rotation_keeps_the_inode_and_the_text(tmp_path):
    """An engine that holds the file open continues to write into it after a rotation."""
    path = tmp_path / "chat.log"
    _, descriptor = open_for_append(path)
    os.write(descriptor, b"first\n" * 100)
    assert not rotate(path, 10_000)
    assert rotate(path, 100)
    os.write(descriptor, b"second\n")
    os.close(descriptor)
    assert path.read_bytes() == b"second\n"
    assert path.with_name("chat.log.1").read_bytes() == b"first\n" * 100


def test_after_a_truncation_the_new_lines_are_found(tmp_path):
    """An offset beyond the end of a rotated file does not hide later lines."""
    path = tmp_path / "chat.log"
    write(path, "x\n" * 1000)
    offset = write(path, "")
    rotate(path, 1)
    write(path, "after\n")
    assert read_lines(path, offset, 5) == ("after",)


def test_a_missing_log_has_no_lines(tmp_path):
    """A child that never wrote has no last lines, which is not an error."""
    assert read_lines(tmp_path / "none.log", 0, 5) == ()


def test_a_symlink_is_not_followed(tmp_path):
    """A link in the log's place does not make the agent write elsewhere."""
    target = tmp_path / "victim"
    link = tmp_path / "chat.log"
    link.symlink_to(target)
    try:
        open_for_append(link)
    except OSError:
        assert not target.exists()
    else:
        raise AssertionError("the link was followed")


def test_on_a_full_disk_a_log_is_emptied_and_nothing_raised(tmp_path):
    """If there is no space for a copy, the log is cut, the partial copy is removed, and the engine continues."""
    path = tmp_path / "chat.log"
    write(path, "x" * 1000)
    path.with_name("chat.log.1").symlink_to("/dev/full")
    assert rotate(path, 100)
    assert path.read_bytes() == b""
    assert not path.with_name("chat.log.1").is_symlink()


def test_a_log_that_cannot_be_copied_is_left(tmp_path):
    """Another error of the copy affects neither the log nor its engine: it is tried again."""
    path = tmp_path / "chat.log"
    write(path, "x" * 1000)
    path.with_name("chat.log.1").mkdir()
    assert not rotate(path, 100)
    assert path.stat().st_size == 1000
    assert not rotate(tmp_path / "none.log", 100)


def test_a_log_that_cannot_be_read_has_no_lines(tmp_path):
    """A log that is not a file or cannot be opened gives no lines and raises nothing."""
    assert read_lines(tmp_path, 0, 5) == ()


@pytest.mark.parametrize("length", [1, 246, 247, 253])
def test_every_service_name_is_a_valid_file_name(tmp_path, length):
    """The longest name that Kubernetes allows has a log, an older one and a successor's; no two names share them."""
    path = log_path(tmp_path, Key("ns", "a" * length))
    write(path, "x")
    for beside in (old_log(path), next_log(path)):
        beside.touch()
        assert service_of(beside if beside.suffix == ".next" else path) == f"ns/{path.stem}"
    assert (path.stem == "a" * length) == (length <= 246)
    assert log_path(tmp_path, Key("ns", "a" * 252 + "b")) != log_path(tmp_path, Key("ns", "a" * 253))
