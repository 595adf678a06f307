import datetime

import pytest

from llmkube.base.errors import ExternalError, UserError
from llmkube.weights.errors import (
    AccessDeniedError,
    FetchError,
    RangeError,
    SourceNotFoundError,
    SourceRefusedError,
    ThrottledError,
    WrongSizeError,
)
from llmkube.weights.http_responses import (
    AlreadyComplete,
    RangeRequest,
    ReadBody,
    Restart,
    Validator,
    interpret,
    linked_digest,
    linked_size,
    wait_seconds,
)

NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
CHANGED = Restart("the file on the server has changed since the download began")
SHORTER = Restart("the server's file is shorter than the part that was downloaded before")
V1 = Validator('"v1"')
WHOLE = RangeRequest("here")
HUB = RangeRequest("here", server="hub")
REST = RangeRequest("here", offset=100, validator=V1, total_bytes=200)


def decide(asked, status, redirected=False, **headers):
    return interpret(
        asked, status, {k.replace("_", "-"): v for k, v in headers.items()}, redirected=redirected, now=NOW
    )


@pytest.mark.parametrize(
    ("asked", "status", "headers", "verdict"),
    [
        (WHOLE, 200, {"content_length": "5", "etag": '"v1"'}, ReadBody(0, 5, V1)),
        (WHOLE, 200, {"transfer_encoding": "chunked"}, ReadBody(0, None, Validator())),
        (WHOLE, 200, {}, ReadBody(0, None, Validator(), framed=False)),
        (WHOLE, 200, {"content_length": "5", "etag": "x" * 2000}, ReadBody(0, 5, Validator())),
        (RangeRequest("here", total_bytes=5), 200, {"transfer_encoding": "chunked"}, ReadBody(0, 5, Validator())),
        (REST, 200, {"content_length": "300", "etag": '"v2"'}, ReadBody(0, 300, Validator('"v2"'))),
        (REST, 206, {"content_range": "bytes 100-199/200", "etag": '"v1"'}, ReadBody(100, 200, V1)),
        (REST, 206, {"content_range": "bytes 100-149/200", "content_length": "50"}, ReadBody(100, 200, V1)),
        (REST, 206, {"content_range": "bytes 100-199/*"}, ReadBody(100, 200, V1)),
        (REST, 206, {"content_range": "bytes 100-199/200", "etag": '"v2"'}, CHANGED),
        (REST, 206, {"content_range": "bytes 100-299/300", "etag": '"v1"'}, CHANGED),
        (REST, 416, {"content_range": "bytes */100"}, SHORTER),
        (REST, 416, {}, SHORTER),
        (RangeRequest("here", 200, V1, 200), 416, {"content_range": "bytes */200"}, AlreadyComplete()),
        (RangeRequest("here", 200, V1, None), 416, {"content_range": "bytes */200"}, AlreadyComplete()),
        (RangeRequest("here", 200, V1, 300), 416, {"content_range": "bytes */200"}, SHORTER),
    ],
)
def test_each_answer_with_a_file_has_one_meaning(asked, status, headers, verdict):
    """A body is put where it belongs, and a prefix is kept only when it is of the same version."""
    assert decide(asked, status, **headers) == verdict


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content_range": "bytes 0-99/200"},
        {"content_range": "bytes 101-199/200"},
        {"content_range": "bytes 100-99/200"},
        {"content_range": "bytes 100-200/200"},
        {"content_range": "bytes */200"},
        {"content_range": "items 100-199/200"},
        {"content_range": "bytes 100-199/200, bytes 0-1/200"},
        {"content_range": "bytes 100-199/" + "9" * 40},
        {"content_range": "bytes 100-199/200", "content_length": "99"},
        {"content_type": "multipart/byteranges; boundary=x"},
    ],
)
def test_a_part_that_does_not_say_where_it_belongs_is_refused(headers):
    """Bytes of an unclear place are never pieced together."""
    with pytest.raises(RangeError):
        decide(REST, 206, **headers)


@pytest.mark.parametrize(
    ("asked", "status", "headers", "error", "says"),
    [
        (WHOLE, 206, {"content_range": "bytes 0-1/2"}, SourceRefusedError, "206"),
        (WHOLE, 204, {}, SourceRefusedError, "204, which is not a file"),
        (WHOLE, 304, {}, SourceRefusedError, "304"),
        (WHOLE, 416, {}, SourceRefusedError, "416"),
        (WHOLE, 400, {}, SourceRefusedError, "400"),
        (WHOLE, 404, {}, SourceNotFoundError, "no such file; check the name"),
        (WHOLE, 410, {}, SourceNotFoundError, "410"),
        (WHOLE, 401, {}, AccessDeniedError, "user and password"),
        (WHOLE, 403, {}, AccessDeniedError, "user and password"),
        (WHOLE, 200, {"content_encoding": "gzip"}, SourceRefusedError, "compresses the file"),
        (REST, 206, {"content_range": "bytes 100-199/200", "content_encoding": "br"}, SourceRefusedError, "compresses"),
        (
            HUB,
            401,
            {"x_error_code": "GatedRepo"},
            AccessDeniedError,
            r"GatedRepo.*a token is required.*HF_TOKEN.*sourceSecretRef.*terms",
        ),
        (
            RangeRequest("here", server="hub", credential=True),
            403,
            {},
            AccessDeniedError,
            "the token that was sent has no permission to read it",
        ),
        (
            HUB,
            404,
            {"x_error_code": "RevisionNotFound", "x_error_message": "Invalid rev"},
            SourceNotFoundError,
            r"\(RevisionNotFound Invalid rev\)",
        ),
        (HUB, 404, {"x_error_message": "\x1b[31m"}, SourceNotFoundError, "answered 404: no such"),
    ],
)
def test_what_asking_again_would_not_change_is_the_users(asked, status, headers, error, says):
    """A refusal names the status and what to do, and counts as the user's."""
    with pytest.raises(error, match=says) as caught:
        decide(asked, status, **headers)
    assert isinstance(caught.value, UserError)
    assert caught.value.field == "spec.source"


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_a_busy_server_is_the_worlds(status):
    """Statuses that pass by themselves are worth another try."""
    with pytest.raises(ExternalError, match=str(status)):
        decide(WHOLE, status)


def test_a_pause_that_the_server_asks_for_is_in_the_error():
    """429 and 503 carry the seconds to wait, if the server gave them."""
    with pytest.raises(ThrottledError) as caught:
        decide(WHOLE, 503, retry_after="17")
    assert caught.value.wait_seconds == 17
    with pytest.raises(ThrottledError) as caught:
        decide(WHOLE, 429)
    assert caught.value.wait_seconds is None


@pytest.mark.parametrize("status", [401, 403, 404, 400])
def test_a_refusal_behind_a_redirect_may_pass(status):
    """A signed link that has expired is asked for anew, and is not the user's fault."""
    with pytest.raises(FetchError, match="after a redirect"):
        decide(WHOLE, status, redirected=True)


def test_a_file_of_another_size_than_promised_is_refused():
    """The hub's size and the server's must be the same."""
    with pytest.raises(WrongSizeError, match="should have 6 bytes, the server sends 5"):
        decide(RangeRequest("here", total_bytes=6), 200, content_length="5")


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "0"}, 0),
        ({"retry-after": " 120 "}, 120),
        ({"retry-after": "Fri, 02 Jan 2026 03:05:05 GMT"}, 60),
        ({"retry-after": "Fri, 02 Jan 2026 03:05:05 GMT", "date": "Fri, 02 Jan 2026 03:05:00 GMT"}, 5),
        ({"retry-after": "Fri, 02 Jan 2015 03:05:05 GMT"}, 0),
        ({"retry-after": "Fri, 02 Jan 2026 03:05:05 -0000"}, 60),
        ({"ratelimit": '"api";r=0;t=52'}, 52),
        ({"ratelimit": '"resolvers";r=0;t=7', "retry-after": "9"}, 9),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "9" * 30}, None),
        ({"retry-after": f"Fri, 02 Jan {'9' * 30} 03:05:05 GMT"}, None),
        ({"ratelimit": "limit=10, remaining=0"}, None),
        ({}, None),
    ],
)
def test_a_pause_is_read_in_every_form(headers, seconds):
    """Seconds, dates and rate limits all say how long to wait, and nonsense says nothing."""
    assert wait_seconds(headers, NOW) == seconds


@pytest.mark.parametrize(
    ("validator", "if_range"),
    [
        (Validator('"v1"', "yesterday"), '"v1"'),
        (Validator('W/"v1"', "yesterday"), "yesterday"),
        (Validator('W/"v1"'), ""),
        (Validator(), ""),
    ],
)
def test_only_what_proves_that_parts_belong_together_is_used(validator, if_range):
    """A weak ETag never goes into If-Range."""
    assert validator.if_range == if_range


def test_the_hubs_promises_are_taken_only_when_they_are_digests():
    """A git blob's id in x-linked-etag is not a SHA-256, and a size must be a number."""
    assert linked_digest({"x-linked-etag": f'"{"a" * 64}"'}) == "a" * 64
    assert linked_digest({"x-linked-etag": f'"{"a" * 40}"'}) is None
    assert linked_digest({}) is None
    assert linked_size({"x-linked-size": "12"}) == 12
    assert linked_size({"x-linked-size": "-1"}) is None
