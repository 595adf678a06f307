"""`llmkube run`: from a name to an answer."""

import pytest

from cli.memory_cluster import write_status
from llmkube.cli.commands.services import run as run_module
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import LOAD_REQUESTED_AT

DEMO = Key("default", "demo")
SINCE, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"
ACCEPTED = ("Accepted", "True", "Accepted", "")


@pytest.fixture
def steps(monkeypatch):
    """Calls that `run` makes, in order; nothing is deployed or asked."""
    done = []
    monkeypatch.setattr(
        run_module.chat, "callback", lambda **flags: done.append(("chat", flags["name"], flags["prompt"]))
    )
    monkeypatch.setattr(
        run_module.deploy,
        "callback",
        lambda **flags: done.append(("deploy", flags["name"], flags["source"] or flags["model_name"])),
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


@pytest.mark.parametrize(
    ("status", "reason", "asked"),
    [
        (("OnRequest", "Failed"), "CrashLoopBackOff", True),
        (("OnRequest", "Idle"), "Idle", True),
        (("OnRequest", "Ready"), "Loaded", False),
        (("Always", "Failed"), "CrashLoopBackOff", True),
        (("Always", "Pending"), "InsufficientMemory", True),
        (("Always", "Creating"), "Loading", False),
        (("", "Failed"), "CrashLoopBackOff", False),  # pods, or an agent that does not know the annotation
    ],
)
def test_a_user_goes_first_and_ends_a_back_off(run, steps, status, reason, asked):
    """A service that is idle, waits for memory or has failed is loaded now; one that loads or serves is not changed."""
    (mode, phase), found = status, []

    async def set_status(client):
        await write_status(client, Model, ("Fetched", "True", "Fetched", ""))
        loaded = ("Loaded", str(phase == "Ready"), reason, "")
        await write_status(client, InferenceService, ACCEPTED, loaded, activation=mode, phase=phase)

    async def get(client):
        found.append(await client.get(InferenceService, DEMO))

    assert run("run", "demo", "Hello?", prepare=set_status, after=get).exit_code == 0
    assert (LOAD_REQUESTED_AT in found[0].metadata.annotations) == asked
    assert steps == [("wait", "demo", 1), ("chat", "demo", "Hello?")]


@pytest.mark.parametrize(
    ("args", "deployed"),
    [
        (["demo"], "demo"),
        (["builtin://demo"], "demo"),
        (["builtin://demo", "--accelerator", "cpu"], "builtin://demo"),
    ],
)
def test_a_pulled_model_is_served(run, steps, args, deployed):
    """The Model that `pull` has created is served as it is, with its digest and its Secret."""

    async def delete_service(client):
        await client.delete(InferenceService, DEMO)

    done = run("run", args[0], "Hello?", *args[1:], prepare=delete_service)
    assert (done.exit_code, steps) == (0, [("deploy", "demo", deployed), ("chat", "demo", "Hello?")]), done.output


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


@pytest.mark.parametrize(
    ("available", "suspended", "replaced"),
    [
        (None, SINCE, True),  # no host has processed it yet
        (("False", SINCE), SINCE, True),
        (("False", LATER), SINCE, False),  # it has been available, and is not any more
        (("True", LATER), SINCE, False),
        (("False", SINCE), LATER, False),  # it was suspended and started again, so that nothing is known
    ],
)
def test_another_source_of_the_same_name(run, steps, available, suspended, replaced):
    """A service that has never been available is replaced; otherwise the error names the fix, and no prompt is sent."""

    async def other(client):
        await client.patch(Model, DEMO, {"spec": {"source": "/models/other.gguf", "sha256": None}})
        pairs = {"Available": available, "Suspended": ("False", suspended)} if available else {}
        conditions = [
            {"type": kind, "status": status, "reason": "X", "message": "", "lastTransitionTime": at}
            for kind, (status, at) in pairs.items()
        ]
        await client.patch(InferenceService, DEMO, {"status": {"conditions": conditions}}, subresource="status")

    done = run("run", "builtin://demo", "Hello?", prepare=other)
    if replaced:
        assert (done.exit_code, steps) == (0, [("deploy", "demo", "builtin://demo"), ("chat", "demo", "Hello?")])
    else:
        assert (done.exit_code, steps) == (1, [])
        assert "serves /models/other.gguf, not builtin://demo" in done.output


def test_a_name_that_is_nowhere_is_guessed(run, steps):
    """A mistyped name deploys nothing and gets a suggestion."""
    done = run("run", "lama-3.1-8b", "Hello?")
    assert (done.exit_code, steps) == (3, [])
    assert "did you mean llama-3.1-8b" in done.output
