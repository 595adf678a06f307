from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from click.testing import CliRunner

from cli.memory_cluster import open_cluster_client
from llmkube.cli import cluster as cluster_module
from llmkube.cli.apply import Applier
from llmkube.cli.cluster import Cluster
from llmkube.cli.main import cli
from llmkube.cli.manifests import Manifest, demo_manifests
from llmkube.cli.objects import parse_target
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key

SINCE = "2026-01-01T00:00:00Z"
LOADED = {"type": "Loaded", "status": "False", "reason": "CrashLoopBackOff", "lastTransitionTime": SINCE}


@pytest.fixture
def run(monkeypatch):
    """Run a command against a fresh cluster that holds the demo's objects; `prepare` may change it before."""

    def run(*args, prepare=None):
        @asynccontextmanager
        async def open_cluster(kubeconfig, context):
            async with open_cluster_client() as client:
                await Applier(client).apply_all(demo_manifests(), lambda _: None)
                if prepare is not None:
                    await prepare(client)
                yield Cluster(client, "default")

        monkeypatch.setattr(cluster_module, "open_cluster", open_cluster)
        return CliRunner().invoke(cli, args)

    return run


async def write_status(client, kind=InferenceService, **status):
    manifest = {"metadata": {"name": "demo", "namespace": "default"}, "status": status}
    await client.apply(kind, manifest, field_manager="test", subresource="status")


def test_both_kinds_are_listed(run):
    """`list` shows the Models and the InferenceServices of the context's namespace."""
    ready = partial(write_status, phase="Ready", readyReplicas=1, desiredReplicas=1, endpoint="http://x")
    done = run("list", prepare=ready)
    assert done.exit_code == 0, done.output
    models, services = done.output.split("\n\n")
    assert models.splitlines()[0].split() == ["NAME", "PHASE", "SIZE", "ACCELERATOR", "ARCHITECTURE", "AGE"]
    assert services.splitlines()[1].split()[:6] == ["demo", "demo", "Ready", "1/1", "<none>", "http://x"]


def test_namespaces_are_respected(run):
    """-n looks into one namespace, -A into all and says which."""
    assert run("list", "-n", "other").output == "No Models and no InferenceServices in other.\n"
    assert run("list", "-A").output.splitlines()[1].startswith("default    demo")


def test_status_explains(run):
    """`status` shows the service, its conditions, the engine's last lines, and its Model."""
    failing = LOADED | {"message": "2 failures in a row\nerror: out of memory\nbye\x1b[2J"}
    done = run("status", "demo", prepare=partial(write_status, phase="Failed", conditions=[failing]))
    assert done.exit_code == 0, done.output
    for words in (
        "InferenceService default/demo",
        "phase     Failed",
        "The engine's last lines:\n  error: out of memory\n  bye�[2J\n",
        "Loaded     False   CrashLoopBackOff  2 failures in a row\n",
        "Model default/demo",
        "source       builtin://demo",
    ):
        assert words in done.output


def test_status_of_a_model(run):
    """`status model/NAME` shows the Model and what its header says."""
    facts = partial(write_status, kind=Model, size="1.0 GiB", gguf={"architecture": "llama", "contextLength": 512})
    done = run("status", "mdl/demo", prepare=facts)
    assert "size         1.0 GiB" in done.output
    assert "gguf         llama, 512 tokens" in done.output
    assert "InferenceService" not in done.output


def test_status_without_its_model(run):
    """A service whose Model is missing is shown, and the gap is told."""

    async def orphan(client):
        body = {"apiVersion": InferenceService.RESOURCE.api_version, "kind": "InferenceService"}
        body |= {"metadata": {"name": "lone"}, "spec": {"modelRef": "nowhere"}}
        await Applier(client).apply_all([Manifest("x", body)], lambda _: None)

    assert run("status", "lone", prepare=orphan).output.endswith("Model nowhere: not there\n")


@pytest.mark.parametrize("args", [["status", "chat"], ["delete", "chat"], ["delete", "model/chat", "--wait"]])
def test_what_is_not_there_exits_with_3(run, args):
    """An object that does not exist has an exit code of its own, and the error says where it was looked for."""
    done = run(*args)
    assert done.exit_code == 3
    assert "chat in namespace default; see `llmkube list -A`" in done.output


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["delete", "demo"], "InferenceService demo deleted"),
        (["delete", "demo", "--wait"], "InferenceService demo is gone"),
        (["delete", "model/demo", "--wait"], "Model demo is gone"),
    ],
)
def test_delete_tells_what_it_did(run, args, line):
    """Without --wait the deletion is accepted, with it the object is gone."""
    done = run(*args)
    assert (done.exit_code, done.output) == (0, f"{line}\n")


def test_a_finalizer_can_outlast_the_wait(run):
    """When somebody holds the object, `delete --wait` gives up after --timeout with 4."""

    async def hold(client):
        await client.patch(Model, Key("default", "demo"), {"metadata": {"finalizers": ["example.org/hold"]}})

    done = run("delete", "model/demo", "--wait", "--timeout", "0.5", prepare=hold)
    assert done.exit_code == 4
    assert "not done after 0.5 s" in done.output


def test_a_silent_server_times_out(monkeypatch):
    """An API server that says nothing ends an object command with 4."""

    @asynccontextmanager
    async def open_cluster(kubeconfig, context):
        await trio.sleep_forever()
        yield

    monkeypatch.setattr(cluster_module, "open_cluster", open_cluster)
    monkeypatch.setattr("llmkube.cli.objects.ANSWER_SECONDS", 0.05)
    assert CliRunner().invoke(cli, ["list"]).exit_code == 4


@pytest.mark.parametrize(
    ("text", "kind"),
    [("demo", InferenceService), ("isvc/demo", InferenceService), ("Model/demo", Model), ("models/demo", Model)],
)
def test_kinds_are_read_as_kubectl_reads_them(text, kind):
    """Short names, singular and plural in any case name the kind; without one it is an InferenceService."""
    assert (parse_target(text).kind, parse_target(text).name) == (kind, "demo")
