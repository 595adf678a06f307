"""Everyday commands against a real `llmkube up`, as a person and as a script use them."""

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from functools import partial

import pytest
import trio

from e2e.separate_programs import chat
from e2e.up_process import ANSWER, engines_in, environment, open_machine, open_program
from gguf_corpus import DEMO
from llmkube.base.http.client import open_http_client
from llmkube.base.http.message import Headers
from waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.ci]

QUESTION = "What is LLMKube?"
DEPLOY = ("deploy", "demo", "--source", "builtin://demo", "--context-size", "512", "--extra-arg=--threads=1")


async def interrupted(program):
    """Press Ctrl-C; return the exit code."""
    program.process.send_signal(signal.SIGINT)
    return await program.process.wait()


@pytest.mark.ci
async def test_a_day_with_one_model(tmp_path):
    """Deploy, list, chat, read the log, forward a port, stop and delete: each command works and has its exit code."""
    follow = partial(open_program, tmp_path / "home", kubeconfig=tmp_path / "state" / "kubeconfig")
    async with open_machine(tmp_path) as (up, run):
        _, gateway, _ = await up.urls()

        code, out, err = await run(*DEPLOY)
        assert code == 0, err
        assert out == f"InferenceService default/demo is Ready at {gateway}/v1/chat/completions\n"
        assert [step for step in ("fetch", "load", "ready") if f"{step:<8}done in" in err] == ["fetch", "load", "ready"]
        assert "\x1b" not in out + err
        code, _, err = await run(*DEPLOY)
        assert (code, err.count("unchanged"), "done in" in err) == (0, 2, False)

        code, out, _ = await run("list", "isvc")
        assert (code, out.splitlines()[1].split()[:4]) == (0, ["demo", "demo", "Ready", "1/1"])
        code, out, _ = await run("status", "demo")
        assert "  phase        Ready, 1 of 1 ready\n" in out
        assert "waits for" not in out
        assert await run("chat", "demo", QUESTION, "--temperature", "0") == (0, f"{ANSWER}\n", "")
        assert "listening on http://127.0.0.1:" in (await run("logs", "demo"))[1]

        async with follow("logs", "demo", "-f", "--tail", "0") as log, follow("list", "isvc", "-w") as watch:
            async with follow("port-forward", "demo") as port:
                hit = await port.wait_for("out", r"Forwarding (127\.0\.0\.1:\d+) -> default/demo through the gateway")
                assert await chat(f"http://{hit[1]}") == ANSWER
                assert (await interrupted(port), port.err) == (130, "")
            await log.wait_for("out", "slot")  # the engine logs the request
            await watch.wait_for("out", r"demo +demo +Ready")
            assert await run("scale", "demo", "0") == (0, "InferenceService demo scaled from 1 to 0\n", "")
            await watch.wait_for("out", r"demo +demo +Stopped")
            assert (await interrupted(watch), watch.err) == (130, "")
            assert (await interrupted(log), log.err) == (130, "")
        await until(lambda: not engines_in(tmp_path / "state"))
        code, _, err = await run("chat", "demo", QUESTION)
        assert (code, err) == (1, "Error: InferenceService default/demo is stopped; `llmkube scale demo 1` starts it\n")

        code, out, err = await run("delete", "demo", "--with-model", "--wait")
        assert (code, out) == (0, "InferenceService demo is gone\nModel demo is gone\n"), err
        assert (await run("list"))[1] == "No Models and no InferenceServices in default.\n"


@pytest.mark.ci
async def test_a_failure_has_a_cause_and_a_fix(tmp_path):
    """A wrong digest, a missing file and too short a timeout end a deployment with the cause, a fix and a code."""
    async with open_machine(tmp_path) as (_, run):
        code, _, err = await run(*DEPLOY, "--sha256", "ab" * 32)
        assert code == 1
        assert "cannot be served: DigestMismatch: " in err
        assert err.endswith("What to do: deploy again with the digest that you trust, or without --sha256\n")
        code, _, err = await run("deploy", "demo", "--source", str(tmp_path / "m.gguf"))
        assert (code, f"FileNotFound: {tmp_path}/m.gguf: there is no such file\n" in err) == (1, True), err
        code, _, err = await run(*DEPLOY, "--timeout", "0.01")
        assert (code, "demo is not Ready after 0.01 s" in err) == (4, True), err
        assert (await run(*DEPLOY))[0] == 0


@pytest.mark.ci
async def test_a_conversation_on_a_terminal(tmp_path):
    """On a terminal `chat` keeps running, survives Ctrl-C and exits 0 on Ctrl-D; a pipe is one question."""
    kubeconfig = tmp_path / "state" / "kubeconfig"
    env = environment(tmp_path) | {"KUBECONFIG": str(kubeconfig), "TERM": "dumb", "COLUMNS": "500"}
    command = [sys.executable, "-m", "llmkube", "chat", "demo", "--temperature", "0"]
    async with open_machine(tmp_path) as (_, run):
        assert (await run(*DEPLOY))[0] == 0
        piped = await trio.run_process(command, env=env, stdin=QUESTION.encode(), capture_stdout=True)
        assert piped.stdout.decode() == f"{ANSWER}\n"

        ours, theirs = pty.openpty()
        terminal = trio.lowlevel.FdStream(ours)
        seen = ""

        async def wait_for(words):
            nonlocal seen
            while words not in seen:
                seen += (await terminal.receive_some()).decode().replace("\r\n", "\n")

        async with terminal, trio.open_nursery() as nursery:
            start = partial(trio.run_process, command, env=env, stdin=theirs, stdout=theirs, stderr=subprocess.STDOUT)
            process = await nursery.start(partial(start, start_new_session=True, check=False))
            os.close(theirs)
            await wait_for("\n> ")
            while "(Ctrl-D exits)" not in seen:  # a signal just before readline waits is handled with the next key only
                process.send_signal(signal.SIGINT)
                with trio.move_on_after(1):
                    await wait_for("(Ctrl-D exits)")
            await terminal.send_all(f"{QUESTION}\r".encode())
            await wait_for(f"{ANSWER}\n")
            await wait_for(f"{ANSWER}\n\n> ")
            await terminal.send_all(b"\x04")
            assert await process.wait() == 0


@pytest.mark.ci
async def test_run_pull_ps_top_and_restart_work_on_one_engine(tmp_path):
    """`run` deploys and answers, `pull` fetches, `ps`, `top` and `restart` act on the engine that runs."""
    model = tmp_path / "my models" / "tiny model.gguf"
    model.parent.mkdir()
    shutil.copy(DEMO, model)
    spaces = "sta te"  # U9: any path of a machine may have spaces
    async with open_machine(tmp_path, "--allow-local-sources", str(tmp_path), state=spaces) as (_, run):
        code, out, err = await run("run", str(model), QUESTION, "--context-size", "512")
        assert (code, out.splitlines()[-1]) == (0, ANSWER), err
        code, out, err = await run("pull", "builtin://demo", "--name", "pulled")
        assert (code, "is in the store" in out) == (0, True), err
        (engine,) = engines_in(tmp_path)
        code, out, err = await run("restart", "tiny-model")
        assert (code, out) == (0, "InferenceService default/tiny-model restarted\n"), err
        await until(lambda: engine.pid not in {each.pid for each in engines_in(tmp_path)})
        for command in ("ps", "top"):
            code, out, err = await run(command)
            row = out.splitlines()[1]
            assert (code, row.split()[0], " MiB" in row) == (0, "tiny-model", True), out + err
        code, out, _ = await run("top", "--interval", "0.5")
        assert out.splitlines()[1].split()[2:6] == ["0.0", "0.0", "0", "0"]
        assert (await run("run", "tiny-model", QUESTION))[1] == f"{ANSWER}\n"


async def test_a_forwarded_port_reaches_one_model(tmp_path):
    """Behind the gateway of `up` the port has one model: it needs no name, and no name selects another."""
    async with open_machine(tmp_path) as (_, run):
        for name in ("demo", "second"):
            assert (await run("deploy", name, "--source", "builtin://demo", "--context-size", "512"))[0] == 0
        follow = partial(open_program, tmp_path / "home", kubeconfig=tmp_path / "state" / "kubeconfig")
        async with follow("port-forward", "second") as port, open_http_client() as http:
            hit = await port.wait_for("out", r"Forwarding (127\.0\.0\.1:\d+) -> default/second through the gateway at ")
            url, kind = f"http://{hit[1]}/v1", Headers.of({"Content-Type": "application/json"})
            listed = json.loads((await http.request("GET", f"{url}/models")).body)["data"]
            assert [(model["id"], model["meta"]["n_ctx"]) for model in listed] == [("second", 512)]
            question = {"temperature": 0, "messages": [{"role": "user", "content": QUESTION}]}
            ask = partial(http.request, "POST", f"{url}/chat/completions", headers=kind)
            answer = await ask(body=json.dumps(question).encode())
            assert json.loads(answer.body)["choices"][0]["message"]["content"].strip() == ANSWER
            other = await ask(body=json.dumps(question | {"model": "demo"}).encode())
            assert (other.status, b"no model 'demo'; available: 'second'" in other.body) == (404, True)
