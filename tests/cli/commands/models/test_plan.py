"""`llmkube plan`: the same figures as `fit`, and the same decisions as an agent's book."""

import json
from importlib.resources import files
from xml.etree import ElementTree

import pytest
import yaml
from click.testing import CliRunner

from llmkube.cli.commands.models.plan import ON_DEMAND, RESIDENT, make_plan
from llmkube.cli.commands.models.plan_file import read_plan
from llmkube.cli.main import cli
from llmkube.supervisor.host.sample import Level, Sample
from llmkube.supervisor.memory.book import Book, Grant, StopEngine
from llmkube.supervisor.memory.eviction import Decision
from llmkube.supervisor.memory.reservation import MemorySpec, Need, Usage
from tiny_models import write_adapter, write_full_attention

DEMO = files("llmkube.weights") / "builtin" / "demo.gguf"
GIB = 1 << 30
MIXED = """
hosts: [{name: big, memory: 64Gi, accelerator: metal}]
models:
- {model: qwen3-8b, name: chat, users: 4, context: 8192}
- {model: llama-3.3-70b, context: 8192}
- {model: llama-3.1-8b, context: 16384}
- {model: llama-3.2-3b, spec: {activation: {mode: Always}}}
"""


def run(tmp_path, text, *args):
    file = tmp_path / "plan.yaml"
    file.write_text(text)
    return CliRunner().invoke(cli, ("plan", "-f", str(file), *map(str, args)))


def services(done):
    return {each["name"]: each for each in json.loads(done.stdout)["services"]}


@pytest.mark.parametrize("model", [str(DEMO), "qwen3-8b"])
def test_a_need_is_that_of_fit(tmp_path, model):
    """For a file and a name of the catalog: one formula."""
    planned = services(run(tmp_path, f"models: [{{model: {model}, name: x, context: 512}}]", "-o", "json"))["x"]
    if model == str(DEMO):
        args = ("fit", model, "-c", "512", "--accelerator", "cpu", "-o", "json")
        assert planned["needBytes"] == json.loads(CliRunner().invoke(cli, args).stdout)["totalBytes"]
    assert (planned["context"], planned["slots"]) == (512, 1)


def test_residents_and_those_that_make_room_are_those_of_an_agent():
    """A book that gets the same services one after the other admits and displaces the same."""
    hosts, wanted = read_plan([yaml.safe_load(MIXED)])
    found = make_plan(hosts, wanted, {})
    memory, book = 64 * GIB, Book()
    book.observe(Sample(memory, memory, Level.NORMAL), {}, 0.0)
    book.decide(Decision(Level.NORMAL, admitting=True, calm_seconds=1e6), 0.0)
    keys = {each.service.key.name: each.service.key for each in wanted}
    assert [each.state for each in found.services] == [RESIDENT, RESIDENT, RESIDENT, ON_DEMAND]
    for each in found.services:
        key, on_request = keys[each.name], each.name != "llama-3.2-3b"
        book.set_spec(key, MemorySpec(on_request=on_request), 0.0)
        if each.state == ON_DEMAND:
            book.set_usage(key, Usage(1, 1, 0.0), 0.0)
        orders = book.make_request(key, Need(each.need_bytes, estimated_bytes=each.need_bytes), 0.0)
        granted = [order.reservation for order in orders if isinstance(order, Grant)]
        stopped = [order.reservation.key.name for order in orders if isinstance(order, StopEngine)]
        assert (len(granted), sorted(stopped)) == (each.state == RESIDENT, sorted(each.displaces))
        for one in granted:
            book.record_loaded(one, 0.0)


def test_what_does_not_fit_has_the_reason_and_what_would_help(tmp_path):
    """Exit code 1; a smaller context, a quantized cache and a smaller model of the same family are named."""
    text = "hosts: [{name: small, memory: 16Gi}]\nmodels: [{model: llama-3.1-8b, context: 18432}]"
    done = run(tmp_path, text, "--svg", tmp_path / "plan.svg")
    assert done.exit_code == 1
    assert "llama-3.1-8b does not fit: needs" in done.output
    assert "more than all models on this machine may use together: 10.7 GiB" in done.output
    helps = [line.strip() for line in done.output.splitlines() if "would help" in line]
    assert [line.split()[2:4] for line in helps] == [["a", "KV"], ["a", "context"], ["a", "smaller"], ["a", "host"]]
    assert "a smaller model of the catalog: llama-3.2-3b" in done.output
    assert ElementTree.parse(tmp_path / "plan.svg").getroot().tag.endswith("svg")


def test_manifests_and_cards_with_their_own_memory(tmp_path):
    """Objects are planned as `apply` would create them; a card's memory limits what is on it."""
    model = {"kind": "Model", "metadata": {"name": "m"},
             "spec": {"source": str(DEMO), "hardware": {"accelerator": "cuda"}}}  # fmt: skip
    service = {"kind": "InferenceService", "metadata": {"name": "s"}, "spec": {"modelRef": "m", "contextSize": 512}}
    hosts = {"hosts": [{"name": "gpu", "memory": "32Gi", "accelerator": "cuda", "devices": {"CUDA0": "8Gi"}}]}
    placed = services(run(tmp_path, yaml.safe_dump_all([hosts, model, service]), "-o", "json"))["s"]
    assert (placed["host"], placed["state"]) == ("gpu", RESIDENT)
    hosts["hosts"][0]["devices"]["CUDA0"] = "100Mi"
    done = run(tmp_path, yaml.safe_dump_all([hosts, model, service]))
    assert "on CUDA0, which holds at most 100.0 MiB" in done.output
    hosts["hosts"][0]["accelerator"] = "cpu"
    done = run(tmp_path, yaml.safe_dump_all([hosts, model, service]))
    assert "s needs cuda, which no host has; change its Model or a host" in done.output


def test_a_draft_model_adapters_and_a_projector_need_memory(tmp_path):
    """Each adds to the need of the service; one that is not known is named."""
    write_full_attention(tmp_path / "m.gguf")
    write_adapter(tmp_path / "a.gguf")
    models = [
        {"kind": "Model", "metadata": {"name": name}, "spec": {"source": str(tmp_path / f"{name}.gguf")}}
        for name in ("m", "a")
    ]
    fields = {
        "plain": {},
        "draft": {"speculativeDecoding": {"type": "draft", "draftModelRef": "m"}},
        "adapter": {"adapters": [{"modelRef": "a"}]},
    }
    asked = [
        {"kind": "InferenceService", "metadata": {"name": name}, "spec": {"modelRef": "m", "contextSize": 64, **more}}
        for name, more in fields.items()
    ]
    found = services(run(tmp_path, yaml.safe_dump_all([*models, *asked]), "-o", "json"))
    needs = {name: each["needBytes"] for name, each in found.items()}
    assert needs["plain"] < needs["adapter"] < needs["draft"]
    for model, name in ((models[0], "a"), (models[1], "m")):
        done = run(tmp_path, yaml.safe_dump_all([model, *asked]))
        assert f"there is no Model {name} in the file" in done.output
    models[0]["spec"]["mmproj"] = "mmproj.gguf"
    done = run(tmp_path, yaml.safe_dump_all([*models, *asked]))
    assert "the projector mmproj.gguf is not an absolute path" in done.output


def test_every_field_of_the_spec_is_known(tmp_path):
    """Also those whose names contain an abbreviation."""
    done = run(tmp_path, "models: [{model: qwen3-8b, spec: {moeCPUOffload: true, pagedSSDCacheDir: /x}}]")
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models: [{name: x}]", "models: {'name': 'x'}: model: is missing; write model, and any of model, name"),
        ("hosts: [{name: a, memory: lots}]\nmodels: []", "hosts: {'name': 'a', 'memory': 'lots'}"),
        ("hosts: [{name: a, memory: 8Gi, accelerator: abacus}]", "accelerator: 'abacus' is not one of 'cpu', 'metal'"),
        ("hosts: [{name: a}]", "hosts: {'name': 'a'}: memory: is missing"),
        ("hosts: [{name: a, memory: 8Gi, fraction: 67}]", "fraction: 67.0 is not in the range 0<x<=1"),
        ("hosts: [{name: a, memory: 8Gi, read: 0}]", "read: 0 is not in the range x>=1"),
        ("hosts: 5", "hosts: must be a list"),
        ("models: [5]", "models: 5: model: is missing"),
        ("kind: Model\nmetadata: {name: 5}\nspec: {source: /x}", "metadata.name: expected a string, got 5"),
        ("models: [{model: qwen3-8b, users: 0}]", "users: 0 is not in the range 1<=x"),
        ("models: [{model: qwen3-8b, user: 2}]", "user: is not known; write model, and any of model, name"),
        ("models: [{model: qwen3-8b, spec: {wire: 1}}]", "spec: wire is not a field"),
        ("models: [{model: qwen3-8b, spec: {cacheTypek: f16}}]", "spec: cacheTypek is not a field"),
        ("host: []", "a document has neither a kind, nor only hosts and models"),
        ("kind: InferenceService\nmetadata: {name: s}\nspec: {modelRef: m}", "there is no Model m in the file"),
        ("a: [", "cannot be read"),
        ("models: [{model: no-such-model}]", "no-such-model"),
    ],
)
def test_a_wrong_value_is_named(tmp_path, text, message):
    """Exit code 1 or 3, and no traceback."""
    done = run(tmp_path, text)
    assert (done.exit_code in (1, 3), message in done.output) == (True, True), done.output
    assert isinstance(done.exception, SystemExit)
