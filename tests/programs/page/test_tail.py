import os

import pytest

from llmkube.programs.page import tail
from llmkube.programs.page.tail import LogFile, open_log


def read_all(log):
    read = b""
    while piece := log.take():
        read += piece
    return read


@pytest.mark.parametrize("block_bytes", [1, 2, 3, 1024])
async def test_the_last_lines_come_first(tmp_path, monkeypatch, block_bytes):
    """Exactly the last N lines are shown, wherever the blocks that are read backwards begin."""
    monkeypatch.setattr(tail, "BLOCK_BYTES", block_bytes)
    path = tmp_path / "x.log"
    for content, lines, shown in (
        (b"a\nb\nc\n", None, b"a\nb\nc\n"),
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc", 2, b"b\nc"),
        (b"a\nb\nc\n", 9, b"a\nb\nc\n"),
        (b"a\nb\nc\n", 0, b""),
        (b"\n\n\n", 2, b"\n\n"),
        (b"", 2, b""),
    ):
        path.write_bytes(content)
        async with open_log(path, lines) as log:
            assert read_all(log) == shown, (content, lines)


async def test_what_is_appended_comes_once(tmp_path):
    """A followed file yields each new byte once, across truncation and replacement."""
    path = tmp_path / "x.log"
    path.write_bytes(b"old\n")
    async with open_log(path, 0) as log:
        with path.open("ab", buffering=0) as writer:
            assert read_all(log) == b""
            writer.write(b"one\n")
            assert read_all(log) == b"one\n"
            os.truncate(path, 0)  # as the agent rotates: the engine keeps the file open for appending
            writer.write(b"2\n")
            assert read_all(log) == b"2\n"
        path.rename(tmp_path / "x.log.1")
        assert read_all(log) == b""
        path.write_bytes(b"three\n")
        assert read_all(log) == b"three\n"


async def test_a_missing_file_is_an_os_error(tmp_path):
    """The caller decides what a missing file means."""
    with pytest.raises(FileNotFoundError):
        async with open_log(tmp_path / "x.log", None):
            pass


async def test_file_that_vanishes_between_two_reads_is_waited_for(tmp_path, monkeypatch):
    """The replacement vanishes before it is opened; no descriptor is closed twice."""
    path = tmp_path / "x.log"
    path.write_bytes(b"one\n")
    async with open_log(path, None) as log:
        assert read_all(log) == b"one\n"
        path.unlink()
        with monkeypatch.context() as patch:
            patch.setattr(LogFile, "_was_replaced", lambda _log: True)
            assert log.take() == b""
        path.write_bytes(b"two\n")
        assert read_all(log) == b"two\n"
