"""The table of host runtimes: every row is complete, and none applies to another runtime."""

import pytest

from llmkube.k8s.crd.pairing import HOST_ENGINES
from llmkube.runtimes.process.host_runtime import EngineQueries, LogReader
from llmkube.runtimes.process.host_runtimes import HOST_RUNTIMES, log_reader_of, queries_of

# Output of llama-server: a buffer, a phase of its load, a failed GPU, an exit
LLAMA_LINES = (
    "load_tensors:   CPU_Mapped model buffer size =  4685.30 MiB",
    "ggml_metal_device_init: recommendedMaxWorkingSetSize  = 115448.73 MB",
    "ggml_metal_synchronize: error: command buffer 0 failed with status 5",
)


def test_each_value_of_the_schema_has_one_row_at_most():
    """The names of all rows are those that `pairing` runs on hosts, and no others."""
    names = [name for row in HOST_RUNTIMES.values() for name in (row.name, *row.other_names)]
    assert len(names) == len(set(names))
    assert set(names) == set(HOST_ENGINES)


@pytest.mark.parametrize("name", HOST_RUNTIMES)
def test_each_row_reads_something(name):
    """A runtime of hosts has a program, a setting that names another one if it has any, and a fix that names it."""
    row = HOST_RUNTIMES[name]
    assert row.program.setting == "" or row.program.setting.startswith("--")
    assert row.program.command in row.program.remedy or row.program.setting in row.program.remedy


@pytest.mark.parametrize("name", [*sorted(set(HOST_RUNTIMES) - {"llamacpp"}), "of-a-newer-agent"])
def test_the_lines_of_llamacpp_are_its_own(name):
    """llama-server's lines about buffers, phases and its GPU mean nothing in the log of another engine."""
    words = log_reader_of(name)
    assert not words.buffers(LLAMA_LINES)
    assert words.phase(LLAMA_LINES) == ""
    assert words.device_limit(LLAMA_LINES) is None
    assert words.gpu_failure(LLAMA_LINES) is None


def test_an_engine_of_an_unknown_runtime_gets_no_requests():
    """An engine of a newer agent is watched by the kernel's figures, and by nothing else."""
    assert queries_of("of-a-newer-agent") == EngineQueries()
    assert log_reader_of("of-a-newer-agent") == LogReader()
