"""Errors of fields, in the words of kube-apiserver."""

import pytest

from llmkube.apiserver.values.field_errors import (
    FieldError,
    duplicate,
    forbidden,
    immutable,
    invalid,
    not_supported,
    required,
    too_long,
    too_many,
)

WORDS: list[tuple[FieldError, str, str]] = [
    (required("a"), "a: Required value", "FieldValueRequired"),
    (required("a", "why"), "a: Required value: why", "FieldValueRequired"),
    (invalid("a", 11, "too big"), "a: Invalid value: 11: too big", "FieldValueInvalid"),
    (invalid("a", 'say "x"', "no"), 'a: Invalid value: "say \\"x\\"": no', "FieldValueInvalid"),
    (invalid("a", None, "no"), 'a: Invalid value: "null": no', "FieldValueInvalid"),
    (invalid("", True, "no"), "<nil>: Invalid value: true: no", "FieldValueInvalid"),
    (
        not_supported("a", "x", ("b", "c")),
        'a: Unsupported value: "x": supported values: "b", "c"',
        "FieldValueNotSupported",
    ),
    (duplicate("a[1]", {"port": 80}), 'a[1]: Duplicate value: {"port":80}', "FieldValueDuplicate"),
    (forbidden("a", "no"), "a: Forbidden: no", "FieldValueForbidden"),
    (too_long("a", 5), "a: Too long: may not be more than 5 bytes", "FieldValueTooLong"),
    (too_many("a", 3, 2), "a: Too many: 3: must have at most 2 items", "FieldValueTooMany"),
    (immutable("a", "x"), 'a: Invalid value: "x": field is immutable', "FieldValueInvalid"),
]


@pytest.mark.parametrize(("error", "text", "reason"), WORDS)
def test_an_error_reads_as_kube_apiserver_prints_it(error: FieldError, text: str, reason: str):
    """Each kind of error has its words, shows the value where it should, and has its reason."""
    assert str(error) == text
    assert error.reason == reason
