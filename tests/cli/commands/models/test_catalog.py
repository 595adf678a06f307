"""`llmkube catalog`, and `deploy` of its entries."""

import json

import pytest
import yaml
from click.testing import CliRunner

from llmkube.cli.catalog.entries import entries
from llmkube.cli.commands.models import catalog
from llmkube.cli.commands.models.catalog import memory_bytes, shape_of
from llmkube.cli.main import cli
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.supervisor.memory.budget import host_budget
from llmkube.weights.estimate.demand import Demand
from llmkube.weights.estimate.layers import is_known
from llmkube.weights.estimate.sizing import estimate
from model_shapes import golden_shape

LLAMA = entries()["llama-3.1-8b"]


def invoke(*args):
    return CliRunner().invoke(cli, ["catalog", *args], env={"COLUMNS": "80", "NO_COLOR": "1"})


def test_the_list_has_every_model_and_what_it_takes():
    """Each model has a row with memory and pin; unverified digests are noted."""
    done = invoke("list")
    assert done.exit_code == 0, done.output
    rows = done.stdout.splitlines()
    assert rows[0].split() == ["NAME", "SIZE", "QUANT", "CONTEXT", "MEMORY", "FITS", "PIN"]
    assert [row.split()[0] for row in rows[1:]] == list(entries())
    assert "No file of the catalog\nwas fetched when the list was made." in done.stderr
    assert max(map(len, done.output.splitlines())) <= 100
    assert max(map(len, done.stderr.splitlines())) <= 80


def test_info_shows_the_source_and_the_memory_by_context():
    """Source with revision, origin of the digest, memory by context, and commands to paste are shown."""
    shown = invoke("info", "qwen3-8b").stdout
    assert "hf://Qwen/Qwen3-8B-GGUF/Qwen3-8B-Q4_K_M.gguf@7c41481f57cb95916b40956ab2f0b139b296d974" in shown
    assert "its digest is in several public manifests" in shown
    contexts = [line.split()[0] for line in shown.splitlines() if line[:1].isdecimal()]
    assert contexts == ["4096", "8192", "32768", "40960"]
    assert "  llmkube deploy qwen3-8b\n" in shown
    data = json.loads(invoke("info", "qwen3-30b", "-o", "json").stdout)
    assert (data["name"], data["checked"]) == ("qwen3-30b-a3b", "one")
    assert len(yaml.safe_load(invoke("list", "-o", "yaml").stdout)) == len(entries())


def test_more_context_takes_more_and_fits_is_right(monkeypatch):
    """Memory grows with the context, and the verdict is that of this machine's budget."""
    small, large = (memory_bytes(LLAMA, context) for context in (4096, 131072))
    assert 5 << 30 < small < large
    gives = {row[0]: row[2] for row in catalog._at_contexts(LLAMA, host_budget(32 << 30))}
    assert (gives["4096"], gives["131072"]) == ("yes", "no")
    assert {row[2] for row in catalog._at_contexts(LLAMA, None)} == {"unknown"}


@pytest.mark.parametrize(("name", "words"), [("lama-3.1-8b", "did you mean llama-3.1-8b"), ("x", "catalog list")])
def test_an_unknown_name_is_guessed(name, words):
    """An unknown name exits with 3 and a suggestion."""
    done = invoke("info", name)
    assert (done.exit_code, words in done.stderr) == (3, True)


def test_deploy_takes_its_source_from_the_catalog(run):
    """The source, digest and context of the entry are applied and printed."""
    found = {}

    async def collect(client):
        key = Key("default", "llama-3.1-8b")
        found.update(model=(await client.get(Model, key)).spec, service=(await client.get(InferenceService, key)).spec)

    done = run("deploy", "llama-3.1-8b", "--accelerator", "metal", "--no-wait", after=collect, demo=False)
    assert done.exit_code == 0, done.output
    model, service = found["model"], found["service"]
    assert (model.source, model.sha256, model.quantization) == (LLAMA.source, LLAMA.sha256, "Q4_K_M")
    assert (model.hardware.accelerator, service.context_size, service.model_ref) == ("metal", 8192, "llama-3.1-8b")
    assert f"llama-3.1-8b: {LLAMA.source} (its digest is in one public manifest)" in done.output


def test_flags_win_over_the_catalog(run):
    """Flags replace the catalog's context and digest; --source replaces the whole entry."""
    done = run("deploy", "qwen3-embedding-0.6b", "--context-size", "512", "--dry-run")
    model, service = yaml.safe_load_all(done.stdout)
    assert (service["spec"]["contextSize"], service["spec"]["mode"]) == (512, "embedding")
    assert "sha256" not in model["spec"]
    own = run("deploy", "llama-3.1-8b", "--source", "builtin://demo", "--dry-run")
    model, service = yaml.safe_load_all(own.stdout)
    assert model["spec"]["source"] == "builtin://demo"
    assert service["spec"] == {"modelRef": "llama-3.1-8b"}


def test_a_name_that_is_nowhere_is_guessed(run):
    """A mistyped name without a source is a usage error with a suggestion."""
    done = run("deploy", "llama-3.1-8", "--dry-run")
    assert (done.exit_code, "did you mean llama-3.1-8b" in done.output) == (2, True)


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
    """The estimate is within 1.5 % of the recorded file's, on CPU and GPU, at short and long contexts."""
    demand = Demand(context=context, device_layers=layers)
    mine, recorded = (estimate(shape, demand).total_bytes for shape in (shape_of(entries()[name]), golden_shape(file)))
    assert mine == pytest.approx(recorded, rel=0.015)


@pytest.mark.parametrize("entry", entries().values(), ids=lambda each: each.name)
def test_a_shape_accounts_for_its_file(entry):
    """The tensors match the file's size and types, of an architecture that the estimate knows."""
    shape = shape_of(entry)
    assert is_known(shape)
    held = sum(each.size_bytes for each in shape.tensors)
    assert held == pytest.approx(entry.size_bytes, rel=0.001)
    assert estimate(shape, Demand(context=4096)).certain
    output = next(each for each in shape.tensors if each.name == "token_embd.weight")
    bits = output.size_bytes * 8 / (output.sizes[0] * output.sizes[1])
    assert {"Q4_K": 4.2, "Q6_K": 6.1, "Q8_0": 8.0, "MXFP4": 4.0}[output.type] <= bits <= 9
