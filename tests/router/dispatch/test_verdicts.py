"""Results that lead to the next backend, and results that are answers."""

import pytest

from llmkube.base.http.message import Headers
from llmkube.router.dispatch.verdicts import Cause, error_in, failure_in, retry_after, status_of_error

NOT_READY = {"message": "model 'chat' is not ready: it stalled while loading", "code": "model_not_ready"}


@pytest.mark.parametrize(
    ("status", "error", "ours", "cause"),
    [
        (200, None, False, None),
        (400, {"message": "m"}, False, None),
        (408, None, False, None),
        (301, None, False, Cause.REDIRECT),
        (304, None, False, Cause.REDIRECT),
        (429, {"code": "insufficient_quota"}, False, Cause.RATE_LIMITED),
        (500, {"message": "m"}, False, Cause.SERVER_ERROR),
        (529, None, False, Cause.SERVER_ERROR),
        (503, {"message": "Loading model"}, True, Cause.LOADING),
        (503, {"message": "Loading model"}, False, Cause.SERVER_ERROR),
        (503, {"message": "no slot"}, True, Cause.SERVER_ERROR),
        (503, NOT_READY | {"reason": "Loading"}, True, Cause.LOADING),
        (503, NOT_READY | {"reason": "OfTomorrow"}, True, Cause.LOADING),
        (503, NOT_READY, True, Cause.LOADING),  # from a gateway that gives no reason
        (503, NOT_READY | {"reason": "LoadStalled"}, True, Cause.NOT_READY),  # even if its message mentions loading
        (503, NOT_READY | {"reason": "ScaledToZero"}, False, Cause.SERVER_ERROR),
        (404, {"message": "m", "code": "model_not_found"}, True, Cause.MISSING),
        (404, {"message": "m", "code": "model_not_found"}, False, None),
        (404, {"message": "m", "code": 404}, True, None),
        (500, {"code": "content_filter"}, False, None),
        (400, {"innererror": {"code": "ResponsibleAIPolicyViolation"}}, False, None),
    ],
)
def test_only_listed_causes_lead_to_the_next_backend(status, error, ours, cause):
    """Refused content never does, with any status."""
    failure = failure_in(status, Headers(), error, ours=ours)
    assert (failure.cause if failure else None) is cause


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ({"code": 429}, 429),
        ({"code": "404"}, 404),
        ({"status": 503, "code": "x"}, 503),
        ({"type": "invalid_request_error"}, 400),
        ({"type": "overloaded_error"}, 529),
        ({"code": "rate_limit_exceeded"}, 429),
        ({"type": "content_filter", "code": 500}, 400),
        ({"message": "m"}, 502),
        ({"code": 200}, 502),
        ({"code": True}, 502),
    ],
)
def test_an_error_with_200_has_the_status_that_it_should_have_had(error, status):
    """The status comes from the error itself."""
    assert status_of_error(error) == status


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"error": {"message": "m"}}, {"message": "m"}),
        ({"error": "m"}, {"message": "m"}),
        ({"error": None, "choices": []}, None),
        ({"error": {}}, None),
        ([], None),
        (None, None),
    ],
)
def test_what_an_error_is(body, error):
    """An error is a non-empty member of that name."""
    assert error_in(body) == error


@pytest.mark.parametrize(
    ("lines", "seconds"),
    [
        ({"Retry-After": "7"}, 7),
        ({"Retry-After": "99999999999999"}, 3600),
        ({"Retry-After": "-1"}, None),
        ({"Retry-After": "soon"}, None),
        ({}, None),
        ({"Retry-After": "Tue, 24 Nov 2026 18:00:30 GMT", "Date": "Tue, 24 Nov 2026 18:00:00 GMT"}, 30),
        ({"Retry-After": "Tue, 24 Nov 2026 17:00:00 GMT", "Date": "Tue, 24 Nov 2026 18:00:00 GMT"}, 0),
        ({"Retry-After": "Tue, 24 Nov 2026 18:00:30 GMT"}, None),
    ],
)
def test_when_a_backend_wants_to_be_asked_again(lines, seconds):
    """A date is relative to the backend's own clock."""
    assert retry_after(Headers.of(lines)) == seconds


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("cannot reach http://10.9.8.7:8081/v1, sorry", "cannot reach (an address), sorry"),
        ("refused by 192.168.0.7:8000.", "refused by (an address)."),
        ("phi.default.svc.cluster.local:8080 is gone", "(an address) is gone"),
        ("redis://cache:6379/0 is gone", "(an address) is gone"),
        ("at http://[fd00::1]:8080/x", "at (an address)"),
        ("see https://platform.openai.com/docs", "see https://platform.openai.com/docs"),
        ("no URL: http:// or http://\u2100.com", "no URL: http:// or http://\u2100.com"),
        ("8.8.8.8 in version 10.0.0.1.2", "8.8.8.8 in version 10.0.0.1.2"),
        ("needed 4096, available 512.5", "needed 4096, available 512.5"),
    ],
)
def test_messages_of_backends_show_no_local_address(words, expected):
    """The rest of the message is passed on."""
    assert error_in({"error": words}) == {"message": expected}
    assert error_in({"error": {"message": words, "code": 7}}) == {"message": expected, "code": 7}
