import json
from importlib.resources import files

import attrs
import pytest
from click.testing import CliRunner

from llmkube.cli.commands.models import fit as fit_module
from llmkube.cli.commands.models.fit import as_lines, assess
from llmkube.cli.main import cli
from llmkube.supervisor.memory.budget import host_budget
from llmkube.weights.estimate.demand import ALL_LAYERS, Demand
from llmkube.weights.estimate.sizing import default_cache_ram_bytes
from mlx_folder import folder
from model_shapes import decoder, golden_shape

DEMO = files("llmkube.weights") / "builtin" / "demo.gguf"
GIB = 1 << 30


def run(*args):
    return CliRunner().invoke(cli, ("fit", *map(str, args)))


def needs(shape, **demand):
    found = Demand(device_layers=ALL_LAYERS, **demand)
    return attrs.evolve(found, cache_ram_bytes=default_cache_ram_bytes(shape, found))


def lines(shape, memory_gib, **demand):
    return "\n".join(as_lines(assess("Model", shape, needs(shape, **demand), host_budget(memory_gib * GIB))))


def test_the_demo_fits_everywhere():
    """A table lists the parts and their total, and the verdict names the budget."""
    done = run(DEMO, "--memory", "16Gi", "--accelerator", "cpu")
    assert done.exit_code == 0, done.output
    table = done.output.splitlines()
    assert table[:2] == ["LLMKube demo: llama, Q8_0, 933.8 KiB", "context 512 tokens, 1 slot, f16 cache"]
    assert "KV cache        host   512.0 KiB" in table
    assert any(line.startswith("It fits: models may use 10.7 GiB") for line in table)
    assert table[-1] == "Largest context that fits: 512 tokens, the trained context."


def test_model_that_does_not_fit_exits_with_1():
    done = run(DEMO, "--memory", "64Mi")
    assert done.exit_code == 1
    assert "It does not fit" in done.output


def test_json_has_bytes():
    """The components add up to the total, in bytes."""
    data = json.loads(run(DEMO, "--memory", "16Gi", "-o", "json").output)
    assert sum(each["sizeBytes"] for each in data["components"]) == data["totalBytes"]
    assert data["totalBytes"] == data["hostBytes"] + data["deviceBytes"]
    assert (data["fits"], data["context"], data["memoryBytes"]) == (True, 512, 16 * GIB)


def test_a_context_beyond_the_trained_one_is_reported():
    """The context is reduced to the trained one, and the sentence names both figures."""
    done = run(DEMO, "--memory", "16Gi", "--accelerator", "cpu", "-c", "2000000")
    assert done.exit_code == 0, done.output
    assert "context 512 tokens, 1 slot, f16 cache" in done.output.splitlines()
    line = "The model was trained for 512 tokens, the limit of each request: a context of 2000000 is reduced to 512."
    assert line in done.output.splitlines()
    assert line not in run(DEMO, "--memory", "16Gi", "-c", "512").output


def test_the_context_that_would_fit_is_named():
    """A context that is too long gets the longest that fits, and a cache type that makes it fit."""
    text = lines(decoder(), 16, context=65536)
    assert " over): models may use" in text
    assert "Largest context that fits: 45568 tokens." in text
    assert "--kv-type q8_0 would make it fit: 9.4 GiB of 10.7 GiB." in text


def test_weights_that_are_too_large():
    """If no context fits, none is offered."""
    text = lines(decoder(), 4, context=4096)
    assert "No context fits: the parts that do not depend on it" in text


def test_doubts_are_reported():
    """An unknown architecture is named, and the figures are called high."""
    text = lines(decoder("brandnew"), 64, context=4096)
    assert "brandnew is not known to LLMKube" in text
    assert "errs on the high side" in text


def test_sliding_windows_are_sized():
    """The table has the checkpoints of Gemma 3."""
    text = lines(golden_shape("gemma3-4b Q4_K_M"), 64, context=32768)
    assert "context checkpoints" in text


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--memory", "much"], "is not a quantity"),
        (["--memory", "10"], "10 is 10 bytes; write a unit: 10Gi"),
        (["--kv-type", "q9"], "q9"),
    ],
)
def test_a_wrong_flag_is_named(args, words):
    """An invalid or ambiguous value is refused with the right form."""
    done = run(DEMO, *args)
    assert done.exit_code == 2
    assert words in done.output


def test_an_mlx_folder(tmp_path):
    """A folder with safetensors is sized by its config and titled by its name."""
    folder(tmp_path)
    done = run(tmp_path, "--memory", "64Gi", "--context", "8192")
    assert done.exit_code == 0, done.output
    assert done.output.startswith(f"{tmp_path.name}: qwen3, MLX")
    assert "KV cache        device  128.0 MiB" in done.output


def test_a_missing_file():
    """A missing model exits with 3."""
    assert run("/nowhere/model.gguf").exit_code == 3


def test_model_beyond_the_gpu_limit_does_not_fit():
    """It is within the memory budget; the verdict names the GPU's limit and its source."""
    shape, budget = decoder(), host_budget(64 * GIB, device_limit_bytes=4 * GIB)
    verdict = assess("Model", shape, needs(shape, context=4096), budget)
    assert verdict.estimate.total_bytes < budget.limit_bytes
    assert not verdict.fits
    text = "\n".join(as_lines(verdict))
    assert "the GPU's limit is 4.0 GiB (set by sysctl iogpu.wired_limit_mb)" in text
    assert "It fits" in "\n".join(as_lines(assess("Model", shape, needs(shape, context=4096), host_budget(64 * GIB))))


def test_gpu_limit_of_this_mac_is_used(monkeypatch):
    """It applies to Metal on this machine only."""
    monkeypatch.setattr(fit_module, "device_limit_here", lambda: 1 << 20)
    monkeypatch.setattr(fit_module, "_memory", lambda text: 16 * GIB)
    asked = ("-o", "json", "--accelerator")
    assert json.loads(run(DEMO, *asked, "metal").output)["deviceLimitBytes"] == 1 << 20
    assert json.loads(run(DEMO, *asked, "cpu").output)["deviceLimitBytes"] is None
    assert json.loads(run(DEMO, *asked, "metal", "--memory", "16Gi").output)["deviceLimitBytes"] is None
