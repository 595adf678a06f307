"""When a probe's answers make a backend unhealthy, and healthy again."""

import pytest

from llmkube.router.health.probe_state import UNHEALTHY_AFTER, ProbeState, Reply

PATH = "/health"


def after(*found):
    state = ProbeState()
    for each in found:
        state = state.failed("no answer") if each is None else state.replied(each, PATH)
    return state


OK, BAD, LOADING = Reply(200), Reply(500), Reply(503, is_loading=True)


@pytest.mark.parametrize(
    ("found", "healthy", "failures"),
    [
        ((), True, 0),
        ((OK,), True, 0),
        ((BAD,) * (UNHEALTHY_AFTER - 1), True, UNHEALTHY_AFTER - 1),
        ((BAD,) * UNHEALTHY_AFTER, False, UNHEALTHY_AFTER),
        ((BAD, None, BAD), False, 3),
        ((BAD, BAD, OK, BAD, BAD), True, 2),
        ((BAD, BAD, BAD, OK), True, 0),
        ((BAD, BAD, LOADING, BAD), False, 3),
        ((LOADING,) * 9, True, 0),
        ((BAD, BAD, BAD, LOADING), False, 3),
    ],
)
def test_failures_in_a_row(found, healthy, failures):
    """Three of them; one good answer ends it, an engine that loads neither ends nor adds to it."""
    assert (after(*found).is_healthy, after(*found).failures) == (healthy, failures)


@pytest.mark.parametrize("status", [301, 302, 400, 401, 404, 429, 500, 503])
def test_no_other_status_is_a_good_answer(status):
    """A redirect among them: it is not followed. The reason names status and path, and no address."""
    assert after(Reply(status)).why == f"it answers {status} at /health"


@pytest.mark.parametrize("status", [200, 204])
def test_2xx_is(status):
    """Whatever the body is."""
    assert after(BAD, Reply(status)) == ProbeState()
