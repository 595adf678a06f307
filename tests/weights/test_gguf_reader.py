import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_bytes import ARCHITECTURE, F32, STRING, U8, U32, array, array_head, header, key, tensor
from gguf_corpus import DEMO
from llmkube.weights.errors import NotGGUFError
from llmkube.weights.gguf import REQUEST_BYTES, facts_of, read_header, read_remote_header
from llmkube.weights.gguf_reader import HeaderReader, Range

DEMO_BYTES = DEMO.read_bytes()
DEMO_FACTS = read_header(DEMO)


class Elsewhere:
    """A file behind Range requests; remembers them."""

    def __init__(self, data, size=None):
        self.data = data
        self.size = len(data) if size is None else size
        self.asked = []

    async def read_range(self, offset, length):
        self.asked.append((offset, length))
        end = min(offset + length, self.size)
        return self.data[offset:end].ljust(max(0, end - offset), b"\0")


@settings(max_examples=60, deadline=None)
@given(pieces=st.lists(st.integers(0, 700), min_size=1, max_size=30), known=st.booleans())
def test_the_pieces_do_not_matter(pieces, known):
    """However the file is cut into pieces, each as long as wanted or longer, the facts are the same."""
    reader = HeaderReader("demo", len(DEMO_BYTES) if known else None)
    for extra in pieces * 1000:
        if (wanted := reader.wanted) is None:
            break
        assert wanted.length > 0
        reader.feed(DEMO_BYTES[wanted.offset : wanted.offset + wanted.length + extra])
    assert reader.wanted is None
    found = facts_of(reader)
    assert found.architecture == DEMO_FACTS.architecture
    assert (found == DEMO_FACTS) == (known or found.size_bytes == DEMO_FACTS.size_bytes)


def test_what_is_not_needed_is_not_asked_for():
    """A long array of numbers is stepped over: the next piece begins behind it."""
    data = header(ARCHITECTURE, array_head("x", F32, 100_000))
    reader = HeaderReader("f", None)
    while (wanted := reader.wanted) is not None and wanted.offset < len(data):
        reader.feed(data[wanted.offset : wanted.offset + wanted.length])
    assert wanted is None or wanted == Range(len(data) + 400_000, 8)


def test_an_early_end_is_an_end():
    """A piece that is shorter than wanted says how long the file is, and what is missing is named."""
    reader = HeaderReader("f", None)
    reader.feed(header(key_count=1))
    with pytest.raises(NotGGUFError, match="a key goes beyond the end"):
        reader.feed(b"abc")


async def test_a_small_model_takes_one_request():
    """The demo's header comes in a single piece, and without a known size its facts are complete all the same."""
    file = Elsewhere(DEMO_BYTES)
    assert await read_remote_header("http://host/demo.gguf", file.read_range, size_bytes=len(DEMO_BYTES)) == DEMO_FACTS
    assert file.asked == [(0, len(DEMO_BYTES))]
    assert await read_remote_header("http://host/demo.gguf", file.read_range) == DEMO_FACTS
    assert file.asked[1:] == [(0, REQUEST_BYTES[0])]


@pytest.mark.parametrize(("strings", "requests"), [(5_000, 1), (150_000, 2), (600_000, 3)])
async def test_a_large_vocabulary_takes_few_requests(strings, requests):
    """150,000 tokens and as many merges come in two requests, and twice the largest known vocabulary in three."""
    keys = [
        ARCHITECTURE,
        key("llama.context_length", U32, 1),
        key("llama.embedding_length", U32, 1),
        key("llama.block_count", U32, 1),
        key("tokenizer.ggml.model", STRING, "gpt2"),
        array("tokenizer.ggml.tokens", STRING, ["abcdef"] * strings),
        array("tokenizer.ggml.merges", STRING, ["abc def"] * strings),
    ]
    file = Elsewhere(header(*keys, tensors=[tensor("w", [32])]), size=1 << 34)
    facts = await read_remote_header("http://host/f.gguf", file.read_range)
    assert facts.size_bytes == -(-len(file.data) // 32) * 32 + 128
    assert len(file.asked) == requests


@pytest.mark.parametrize(
    "key_bytes",
    [
        array_head("x", STRING, 2_000_000) + bytes(1000),
        array_head("x", U8, 2**61),
        b"".join(key(f"k{number}", STRING, "v" * 1000) for number in range(40_000)),
    ],
    ids=["strings", "skip", "keys"],
)
async def test_no_remote_header_takes_more_requests(key_bytes):
    """A header that does not end within the requests is refused after them, not read on."""
    file = Elsewhere(header(ARCHITECTURE, key_bytes, key_count=60_000), size=1 << 40)
    with pytest.raises(NotGGUFError, match=r"longer than 32 MiB|claims|has the unexpected type|is empty"):
        await read_remote_header("http://host/f.gguf", file.read_range)
    assert len(file.asked) <= len(REQUEST_BYTES)


async def test_a_page_instead_of_a_file_is_named():
    """A server that answers with a web page is told from one that has a model."""
    with pytest.raises(NotGGUFError, match=r"http://host/f\.gguf is not a usable GGUF file: it looks like a web page"):
        await read_remote_header("http://host/f.gguf", Elsewhere(b"<!DOCTYPE html>").read_range)


async def test_what_a_request_raises_is_passed_on():
    """A failed request is the caller's to explain."""

    async def read_range(offset, length):
        await trio.lowlevel.checkpoint()
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        await read_remote_header("http://host/f.gguf", read_range)
