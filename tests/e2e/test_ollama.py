"""Ollama's real server, on a CPU, with the demo model: load, chat, unload, and a killed server.

Its program is built from Go and C++ first, which takes minutes: `make soak` runs these tests.
"""

import json
import os
import signal
from contextlib import asynccontextmanager

import psutil
import pytest
import trio

from e2e import ollama_program
from e2e.daemon_lab import end, ready, running, running_engine
from e2e.up_process import open_machine
from free_ports import free_port
from gguf_corpus import DEMO
from go_programs import BuildError
from llmkube.base.http.client import open_http_client
from llmkube.base.http.errors import HttpError
from llmkube.programs.daemon_engine import ollama_program as front
from llmkube.programs.daemon_engine.processes import kind_of

pytestmark = [pytest.mark.e2e, pytest.mark.soak]

ASK = json.dumps({"model": "demo", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}).encode()
LOAD_SECONDS = 180


@pytest.fixture(scope="module")
def ollama():
    """Ollama's program."""
    try:
        return ollama_program.program()
    except BuildError as error:
        pytest.skip(f"Ollama cannot be built here: {error}")


@pytest.fixture
def environ(tmp_path):
    """An environment with a store of its own, and an address at which nothing listens yet."""
    home = tmp_path / "home"
    home.mkdir()
    own = {"HOME": str(home), "OLLAMA_HOST": f"127.0.0.1:{free_port()}", "OLLAMA_MODELS": str(home / "models")}
    return {name: value for name, value in os.environ.items() if not name.startswith("OLLAMA_")} | own


def engine(ollama, environ, tmp_path):
    """Run one of our engines, as `running_engine` does."""
    flags = ("--ollama", ollama, "--model", DEMO, "--ctx-size", 512, "--n-gpu-layers", 0)
    return running_engine(front, "demo", *flags, environ=environ, folder=tmp_path)


def runners(folder):
    """Return the processes of Ollama that hold a model of a store in this folder."""
    found = []
    for each in psutil.process_iter(["pid", "cmdline"]):
        argv = tuple(each.info["cmdline"] or ())
        if kind_of(argv) == "runner" and any(str(folder) in word for word in argv):
            found.append(each.info["pid"])
    return found


async def server_answers(environ):
    """Return whether an Ollama answers at this test's address."""
    async with open_http_client() as http:
        try:
            return (await http.request("GET", f"http://{environ['OLLAMA_HOST']}/api/version")).status == 200
        except HttpError:
            return False


async def test_without_a_server_one_is_started_and_ends_with_the_engine(ollama, environ, tmp_path):
    """It answers, and after SIGTERM no process and no server is left."""
    async with engine(ollama, environ, tmp_path) as (process, ask, log):
        await ready(ask, log, LOAD_SECONDS)
        assert len(runners(tmp_path)) == 1
        answer = await ask("POST", "/v1/chat/completions", ASK)
        reply = json.loads(answer.body)
        assert answer.status == 200, answer
        assert reply["model"] == "demo"
        assert reply["choices"][0]["message"]["content"]
        assert b"llamacpp:requests_processing 0" in (await ask("GET", "/metrics")).body
        await end(process, log)
        assert "the model is unloaded, and its process is gone" in log.read_text()
        assert runners(tmp_path) == []
    home = environ["HOME"]
    assert not [one for one in psutil.process_iter(["environ"]) if (one.info["environ"] or {}).get("HOME") == home]


async def test_a_server_that_runs_is_borrowed_and_stays(ollama, environ, tmp_path):
    """Its owner restarts it meanwhile, and the engine loads the model again; then the engine exits."""
    log = tmp_path / "server.log"
    async with engine_with_server(ollama, environ, tmp_path, log) as (server, process, ask, engine_log):
        await ready(ask, engine_log, LOAD_SECONDS)
        [runner] = runners(tmp_path)
        server.terminate()  # SIGTERM ends its models as well
        await server.wait()
        async with running(ollama, "serve", environ=environ, log=log):
            with trio.fail_after(LOAD_SECONDS):
                while runner in runners(tmp_path) or not runners(tmp_path):  # noqa: ASYNC110 - of other programs
                    await trio.sleep(0.2)
            await ready(ask, engine_log, LOAD_SECONDS)
            assert (await ask("POST", "/v1/chat/completions", ASK)).status == 200
            await end(process, engine_log)
            assert runners(tmp_path) == []
            assert await server_answers(environ)


async def test_a_model_that_a_killed_server_left_is_reported_and_not_loaded_twice(ollama, environ, tmp_path):
    """Its process still holds the memory, so the engine exits and names the process to kill."""
    log = tmp_path / "server.log"
    async with engine_with_server(ollama, environ, tmp_path, log) as (server, process, ask, engine_log):
        await ready(ask, engine_log, LOAD_SECONDS)
        [runner] = runners(tmp_path)
        server.kill()
        await server.wait()
        async with running(ollama, "serve", environ=environ, log=log):
            try:
                with trio.fail_after(LOAD_SECONDS):
                    assert await process.wait() == 1
                assert runners(tmp_path) == [runner]
                assert f"kill {runner}" in engine_log.read_text()
                assert await server_answers(environ)
            finally:
                for pid in runners(tmp_path):
                    psutil.Process(pid).kill()


async def test_the_agent_serves_a_model_on_ollama(ollama, tmp_path):
    """From `deploy` to an answer of the gateway, with the name of the service; `delete` releases the memory."""
    async with open_machine(tmp_path, "--ollama", str(ollama)) as (up, run):
        _, gateway, _ = await up.urls()
        code, _, err = await run("deploy", "demo", "--source", "builtin://demo", "--runtime", "ollama")
        assert code == 0, err
        assert len(runners(tmp_path)) == 1
        async with open_http_client() as http:
            answer = await http.request("POST", f"{gateway}/v1/chat/completions", body=ASK)
        assert answer.status == 200, answer
        assert json.loads(answer.body)["model"] == "demo"
        assert "runtime      ollama" in (await run("status", "demo"))[1]
        code, _, err = await run("delete", "demo", "--with-model", "--wait")
        assert code == 0, err
        with trio.fail_after(60):
            while runners(tmp_path):  # noqa: ASYNC110 - of other programs
                await trio.sleep(0.2)
        up.process.send_signal(signal.SIGINT)
        with trio.fail_after(60):
            await up.process.wait()
    home = str(tmp_path)  # of `llmkube up` and its children
    assert not [one for one in psutil.process_iter(["environ"]) if (one.info["environ"] or {}).get("HOME") == home]


@asynccontextmanager
async def engine_with_server(ollama, environ, tmp_path, log):
    """Run a server, and an engine that finds it."""
    async with running(ollama, "serve", environ=environ, log=log) as server:
        with trio.fail_after(60):
            while not await server_answers(environ):  # noqa: ASYNC110 - of other programs
                await trio.sleep(0.1)
        async with engine(ollama, environ, tmp_path) as (process, ask, engine_log):
            yield server, process, ask, engine_log
