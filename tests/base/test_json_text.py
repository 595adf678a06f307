"""JSON by orjson is the same as JSON by the standard library."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmkube.base import json_text

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
VALUES = st.recursive(SCALARS, lambda below: st.lists(below) | st.dictionaries(st.text(), below), max_leaves=20)


@given(VALUES)
def test_written_json_is_read_again_by_both(value):
    """A value survives a round trip through bytes, and `json` reads the same."""
    text = json_text.dumps(value)
    assert json_text.loads(text) == value
    assert json.loads(text) == value
    assert json_text.loads(json.dumps(value)) == value
    assert json.loads(json_text.dumps(value, sort_keys=True)) == value


def test_sorted_names_make_equal_texts_of_equal_values():
    """The original order of names is lost, even where the standard library is the fallback."""
    for one, other in (
        ({"b": 1, "a": {"d": 2, "c": 3}}, b'{"a":{"c":3,"d":2},"b":1}'),
        ({"b": None, "a": 1}, b'{"a":1,"b":null}'),
    ):
        assert json_text.dumps(one, sort_keys=True) == other


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, {"a": [2**70]}])
def test_an_integer_of_more_than_64_bits_is_written_whole(value):
    """It is no error and loses no digit."""
    assert json.loads(json_text.dumps(value)) == value


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_invalid_number_is_refused(value):
    """It never becomes null, which would remove a field."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_text.dumps({"spec": {"replicas": value}})


def test_half_a_surrogate_pair_is_read_and_never_written():
    """Such text of another program can be read; the output is UTF-8."""
    half = json_text.loads(rb'"\ud83d"')
    assert half == "\ud83d"
    with pytest.raises(ValueError, match="surrogates not allowed"):
        json_text.dumps(half)


@pytest.mark.parametrize("text", [b"", b"{", b"<html>", b'{"a":1}x', b"\xff", b"[" * 100_000])
def test_invalid_json_is_a_value_or_recursion_error(text):
    with pytest.raises((ValueError, RecursionError)):
        json_text.loads(text)


def test_an_integer_of_more_than_64_bits_is_read_as_go_reads_it():
    """Its size is kept, to the precision of a float."""
    assert json_text.loads(b"123456789012345678901234567890") == pytest.approx(1.2345678901234568e29)


def test_other_values_are_refused():
    """A Python object is not JSON."""
    with pytest.raises(TypeError):
        json_text.dumps({"a": object()})


@given(st.text(st.characters()))
def test_halves_of_surrogate_pairs_are_replaced(text):
    """Whole pairs and all other characters are read as they are."""
    read = json_text.loads_well_formed(json.dumps([text]))
    whole = json.loads(json.dumps(text))  # two halves next to each other are a character
    assert read == ["".join("\ufffd" if 0xD800 <= ord(each) <= 0xDFFF else each for each in whole)]
