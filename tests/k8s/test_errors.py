"""Each refusal becomes the error that says who is at fault."""

import json

import pytest

from k8s.scripted import status_object
from llmkube.base.errors import ExternalError, UserError
from llmkube.k8s.errors import (
    AlreadyExistsError,
    ApiError,
    BadRequestError,
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidError,
    NotFoundError,
    SchemaMismatchError,
    ServerError,
    TooManyRequestsError,
    TransportError,
    UnauthorizedError,
    error_from_response,
    error_from_status,
    excerpt,
    root_cause_text,
)


@pytest.mark.parametrize(
    ("code", "reason", "expected", "fault"),
    [
        (400, "BadRequest", BadRequestError, UserError),
        (401, "Unauthorized", UnauthorizedError, ExternalError),
        (403, "Forbidden", ForbiddenError, ExternalError),
        (404, "NotFound", NotFoundError, ExternalError),
        (409, "Conflict", ConflictError, ExternalError),
        (409, "AlreadyExists", AlreadyExistsError, ExternalError),
        (410, "Gone", GoneError, ExternalError),
        (410, "Expired", GoneError, ExternalError),
        (422, "Invalid", InvalidError, UserError),
        (429, "TooManyRequests", TooManyRequestsError, ExternalError),
        (500, "InternalError", ServerError, ExternalError),
        (503, "ServiceUnavailable", ServerError, ExternalError),
        (504, "Timeout", ServerError, ExternalError),
    ],
)
def test_a_status_becomes_the_error_of_its_code(code, reason, expected, fault):
    """Every failing code that an API server documents has its own class, with the fault in its ancestry."""
    error = error_from_response("GET /x", code, json.dumps(status_object(code, reason, "because")).encode())
    assert type(error) is expected
    assert isinstance(error, fault)
    assert isinstance(error, ApiError)
    assert (error.code, error.reason, str(error)) == (code, reason, "because")


def test_an_unlisted_code_has_no_class_of_its_own():
    """A 415 is neither the user's nor the world's: it is a plain ApiError."""
    error = error_from_status(status_object(415, "UnsupportedMediaType"))
    assert type(error) is ApiError


@pytest.mark.parametrize("code", [200, 302, 400, 404, 409, 410, 422])
def test_an_html_page_is_no_answer_about_objects(code):
    """A 404 (or any code that would change our belief) with an HTML body is a TransportError, never NotFoundError."""
    error = error_from_response("GET /x", code, b"<html>Please log in</html>")
    assert type(error) is TransportError
    assert error.code == code


@pytest.mark.parametrize(
    ("code", "expected"),
    [(401, UnauthorizedError), (403, ForbiddenError), (429, TooManyRequestsError), (502, ServerError)],
)
def test_harmless_refusals_are_believed_without_a_status(code, expected):
    """kube-apiserver's 429 and a proxy's 502 are plain text, and keep their meaning."""
    error = error_from_response("GET /x", code, b"Too many requests, please try again later.", retry_after="7")
    assert type(error) is expected
    assert error.retry_after_seconds == 7
    assert "Too many requests" in str(error)


def test_a_plain_404_hints_at_the_missing_definition():
    """The 404 of an unserved path names the likely cause."""
    assert "CRD" in str(error_from_response("GET /apis/x", 404, b"404 page not found\n"))


def test_an_invalid_object_names_its_field():
    """InvalidError.field is the first cause's path, and the message is the server's own, unprefixed."""
    details = {"causes": [{"field": "spec.source", "message": "Required value"}, {"field": "spec.sha256"}]}
    error = error_from_status(status_object(422, "Invalid", "Model is invalid", details=details))
    assert isinstance(error, InvalidError)
    assert (error.field, str(error)) == ("spec.source", "Model is invalid")


TYPED = "failed to create typed patch object (ml/phi; inference.llmkube.dev/v1alpha1, Kind=Model): "


@pytest.mark.parametrize("code", [400, 500])
@pytest.mark.parametrize(
    ("words", "field"),
    [
        (".status.newField: field not declared in schema", "status.newField"),
        ('.conditions[type="A b:c"].bogus: field not declared in schema', 'conditions[type="A b:c"].bogus'),
        (".status.phase: expected string, got &value.valueUnstructured{Value:7}", "status.phase"),
        ("errors:\n  .spec.a: field not declared in schema\n  .spec.b: field not declared in schema", "spec.a"),
        (".status.conditions: element 0: associative list with keys has an element", "status.conditions"),
    ],
)
def test_an_apply_that_does_not_fit_the_schema_is_not_the_servers_fault(code, words, field):
    """kube-apiserver's 500 for an undeclared field is a user's error that names the field and the CRDs' age."""
    error = error_from_status(status_object(code, "", TYPED + words))
    assert type(error) is SchemaMismatchError
    assert isinstance(error, UserError)
    assert not isinstance(error, ExternalError)
    assert (error.field, error.code) == (field, code)
    assert str(error).startswith(f"{field}: ")
    assert "older than this program" in str(error)


@pytest.mark.parametrize(
    "message",
    [
        "failed to create typed patch object (ml/phi; inference.llmkube.dev/v1alpha1, Kind=Model): out of memory",
        "failed to create typed live object: .status.newField: field not declared in schema",
        "etcdserver: request timed out",
    ],
)
def test_other_500s_stay_the_servers_fault(message):
    """A 500 that names no field of ours is a ServerError, and so tried again."""
    assert type(error_from_status(status_object(500, "", message))) is ServerError


@pytest.mark.parametrize(
    ("header", "details", "expected"),
    [
        ("3", {}, 3.0),
        ("", {"retryAfterSeconds": 5}, 5.0),
        ("3", {"retryAfterSeconds": 5}, 3.0),
        ("", {}, None),
        ("Wed, 21 Oct 2026 07:28:00 GMT", {}, None),
        ("-1", {}, None),
        ("²", {}, None),
    ],
)
def test_retry_after_comes_from_header_or_status(header, details, expected):
    """The header wins over the Status, and what is not a number of seconds reads as absent."""
    body = json.dumps(status_object(429, "TooManyRequests", details=details)).encode()
    assert error_from_response("GET /x", 429, body, retry_after=header).retry_after_seconds == expected


def test_a_status_full_of_nulls_is_still_an_error():
    """A Status whose fields are null yields a sentence and the HTTP code."""
    error = error_from_response("GET /x", 503, b'{"kind":"Status","code":null,"message":null,"details":null}')
    assert type(error) is ServerError
    assert "503" in str(error)


def test_an_excerpt_is_one_short_printable_line():
    """Foreign bytes in a message neither break the line nor flood it."""
    text = excerpt(b"a\nb\x1b[31m\xff" + b"x" * 10_000)
    assert "\n" not in text
    assert "\x1b" not in text
    assert len(text) < 200


def test_root_words_returns_the_cause():
    """A wrapper without text is skipped in favour of the error that knew, also inside a group."""
    inner = OSError("connection refused")
    middle = RuntimeError()
    middle.__cause__ = ExceptionGroup("connecting", [inner])
    assert root_cause_text(middle).endswith("connection refused")
    assert root_cause_text(KeyError()) == "KeyError"
