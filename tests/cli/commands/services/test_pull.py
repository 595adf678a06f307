"""`llmkube pull`: a Model, and its file where it is served."""

from functools import partial

import pytest

from cli.memory_cluster import announce
from llmkube.cli.commands.services import pull as pull_module
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key

SOURCE = "hf://Qwen/Qwen3-8B-GGUF/Qwen3-8B-Q4_K_M.gguf"


@pytest.fixture
def found():
    return {}


def read_spec(found, name):
    async def after(client):
        found[name] = (await client.get(Model, Key("default", name))).spec

    return after


def test_up_on_this_machine_gets_the_file_into_its_store(run, monkeypatch, tmp_path, found):
    """With a local `llmkube up` the file is fetched into its store and checked by its digest."""
    fetched = []
    monkeypatch.setattr(pull_module, "own_up_dir", lambda where: tmp_path)
    monkeypatch.setattr(pull_module.preload, "callback", lambda **flags: fetched.append(flags))
    done = run("pull", "llama-3.1-8b", prepare=partial(announce_cpu), after=read_spec(found, "llama-3.1-8b"))
    assert done.exit_code == 0, done.output
    spec = found["llama-3.1-8b"]
    assert (spec.prefetch, spec.hardware.accelerator, spec.quantization) == (None, "cpu", "Q4_K_M")
    assert [(each["source"], each["sha256"], each["model_store"]) for each in fetched] == [
        (spec.source, spec.sha256, str(tmp_path / "store"))
    ]


async def announce_cpu(client):
    await announce(client, "cpu")


def test_remote_host_fetches_on_demand(run, monkeypatch, found):
    """The file is not reported as fetched."""
    monkeypatch.setattr(pull_module, "own_up_dir", lambda where: None)
    done = run("pull", SOURCE, prepare=announce_cpu, after=read_spec(found, "qwen3-8b"))
    assert done.exit_code == 0, done.output
    assert done.stdout == "No file was fetched: mac fetches it when a service needs it\n"
    assert found["qwen3-8b"].source == SOURCE


def test_pods_get_a_job_and_the_wait_ends_with_its_failure(run, found):
    """Without a matching host the Model is prefetched, and the Job's failure ends the command."""

    async def failing(client):
        body = {
            "metadata": {"name": "m", "namespace": "default"},
            "spec": {"source": SOURCE, "hardware": {"accelerator": "cuda"}, "prefetch": True},
        }
        await client.apply(Model, body, field_manager="llmkube-deploy")
        condition = {"type": "Degraded", "status": "True", "reason": "AccessDenied", "message": "401 for this file"}
        other = {"type": "Available", "status": "False", "reason": "AccessDenied", "message": "401 for this file"}
        stamped = [each | {"lastTransitionTime": "2026-01-01T00:00:00Z"} for each in (condition, other)]
        body = {"metadata": body["metadata"], "status": {"phase": "Failed", "conditions": stamped}}
        await client.apply(Model, body, field_manager="llmkube-controller", subresource="status")

    done = run("pull", SOURCE, "--name", "m", "--accelerator", "cuda", prepare=failing, after=read_spec(found, "m"))
    assert done.exit_code == 1
    assert "Model default/m cannot be fetched: AccessDenied: 401 for this file" in done.output
    assert found["m"].prefetch is True


def test_a_model_of_ollamas_library_is_left_to_the_host(run, monkeypatch, tmp_path, found):
    """Its Ollama pulls it on demand; nothing is fetched into a store."""
    monkeypatch.setattr(pull_module, "own_up_dir", lambda where: tmp_path)
    done = run("pull", "ollama://llama3.2", prepare=announce_cpu, after=read_spec(found, "llama3.2"))
    assert done.exit_code == 0, done.output
    assert "Ollama pulls the model on the machine that serves it" in done.output
    assert found["llama3.2"].source == "ollama://llama3.2"


def test_a_wait_that_is_too_long_prints_what_continues(run):
    """After --timeout the command exits with 4; the fetch continues."""
    done = run("pull", SOURCE, "--name", "m", "--accelerator", "cuda", "--timeout", "0.3")
    assert done.exit_code == 4
    assert "watch it with `llmkube status model/m --watch`" in done.output


def test_a_file_of_the_host_is_not_fetched(run, tmp_path):
    done = run("pull", str(tmp_path / "m.gguf"), "--accelerator", "cpu")
    assert (done.exit_code, "in place" in done.output) == (0, True)


def test_a_file_of_this_machine_is_checked(run, tmp_path):
    """Nothing has to be fetched, but a file that cannot be served is an error of the command."""
    lost, text = tmp_path / "lost.gguf", tmp_path / "text.gguf"
    text.write_text("no weights")
    for path, message in ((lost, f"{lost}: there is no such file"), (text, f"{text} is not a valid GGUF file")):
        done = run("pull", str(path), prepare=announce_cpu, up_dir=tmp_path)
        assert (done.exit_code, message in done.stderr, done.stdout) == (1, True, ""), done.output
    done = run("pull", str(lost), prepare=announce_cpu)
    assert (done.exit_code, "Nothing to fetch" in done.stdout) == (0, True), done.output
