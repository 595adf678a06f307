"""`llmkube run`: from a name to an answer."""

import pytest

from llmkube.cli.commands.services import run as run_module
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import LOAD_REQUESTED_AT

DEMO = Key("default", "demo")


@pytest.fixture
def steps(monkeypatch):
    """Calls that `run` makes, in order; nothing is deployed or asked."""
    done = []
    monkeypatch.setattr(
        run_module.chat, "callback", lambda **flags: done.append(("chat", flags["name"], flags["prompt"]))
    )
    monkeypatch.setattr(
        run_module.deploy, "callback", lambda **flags: done.append(("deploy", flags["name"], flags["source"]))
    )

    async def wait_until_ready(cluster, key, seconds):
        done.append(("wait", key.name, (await cluster.client.get(InferenceService, key)).spec.replicas))

    monkeypatch.setattr(run_module, "wait_until_ready", wait_until_ready)
    return done


def test_existing_service_is_asked(run, steps):
    """The service is waited for; nothing is deployed."""
    assert run("run", "demo", "Hello?").exit_code == 0
    assert steps == [("wait", "demo", 1), ("chat", "demo", "Hello?")]


def test_stopped_service_is_started(run, steps):
    async def stop(client):
        await client.patch(InferenceService, DEMO, {"spec": {"replicas": 0}})

    assert run("run", "demo", "Hello?", prepare=stop).exit_code == 0
    assert steps == [("wait", "demo", 1), ("chat", "demo", "Hello?")]


@pytest.mark.parametrize(("phase", "asked"), [("Failed", True), ("Idle", False), ("Ready", False)])
def test_a_model_that_failed_to_load_is_tried_again(run, steps, phase, asked):
    """A user ends the back-off of a service that requests load; the prompt itself loads an idle one."""
    found = []

    async def set_status(client):
        body = {"status": {"activation": "OnRequest", "phase": phase}}
        await client.patch(InferenceService, DEMO, body, subresource="status")

    async def get(client):
        found.append(await client.get(InferenceService, DEMO))

    assert run("run", "demo", "Hello?", prepare=set_status, after=get).exit_code == 0
    assert (LOAD_REQUESTED_AT in found[0].metadata.annotations) == asked
    assert steps == [("wait", "demo", 1), ("chat", "demo", "Hello?")]


def test_a_name_of_the_catalog_is_deployed(run, steps):
    assert run("run", "llama-3.1-8b", "Hello?").exit_code == 0
    assert steps == [("deploy", "llama-3.1-8b", None), ("chat", "llama-3.1-8b", "Hello?")]


def test_a_source_is_deployed_under_its_files_name(run, steps):
    """A source names its service; a second run finds that service."""
    assert run("run", "hf://Qwen/Qwen3-8B-GGUF/Qwen3-8B-Q4_K_M.gguf", "Hello?").exit_code == 0
    assert [step[:2] for step in steps] == [("deploy", "qwen3-8b"), ("chat", "qwen3-8b")]
    steps.clear()
    assert run("run", "builtin://demo", "Hello?").exit_code == 0
    assert [step[:2] for step in steps] == [("wait", "demo"), ("chat", "demo")]


def test_another_source_of_the_same_name_is_not_asked(run, steps):
    """If another source has the name, nothing is asked, and the error explains how to name the new service."""

    async def other(client):
        await client.patch(Model, DEMO, {"spec": {"source": "/models/other.gguf", "sha256": None}})

    done = run("run", "builtin://demo", "Hello?", prepare=other)
    assert (done.exit_code, steps) == (1, [])
    assert "serves /models/other.gguf, not builtin://demo" in done.output


def test_a_name_that_is_nowhere_is_guessed(run, steps):
    """A mistyped name deploys nothing and gets a suggestion."""
    done = run("run", "lama-3.1-8b", "Hello?")
    assert (done.exit_code, steps) == (3, [])
    assert "did you mean llama-3.1-8b" in done.output
