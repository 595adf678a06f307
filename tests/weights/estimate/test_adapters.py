"""Estimates of LoRA adapters, compared with the buffers that llama.cpp reports; and the files that it would refuse."""

import signal
import subprocess
import sys

import pytest

from free_ports import free_port
from llmkube.runtimes.process.llamacpp import reported_buffers
from llmkube.weights.errors import NotGGUFError
from llmkube.weights.estimate.demand import ALL_LAYERS, Demand
from llmkube.weights.estimate.sizing import estimate
from llmkube.weights.formats.adapter import adapter_problem
from llmkube.weights.formats.gguf import read_header, require_model
from tiny_models import MATRICES, write_adapter, write_full_attention

ENGINE = "llmkube.programs.bundled_engine.llama_server"


def buffers(model, *args):
    """Return the buffers that an engine reports until it serves."""
    command = [
        sys.executable,
        "-m",
        ENGINE,
        "--model",
        str(model),
        "--port",
        str(free_port()),
        "--verbosity",
        "4",
        *args,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as engine:
        lines = []
        for line in engine.stdout:
            lines.append(line)
            if "serving" in line:
                engine.send_signal(signal.SIGKILL)
                break
    return {each.name: each.size_bytes for each in reported_buffers(lines)}


def test_the_estimate_is_what_the_engine_reports(tmp_path):
    """Within 1 % for adapters of every matrix; they change no other buffer."""
    base = tmp_path / "base.gguf"
    write_full_attention(base)
    files = [tmp_path / "a.gguf", tmp_path / "b.gguf"]
    write_adapter(files[0], rank=700, names=tuple(MATRICES))
    write_adapter(files[1], rank=1001, names=("attn_q",))
    tensors = [tensor for file in files for tensor in read_header(file).adapter.tensors]
    adapted = {each.name: each.size_bytes for each in estimate_of(base, Demand(adapters=tuple(tensors))).components}
    found = buffers(base, "--lora-scaled", ",".join(f"{file}:1" for file in files))
    assert found["adapters"] == pytest.approx(adapted["adapters"], rel=0.01)
    without = buffers(base)
    assert {name: size for name, size in found.items() if name != "adapters"} == without


def estimate_of(model, demand):
    return estimate(read_header(model).shape, demand)


def test_each_part_is_next_to_its_matrix(tmp_path):
    """With one of two layers on a device, half of an adapter is there."""
    base, file = tmp_path / "base.gguf", tmp_path / "a.gguf"
    write_full_attention(base)
    write_adapter(file)
    tensors = read_header(file).adapter.tensors
    for layers, share in ((0, 0.0), (2, 0.5), (ALL_LAYERS, 1.0)):
        parts = estimate_of(base, Demand(device_layers=layers, adapters=tensors)).components
        sizes = {each.place.value: each.size_bytes for each in parts if each.name == "adapters"}
        assert sizes.get("device", 0) == share * sum(sizes.values())


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({}, ""),
        ({"adapter.type": "ia3"}, "its adapter.type is ia3; llama.cpp applies lora only"),
        ({"architecture": "qwen3"}, "it is an adapter for qwen3, and the model is llama"),
        ({"blocks": 3}, "it changes blk.2.attn_q.weight, which the model does not have"),
        (
            {"names": ("attn_q",), "matrices": {"attn_q": (64, 32)}},
            "it does not fit blk.0.attn_q.weight, which is 64 x 64",
        ),
        ({"general.type": None, "general.name": "x"}, None),
    ],
)
def test_the_header_tells_whether_an_adapter_fits(tmp_path, keys, problem):
    """llama.cpp exits when it loads one that does not; without its type, a file is a model without its numbers."""
    base, file = tmp_path / "base.gguf", tmp_path / "a.gguf"
    write_full_attention(base)
    write_adapter(file, **keys)
    if problem is None:
        with pytest.raises(NotGGUFError, match=r"it has no llama\.context_length"):
            read_header(file)
        return
    found = adapter_problem(read_header(file), read_header(base))
    assert found.startswith(problem) if problem else not found
    with pytest.raises(NotGGUFError, match=r"is a LoRA adapter for .*, not a model; add it to the adapters"):
        require_model(read_header(file), "it")
    assert adapter_problem(read_header(base), read_header(base)).startswith("it is a model, not a LoRA")
