"""Where lines of the audit log go: a writer that was killed spoils no other's line."""

import pytest

from llmkube.router.config.routing_config import Audit
from llmkube.router.proxy.audit_log import writer_of


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
