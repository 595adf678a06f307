import pytest
from hypothesis import given
from hypothesis import strategies as st

from gguf_bytes import ARCHITECTURE, F32, array_head, header
from gguf_corpus import DEMO
from llmkube.weights.errors import NotGGUFError
from llmkube.weights.formats.gguf import facts_of, read_header
from llmkube.weights.formats.gguf_reader import HeaderReader, Range

DEMO_BYTES = DEMO.read_bytes()
DEMO_FACTS = read_header(DEMO)


@given(pieces=st.lists(st.integers(0, 700), min_size=1, max_size=30), known=st.booleans())
def test_the_pieces_do_not_matter(pieces, known):
    """However the file is cut into pieces, each as long as wanted or longer, the facts are the same."""
    reader = HeaderReader("demo", len(DEMO_BYTES) if known else None)
    for extra in pieces * 1000:
        if (needed := reader.next_range) is None:
            break
        assert needed.length > 0
        reader.feed(DEMO_BYTES[needed.offset : needed.offset + needed.length + extra])
    assert reader.next_range is None
    found = facts_of(reader)
    assert found.architecture == DEMO_FACTS.architecture
    assert (found == DEMO_FACTS) == (known or found.size_bytes == DEMO_FACTS.size_bytes)


def test_what_is_not_needed_is_not_asked_for():
    """A long array of numbers is stepped over: the next piece begins behind it."""
    data = header(ARCHITECTURE, array_head("x", F32, 100_000))
    reader = HeaderReader("f", None)
    while (needed := reader.next_range) is not None and needed.offset < len(data):
        reader.feed(data[needed.offset : needed.offset + needed.length])
    assert needed is None or needed == Range(len(data) + 400_000, 8)


def test_an_early_end_is_an_end():
    """A piece that is shorter than wanted says how long the file is, and what is missing is named."""
    reader = HeaderReader("f", None)
    reader.feed(header(key_count=1))
    with pytest.raises(NotGGUFError, match="a key goes beyond the end"):
        reader.feed(b"abc")
