"""Failures get a reason and the engine's own message, and affect no other service."""

import os
import re
import shutil
import socket
from functools import partial
from importlib.resources import files
from pathlib import Path

import pytest

from e2e.one_machine import open_up_with, served
from e2e.separate_programs import REAL_ENGINE, chat
from e2e.up_process import ANSWER, fake_engine, run_program
from llmkube.base.http.client import open_http_client
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key

pytestmark = [pytest.mark.e2e, pytest.mark.ci]


async def test_an_engine_that_exits_at_once(tmp_path):
    """The condition quotes the engine, restarts back off, and the other service keeps its process."""
    last_words = "llama_model_load: error: no kernel image is available"
    script = f'for a; do [ "$a" = bad ] && {{ echo "{last_words}"; exit 3; }}; done\nexec {REAL_ENGINE} "$@"'
    program = fake_engine(tmp_path, script)
    args = ("--llama-server", program, "--activation", "Always")
    async with open_up_with(tmp_path, *args, documents=[served("bad")]) as up:
        await up.wait_loaded("demo", "Loaded")
        demo = up.engine("demo")
        first = await up.wait_loaded("bad", "Restarting", "CrashLoopBackOff")
        assert "the engine exited while loading: exit code 3" in first.message
        assert last_words in first.message
        third = await up.wait_condition(
            InferenceService, "bad", "Loaded", lambda found: re.match(r"([3-9]|\d\d) failures in a row", found.message)
        )
        assert third.reason == "CrashLoopBackOff"
        assert re.search(r"next attempt at \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", third.message)
        failed = await up.wait_condition(InferenceService, "bad", "Degraded", lambda found: found.status == "True")
        assert last_words in failed.message
        async with open_http_client() as http:
            body = b'{"model": "bad", "prompt": "x"}'
            answer = await http.request("POST", f"{up.gateway}/v1/completions", body=body)
        assert answer.status == 503
        assert answer.headers.get("Retry-After")
        assert await chat(up.gateway) == ANSWER
        assert up.engine("demo") == demo


async def test_files_that_are_no_models(tmp_path):
    """A file that is no GGUF looks missing, a truncated GGUF is NotGGUF, and a repaired file is served at once."""
    good = files("llmkube.weights").joinpath("builtin/demo.gguf").read_bytes()
    (tmp_path / "page").write_text("<html>Not found</html>")
    (tmp_path / "foreign").write_text("a letter to my aunt")
    (tmp_path / "headless").write_bytes(good[:900])
    (tmp_path / "truncated").write_bytes(good[:300_000])
    (tmp_path / "folder").mkdir()
    nothing = "check the path, that LLMKube's user may read the file and its folders, and that it is a GGUF file"
    expected = {
        "missing": ("FileNotFound", nothing),
        "page": ("FileNotFound", nothing),
        "foreign": ("FileNotFound", nothing),
        "headless": ("NotGGUF", "is the download complete?"),
        "truncated": ("NotGGUF", "its tensors need 956256 bytes but it has 300000"),
        "folder": ("FileNotFound", nothing),
    }
    if os.geteuid():  # to root every file is readable
        (tmp_path / "locked").write_bytes(good)
        (tmp_path / "locked").chmod(0)
        expected["locked"] = ("FileNotFound", nothing)
    documents = [served(name, f"{tmp_path}/{name}") for name in expected]
    async with open_up_with(tmp_path, documents=documents) as up:
        for name, (reason, words) in expected.items():
            condition = await up.wait_condition(Model, name, "Fetched", lambda found: found.status == "False")
            assert (condition.reason, words in condition.message) == (reason, True), condition
            loaded = await up.wait_loaded(name, reason)
            assert loaded.message == condition.message
        await up.wait_loaded("demo", "Loaded")
        assert await chat(up.gateway) == ANSWER
        (tmp_path / "truncated").write_bytes(good)
        await up.wait_loaded("truncated", "Loaded")
        assert await chat(up.gateway, "truncated") == ANSWER


async def test_a_bad_edit_does_not_restart_the_engine(tmp_path):
    """An extraArgs with --port is Accepted=False by name, the same process answers, and a valid edit is accepted."""
    async with open_up_with(tmp_path) as up:
        await up.wait_loaded("demo", "Loaded")
        engine, key = up.engine("demo"), Key("default", "demo")
        accepted = partial(up.wait_condition, InferenceService, "demo", "Accepted")
        await up.client.patch(InferenceService, key, {"spec": {"extraArgs": ["--port=1"]}})
        refused = await accepted(lambda found: found.status == "False")
        assert refused.reason == "Invalid"
        assert refused.message.startswith("spec.extraArgs: --port is controlled by LLMKube")
        degraded = await up.wait_condition(InferenceService, "demo", "Degraded", lambda found: found.status == "True")
        assert degraded.message == refused.message
        assert (await up.client.get(InferenceService, key)).status.phase == "Ready"
        assert await chat(up.gateway) == ANSWER
        assert up.engine("demo") == engine
        await up.client.patch(InferenceService, key, {"spec": {"extraArgs": ["--threads=1"]}})
        await accepted(lambda found: found.status == "True")
        assert up.engine("demo") == engine  # the running plan is unchanged
        assert await chat(up.gateway) == ANSWER


async def test_an_engine_program_that_vanishes(tmp_path):
    """A llama-server that is gone is EngineNotFound with its path, and is used again as soon as it is back."""
    program = Path(fake_engine(tmp_path, f'exec {REAL_ENGINE} "$@"'))
    away = shutil.copy2(program, tmp_path / "away")
    args = ("--llama-server", str(program), "--activation", "Always")
    async with open_up_with(tmp_path, *args) as up:
        await up.wait_loaded("demo", "Loaded")
        program.unlink()
        up.engine("demo").kill()
        condition = await up.wait_loaded("demo", "EngineNotFound")
        assert f"no llama-server at {program} (No such file or directory)" in condition.message
        Path(away).rename(program)
        await up.wait_loaded("demo", "Loaded")
        assert await chat(up.gateway) == ANSWER


@pytest.mark.skipif(shutil.which("ollama") is not None, reason="this machine has an Ollama")
async def test_a_service_of_ollama_without_an_ollama(tmp_path):
    """The error of `deploy` names how to install Ollama, and not llama-server."""
    async with open_up_with(tmp_path) as up:
        deploy = ("deploy", "poet", "--source", "builtin://demo", "--runtime", "ollama")
        code, _, err = await run_program(tmp_path, *deploy, kubeconfig=up.state / "kubeconfig")
    assert code == 1
    failure, advice = " ".join(err.split()).partition("Error: ")[2].split(" What to do: ")
    assert "EngineNotFound: no ollama on this machine; install Ollama (https://ollama.com/download)" in failure
    assert advice.startswith("install the program that is named above on the host")


@pytest.mark.parametrize("program", ["up", "agent"])
async def test_a_llama_server_that_is_not_there(tmp_path, program):
    """A wrong --llama-server ends the start with one sentence that names flag and path."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG)
    missing = tmp_path / "llama-server"
    flags = ("--llama-server", str(missing), "--state-dir", str(tmp_path / "state"))
    code, out, err = await run_program(tmp_path, program, *flags, kubeconfig=kubeconfig)
    words = f"Error: --llama-server: {missing} does not exist; specify the path of a llama-server program\n"
    assert (code, out, err) == (1, "", words)


@pytest.mark.parametrize("program", ["apiserver", "agent"])
async def test_a_taken_port_of_the_separate_programs(tmp_path, program):
    """A port that another program has ends the start with one sentence that names the flag."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        number = str(other.getsockname()[1])
        flags = ("--port", number, "--state-dir", str(tmp_path / "state"))
        code, _, err = await run_program(tmp_path, program, *flags, kubeconfig=kubeconfig)
    assert code == 1
    words = f"Error: --port: cannot listen on 127.0.0.1:{number}: another program listens there"
    assert [line for line in err.splitlines() if line.startswith(words)], err
    assert "Traceback" not in err


KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
"""
