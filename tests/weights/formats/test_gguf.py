import struct
import subprocess
import sys
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
    U16,
    U32,
    U64,
    array,
    array_head,
    header,
    key,
    tensor,
    text,
)
from gguf_hostile import hostile_files
from lengths import EXAMPLES
from llmkube.weights.errors import FetchError, NotGGUFError
from llmkube.weights.formats import gguf as module
from llmkube.weights.formats import gguf_reader
from llmkube.weights.formats.gguf import read_header
from llmkube.weights.formats.shape import GGUFFacts

DEMO = Path(module.__file__).parents[1] / "builtin" / "demo.gguf"
DEMO_BYTES = DEMO.read_bytes()


# The least that every architecture needs
NEEDED = {
    "general.architecture": ARCHITECTURE,
    "llama.context_length": key("llama.context_length", U32, 4096),
    "llama.embedding_length": key("llama.embedding_length", U32, 64),
    "llama.block_count": key("llama.block_count", U32, 2),
    "tokenizer.ggml.model": key("tokenizer.ggml.model", STRING, "none"),
}
TENSOR = tensor("w", [0])


def model(*keys, without=(), tensors=(TENSOR,), **fields):
    """Return a header that can be loaded as far as a header can say, with these keys instead or as well."""
    names = {name: kept for name, kept in NEEDED.items() if name not in without}
    data = header(*names.values(), *keys, tensors=tensors, **fields)
    return data + bytes(-len(data) % 32)


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
    writer.add_tokenizer_model("llama")
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
        pooling_type=1,
    )


@pytest.mark.parametrize(
    ("keys", "fact", "wanted"),
    [
        ([key("general.file_type", U32, 15)], "quantization", "Q4_K_M"),
        ([key("general.file_type", U32, 15 | 1024)], "quantization", "Q4_K_M"),  # guessed by the converter
        ([key("general.file_type", U32, 0)], "quantization", "F32"),
        ([key("general.file_type", U32, 9999)], "quantization", "F32"),  # newer than our table: the tensors tell
        ([key("qwen.attention.head_count", U32, 1)], "head_count", None),  # another architecture's
        ([key("llama.attention.head_count", U32, 8)], "head_count", 8),
        ([array("llama.attention.head_count_kv", U32, [2, 8])], "head_count_kv", 8),
        ([array("llama.attention.head_count_kv", I32, [8, 2])], "head_count_kv", 8),
        ([array("llama.attention.head_count_kv", BOOL, [True, False])], "head_count_kv", 1),
        ([key("llama.attention.head_count_kv", U32, 4)], "head_count_kv", 4),
        ([key("split.no", U16, 0), key("split.count", U16, 3), key("split.tensors.count", I32, 9)], "split_count", 3),
        ([key("split.no", U16, 1), key("split.count", U16, 1)], "split_count", 1),  # engines ask for nothing more then
        ([key("general.name", STRING, "")], "name", None),
        ([key("general.name\0first", STRING, "one"), key("general.name", STRING, "two")], "name", "one"),
        ([key("general.license", U32, 7)], "license", None),  # no engine asks for it
        ([key("x" * 300, STRING, "y"), key("x" * 301, STRING, "z")], "name", None),
    ],
)
def test_facts_follow_the_keys(read, keys, fact, wanted):
    """Each key gives its fact, and a key that is absent gives None."""
    assert getattr(read(model(*keys)), fact) == wanted


def test_version_2_is_read_and_the_architecture_may_come_last(read):
    """Neither the older version nor the order of the keys matters."""
    facts = read(model(ARCHITECTURE, without=["general.architecture"], version=2))
    assert (facts.file_version, facts.layer_count) == (2, 2)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"GG", "does not start with"),
        (b"GGUF\x03\x00", "its header is cut off"),
        (b"hello world", "does not start with GGUF"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"PK\x03\x04....", "zip archive"),
        (b"tjgg....", "older than GGUF"),
        (model(version=1), "format version 1"),
        (model(version=9), "format version 9"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (header(), "no general.architecture"),
        (header(key("general.architecture", STRING, "")), "no general.architecture"),
        (header(key("general.architecture", STRING, "clip")), "projector"),
        (model(ARCHITECTURE), "general.architecture twice"),
        (model(key("k" * 300, U8, 0), key("k" * 300, U8, 1)), "kkk… twice"),
        (model(key("", U8, 0)), "key 5 is empty"),
        (model(array_head("a\x1b[2Jb", ARRAY, 0)), r"a\\x1b\[2Jb has the unexpected"),
        (header(key("general.architecture", U32, 7)), "of type u32, not string"),
        (model(key("general.name", U32, 7)), "of type u32, not string"),
        (model(without=["llama.block_count"]), "no llama.block_count"),
        (model(without=["llama.context_length"]), "no llama.context_length"),
        (model(without=["tokenizer.ggml.model"]), "no tokenizer.ggml.model"),
        (model(key("llama.vocab_size", STRING, "four")), "llama.vocab_size is of type string, not u32"),
        (model(key("llama.rope.freq_base", U32, 4)), "not f32"),
        (model(array("llama.pooling_type", U32, [1, 2])), "is of type array of 2 u32"),
        (model(array("llama.attention.head_count", U32, [1, 2, 3])), "array of 3 u32; 2 layers"),
        (model(array("llama.attention.head_count", F32, [1.0, 2.0])), "array of 2 f32; 2 layers"),
        (model(array_head("llama.block_count", U32, 2**61), without=["llama.block_count"]), "goes beyond the end"),
        (
            model(
                key("llama.block_count", U32, 513),
                key("llama.attention.head_count", U32, 1),
                without=["llama.block_count"],
            ),
            "513 layers",
        ),
        (model(key("split.count", U32, 3)), "split.count is of type u32, not u16"),
        (model(key("split.count", U16, 3)), "no split.no"),
        (
            model(key("split.no", U16, 1), key("split.count", U16, 3), key("split.tensors.count", I32, 9)),
            "part 2 of 3",
        ),
        (model(key_count=2**40), "claims 1 tensors and 1099511627776 keys"),
        (model(tensor_count=2**40), "claims 1099511627776 tensors"),
        (header(ARCHITECTURE, key_count=2), "a key goes beyond the end"),
        (header(struct.pack("<Q", 2**63)), "a key goes beyond the end"),
        (header(text("k" * 70000)), "a key claims to be 70000 bytes"),
        (model(text("x") + struct.pack("<I", 99), key_count=6), "x has the unexpected type 99"),
        (model(array_head("x", ARRAY, 1), key_count=6), "x has the unexpected type 9"),
        (model(array_head("x", U8, 2**63), key_count=6), "x goes beyond the end"),
        (model(array_head("x", STRING, 2**62), key_count=6), "x goes beyond the end"),
        (model(array_head("x", STRING, 2) + struct.pack("<QQ", 2**63, 0)), "x goes beyond the end"),
        (model(array("general.alignment", U32, [32])), "general.alignment is of type array of 1 u32"),
        (model(key("general.alignment", U64, 32)), "of type u64, not u32"),
        (model(key("general.alignment", U32, 0)), "not a power of two"),
        (model(key("general.alignment", U32, 48)), "not a power of two"),
        (model(tensors=[]), "has no tensors"),
        (model(tensors=[tensor("w", [1] * 5)]), "5 dimensions"),
        (model(tensors=[tensor("w" * 64, [1])]), "is 64 bytes long"),
        (model(tensors=[tensor("w", [0]), tensor("w", [0])]), "the tensor w twice"),
        (model(tensors=[tensor("w", [0]), tensor("w\0x", [0])]), "the tensor w twice"),
        (model(tensors=[tensor("w", [64, 64])]), "is the download complete"),
        (model(tensors=[tensor("w", [2**63, 2**63])]), "elements"),
        (model(tensors=[tensor("w", [0], offset=32)]), "begins at 32; 0 is expected"),
        (model(tensors=[tensor("w", [0], kind=4)]), "type 4, which no engine knows"),
        (model(tensors=[tensor("w", [0], kind=1000)]), "type 1000, which no engine knows"),
        (model(tensors=[tensor("w", [33], kind=8)]), "rows of 33 elements; its type packs them in blocks of 32"),
        (model(tensors=[TENSOR], tensor_count=2), "goes beyond the end"),
    ],
)
def test_what_is_wrong_is_named(read, data, message):
    """A file that no engine could load is refused with the reason."""
    with pytest.raises(NotGGUFError, match=message) as caught:
        read(data)
    assert caught.value.reason == "NotGGUF"


SOME_TOKENS = (key("tokenizer.ggml.model", STRING, "gpt2"), array("tokenizer.ggml.tokens", STRING, ["a", "b"]))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ((), None),
        ((array("tokenizer.ggml.scores", F32, [0.0, 1.0, 2.0]),), None),
        ((array("tokenizer.ggml.scores", F32, [0.0]),), "array of 1 f32; each of 2 tokens needs one f32"),
        ((array("tokenizer.ggml.token_type", U32, [0, 1]),), "needs one i32"),
        ((key("tokenizer.ggml.bos_token_id", I32, 1),), "bos_token_id is of type i32, not u32"),
        ((key("tokenizer.ggml.add_bos_token", U8, 1),), "add_bos_token is of type u8, not bool"),
    ],
)
def test_the_tokenizer_fits_together(read, keys, message):
    """Each key about tokens has an entry for each token, in the type that engines expect."""
    data = model(*SOME_TOKENS, *keys, without=["tokenizer.ggml.model"])
    if message is None:
        assert read(data).architecture == "llama"
    else:
        with pytest.raises(NotGGUFError, match=message):
            read(data)


def test_token_keys_of_a_model_without_tokenizer_are_ignored(read):
    """No engine reads the tokenizer's keys of a model that says it has none."""
    assert read(model(key("tokenizer.ggml.bos_token_id", STRING, "x"))).architecture == "llama"


def test_a_vocabulary_alone_is_no_tokens(read):
    """A tokenizer without tokens, or with numbers for tokens, is refused."""
    for keys in (SOME_TOKENS[:1], (SOME_TOKENS[0], array("tokenizer.ggml.tokens", U32, [1]))):
        with pytest.raises(NotGGUFError, match=r"tokenizer\.ggml\.tokens"):
            read(model(*keys, without=["tokenizer.ggml.model"]))


def test_the_first_byte_that_is_missing_is_noticed(tmp_path):
    """A download that stopped one byte early is distinguished from a complete one, though its header is whole."""
    path = tmp_path / "model.gguf"
    path.write_bytes(DEMO_BYTES[:-1])
    with pytest.raises(NotGGUFError, match="its tensors need 956256 bytes but it has 956255"):
        read_header(path)


def test_data_that_would_crash_an_engine_is_refused(read):
    """Engines abort on mapped tensors that do not begin at a multiple of 32, whatever alignment the file claims."""
    data = model(key("general.alignment", U32, 1), key("xy", U8, 0))
    assert len(data.rstrip(b"\0")) % 32
    with pytest.raises(NotGGUFError, match="the first tensor is not at a multiple of 32"):
        read(data)
    padding = next(size for size in range(32) if not _header_bytes(size) % 32)
    tensors = [tensor("v", [1]), tensor("w", [1], offset=4)]
    with pytest.raises(NotGGUFError, match="tensor w is not at a multiple of 32"):
        read(_unaligned(padding, tensors) + bytes(8))


def _unaligned(padding, tensors):
    alignment = key("general.alignment", U32, 1)
    return header(*NEEDED.values(), alignment, key("x", STRING, "p" * padding), tensors=tensors)


def _header_bytes(padding):
    return len(_unaligned(padding, [tensor("v", [1]), tensor("w", [1], offset=4)]))


def test_a_tensor_type_from_the_future_is_left_to_the_engine(read):
    """A tensor type that our table lacks does not make the file unusable, and is reported."""
    tensors = [tensor("v", [8], kind=43), tensor("w", [8], offset=64), tensor("x", [8], offset=96)]
    facts = read(model(tensors=tensors) + bytes(128))
    assert (facts.quantization, facts.newer_tensor_types) == (None, (43,))


def test_many_vocabularies_together_are_bounded(read):
    """The bound on strings is for the file, so many arrays cannot get around it."""
    half = gguf_reader.MAX_SKIPPED_STRINGS // 2 + 1
    arrays = [array_head(name, STRING, half) + bytes(8 * half) for name in ("a", "b")]
    with pytest.raises(NotGGUFError, match="more than any vocabulary"):
        read(header(ARCHITECTURE, *arrays))


def test_what_is_kept_is_bounded(read):
    """A header that gives hyperparameters for ever more architectures is refused before they fill the memory."""
    keys = [array(f"a{number}.block_count", U8, [1] * 65_000) for number in range(20)]
    with pytest.raises(NotGGUFError, match="more architectures than any model"):
        read(header(*keys))


def test_a_header_without_end_is_refused(tmp_path):
    """A file that hides gigabytes in its header is refused though it really has them."""
    path = tmp_path / "model.gguf"
    path.write_bytes(header(ARCHITECTURE, array_head("x", U8, 2**33)))
    with path.open("r+b") as file:
        file.truncate(2**34)  # sparse
    with pytest.raises(NotGGUFError, match="longer than 256 MiB"):
        read_header(path)


def test_what_is_not_a_file_is_refused_without_waiting(tmp_path):
    """A folder, a named pipe and a missing file are distinguished, and none of them blocks."""
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


@settings(max_examples=2 * EXAMPLES)
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


READ_ALL = """
import resource, sys
from pathlib import Path
from llmkube.weights.errors import NotGGUFError
from llmkube.weights.formats.gguf import read_header
for path in sys.argv[1:]:
    try:
        read_header(Path(path))
    except NotGGUFError:
        print("refused")
process_status = Path("/proc/self/status")  # and not ru_maxrss, which a child inherits there from its parent
lines = process_status.read_text().splitlines() if process_status.exists() else []
kib = [int(line.split()[1]) for line in lines if line.startswith("VmHWM")]
print(kib[0] * 1024 if kib else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.ci
def test_no_file_takes_much_memory(tmp_path):
    """A process that reads the worst file at each of the reader's bounds refuses all, and stays below 64 MiB."""
    paths = hostile_files(tmp_path, large=False)
    done = subprocess.run([sys.executable, "-c", READ_ALL, *paths.values()], check=True, capture_output=True)
    *verdicts, peak_bytes = done.stdout.split()
    assert verdicts == [b"refused"] * len(paths)
    assert int(peak_bytes) < 64 << 20
