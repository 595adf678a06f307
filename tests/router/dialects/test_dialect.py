"""Parts that all translations share."""

import pytest

from llmkube.router.dialects.dialect import (
    DialectError,
    arguments_of,
    error_in_answer,
    message_of,
    object_in,
    objects_in,
)


def test_an_error_for_a_long_prompt_has_needed_and_available_tokens():
    """The numbers are those of llama.cpp's server; other errors are reduced to their message."""
    assert message_of({"message": "x", "n_prompt_tokens": 9, "n_ctx": 4}) == (
        "x (the prompt needs 9 tokens, 4 are available)"
    )
    message = "9 tokens exceed 4"
    assert message_of({"message": message, "n_prompt_tokens": 9, "n_ctx": 4}) == message
    assert message_of({"message": "x"}) == "x"
    assert message_of({}) == "the request failed"


def test_what_has_another_shape_is_named():
    """The error names the field."""
    assert (objects_in(None, "x"), object_in(None, "x")) == ([], {})
    assert (arguments_of("", "x"), arguments_of('{"a": 1}', "x")) == ({}, {"a": 1})
    for read, value in ((objects_in, [1]), (object_in, []), (arguments_of, "[1]")):
        with pytest.raises(DialectError, match=r"^where"):
            read(value, "where")


def test_an_error_that_is_a_text_is_read_as_well():
    """Some backends write errors as strings."""
    assert error_in_answer({"error": "no"}) == {"message": "no"}
    assert error_in_answer({"error": {"message": "no"}}) == {"message": "no"}
