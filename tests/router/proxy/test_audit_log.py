"""The audit log of several processes at once: no line is cut by another's, and a killed one spoils no other's."""

import os
import sys
import tempfile

import pytest
import trio

from llmkube.router.config.routing_config import Audit
from llmkube.router.proxy.audit_log import writer_of

LINES = 100
LONG = 100_000
"""More than a pipe takes as one."""

SCRIPT = f"""
import pathlib, sys, time, trio
from llmkube.router.config.routing_config import Audit
from llmkube.router.proxy.audit_log import writer_of
lock, letter, folder = int(sys.argv[1]), sys.argv[2].encode(), pathlib.Path(sys.argv[3])
(folder / sys.argv[2]).touch()
while len(list(folder.iterdir())) < 2:
    time.sleep(0.001)
write = writer_of(Audit(), lock if lock >= 0 else None)
async def main():
    for _ in range({LINES}):
        await write([letter * {LONG} + b"\\n"])
trio.run(main)
"""


async def cut_lines(lock, folder):
    """Let two processes write to one pipe; return how many lines are not of one of them alone."""
    folder.mkdir()
    reader, writer = os.pipe()
    async with trio.open_nursery() as nursery, trio.lowlevel.FdStream(reader) as pipe:
        processes = [
            await trio.lowlevel.open_process(
                [sys.executable, "-c", SCRIPT, str(lock), letter, str(folder)],
                stdout=writer,
                pass_fds=[lock] if lock >= 0 else [],
            )
            for letter in "ab"
        ]
        os.close(writer)
        data = b"".join([piece async for piece in pipe])
        for process in processes:
            nursery.start_soon(process.wait)
    lines = data.split(b"\n")[:-1]
    assert len(data) == 2 * LINES * (LONG + 1)
    return sum(len(set(line)) != 1 or len(line) != LONG for line in lines)


async def test_no_line_is_cut_by_another_process(tmp_path):
    """Each has the lock while it writes; without it lines are cut, so that this can fail."""
    with tempfile.TemporaryFile() as lock:
        assert await cut_lines(lock.fileno(), tmp_path / "one") == 0
    assert await cut_lines(-1, tmp_path / "two") > 0


@pytest.mark.parametrize(("before", "after"), [(b"", b"new\n"), (b"old\n", b"old\nnew\n"), (b'{"cut', b'{"cut\nnew\n')])
async def test_a_line_that_was_cut_off_ends_before_the_next(tmp_path, before, after):
    """Whoever was killed in the middle of it."""
    path = tmp_path / "audit.log"
    path.write_bytes(before)
    await writer_of(Audit(sink="file", path=str(path)))([b"new\n"])
    assert path.read_bytes() == after


async def test_a_log_that_may_only_be_written_is_written():
    """What cannot be looked at, such as a device, gets its lines all the same."""
    await writer_of(Audit(sink="file", path="/dev/null"))([b"new\n"])
