import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gguf_bytes import BOOL, I32, STRING, U16, U32, U64, array, header, key, tensor
from llmkube.weights.formats.gguf import read_header
from llmkube.weights.formats.shape import Shape

TOKENIZER = [key("tokenizer.ggml.model", STRING, "llama"), array("tokenizer.ggml.tokens", STRING, ["a", "b", "c"])]
NUMBERS = [key(f"llama.{name}", U32, value) for name, value in
           {"context_length": 512, "embedding_length": 32, "block_count": 2}.items()]  # fmt: skip


def write(path, *keys, tensors=(), first=True):
    names = [tensor(name, sizes, 0, offset) for name, sizes, offset in tensors]
    known = [key("general.architecture", STRING, "llama"), *NUMBERS, *TOKENIZER] if first else []
    data = header(*known, *keys, tensors=names)
    size = max((offset + 4 * sizes[0] * sizes[1] for _, sizes, offset in tensors), default=0)
    path.write_bytes(data.ljust(-(-len(data) // 32) * 32, b"\0") + bytes(size))
    return path


def split(path, number, count, tensors):
    keys = [key("split.no", U16, number - 1), key("split.count", U16, count), key("split.tensors.count", I32, 3)]
    name = path / f"model-{number:05}-of-{count:05}.gguf"
    return write(name, *keys, tensors=tensors, first=number == 1)


def test_tensors_and_numbers_are_kept(tmp_path):
    """A header's tensors have their dimensions and bytes, its numbers their key, one or one for each layer."""
    path = write(
        tmp_path / "m.gguf",
        array("llama.attention.head_count_kv", U32, [2, 4]),
        key("llama.attention.sliding_window", U32, 128),
        array("llama.attention.sliding_window_pattern", BOOL, [True, False]),
        tensors=[("token_embd.weight", (32, 3), 0)],
    )
    shape = read_header(path).shape
    assert [(each.name, each.type, each.sizes, each.size_bytes) for each in shape.tensors] == [
        ("token_embd.weight", "F32", (32, 3), 384)
    ]
    assert shape.numbers["attention.head_count_kv"] == (2, 4)
    assert shape.numbers["attention.sliding_window_pattern"] == (1, 0)
    assert (shape.vocabulary_size, shape.trained_context, shape.layer_count) == (3, 512, 2)
    assert (shape.missing_parts, shape.unread_bytes) == (0, 0)


@pytest.mark.parametrize("odd", [key("llama.ssm.state_size", STRING, "x"), key("llama.ssm.state_size", U64, 2**61)])
def test_odd_values_do_no_harm(tmp_path, odd):
    """A number of an unexpected type refuses no file that an engine may load."""
    assert read_header(write(tmp_path / "m.gguf", odd, tensors=[("a", (32, 3), 0)])).shape is not None


def test_all_parts_of_a_split_model_are_one_shape(tmp_path):
    """All parts contribute their tensors; the facts are those of the first file."""
    split(tmp_path, 2, 2, [("blk.0.attn_q.weight", (32, 32), 0), ("blk.1.attn_q.weight", (32, 32), 4096)])
    first = split(tmp_path, 1, 2, [("token_embd.weight", (32, 3), 0)])
    facts = read_header(first)
    assert [each.name for each in facts.shape.tensors][1:] == ["blk.0.attn_q.weight", "blk.1.attn_q.weight"]
    assert (facts.tensor_count, facts.shape.missing_parts) == (1, 0)
    assert facts.shape.size_bytes == sum(path.stat().st_size for path in tmp_path.iterdir())


@pytest.mark.parametrize("content", [None, b"", b"GGUF", b"<html>"])
def test_a_part_that_is_missing_or_broken_is_left_out(tmp_path, content):
    """A split model without all of its files is still read, and says how many are missing."""
    first = split(tmp_path, 1, 3, [("token_embd.weight", (32, 3), 0)])
    split(tmp_path, 2, 3, [("blk.0.attn_q.weight", (32, 32), 0)])
    if content is not None:
        (tmp_path / "model-00003-of-00003.gguf").write_bytes(content)
    assert read_header(first).shape.missing_parts == 1


@given(st.lists(st.integers(0, 2**61), max_size=6), st.integers(1, 6))
def test_there_is_a_number_for_each_layer(values, layers):
    """However many a file gives, each layer has one."""
    shape = Shape("x", (), {"n": tuple(values)} if values else {}, layers, 1, 1)
    assert len(shape.per_layer("n", 7)) == layers
    assert shape.number("n", 7) == max(values, default=7)


def test_two_files_are_compared_by_their_facts(tmp_path):
    """The shape takes no part in comparing facts, so that a status does not change with it."""
    facts = read_header(write(tmp_path / "m.gguf", tensors=[("a", (32, 3), 0)]))
    assert attrs.evolve(facts, shape=None) == facts
