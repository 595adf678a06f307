import struct
from pathlib import Path

import gguf
import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_bytes import (
    ARCHITECTURE,
    ARRAY,
    BOOL,
    F32,
    I32,
    STRING,
    U8,
    U32,
    U64,
    array,
    array_head,
    header,
    key,
    tensor,
    text,
)
from llmkube.weights import gguf as module
from llmkube.weights.errors import FetchError, NotGGUFError
from llmkube.weights.gguf import GGUFFacts, read_header

DEMO = Path(module.__file__).parent / "builtin" / "demo.gguf"
DEMO_BYTES = DEMO.read_bytes()


@pytest.fixture
def read(tmp_path):
    def read(data):
        path = tmp_path / "model.gguf"
        path.write_bytes(data)
        return read_header(path)

    return read


def test_the_demo_model_is_what_its_training_script_made():
    """The packaged demo's facts are those of examples/demo-model/train.py."""
    assert read_header(DEMO) == GGUFFacts(
        architecture="llama",
        file_version=3,
        tensor_count=39,
        size_bytes=956256,
        name="LLMKube demo",
        license="apache-2.0",
        quantization="Q8_0",
        context_length=512,
        layer_count=4,
        embedding_size=128,
        head_count=4,
        head_count_kv=2,
    )


def test_what_the_reference_writer_writes_is_read_back(tmp_path):
    """A file from the gguf package's writer, with vocabulary and per-layer heads, yields its facts."""
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "gemma3n")
    writer.add_name("Größe")
    writer.add_context_length(32768)
    writer.add_block_count(3)
    writer.add_embedding_length(2048)
    writer.add_head_count([8, 8, 4])
    writer.add_head_count_kv([2, 0, 4])
    writer.add_key_length(256)
    writer.add_value_length(128)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_token_list([f"token {number}" for number in range(5000)])
    writer.add_token_scores([0.0] * 5000)
    writer.add_array("tokenizer.ggml.merges", ["a b"] * 3000)
    writer.add_tensor("token_embd.weight", numpy.zeros((64, 32), dtype=numpy.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert read_header(path) == GGUFFacts(
        architecture="gemma3n",
        file_version=3,
        tensor_count=1,
        size_bytes=path.stat().st_size,
        name="Größe",
        quantization="F16",
        context_length=32768,
        layer_count=3,
        embedding_size=2048,
        head_count=8,
        head_count_kv=4,
        head_count_kv_per_layer=(2, 0, 4),
        key_length=256,
        value_length=128,
        pooling_type=1,
    )


@pytest.mark.parametrize(
    ("keys", "fact", "wanted"),
    [
        ([key("general.file_type", U32, 15)], "quantization", "Q4_K_M"),
        ([key("general.file_type", U32, 15 | 1024)], "quantization", "Q4_K_M"),  # guessed by the converter
        ([key("general.file_type", U32, 0)], "quantization", "F32"),
        ([key("general.file_type", U32, 9999)], "quantization", None),  # newer than our table
        ([key("llama.context_length", U64, 131072)], "context_length", 131072),
        ([key("qwen.context_length", U32, 1)], "context_length", None),  # another architecture's
        ([array("llama.attention.head_count_kv", I32, [4])], "head_count_kv_per_layer", ()),
        ([key("split.no", U8, 0), key("split.count", U32, 3)], "split_count", 3),
        ([], "name", None),
    ],
)
def test_facts_follow_the_keys(read, keys, fact, wanted):
    """Each key gives its fact, and a key that is absent gives None."""
    assert getattr(read(header(ARCHITECTURE, *keys)), fact) == wanted


def test_version_2_is_read_and_the_architecture_may_come_last(read):
    """Neither the older version nor the order of the keys matters."""
    facts = read(header(key("llama.block_count", U32, 7), ARCHITECTURE, version=2))
    assert (facts.file_version, facts.layer_count) == (2, 7)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is empty"),
        (b"GG", "starts with"),
        (b"GGUF\x03\x00", "goes beyond the end"),
        (b"hello world", "starts with b'hell'"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"PK\x03\x04....", "zip archive"),
        (b"tjgg....", "before GGUF"),
        (header(ARCHITECTURE, version=1), "format version 1"),
        (header(ARCHITECTURE, version=9), "format version 9"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (header(), "no general.architecture"),
        (header(ARCHITECTURE, ARCHITECTURE), "general.architecture twice"),
        (header(key("general.architecture", U32, 7)), "is not a string"),
        (header(ARCHITECTURE, key("llama.block_count", STRING, "four")), "llama.block_count is not a count"),
        (header(ARCHITECTURE, key("llama.block_count", F32, 4.0)), "unexpected type 6"),
        (header(ARCHITECTURE, key("llama.block_count", I32, -4)), "is not a count"),
        (header(ARCHITECTURE, key("llama.block_count", U64, 2**63)), "is not a count"),
        (header(ARCHITECTURE, array("llama.block_count", U32, [1, 2])), "2 numbers where one"),
        (header(ARCHITECTURE, array_head("llama.block_count", U32, 2**61)), "claims 2305843009213693952 numbers"),
        (header(ARCHITECTURE, key("split.no", U8, 1), key("split.count", U8, 3)), "part 2 of 3"),
        (header(ARCHITECTURE, key_count=2**40), "claims 0 tensors and 1099511627776 keys"),
        (header(ARCHITECTURE, tensor_count=2**40), "claims 1099511627776 tensors"),
        (header(ARCHITECTURE, key_count=2), "a key goes beyond the end"),
        (header(struct.pack("<Q", 2**63)), "a key claims to be"),
        (header(ARCHITECTURE, text("x") + struct.pack("<I", 99)), "x has the unexpected type 99"),
        (header(ARCHITECTURE, array_head("x", ARRAY, 1)), "x has the unexpected type 9"),
        (header(ARCHITECTURE, array_head("x", U8, 2**63)), "x goes beyond the end"),
        (header(ARCHITECTURE, array_head("x", STRING, 2**62)), "more than any vocabulary"),
        (header(ARCHITECTURE, array_head("x", STRING, 2) + struct.pack("<Q", 2**63)), "x goes beyond the end"),
        (header(ARCHITECTURE, key("general.alignment", U32, 0)), "not a power of two"),
        (header(ARCHITECTURE, key("general.alignment", U32, 48)), "not a power of two"),
        (header(ARCHITECTURE, tensors=[tensor("w", [1] * 5)]), "5 dimensions"),
        (header(ARCHITECTURE, tensors=[tensor("w", [64, 64])]), "is the download complete"),
        (header(ARCHITECTURE, tensors=[tensor("w", [2**63, 2**63])]), "is the download complete"),
        (header(ARCHITECTURE, tensors=[tensor("w", [1], offset=2**63)]), "is the download complete"),
    ],
)
def test_what_is_wrong_is_named(read, data, says):
    """A file that no engine could load is refused with the reason."""
    with pytest.raises(NotGGUFError, match=says) as caught:
        read(data)
    assert caught.value.reason == "NotGGUF"


def test_the_first_byte_that_is_missing_is_noticed(tmp_path):
    """A download that stopped one byte early is told from a complete one, though its header is whole."""
    path = tmp_path / "model.gguf"
    path.write_bytes(DEMO_BYTES[:-1])
    with pytest.raises(NotGGUFError, match="its tensors need 956256 bytes but it has 956255"):
        read_header(path)


def test_a_tensor_type_from_the_future_is_left_to_the_engine(read):
    """A type that our table does not know does not make the file unusable."""
    assert read(header(ARCHITECTURE, tensors=[tensor("w", [64, 64], kind=999)])).quantization is None


def test_many_vocabularies_together_are_bounded(read):
    """The bound on strings is for the file, so many arrays cannot get around it."""
    half = module.MAX_WALKED_STRINGS // 2 + 1
    arrays = [array_head(name, STRING, half) + bytes(8 * half) for name in ("a", "b")]
    with pytest.raises(NotGGUFError, match="more than any vocabulary"):
        read(header(ARCHITECTURE, *arrays))


def test_a_header_without_end_is_refused(tmp_path):
    """A file that hides gigabytes in its header is refused though it really has them."""
    path = tmp_path / "model.gguf"
    path.write_bytes(header(ARCHITECTURE, array_head("x", U8, 2**33)))
    with path.open("r+b") as file:
        file.truncate(2**34)  # sparse
    with pytest.raises(NotGGUFError, match="longer than 256 MiB"):
        read_header(path)


def test_what_is_not_a_file_is_refused_without_waiting(tmp_path):
    """A folder, a named pipe and a missing file are told apart, and none of them blocks."""
    with pytest.raises(NotGGUFError, match="not a regular file"):
        read_header(tmp_path)
    with pytest.raises(FetchError, match="No such file"):
        read_header(tmp_path / "missing.gguf")


def check(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "hostile.gguf"
    path.write_bytes(data)
    try:
        facts = read_header(path)
    except NotGGUFError:
        return
    assert facts.architecture
    assert facts.size_bytes == len(data)


HEADER_BYTES = 12_000  # the demo's keys, vocabulary and tensor list; beyond it is only data


@settings(max_examples=200, deadline=None)
@given(
    edits=st.lists(st.tuples(st.integers(0, HEADER_BYTES), st.binary(min_size=1, max_size=16)), max_size=6),
    length=st.integers(0, len(DEMO_BYTES)) | st.just(len(DEMO_BYTES)),
)
def test_a_damaged_file_is_read_or_refused(tmp_path_factory, edits, length):
    """However a real file is cut and overwritten, reading it gives facts or NotGGUFError, and ends."""
    data = bytearray(DEMO_BYTES)
    for at, patch in edits:
        data[at : at + len(patch)] = patch
    check(tmp_path_factory, bytes(data[:length]))


NUMBERS = st.sampled_from([0, 1, 2, 7, 255, 2**16, 2**31, 2**32 - 1]) | st.integers(0, 2**32 - 1)
COUNTS = st.sampled_from([0, 1, 2, 2**16, 2**32, 2**62, 2**63, 2**64 - 1]) | st.integers(0, 40)
NAMES = st.sampled_from(
    ["general.architecture", "general.alignment", "llama.block_count", "llama.attention.head_count_kv", "split.no", "x"]
)
KEYS = st.one_of(
    st.just(ARCHITECTURE),
    st.builds(key, NAMES, st.just(U32), NUMBERS),
    st.builds(key, NAMES, st.just(BOOL), st.booleans()),
    st.builds(key, NAMES, st.just(STRING), st.binary(max_size=20)),
    st.builds(array, NAMES, st.just(STRING), st.lists(st.binary(max_size=5), max_size=5)),
    st.builds(array_head, NAMES, st.integers(0, 14), COUNTS),
    st.binary(max_size=30),
)
TENSORS = st.builds(tensor, st.binary(max_size=9), st.lists(COUNTS, max_size=6), st.integers(0, 50), COUNTS)


@settings(max_examples=300, deadline=None)
@given(
    keys=st.lists(KEYS, max_size=6),
    tensors=st.lists(TENSORS, max_size=4),
    key_count=st.none() | COUNTS,
    tensor_count=st.none() | COUNTS,
    tail=st.binary(max_size=64),
)
def test_a_hostile_file_is_read_or_refused(tmp_path_factory, *, keys, tensors, key_count, tensor_count, tail):
    """However a file is made up, reading it gives facts or NotGGUFError, and ends."""
    made = header(*keys, tensors=tensors, key_count=key_count, tensor_count=tensor_count)
    check(tmp_path_factory, made + tail)
