import importlib.util

import pytest
from gguf.constants import GGML_QUANT_SIZES, LlamaFileType

import gguf_bytes as g
from gguf_corpus import DEMO, assess, cases, demo_draft, disagreement
from gguf_oracle import Oracle, load_library
from lengths import GGUF_CASES
from llmkube.weights.formats.gguf_format import FILE_TYPES, NEWEST_TENSOR_TYPE, TENSOR_TYPES

needs_engine = pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None, reason="xllamacpp is not installed: pip install xllamacpp"
)


@needs_engine
def test_damaged_headers_get_the_verdict_of_llama_cpp():
    """No header that loads is refused, and none that llama.cpp's header reader refuses is accepted."""
    differing = []
    with Oracle() as oracle:
        for number, (fault, data, size) in enumerate(cases(GGUF_CASES, "1")):
            facts, why = assess(data, size)
            verdict = oracle.ask(data, size)
            if differs := disagreement(facts, verdict):
                differing.append((number, fault, differs, why, verdict.message))
    assert not differing


@needs_engine
def test_the_oracle_finds_a_difference():
    """The engine loads the demo model, refuses a damaged one in words, and survives being killed by one."""
    data = DEMO.read_bytes()
    draft = demo_draft()
    draft.keys.append(type(draft.keys[0])(b"general.alignment", g.U32, b"\1\0\0\0"))
    with Oracle() as oracle:
        assert oracle.ask(data, len(data)).loads
        refused = oracle.ask(data[:1000], 1000)
        assert not refused.header
        assert "failed to read" in refused.message
        deadly = draft.packed()
        assert oracle.ask(deadly, len(deadly) + draft.data_bytes).message.startswith("died of")
        assert oracle.ask(data, len(data)).loads
        assert oracle.died == 1


@needs_engine
def test_the_table_of_tensor_types_is_the_engines():
    """Every type that the installed engine knows is in our table, with its size."""
    engine = load_library()
    theirs = {}
    for kind in range(NEWEST_TENSOR_TYPE + 1):
        elements, size = engine.ggml_blck_size(kind), engine.ggml_type_size(kind)
        if elements:
            theirs[kind] = (engine.ggml_type_name(kind).decode().upper(), elements, size)
    assert theirs == {kind: (name.upper(), *sizes) for kind, (name, *sizes) in TENSOR_TYPES.items()}


def test_the_tables_agree_with_the_reference_package():
    """The gguf package has no type or quantization that we lack, and the same sizes but for one that no file holds."""
    theirs = {int(kind): (kind.name, *sizes) for kind, sizes in GGML_QUANT_SIZES.items() if kind.name != "Q8_1"}
    assert theirs.items() <= TENSOR_TYPES.items()
    names = {int(kind): kind.name.removeprefix("ALL_").removeprefix("MOSTLY_") for kind in LlamaFileType}
    del names[int(LlamaFileType.GUESSED)]
    assert names.items() <= FILE_TYPES.items()
