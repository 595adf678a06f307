"""Writes to the audit log: a killed writer damages no other line, and no client fills the disk."""

import json

import pytest
import trio

from llmkube.router.config.routing_config import Audit
from llmkube.router.proxy import audit_log
from llmkube.router.proxy.audit_log import writer_of
from router.proxy.router_lab import answer, config_of, local, open_lab


@pytest.mark.parametrize(("before", "after"), [(b"", b"new\n"), (b"old\n", b"old\nnew\n"), (b'{"cut', b'{"cut\nnew\n')])
async def test_a_line_that_was_cut_off_ends_before_the_next(tmp_path, before, after):
    """A killed writer may leave an incomplete line."""
    path = tmp_path / "audit.log"
    path.write_bytes(before)
    await writer_of(Audit(sink="file", path=str(path)))([b"new\n"])
    assert path.read_bytes() == after


async def test_a_log_that_may_only_be_written_is_written():
    """A file that cannot be read, such as a device, is written without that check."""
    await writer_of(Audit(sink="file", path="/dev/null"))([b"new\n"])


async def test_a_file_is_rotated_without_a_lost_line(tmp_path, monkeypatch):
    """Each batch is whole in one file; the oldest file is removed, and files of others stay."""
    monkeypatch.setattr(audit_log, "MAX_FILE_BYTES", 100)
    path, other = tmp_path / "audit.log", tmp_path / "audit.log.gz"
    other.write_text("mine")
    write = writer_of(Audit(sink="file", path=str(path)))
    batches = [b"".join(b"%d-%d %s\n" % (batch, line, b"x" * 40) for line in range(2)) for batch in range(40)]
    for batch in batches:
        await write([batch])
    older = [tmp_path / f"audit.log.{number}" for number in range(audit_log.OLD_FILES, 0, -1)]
    assert set(tmp_path.iterdir()) - {path} == {*older, other}
    kept = b"".join(each.read_bytes() for each in (*older, *([path] if path.exists() else ())))
    assert b"".join(batches).endswith(kept)
    assert len(kept) >= audit_log.OLD_FILES * 100
    assert {each.stat().st_mode & 0o777 for each in older} == {0o600}


async def test_a_folder_that_cannot_be_written_does_not_stop_the_log(tmp_path, monkeypatch):
    """Without a rotation the file grows: a lost line is worse."""

    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(audit_log, "MAX_FILE_BYTES", 10)
    monkeypatch.setattr(audit_log, "_rotate", refuse)
    write = writer_of(Audit(sink="file", path=str(tmp_path / "a")))
    for _ in range(3):
        await write([b"a line of the log\n"])
    assert (tmp_path / "a").read_bytes() == b"a line of the log\n" * 3


async def test_what_a_client_writes_is_cut_in_the_log(autojump_clock):
    """A long model, long unknown fields and many classes give a short line that is still JSON."""
    long = "m" * 1_000_000
    body = {"model": "m" * 4000, "messages": [{"role": "user", "content": "hi"}], **{f"{long}{n}": 1 for n in range(3)}}
    headers = {"X-LLMKube-Classification": ",".join(f"class-{n}" for n in range(2000))}
    async with open_lab(config_of(local("a")), a=answer()) as lab:
        await lab.ask(body, headers=headers)
        await trio.sleep(1)
        [line] = [line for line in lab.lines if b'"decision"' in line]
        assert len(line) < 16_000
        assert json.loads(line)["model"] == "m" * audit_log.MAX_FIELD_CHARS + "…"
