"""Files with nothing but a header stand for models of any size: for our reader and for the engine."""

import json
import sys
from pathlib import Path

import pytest
import trio

from llmkube.weights.formats.gguf import read_header

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
import buffers
import estimate
from shapes import SHAPES

RECORDED = json.loads(buffers.GOLDEN.read_text("utf-8"))
DISK_BYTES = 16 << 20


def case_named(name):
    return next(case for case in buffers.CASES if case.name == name)


@pytest.mark.parametrize("name", SHAPES)
def test_a_file_is_a_header_and_a_hole(tmp_path, name):
    """Our reader finds the whole model in the file, and the disk only its header."""
    path = tmp_path / "model.gguf"
    SHAPES[name].write(path, "Q4_K_M")
    facts = read_header(path)
    assert (facts.architecture, facts.layer_count) == (SHAPES[name].architecture, SHAPES[name].layers)
    assert facts.tensor_count == len(SHAPES[name].tensors)
    assert facts.size_bytes == path.stat().st_size
    assert path.stat().st_blocks * 512 < DISK_BYTES


@pytest.mark.parametrize(
    ("mix", "name", "sizes", "kind"),
    [
        ("Q4_K_M", "blk.5.attn_q.weight", (2048, 2048), "Q4_K"),
        ("Q4_K_M", "blk.5.attn_q.weight", (2880, 4096), "Q5_0"),
        ("Q4_K_M", "blk.0.ffn_down.weight", (8192, 2048), "Q6_K"),
        ("Q4_K_M", "blk.0.ffn_down.weight", (8224, 2048), "Q8_0"),
        ("Q4_K_M", "blk.5.ssm_dt.weight", (100, 4096), "F16"),
        ("Q4_K_M", "token_embd.weight", (2048, 128256), "Q6_K"),
        ("Q4_0", "blk.5.ffn_gate_inp.weight", (2048, 64), "F32"),
        ("Q8_0", "blk.5.attn_q.bias", (2048,), "F32"),
        ("MXFP4", "blk.5.ffn_up_exps.weight", (2880, 2880, 32), "MXFP4"),
        ("MXFP4", "blk.5.attn_q.weight", (2880, 4096), "Q8_0"),
    ],
)
def test_types_are_chosen_as_a_quantizer_does(mix, name, sizes, kind):
    """A tensor gets the mix's type, a finer one where it matters, and another where its rows do not fit the blocks."""
    assert SHAPES["llama-3.2-1b"].kind(name, sizes, mix) == kind


def test_the_recorded_truth_is_about_these_cases():
    """The recorded file has these very cases, of models with these very tensors: it was made after the last change."""
    assert [(case["model"], " ".join(case["flags"])) for case in RECORDED["cases"]] == [
        (f"{case.shape} {case.mix}", case.flags) for case in buffers.CASES
    ]
    for name, model in RECORDED["models"].items():
        shape, mix = name.split()
        expected = buffers.described(SHAPES[shape], mix)
        assert model == {**json.loads(json.dumps(expected)), "file_bytes": model["file_bytes"]}, name


@pytest.mark.e2e
async def test_the_engine_reports_what_was_recorded(tmp_path):
    """The installed llama.cpp loads such a file, and its buffers are the recorded ones."""
    case = case_named("llama-tiny Q4_0 -c 4096")
    with trio.fail_after(60):
        loaded = await buffers.load(case, tmp_path)
    recorded = next(each for each in RECORDED["cases"] if each["model"] == "llama-tiny Q4_0")
    assert loaded.buffers == recorded["buffers"]
    assert loaded.pss_bytes > loaded.buffers["CPU_Mapped model"]
    assert not list(tmp_path.iterdir())


@pytest.mark.e2e
async def test_a_refused_file_is_an_error_in_the_engines_words(tmp_path):
    """A case that does not load ends the run with the engine's reason, and leaves no process and no file."""
    case = buffers.Case("llama-tiny", "Q4_0", "-c 4096 -fa off -ctv q8_0")
    with trio.fail_after(60), pytest.raises(RuntimeError, match="V cache requires flash_attn"):
        await buffers.load(case, tmp_path)
    assert not list(tmp_path.iterdir())


def test_reported_buffers_become_components():
    """Buffers of one purpose add up wherever they are, but weights that were laid out anew stand alone."""
    found = estimate.reported(buffers.Loaded({"CPU_Mapped model": 5, "CPU model": 2, "CPU_REPACK model": 3}, 0, 0))
    assert (found["weights"], found["repacked weights"], found["KV cache"]) == (7, 3, 0)


def test_the_originals_formula_is_the_documented_one(tmp_path):
    """For Llama 3.1 8B at 131072 tokens it takes 64 GiB of KV cache, four times the truth."""
    path = tmp_path / "model.gguf"
    SHAPES["llama-3.1-8b"].write(path, "Q4_K_M")
    facts = read_header(path)
    formula = estimate.originals(buffers.Case("llama-3.1-8b", "Q4_K_M", "-c 131072 --no-repack"), facts)
    assert formula - facts.size_bytes - (512 << 20) == 64 << 30
