"""The reader decodes what the encoder writes, and the bytes match protobuf's own examples."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmkube.apiserver.protocol.openapi_protobuf import double, fields, flag, integer, message, text

NUMBERS = st.integers(min_value=1, max_value=2**29 - 1)


def test_the_examples_of_the_specification():
    """The first two messages of protobuf.dev's page about the encoding."""
    assert integer(1, 150) == bytes.fromhex("089601")
    assert text(2, "testing") == bytes.fromhex("120774657374696e67")


@given(NUMBERS, st.integers(min_value=0, max_value=2**64 - 1), st.binary(max_size=300), st.floats(allow_nan=False))
def test_fields_round_trip(number, value, body, real):
    """Each kind of field comes back with its number; a False is left out."""
    data = integer(number, value) + message(number, body) + double(number, real) + flag(number, value=False)
    assert list(fields(data)) == [(number, value), (number, body), (number, struct.pack("<d", real))]


@pytest.mark.parametrize("data", [b"\x0a", b"\x0a\x05abc", b"\x0b", b"\x08" + b"\xff" * 11, b"\x09abc"])
def test_what_is_no_message_is_refused(data):
    """A field that ends too early, an unknown wire type and a number without an end."""
    with pytest.raises((ValueError, IndexError)):
        list(fields(data))
