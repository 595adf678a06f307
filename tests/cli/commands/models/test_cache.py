"""`llmkube cache`, against a real store and the embedded API server in memory."""

import json
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner

import llmkube.weights
from cli.memory_cluster import open_cluster_client
from llmkube.cli.commands.models import cache as module
from llmkube.cli.commands.tools.files import demo_manifests
from llmkube.cli.main import cli
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.errors import TransportError
from llmkube.programs.api_server import open_server
from llmkube.programs.server_side_apply import Applier
from llmkube.runtimes.plan import LaunchPlan
from llmkube.supervisor.values.desired import Desired, Launch
from llmkube.supervisor.values.journal import Entry, dump, entry_path
from llmkube.weights.store.blobs import WeightsFile, open_store
from llmkube.weights.store.index import Record, commit_record, key_of
from llmkube.weights.store.partial import PartialInfo, open_partial

DEMO = (Path(llmkube.weights.__file__).parent / "builtin" / "demo.gguf").read_bytes()
HF = "hf://org/repo/file.gguf@main"
WEB = "https://files.example/m.gguf"


def fill(store, identity, source, data):
    partial = open_partial(store, key_of(identity))
    partial.begin(PartialInfo())
    partial.append(data)
    partial.checkpoint()
    try:
        commit_record(store, identity, Record(source, fetched_at="2026-01-01T00:00:00+00:00"), [partial])
    finally:
        partial.close()


@pytest.fixture
def store(tmp_path):
    """A store with two models and an unfinished download."""
    store = open_store(tmp_path / "state" / "store")
    fill(store, HF, "hf://org/repo/file.gguf", DEMO)
    fill(store, WEB, WEB, DEMO + b"more")
    left = open_partial(store, key_of("x"))
    left.begin(PartialInfo())
    left.append(b"half")
    left.close()
    return store


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run `llmkube cache` against a cluster with the demo's Model and one for WEB."""
    monkeypatch.setenv("LLMKUBE_STATE_DIR", str(tmp_path / "state"))

    def run(*args, models=(WEB,), error=None):
        @asynccontextmanager
        async def open_client(config):
            if error is not None:
                raise error
            async with open_cluster_client() as client:
                await Applier(client).apply_all(demo_manifests(), lambda _: None)
                for number, source in enumerate(models):
                    manifest = {"apiVersion": Model.RESOURCE.api_version, "kind": "Model", "spec": {"source": source}}
                    metadata = {"metadata": {"name": f"m{number}", "namespace": "default"}}
                    await client.apply(Model, manifest | metadata, field_manager="test")
                yield client

        monkeypatch.setattr(module, "open_client", open_client)
        monkeypatch.setattr(module, "_api_servers", lambda *_: [("https://cluster", None)])
        return CliRunner().invoke(cli, ["cache", *args])

    return run


def test_the_list_is_a_table_or_data(run, store):
    """Each model has a line with key, size and source; unfinished downloads are mentioned; JSON is exact."""
    text = run("list").output
    lines = text.splitlines()
    assert lines[0].split() == ["KEY", "SIZE", "FETCHED", "SOURCE"]
    assert lines[1].split()[:3] == [key_of(HF)[:12], "933.8", "KiB"]
    assert lines[1].endswith("hf://org/repo/file.gguf")
    assert lines[-1].startswith("Unfinished downloads take ")
    [first, second] = json.loads(run("list", "-o", "json").output)
    assert (first["key"], first["sizeBytes"], second["source"]) == (key_of(HF), len(DEMO), WEB)
    assert Path(first["path"]).read_bytes() == DEMO


def test_an_empty_store_is_reported(run, tmp_path):
    """An empty store prints a sentence, or an empty JSON list."""
    assert run("list").output == f"No models in {tmp_path / 'state' / 'store'}.\n"
    assert json.loads(run("list", "-o", "json").output) == []


@pytest.mark.parametrize("name", ["hf://org/repo/file.gguf", HF, key_of(HF), key_of(HF)[:8]])
def test_a_model_is_named_by_source_or_key(run, store, name):
    """Source, pinned source, key and key prefix all find the model and its header."""
    text = run("inspect", name).output
    assert "architecture  llama" in text
    assert json.loads(run("inspect", name, "-o", "json").output)["gguf"]["architecture"] == "llama"


def test_missing_model_exits_with_3(run, store):
    found = run("inspect", "https://elsewhere.example/m.gguf")
    assert found.exit_code == 3
    assert "is not in" in found.output


def test_prune_removes_what_no_model_names(run, store):
    """A dry run only prints; then unused models and unfinished downloads are removed."""
    output = run("prune", "--dry-run").output
    assert "hf://org/repo/file.gguf would be removed" in output
    assert len(list(store.blobs.iterdir())) == 2
    output = run("prune").output
    assert "hf://org/repo/file.gguf removed" in output
    assert "1 unfinished download removed" in output
    assert [each["source"] for each in json.loads(run("list", "-o", "json").output)] == [WEB]


def test_prune_refuses_what_is_in_use(run, store):
    """If a named model is in use, nothing is removed without --force."""
    refused = run("prune", WEB, HF)
    assert refused.exit_code == 1
    assert f"nothing was removed: {WEB} is in use by Model default/m0" in refused.output
    assert len(list(store.blobs.iterdir())) == 2
    assert run("prune", "--force", WEB).exit_code == 0
    assert [each["source"] for each in json.loads(run("list", "-o", "json").output)] == ["hf://org/repo/file.gguf"]


def test_prune_without_an_answer_removes_nothing(run, store):
    """If usage is unknown, nothing is removed, and the error names the fix."""
    refused = run("prune", error=TransportError("connection refused"))
    assert refused.exit_code == 1
    assert "https://cluster does not report which models are in use (connection refused)" in refused.output
    assert "--force" in refused.output
    assert len(list(store.blobs.iterdir())) == 2


def test_prune_keeps_models_of_local_engines_of_other_clusters(run, store, tmp_path):
    """A model in the agent's journal stays even if no queried cluster uses it."""
    metadata = {"name": "chat", "namespace": "other"}
    service = decode(InferenceService, {"metadata": metadata, "spec": {"modelRef": "chat"}})
    desired = Desired(service, decode(Model, {"metadata": metadata, "spec": {"source": HF}}))
    launch = Launch(LaunchPlan((), (), "llamacpp", "chat"), WeightsFile(tmp_path / "x.gguf", 1, None, "x"))
    path = entry_path(tmp_path / "state" / "journal", service.key)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(dump(Entry(desired, launch))))
    assert f"{HF} is in use by InferenceService other/chat on this machine" in run("prune", HF).output
    run("prune", models=())
    assert [each["source"] for each in json.loads(run("list", "-o", "json").output)] == ["hf://org/repo/file.gguf"]


def test_prune_reads_the_models_of_a_stopped_up(store, tmp_path, monkeypatch):
    """They stay; the rest is removed, without an API server."""
    monkeypatch.setenv("LLMKUBE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))

    async def run_up_once():
        async with open_server(tmp_path / "state", 0, field="") as server:
            manifest = {"metadata": {"name": "web", "namespace": "default"}, "spec": {"source": WEB}}
            await server.client.apply(Model, manifest, field_manager="test")

    trio.run(run_up_once)
    refused = CliRunner().invoke(cli, ["cache", "prune", WEB])
    assert f"{WEB} is in use by Model default/web" in refused.output
    done = CliRunner().invoke(cli, ["cache", "prune"])
    assert (done.exit_code, done.output.splitlines()[:1]) == (0, ["hf://org/repo/file.gguf removed"]), done.output


def test_prune_asks_the_cluster_of_the_agents_settings(store, tmp_path):
    """The kubeconfig of the agent in config.toml decides which Models are in use."""
    (tmp_path / "state" / "config.toml").write_text('[agent]\nkubeconfig = "/nowhere/config"\n')
    refused = CliRunner().invoke(cli, ["cache", "prune", "--state-dir", str(tmp_path / "state")])
    assert (refused.exit_code, "kubeconfig /nowhere/config does not exist" in refused.output) == (1, True)


def test_preload_keeps_the_built_in_model(run, tmp_path):
    """A preloaded model is listed, and its path has the right bytes."""
    found = run("preload", "builtin://demo", "-o", "json")
    assert found.exit_code == 0, found.output
    data = json.loads(found.stdout)
    assert Path(data["path"]).read_bytes() == DEMO
    assert [each["key"] for each in json.loads(run("list", "-o", "json").output)] == [data["key"]]


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("/models/m.gguf",), 1, "is already on this machine"),
        (("pvc://claim/key",), 1, "cannot be fetched from here"),
        (("ollama://llama3.2",), 1, "`ollama pull llama3.2:latest` fetches it"),
        (("no such thing",), 1, "is neither an absolute path nor a URL"),
        (("builtin://demo", "--sha256", "abc"), 2, "is not a digest"),
        (("builtin://demo", "--sha256", "0" * 64), 1, "correct the digest"),
        (("http://169.254.169.254/m.gguf",), 1, "cloud metadata service"),
    ],
)
def test_invalid_preload_is_refused_with_a_reason(run, args, code, words):
    """A wrong source or digest gives one sentence and an exit code."""
    found = run("preload", *args)
    assert found.exit_code == code
    assert words in found.output
