"""Waits of `deploy` and `restart` for services in pods and on hosts, and the output at Ctrl-C."""

import pytest
import trio

from cli.cli_objects import condition
from llmkube.cli.commands.services.readiness_wait import print_on_interrupt
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.resource import Key

CHAT = Key("default", "demo")
ENDPOINT = "http://demo.default.svc.cluster.local:8080/v1/chat/completions"
AVAILABLE = condition("Available", True, "InferenceReady")
NOT_READY = condition("Available", False, "NoReadyReplicas", "no pod is ready")


async def in_pods(client, *conditions, **status):
    """Write the status of a service in pods as the controller does, without an agent."""
    stamped = [each | {"observedGeneration": 1, "lastTransitionTime": "2026-01-01T00:00:00Z"} for each in conditions]
    body = {
        "metadata": {"name": "demo", "namespace": "default"},
        "status": {"conditions": stamped, "selector": "app=demo", **status},
    }
    await client.apply(InferenceService, body, field_manager="llmkube-controller", subresource="status")


def redeployed(run, *conditions, args=(), **status):
    """Deploy the unchanged demo again while its status has these conditions."""
    model = ("deploy", "demo", "--model", "demo", "--context-size", "512", "--extra-arg=--threads=1")

    async def prepare(client):
        await in_pods(client, *conditions, **status)

    return run(*model, *args, prepare=prepare, env={"COLUMNS": "80", "NO_COLOR": "1"})


def test_deploy_succeeds_for_pods(run):
    """Ready pods make the service Ready for `deploy`, without an agent."""
    done = redeployed(run, AVAILABLE, phase="Ready", modelReady=True, readyReplicas=1, endpoint=ENDPOINT)
    assert done.exit_code == 0, done.output
    assert done.stdout == f"InferenceService default/demo is Ready at {ENDPOINT}\n"
    assert "Talk to it: llmkube chat demo\n" in done.stderr


@pytest.mark.ci
@pytest.mark.parametrize(
    ("reason", "words", "advice"),
    [
        ("ImagePullBackOff", "pod demo-1: not found", "correct spec.image"),
        ("OOMKilled", "the kernel ended the engine", "a smaller --context-size"),
        ("NotAllowed", "spec.image: not here", "operator to allow it"),
    ],
)
def test_deploy_reports_why_pods_fail(run, monkeypatch, reason, words, advice):
    """Failures reported by the kubelet or the controller end the wait with advice."""
    monkeypatch.setattr("llmkube.cli.view.readiness.STALE_SECONDS", 0.2)
    done = redeployed(run, NOT_READY, condition("Degraded", True, reason, words), phase="Failed", modelReady=True)
    assert done.exit_code == 1
    assert f"cannot be served: {reason}: {words}" in done.stderr
    assert advice in done.stderr


def test_a_wait_for_a_gpu_is_reported_and_is_no_failure(run):
    """A service queued for GPUs is waited for until the timeout, in the controller's words."""
    queued = condition("Progressing", True, "WaitingForGPU", "1 pod waits for a GPU")
    done = redeployed(run, NOT_READY, queued, phase="WaitingForGPU", modelReady=True, args=("--timeout", "0.5"))
    assert done.exit_code == 4
    assert "is not Ready after 0.5 s: 1 pod waits for a GPU" in done.stderr
    assert "watch it with `llmkube status demo --watch`" in done.stderr


def test_a_stopped_service_is_no_success(run):
    """Deploying a service scaled to 0 fails with the fix, unless --replicas 0 is given."""

    async def stop(client):
        await client.patch(InferenceService, CHAT, {"spec": {"replicas": 0}})
        await in_pods(client, phase="Stopped")

    model = ("deploy", "demo", "--model", "demo", "--context-size", "512", "--extra-arg=--threads=1")
    done = run(*model, prepare=stop)
    assert done.exit_code == 1
    assert (
        "InferenceService default/demo is Stopped, as set in its spec; start it: `llmkube scale demo 1`" in done.stderr
    )
    requested = run(*model, "--replicas", "0", prepare=stop)
    assert (requested.exit_code, requested.stdout) == (0, "InferenceService default/demo is Stopped\n")


def test_the_next_step_is_one_that_the_service_offers(run):
    """An embedding service offers no chat."""
    done = redeployed(run, AVAILABLE, phase="Ready", modelReady=True, endpoint="http://x", mode="embedding")
    assert "Talk to it" not in done.output
    assert "It serves embedding" in done.stderr


def test_ctrl_c_prints_what_continues(run, monkeypatch):
    """Ctrl-C prints that the deployment continues, how to watch it and how to end it."""

    async def interrupted(*_args, **_kwargs):
        await trio.lowlevel.checkpoint()
        raise KeyboardInterrupt

    monkeypatch.setattr("llmkube.cli.commands.services.deploy.wait_until_ready", interrupted)
    done = redeployed(run)
    assert done.exit_code == 130
    assert (
        "The deployment continues without this command; watch it with `llmkube status demo --watch`, "
        "end it with `llmkube delete demo`\n"
    ) in done.stderr


def test_nothing_is_printed_about_what_was_not_started(capsys):
    with pytest.RaisesGroup(KeyboardInterrupt), print_on_interrupt():
        raise BaseExceptionGroup("x", [KeyboardInterrupt()])
    assert capsys.readouterr().err == ""
