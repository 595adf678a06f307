"""The texts and exit codes are kubectl's; `tests/e2e/test_kubectl.py` compares them with the program."""

import json

import pytest
import yaml

from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.resource import Key

FILE = """
apiVersion: v1
kind: Secret
metadata: {name: provider}
stringData: {OPENAI_API_KEY: sk-hush}
---
apiVersion: inference.llmkube.dev/v1alpha1
kind: Model
metadata: {name: demo, labels: {team: a}}
spec: {source: "builtin://demo"}
---
apiVersion: v1
kind: Namespace
metadata: {name: team}
"""
BAD = """
apiVersion: inference.llmkube.dev/v1alpha1
kind: ModelRouter
metadata: {name: home}
spec: {backends: []}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: after}
"""


def test_any_kind_is_applied(run):
    """Each object is one line; what stands as written is unchanged, and no value of a Secret is printed."""

    async def apply_first(client):
        await client.request_json(
            "POST", "/api/v1/namespaces", body={"kind": "Namespace", "metadata": {"name": "team"}}
        )

    done = run("apply", "-f", "-", input=FILE, prepare=apply_first)
    lines = ["secret/provider created", "model.inference.llmkube.dev/demo configured", "namespace/team unchanged"]
    assert (done.exit_code, done.output.splitlines()) == (0, lines)
    dry = run("apply", "--dry-run", "-f", "-", input=FILE)
    assert dry.output.splitlines()[0] == "secret/provider created (server dry run)"
    assert "sk-hush" not in done.output + dry.output


def test_a_refused_object_does_not_stop_the_others(run):
    done = run("apply", "-f", "-", input=BAD)
    assert done.exit_code == 1
    assert "document 1: Error from server (Invalid): " in done.output
    assert "configmap/after created" in done.output


def test_fields_of_others_are_left_to_them(run):
    """An edit by another manager is a conflict, unless --force-conflicts takes the field over."""
    file = yaml.safe_dump(
        {
            "apiVersion": "inference.llmkube.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": "demo"},
            "spec": {"modelRef": "other"},
        }
    )
    refused = run("apply", "-f", "-", input=file)
    assert (refused.exit_code, 'conflict with "llmkube-up"' in refused.output) == (1, True)
    assert "take them over with --force-conflicts" in refused.output
    assert run("apply", "--force-conflicts", "-f", "-", input=file).output.endswith("/demo configured\n")


def test_objects_of_any_kind_are_shown(run):
    """Tables have the API server's columns; data is the object, or a List."""
    assert run("get", "mdl").output.split()[:6] == ["NAME", "PHASE", "SIZE", "ACCELERATOR", "QUANT", "AGE"]
    assert run("get", "ns", "-o", "name").output.splitlines()[0] == "namespace/default"
    assert run("get", "isvc,models", "-A", "-o", "name").output.splitlines() == [
        "inferenceservice.inference.llmkube.dev/demo",
        "model.inference.llmkube.dev/demo",
    ]
    assert json.loads(run("get", "model/demo", "-o", "json").output)["spec"]["source"] == "builtin://demo"
    listed = yaml.safe_load(run("get", "namespaces", "-o", "yaml").output)
    assert (listed["kind"], listed["items"][0]["kind"]) == ("List", "Namespace")


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (
            "get isvc nobody",
            1,
            'Error from server (NotFound): inferenceservices.inference.llmkube.dev "nobody" not found',
        ),
        ("get pods", 1, 'error: the server doesn\'t have a resource type "pods"'),
        ("get leases", 0, "No resources found in default namespace."),
        ("get isvc/", 2, "name objects as KIND NAME..., or each one as KIND/NAME"),
        ("delete secret/nobody", 1, 'Error from server (NotFound): secrets "nobody" not found'),
        ("delete nobody --ignore-not-found", 0, ""),
        ("apply -f https://example.org/x.yaml", 1, "a URL is not fetched: download it first"),
    ],
)
def test_what_is_missing_is_said_in_kubectls_words(run, words, code, text):
    done = run(*words.split())
    assert (done.exit_code, text in done.output) == (code, True), done.output


def test_a_file_without_objects_is_refused(run):
    """Such as what a failed command printed into a pipe."""
    done = run("apply", "-f", "-", input="# nothing\n")
    assert (done.exit_code, done.stderr) == (1, "error: no objects passed to apply\n")


def test_the_objects_of_a_file_are_deleted(run):
    done = run("delete", "-f", "-", input=FILE)
    assert (done.exit_code, done.output.splitlines()) == (
        1,
        [
            'model.inference.llmkube.dev "demo" deleted',
            'Error from server (NotFound): secrets "provider" not found',
            'Error from server (NotFound): namespaces "team" not found',
        ],
    )


def test_a_service_is_copied_under_another_name(run):
    """A copy has the settings but not the aliases; a pulled Model gets a service, and no service is overwritten."""
    copies = []

    async def alias(client):
        await client.patch(InferenceService, Key("default", "demo"), {"spec": {"aliases": ["gpt-4o"]}})

    async def read(client):
        copies.append(await client.get(InferenceService, Key("default", "other")))

    done = run("cp", "demo", "other", prepare=alias, after=read)
    assert done.output == "InferenceService default/demo copied to default/other\n"
    assert (copies[0].spec.model_ref, copies[0].spec.aliases) == ("demo", ())
    assert "InferenceService default/demo exists" in run("cp", "demo", "demo").output
    assert run("cp", "nobody", "other").exit_code == 3

    async def leave_the_model(client):
        await client.delete(InferenceService, Key("default", "demo"))

    assert run("cp", "demo", "other", prepare=leave_the_model, after=read).exit_code == 0
    assert copies[1].spec.model_ref == "demo"
