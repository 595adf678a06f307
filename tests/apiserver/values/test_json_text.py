"""A JSON text is measured without being read, and what it is read as has no half characters."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmkube.apiserver.values.json_text import (
    MAX_DEPTH,
    MAX_VALUES,
    TooDeepError,
    TooManyValuesError,
    measure,
    read,
    repair,
    write,
)

TEXTS = st.text(max_size=8) | st.sampled_from(['"', "\\", '\\"', '[{"', "\\\\", ":,", "é"])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


def counted(value: Any) -> tuple[int, int]:
    """Values and fields of a tree, the slow way."""
    below = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    sums = [counted(each) for each in below]
    fields = len(value) if isinstance(value, dict) else 0
    return 1 + sum(values for values, _ in sums), fields + sum(fields for _, fields in sums)


@given(VALUES, st.booleans())
def test_what_is_counted_is_what_is_there(value: Any, ascii_only: bool):
    """The scan of a compact text counts its values and fields exactly, whatever its texts hold."""
    text = json.dumps(value, ensure_ascii=ascii_only, separators=(",", ":")).encode()
    outline = measure(text)
    assert (outline.values, outline.fields) == counted(value)


@given(VALUES)
def test_what_is_written_is_read(value: Any):
    """Reading what was written gives the same; `json` reads the same text alike."""
    assert read(write(value)) == value == json.loads(write(value))


@given(st.binary(max_size=40))
def test_no_bytes_crash_the_reader(text: bytes):
    """Any bytes are JSON or a ValueError."""
    with contextlib.suppress(ValueError):
        write(read(text))


@given(st.text(alphabet='\\"ud8d0cfDC9aé', max_size=24))
def test_half_characters_are_replaced(inside: str):
    """What `json` reads from a text is what is read here, but for half characters, which are U+FFFD."""
    text = f'"{inside}"'.encode()
    try:
        expected = json.loads(text)
    except ValueError:
        with pytest.raises(ValueError):
            read(text)
        return
    whole = "".join("\ufffd" if 0xD800 <= ord(letter) <= 0xDFFF else letter for letter in expected)
    assert read(text) == whole


def test_bytes_that_are_no_utf_8_are_replaced():
    """A byte of another encoding becomes U+FFFD, as in Go."""
    assert read(b'"a\xffb"') == "a\ufffdb"
    assert repair(b"plain") == b"plain"


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}"), ('[{"[[":', "}]")])
def test_the_deepest_text_is_read(opening: str, closing: str):
    """A text of the greatest depth is read and written again; one level more is refused by name."""
    levels = MAX_DEPTH // len(closing)
    deep = opening * levels + "1" + closing * levels
    assert write(read(deep)) == deep.encode()
    with pytest.raises(TooDeepError, match=str(MAX_DEPTH)):
        read(f"[{deep}]")


def test_too_many_values_are_refused_before_they_are_read():
    """The bound is exact, names itself, and holds for lists, texts and fields alike."""
    most = b"[" + b"1," * (MAX_VALUES - 2) + b"1]"
    assert len(read(most)) == MAX_VALUES - 1
    for text in (b"[1," + most[1:], b"[" + b"[]," * 1_000_000 + b"1]", b'{"":"",' * 900_000):
        with pytest.raises(TooManyValuesError, match=str(MAX_VALUES)):
            read(text)
