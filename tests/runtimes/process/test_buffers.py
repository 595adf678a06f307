import pytest

from llmkube.runtimes.process.buffers import parse_buffer, reported
from llmkube.weights.estimate.demand import Component, Place

LOG = """
0.00.004.456 I load_tensors: loading model tensors, this can take a while... (load_mode = mmap)
0.00.006.126 I load_tensors:   CPU_Mapped model buffer size =   832.37 MiB
0.00.006.126 I load_tensors:   CPU_REPACK model buffer size =   234.00 MiB
0.00.006.308 I llama_context:        CPU  output buffer size =     0.50 MiB
0.00.006.391 I llama_kv_cache:        CPU KV buffer size =   128.00 MiB
0.00.006.618 I llama_kv_cache: size =  128.00 MiB (  4096 cells,   2 layers,  2/2 seqs), K (f16):   64.00 MiB
0.00.006.391 I llama_kv_cache:        CPU KV buffer size =    40.00 MiB
0.00.006.700 I llama_memory_recurrent:        CPU RS buffer size =     1.25 MiB
0.00.007.504 I sched_reserve:        CPU compute buffer size =   184.03 MiB
"""
MIB = 1 << 20


def test_a_log_adds_up():
    """Buffers of one name and place are one component; lines that only mention a size are none."""
    assert {each.name: each.size_bytes / MIB for each in reported(LOG.splitlines())} == {
        "weights": pytest.approx(832.37),
        "repacked weights": 234,
        "output buffer": 0.5,
        "KV cache": 168,
        "recurrent state": 1.25,
        "compute buffer": pytest.approx(184.03),
    }


@pytest.mark.parametrize(
    ("words", "name", "place"),
    [
        ("MTL0_Mapped model", "weights", Place.DEVICE),
        ("MTL0 KV", "KV cache", Place.DEVICE),
        ("CUDA0 compute", "compute buffer", Place.DEVICE),
        ("CUDA_Host compute", "compute buffer", Place.HOST),
        ("CPU_AARCH64 model", "weights", Place.HOST),
        ("BLAS compute", "compute buffer", Place.HOST),
        ("CPUX0 compute", "compute buffer", Place.DEVICE),
    ],
)
def test_where_a_buffer_is(words, name, place):
    """Buffers of the processor and pinned memory are the host's, all others a device's."""
    assert parse_buffer(f"x: {words} buffer size = 2.00 MiB") == Component(name, place, 2 * MIB)


@pytest.mark.parametrize(
    "line",
    ["", "buffer size = 3 MiB", "CPU model buffer size = -3 MiB", "CPU model buffer size = 9999999999999999 MiB",
     "user asked: what is a buffer size = 4 MiB", "CPU KV buffer size = 1e9 MiB"],
)  # fmt: skip
def test_other_lines_are_none(line):
    """What only looks like a report is not one."""
    assert parse_buffer(line) is None
