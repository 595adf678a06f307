"""The command line of vLLM on a Mac, and the meaning of its metrics."""

from pathlib import Path

import pytest

from llmkube.runtimes.plan import EngineInfo, Placeholder, PlanError
from llmkube.runtimes.process.host_runtime import ProgramError
from llmkube.runtimes.process.plan_inputs import PlanInputs
from llmkube.runtimes.process.vllm_metal import RUNTIME
from llmkube.runtimes.registry import check, plan_for
from llmkube.weights.estimate.mlx import cache_size, read_folder
from llmkube.weights.formats.shape import FolderFacts
from llmkube.weights.store.blobs import WeightsFile
from mlx_folder import folder
from runtimes.process.test_mlx_lm import model, service


def planned(path, **spec):
    header = FolderFacts(read_folder(folder(path)))
    weights, engine = WeightsFile(Path("/w"), header.size_bytes, None, "i"), EngineInfo("/vllm", "0.11.2", frozenset())
    asked = service(runtime="vllm-metal", **spec)
    return header, plan_for(PlanInputs(asked, model(), weights, header, engine, alias="chat"))


def test_the_command_line(tmp_path):
    """Its cache has the reserved size, and its share of the GPU is never its own choice; no key is in argv."""
    header, found = planned(tmp_path, contextSize=4096, parallelSlots=3, aliases=["other"])
    words = found.render(EngineInfo("/vllm", "1", frozenset()), model="/w", host="127.0.0.1", port=7, keys="/k")
    assert words[:6] == ("/vllm", "serve", "/w", "--served-model-name", "chat", "other")
    assert words[words.index("--kv-cache-memory-bytes") + 1] == str(cache_size(header.shape, found.demand))
    assert words[words.index("--max-num-seqs") + 1] == "3"
    assert Placeholder.KEYS not in found.argv
    assert not RUNTIME.takes_keys
    assert dict(found.env)["VLLM_NO_USAGE_STATS"] == "1"


@pytest.mark.parametrize(
    ("spec", "field"), [({"mode": "rerank"}, "spec.mode"), ({"extraArgs": ["--x"]}, "spec.extraArgs")]
)
def test_unsupported_fields_are_refused(spec, field):
    """Before anything is downloaded."""
    with pytest.raises(PlanError) as caught:
        check(service(runtime="vllm-metal", **spec), model())
    assert caught.value.field == field


def test_its_build_is_read():
    """Warnings of its libraries precede the version."""
    assert RUNTIME.program.describe("/vllm", ["INFO: platform\n0.11.2+metal.3\n"]).version == "0.11.2+metal.3"
    with pytest.raises(ProgramError):
        RUNTIME.program.describe("/vllm", ["Traceback: no module"])


def test_its_metrics():
    """Running and waiting requests are work; labels do not matter."""
    text = b'vllm:num_requests_running{model_name="chat"} 2.0\nvllm:num_requests_waiting{model_name="chat"} 1.0\n'
    found = {name.decode(): float(number) for name, number in RUNTIME.queries.metric.findall(text)}
    assert sum(found[name] for name in RUNTIME.queries.work) == 3
