"""Shapes from the numbers of an architecture give the memory that shapes of recorded files give."""

import pytest

from llmkube.cli.catalog.entries import entries
from llmkube.cli.catalog.shapes import shape_of
from llmkube.weights.estimate.demand import Demand
from llmkube.weights.estimate.layers import is_known
from llmkube.weights.estimate.sizing import estimate
from model_shapes import golden_shape

RECORDED = {
    "llama-3.2-1b": "llama-3.2-1b Q4_K_M",
    "llama-3.1-8b": "llama-3.1-8b Q4_K_M",
    "qwen3-4b": "qwen3-4b Q4_K_M",
    "gemma-3-4b": "gemma3-4b Q4_K_M",
    "qwen3.5-4b": "qwen3.5-4b Q4_K_M",
}


@pytest.mark.parametrize("layers", [0, 999])
@pytest.mark.parametrize("context", [4096, 32768])
@pytest.mark.parametrize(("name", "file"), RECORDED.items())
def test_memory_is_that_of_a_recorded_file(name, file, context, layers):
    """On the CPU and on a GPU, at a short and a long context, the estimate is within 1.5 % of the recorded file's."""
    demand = Demand(context=context, device_layers=layers)
    mine, recorded = (estimate(shape, demand).total_bytes for shape in (shape_of(entries()[name]), golden_shape(file)))
    assert mine == pytest.approx(recorded, rel=0.015)


@pytest.mark.parametrize("entry", entries().values(), ids=lambda each: each.name)
def test_a_shape_accounts_for_its_file(entry):
    """The tensors hold what the file holds, near what their types take, of an architecture that the estimate knows."""
    shape = shape_of(entry)
    assert is_known(shape)
    held = sum(each.size_bytes for each in shape.tensors)
    assert held == pytest.approx(entry.size_bytes, rel=0.001)
    assert estimate(shape, Demand(context=4096)).certain
    output = next(each for each in shape.tensors if each.name == "token_embd.weight")
    bits = output.size_bytes * 8 / (output.sizes[0] * output.sizes[1])
    assert {"Q4_K": 4.2, "Q6_K": 6.1, "Q8_0": 8.0, "MXFP4": 4.0}[output.type] <= bits <= 9
