"""The log of a job stays small and is found where the guides say, also in shared folders."""

import os

import pytest
import trio

from llmkube.cli.commands.programs.background.log_file import CAP_BYTES, maintain_log, point_link
from waiting import until


async def test_a_log_that_has_grown_is_copied_and_truncated_in_place(tmp_path):
    """Launchd keeps it open with O_APPEND, and writes at its new end."""
    log = tmp_path / "metal-agent.log"
    held = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(held, b"x" * (CAP_BYTES + 1))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(maintain_log, log, tmp_path / "link")
            await until((tmp_path / "link").is_symlink)
            nursery.cancel_scope.cancel()
        os.write(held, b"new\n")
    finally:
        os.close(held)
    assert log.read_bytes() == b"new\n"
    assert (tmp_path / "metal-agent.log.1").stat().st_size == CAP_BYTES + 1
    assert (tmp_path / "link").readlink() == log


def test_link_is_created_and_repaired_and_a_file_is_kept(tmp_path):
    log, link = tmp_path / "log", tmp_path / "link"
    assert point_link(link, log)
    assert link.readlink() == log
    other = tmp_path / "other"
    assert point_link(link, other)
    assert link.readlink() == other
    link.unlink()
    link.write_text("mine")
    assert not point_link(link, log)
    assert link.read_text() == "mine"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a file of another user")
def test_another_user_s_link_is_not_followed(tmp_path):
    """In a shared folder another user's link could lead anywhere."""
    link = tmp_path / "link"
    link.symlink_to("/etc/passwd")
    os.lchown(link, 12345, 12345)
    assert not point_link(link, tmp_path / "log")
    assert link.lstat().st_uid == 12345
