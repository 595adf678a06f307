"""Writes to the audit log: a killed writer damages no other line."""

import pytest

from llmkube.router.config.routing_config import Audit
from llmkube.router.proxy.audit_log import writer_of


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
