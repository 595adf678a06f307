"""A real router handles all sixteen faults of providers, over sockets."""

import pytest

from router.faulty_providers.session import AFTER, CASES, PLAIN, STREAM, Case, judge, play
from router.proxy.router_lab import ANSWER, DONE, WHOLE_STREAM, answer, piece
from router.proxy.test_faults import FAULTS


@pytest.mark.ci
@pytest.mark.e2e
async def test_each_fault_is_handled(tmp_path):
    """Before the first byte another provider answers, or the refusal passes; after it the stream ends with an error."""
    found = await play(tmp_path)
    assert set(found) == set(CASES)
    assert {case.fault for case in found} == set(FAULTS)
    assert {case.slug: wrong for case, wrong in found.items() if wrong} == {}


BODY = answer().partition(b"\r\n\r\n")[2]
FELL = {"attempts": [{"result": "timeout"}]}
ENDED = {"outcome": "stream_backend_silent"}
ERROR = b'data: {"error": {"code": "stream_backend_silent"}}\n\n'


@pytest.mark.parametrize(
    ("kind", "got", "audit", "asked"),
    [
        (PLAIN, (504, b"{}", True), FELL, 0),  # the second provider was not asked
        (PLAIN, (200, b"{}", True), FELL, 1),  # another answer than the second's
        (PLAIN, (200, BODY, True), {"attempts": [{"result": "answered"}]}, 1),  # missing in the audit log
        (STREAM, (200, WHOLE_STREAM, False), FELL, 1),  # no clean end
        (AFTER, (200, piece("one"), True), ENDED, 0),  # truncated, but presented as complete
        (AFTER, (200, piece("one") + ERROR + DONE, True), ENDED, 0),
        (AFTER, (200, piece("one") + ERROR, False), ENDED, 1),  # two answers in one
        (AFTER, (200, piece("one") + ERROR, False), {"outcome": "ok"}, 0),  # audited as a success
    ],
)
def test_what_is_not_as_wanted_is_seen(kind, got, audit, asked):
    """Each of these answers to a provider that goes silent is reported as wrong."""
    assert judge(Case("silent", kind), got, audit, 3.0, asked)


def test_what_is_as_wanted_is_not():
    """The corrected answers are accepted."""
    assert not judge(Case("silent", PLAIN), (200, BODY, True), FELL, 3.0, 1)
    assert not judge(Case("silent", STREAM), (200, WHOLE_STREAM, True), FELL, 3.0, 1)
    assert not judge(Case("silent", AFTER), (200, piece("one") + ERROR, False), ENDED, 3.0, 0)
    assert ANSWER["choices"]
