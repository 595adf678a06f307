from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from click.testing import CliRunner

from cli.memory_cluster import announce, write_status
from llmkube.cli import target_cluster
from llmkube.cli.main import cli
from llmkube.cli.object_names import parse_target
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import UNLOAD_REQUESTED_AT
from llmkube.programs.server_side_apply import Applier, Manifest

SINCE = "2026-01-01T00:00:00Z"
LOADED = {"type": "Loaded", "status": "False", "reason": "CrashLoopBackOff", "lastTransitionTime": SINCE}


def test_status_explains(run):
    """`status` shows the service, its conditions, the engine's last lines, and its Model."""
    failing = LOADED | {"message": "2 failures in a row\nerror: out of memory\nbye\x1b[2J"}
    done = run("status", "demo", prepare=partial(write_status, phase="Failed", conditions=[failing]))
    assert done.exit_code == 0, done.output
    for words in (
        "InferenceService default/demo",
        "phase        Failed, 0 of 1 ready\n",
        "last error   CrashLoopBackOff: 2 failures in a row\n",
        "The engine's last lines:\n  error: out of memory\n  bye�[2J\n",
        "Loaded     False   CrashLoopBackOff  (as above)\n",
        "model        demo\n",
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
    """The service is shown with what it waits for."""

    async def orphan(client):
        body = {"apiVersion": InferenceService.RESOURCE.api_version, "kind": "InferenceService"}
        body |= {"metadata": {"name": "lone"}, "spec": {"modelRef": "nowhere"}}
        await Applier(client).apply_all([Manifest("x", body)], lambda _: None)

    shown = run("status", "lone", prepare=orphan).output
    assert "waits for    a Model named nowhere\n" in shown
    assert "CONDITION" not in shown


@pytest.mark.parametrize("args", [["status", "chat"], ["delete", "chat"], ["delete", "model/chat", "--wait"]])
def test_missing_object_exits_with_3(run, args):
    """The error names the namespace that was searched."""
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
def test_delete_reports_what_it_did(run, args, line):
    """Without --wait the deletion is accepted, with it the object is gone."""
    done = run(*args)
    assert (done.exit_code, done.stdout) == (0, f"{line}\n")
    assert ("`llmkube cache prune`" in done.stderr) == line.startswith("Model")  # U12: the file is not gone


def test_several_names_are_deleted_at_once(run):
    """An unknown name does not stop the others, and sets the exit code."""
    left = []

    async def collect(client):
        left.extend(each.key.name for each in (await client.list(InferenceService)).items)

    done = run("delete", "nope", "demo", "demo", after=collect)
    assert done.exit_code == 3
    assert done.output.startswith("InferenceService demo deleted\nError: there is no InferenceService nope ")
    assert left == []


def test_a_users_own_file_is_said_to_stay(run):
    """Only a fetched file can be removed with `cache prune`."""

    async def name_a_file(client):
        await client.patch(Model, Key("default", "demo"), {"spec": {"source": "/home/ann/m.gguf"}})

    assert "/home/ann/m.gguf stays where it is" in run("delete", "model/demo", prepare=name_a_file).output
    assert "cache prune" in run("delete", "model/demo").output


@pytest.mark.parametrize("shared", [False, True])
def test_with_model_spares_a_shared_model(run, shared):
    """--with-model deletes the Model, unless another service refers to it."""
    left = []

    async def share(client):
        if shared:
            body = {"apiVersion": InferenceService.RESOURCE.api_version, "kind": "InferenceService"}
            body |= {"metadata": {"name": "other"}, "spec": {"modelRef": "base", "adapters": [{"modelRef": "demo"}]}}
            await Applier(client).apply_all([Manifest("x", body)], lambda _: None)

    async def collect(client):
        left.extend(each.key.name for each in (await client.list(Model)).items)

    done = run("delete", "demo", "--with-model", "--wait", prepare=share, after=collect)
    assert done.exit_code == 0, done.output
    if shared:
        assert left == ["demo"]
        assert done.output == "Model demo not deleted: in use by other\nInferenceService demo is gone\n"
    else:
        assert left == []
        assert done.stdout == "InferenceService demo is gone\nModel demo is gone\n"
        assert (
            done.stderr == "the file remains in the store of its machine; remove it with `llmkube cache prune` there\n"
        )


def test_scale_writes_replicas_and_nothing_else(run):
    """`scale` sets spec.replicas and prints the old and the new value."""
    seen = []

    async def collect(client):
        seen.append((await client.get(InferenceService, Key("default", "demo"))).spec)

    done = run("scale", "demo", "0", after=collect)
    assert (done.exit_code, done.output) == (0, "InferenceService demo scaled from 1 to 0\n")
    assert (seen[0].replicas, seen[0].context_size) == (0, 512)
    assert run("scale", "demo", "1").output == "InferenceService demo already has 1 replica\n"


@pytest.mark.parametrize(
    ("mode", "phase", "replicas", "words"),
    [
        ("OnRequest", "Ready", 1, "is unloaded once its requests have ended; the next request loads it"),
        ("OnRequest", "Idle", 1, "is not loaded; the next request loads it"),
        ("OnRequest", "Failed", 1, "is not loaded: its last load failed; `llmkube status demo` shows why"),
        ("OnRequest", "Stopped", 0, "is already stopped; `llmkube run demo` starts it"),
        ("Always", "Ready", 2, "scaled from 2 to 0; `llmkube scale demo 2` starts it"),
        ("", "Ready", 1, "scaled from 1 to 0; `llmkube scale demo 1` starts it"),
    ],
)
def test_stop_unloads_or_scales_to_zero(run, mode, phase, replicas, words):
    """A service that requests load keeps its replicas; one that is always loaded would be loaded again at once."""
    seen = []

    async def prepare(client):
        await client.patch(InferenceService, Key("default", "demo"), {"spec": {"replicas": replicas}})
        await write_status(client, activation=mode, phase=phase)

    async def collect(client):
        seen.append(await client.get(InferenceService, Key("default", "demo")))

    done = run("stop", "demo", prepare=prepare, after=collect)
    assert (done.exit_code, done.output) == (0, f"InferenceService demo {words}\n")
    assert seen[0].spec.replicas == (replicas if mode == "OnRequest" else 0)
    assert (UNLOAD_REQUESTED_AT in seen[0].metadata.annotations) == (mode == "OnRequest" and phase == "Ready")


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["stop", "nope"], 3, "there is no InferenceService nope in namespace default"),
        (["scale", "nope", "1"], 3, "there is no InferenceService nope in namespace default"),
        (["scale", "demo", "-1"], 2, "-1 is not in the range 0<=x<=10"),
        (["scale", "demo", "11"], 2, "11 is not in the range 0<=x<=10"),
        (["scale", "model/demo", "1"], 2, "only an InferenceService can be scaled, not a Model"),
        (["delete"], 2, "name objects, or name files with -f"),
    ],
)
def test_mistakes_have_their_exit_codes(run, args, code, words):
    """An unknown name exits with 3, an invalid value with 2."""
    done = run(*args)
    assert (done.exit_code, words in done.output) == (code, True), done.output


def test_scaling_beyond_the_hosts_is_reported(run):
    """A host runs one replica, and `scale` reports the shortage."""

    async def on_a_host(client):
        await write_status(client, phase="Ready", conditions=[LOADED | {"message": "x"}])
        await announce(client, "cpu")

    done = run("scale", "demo", "2", prepare=on_a_host)
    assert done.output.splitlines() == [
        "InferenceService demo scaled from 1 to 2",
        "1 of 2 can run: a machine runs one replica, and 1 can serve cpu (mac)",
    ]


def test_status_can_be_data(run):
    """`-o json|yaml|name` prints the object as kubectl would, without managedFields."""
    import json

    import yaml

    as_json = json.loads(run("status", "demo", "-o", "json").output)
    assert (as_json["kind"], as_json["spec"]["contextSize"]) == ("InferenceService", 512)
    assert "managedFields" not in as_json["metadata"]
    assert yaml.safe_load(run("status", "model/demo", "-o", "yaml").output)["spec"]["source"] == "builtin://demo"
    assert run("status", "demo", "-o", "name").output == "inferenceservice.inference.llmkube.dev/demo\n"


def test_wide_status_shows_the_model_too(run):
    """`status -o wide` adds the Model's own lines."""
    assert "\n\nModel default/demo\n" in run("status", "demo", "-o", "wide").output


def test_status_names_the_reporting_host(run):
    """Without any slice, the host is the one whose agent writes the status."""

    async def report(client):
        manifest = {"metadata": {"name": "demo", "namespace": "default"}, "status": {"schedulingStatus": "Loading"}}
        await client.apply(InferenceService, manifest, field_manager="llmkube-agent-mac-1", subresource="status")

    assert "  host         mac-1 (its Lease was not renewed)\n" in run("status", "demo", prepare=report).output


def test_a_finalizer_can_outlast_the_wait(run):
    """If a finalizer holds the object, `delete --wait` exits with 4 after --timeout."""

    async def hold(client):
        await client.patch(Model, Key("default", "demo"), {"metadata": {"finalizers": ["example.org/hold"]}})

    done = run("delete", "model/demo", "--wait", "--timeout", "0.5", prepare=hold)
    assert done.exit_code == 4
    assert "not complete after 0.5 s" in done.output


def test_a_silent_server_times_out(monkeypatch):
    """A silent API server ends the command with 4."""

    @asynccontextmanager
    async def open_cluster(where):
        await trio.sleep_forever()
        yield

    monkeypatch.setattr(target_cluster, "open_cluster", open_cluster)
    monkeypatch.setattr("llmkube.cli.commands.services.listing.ANSWER_SECONDS", 0.05)
    assert CliRunner().invoke(cli, ["list"]).exit_code == 4


@pytest.mark.parametrize(
    ("text", "kind"),
    [("demo", InferenceService), ("isvc/demo", InferenceService), ("Model/demo", Model), ("models/demo", Model)],
)
def test_kinds_are_read_as_kubectl_reads_them(text, kind):
    """Short names, singular and plural in any case name the kind; without one it is an InferenceService."""
    assert (parse_target(text).kind, parse_target(text).name) == (kind, "demo")


DEMO = Key("default", "demo")


def test_each_restart_is_another_spec(run):
    """Each restart writes a new time into the pods' annotation, also within the same second."""
    seen = []

    async def collect(client):
        seen.append((await client.get(InferenceService, DEMO)).spec.pod_annotations)

    for _ in range(2):
        done = run("restart", "demo", "--no-wait", after=collect)
        assert (done.exit_code, done.output) == (0, "InferenceService default/demo is restarting\n")
    assert seen[0].keys() == {"kubectl.kubernetes.io/restartedAt"}
    assert seen[0] != seen[1]


def test_stopped_or_missing_service_is_not_restarted(run):
    """The error for a stopped service has the command that starts it; a missing one exits with 3."""

    async def stop(client):
        await client.patch(InferenceService, DEMO, {"spec": {"replicas": 0}})

    done = run("restart", "demo", prepare=stop)
    assert (done.exit_code, "`llmkube scale demo 1` starts it" in done.output) == (1, True)
    assert run("restart", "nope").exit_code == 3
