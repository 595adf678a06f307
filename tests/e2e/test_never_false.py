"""Reports of `deploy`, `status`, `list` and the gateway where the requested and the actual state differ."""

import json
import socket

import pytest
import trio

from e2e.up_process import open_machine
from llmkube.base.http.client import open_http_client

pytestmark = [pytest.mark.e2e, pytest.mark.ci]

DEPLOY = ("deploy", "demo", "--source", "builtin://demo")
OTHER_DIGEST = "ab" * 32


async def settled(run, words, *command):
    """Return the output of a command once it has these words, however they are aligned."""
    out = ""
    with trio.move_on_after(60):
        while words not in " ".join((out := (await run(*command))[1]).split()):  # noqa: ASYNC110
            await trio.sleep(0.2)
    assert words in " ".join(out.split()), out
    return out


async def test_a_context_beyond_the_trained_one_is_reported_everywhere(tmp_path):
    """`deploy`, `status`, `list -o wide` and /v1/models name the 512 tokens in effect, not those requested."""
    async with open_machine(tmp_path) as (up, run):
        _, gateway, _ = await up.urls()
        code, _, err = await run(*DEPLOY, "--context-size", "2097152")
        ignored = "no effect on this machine: spec.contextSize beyond 512 (the model was trained for 512 tokens)"
        assert (code, ignored in err) == (0, True), err
        status = (await run("status", "demo"))[1]
        assert "llamacpp, 512 tokens of context (2097152 requested)" in status
        assert ignored in status
        assert "SpecHonoured    False   FieldsIgnored" in status
        assert "2097152" not in (await run("list", "isvc", "-o", "wide"))[1]
        async with open_http_client() as http:
            listed = json.loads((await http.request("GET", f"{gateway}/v1/models")).body)["data"]
        assert [(model["id"], model["meta"]["n_ctx"]) for model in listed] == [("demo", 512)]


async def test_a_refused_edit_is_reported_with_the_spec_that_serves(tmp_path):
    """A wrong field, digest or budget is reported as a refused edit, and the model keeps answering."""
    async with open_machine(tmp_path) as (_, run):
        assert (await run(*DEPLOY))[0] == 0
        code, _, err = await run(*DEPLOY, "--runtime", "vllm")
        refused = "the newest spec was refused (Invalid: spec.runtime: vllm is not supported as a local process yet"
        assert (code, refused in err, "; the previous one still serves\n" in err) == (1, True, True), err
        assert "cannot be served" not in err
        status = await settled(run, "Degraded True Invalid", "status", "demo")
        assert refused in status
        assert "runtime      vllm (requested; the previous spec is served)" in status
        assert "phase        Ready, 1 of 1 ready" in status
        assert (await run("list", "isvc"))[1].splitlines()[1].split()[2:5] == ["Ready", "1/1", "Invalid"]
        assert (await run("chat", "demo", "Hi"))[0] == 0

        code, _, err = await run(*DEPLOY, "--runtime", "llamacpp", "--sha256", OTHER_DIGEST)
        assert (code, "the newest spec was refused (DigestMismatch: " in err) == (1, True), err
        status = await settled(run, "UpToDate False DigestMismatch", "status", "demo")
        assert "; the previous one still serves" in status
        assert (await run("list", "isvc"))[1].splitlines()[1].split()[2:5] == ["Ready", "1/1", "DigestMismatch"]

        assert (await run("delete", "demo", "--with-model", "--wait"))[0] == 0
        assert (await run(*DEPLOY))[0] == 0
        code, _, err = await run(*DEPLOY, "--memory-budget", "8Mi")
        assert (code, "ExceedsMemory: needs " in err) == (1, True), err
        assert "more than its own budget of 8.0 MiB" in err
        assert "the running engine keeps serving, but once it exits, no engine can replace it" in err
        assert (await run("chat", "demo", "Hi"))[0] == 0


async def test_a_model_that_can_never_fit_fails_at_once_with_a_fix(tmp_path):
    """A budget below what the model needs is a failure with both figures and a fix, not a wait."""
    async with open_machine(tmp_path) as (_, run):
        code, _, err = await run(*DEPLOY, "--memory-budget", "8Mi")
        assert (code, "cannot be served: ExceedsMemory: needs " in err) == (1, True), err
        assert "What to do: deploy again with a smaller --context-size" in err
        status = await settled(run, "Degraded True ExceedsMemory", "status", "demo")
        assert "phase        Failed" in status
        assert (await run(*DEPLOY, "--memory-budget", "1Gi"))[0] == 0


async def test_a_wait_for_a_silent_server_is_reported_with_its_name_and_start(tmp_path):
    """`deploy`, `status` and `up` name the server and the start of the wait, and no time that is left."""
    with socket.socket() as silent:  # bound but not listening: every connection is refused
        silent.bind(("127.0.0.1", 0))
        origin = f"127.0.0.1:{silent.getsockname()[1]}"
        async with open_machine(tmp_path) as (up, run):
            source = ("--source", f"http://{origin}/m.gguf", "--accelerator", "cpu")
            code, _, err = await run("deploy", "far", *source, "--timeout", "4")
            assert (code, "waiting since 20" in err, " left" in err) == (4, True, False), err
            status = await settled(run, "; next attempt at 20", "status", "far")  # an attempt may be under way
            assert origin in status.partition("waiting since ")[2].splitlines()[0]
            assert "next retry" in status
            await up.wait_for("out", r"default/far: Pending \(Fetching\): waiting since 20\S+Z: ")


async def test_the_next_deploy_does_not_repeat_the_last_failure(tmp_path):
    """The deploy that fixes a missing file or a wrong flag does not report the earlier failure."""
    async with open_machine(tmp_path) as (_, run):
        missing = ("deploy", "demo", "--source", f"{tmp_path}/none.gguf", "--accelerator", "cpu")
        for broken, reason in ((missing, "FileNotFound"), ((*DEPLOY, "--extra-arg=--no-such-flag"), "no-such-flag")):
            code, _, err = await run(*broken)
            assert (code, reason in err) == (1, True), err
            code, out, err = await run(*DEPLOY)
            assert code == 0, err
            assert reason not in out + err


async def test_what_the_engine_gives_up_is_reported(tmp_path):
    """A flag that the model makes useless is named in `deploy` and `status`, with the line of the engine's log."""
    async with open_machine(tmp_path) as (_, run):
        code, _, err = await run(*DEPLOY, "--extra-arg=--swa-full")
        given_up = "spec.extraArgs --swa-full (the engine's log: "
        line = "swa_full is not supported by this model, it will be disabled)"
        assert (code, given_up in err, line in " ".join(err.split())) == (0, True, True), err
        status = await settled(run, "SpecHonoured False FieldsIgnored", "status", "demo")
        assert given_up in status
