"""`mlx_lm.server` as an engine of `llmkube up`, on the CPU: a folder with two random layers, made here.

The real server runs where `LLMKUBE_TEST_MLX_SERVER` names the program, or PATH has one: `pip install mlx-lm 'mlx[cpu]'`
on Linux. A fake one, `mlx_lm_program`, runs everywhere.
"""

import json
import os
import shutil
import signal
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from e2e import mlx_lm_program
from e2e.one_machine import open_up_with
from e2e.separate_programs import chat, eventually
from e2e.up_process import command_line, engines_in, environment, run_program
from free_ports import free_port
from llmkube.base.http.client import open_http_client
from llmkube.base.http.errors import HttpError
from llmkube.base.http.message import Headers
from llmkube.programs import mlx_entry
from mlx_folder import whole_folder

SERVER = os.environ.get("LLMKUBE_TEST_MLX_SERVER") or shutil.which("mlx_lm.server")

pytestmark = pytest.mark.e2e

NEEDS_SERVER = pytest.mark.skipif(SERVER is None, reason="no mlx_lm.server: pip install mlx-lm 'mlx[cpu]'")
REAL = pytest.param(SERVER, marks=[pytest.mark.ci, NEEDS_SERVER], id="real")


@pytest.fixture(params=[pytest.param(None, id="fake"), REAL])
def server(request, tmp_path):
    """The path of an `mlx_lm.server`."""
    return request.param or str(mlx_lm_program.install(tmp_path / "python"))


def documents(name, source):
    return (
        json.dumps({
            "apiVersion": "inference.llmkube.dev/v1alpha1", "kind": "Model", "metadata": {"name": name},
            "spec": {"source": str(source), "format": "mlx", "hardware": {"accelerator": "cpu"}},
        }),
        json.dumps({
            "apiVersion": "inference.llmkube.dev/v1alpha1", "kind": "InferenceService", "metadata": {"name": name},
            "spec": {"modelRef": name, "runtime": "mlx-lm", "contextSize": 512},
        }),
    )  # fmt: skip


async def first_key(path):
    return (await trio.Path(path).read_text()).split()[0]


async def statuses(url, headers):
    body = json.dumps({"model": "x", "max_tokens": 1, "messages": [{"role": "user", "content": "a"}]}).encode()
    asked = (("GET", "/v1/models", b""), ("GET", "/metrics", b""), ("POST", "/v1/chat/completions", body))
    async with open_http_client() as http:
        send = partial(http.request, headers=headers)
        return [(await send(method, url + path, body=sent)).status for method, path, sent in asked]


@pytest.mark.ci
async def test_a_folder_is_served_and_its_port_requires_a_key(server, tmp_path):
    """The gateway answers with the model, the engine's port requires a key, and a killed engine is restarted."""
    whole_folder(tmp_path / "tiny")
    flags = ("--mlx-server", server)
    async with open_up_with(tmp_path, *flags, documents=documents("tiny", tmp_path / "tiny")) as up:
        loaded = await up.wait_loaded("tiny", "Loaded")
        assert "loaded in" in loaded.message
        assert await chat(up.gateway, "tiny")
        (engine,) = (each for each in engines_in(up.state) if "--llmkube-alias" in command_line(each))
        words = command_line(engine)
        url = f"http://127.0.0.1:{words[words.index('--port') + 1]}"
        assert await statuses(url, Headers.of({})) == [401, 401, 401]
        key = await first_key(words[words.index("--llmkube-keys") + 1])
        assert await statuses(url, Headers.of({"Authorization": f"Bearer {key}"})) == [200, 200, 200]
        assert key not in " ".join(words)
        code, out, _ = await run_program(tmp_path, "top", "--once", kubeconfig=up.state / "kubeconfig")
        header, row = (next(each for each in out.splitlines() if word in each) for word in ("TOKENS/S", "tiny"))
        figures = dict(zip(header.split(), row.split(), strict=False))
        assert (code, figures["TOKENS/S"], figures["PROMPT/S"], figures["RUNNING"]) == (0, "0.0", "<none>", "0"), out
        # The process is killed: the agent starts another, and the same model answers.
        engine.send_signal(signal.SIGKILL)
        await up.wait_loaded("tiny", "Restarting", "EngineExited", "Loading")
        await up.wait_loaded("tiny", "Loaded")
        assert await chat(up.gateway, "tiny")


@pytest.mark.ci
async def test_a_folder_that_cannot_be_loaded_is_reported_with_the_servers_message(server, tmp_path):
    """An architecture that mlx_lm does not know ends the attempt with the server's message, not after a stall."""
    folder = whole_folder(tmp_path / "odd")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "of_tomorrow"}))
    async with open_up_with(tmp_path, "--mlx-server", server, documents=documents("odd", folder)) as up:
        failed = await up.wait_service("odd", "Loaded", lambda found: "of_tomorrow" in found.message)
        assert "it cannot load or run the model" in failed.message
        assert "check the Model's spec.source" in failed.message


@asynccontextmanager
async def open_entry(tmp_path, *ours, changed=("", "")):
    """Run `mlx_entry` by the fake's Python on a folder; yield the process, its URL and its log."""
    python = mlx_lm_program.install(tmp_path / "python").parent / "python"
    (module,) = (tmp_path / "python").glob("lib/*/*/mlx_lm/server.py")
    module.write_text(module.read_text().replace(*changed))
    port, log = str(free_port()), tmp_path / "log"
    theirs = ("--model", whole_folder(tmp_path / "tiny"), "--host", "127.0.0.1", "--port", port)
    async with trio.open_nursery() as nursery:
        with log.open("wb") as err:
            command = [python, mlx_entry.__file__, "--llmkube-alias", "tiny", *ours, *theirs]
            options = {"env": environment(tmp_path), "stderr": err, "check": False}
            process = await nursery.start(partial(trio.run_process, command, **options))
        try:
            yield process, f"http://127.0.0.1:{port}", log
        finally:
            process.kill()


async def answer(url, body=b""):
    """Return the response to a POST of the body, or to a GET."""
    async with open_http_client() as http:
        return await http.request("POST" if body else "GET", url, headers=Headers.of({}), body=body)


async def test_without_a_key_file_the_one_model_answers_every_request(tmp_path):
    """Another model, adapter or draft that a request names is not loaded; its tokens are counted."""

    async def status():
        assert process.returncode is None, log.read_text()
        try:
            return (await answer(f"{url}/health")).status
        except HttpError:
            return None  # it does not listen yet

    asked = json.dumps({"model": "/etc", "adapters": "/adapters", "draft_model": "org/draft"}).encode()
    async with open_entry(tmp_path) as (process, url, log):
        await eventually(status, lambda found: found == 200)
        reply = json.loads((await answer(f"{url}/v1/chat/completions", asked)).body)
        assert reply["choices"][0]["message"]["content"] == f"{tmp_path}/tiny None default_model"
        assert b"\nllmkube:tokens_predicted_total 3\n" in (await answer(f"{url}/metrics")).body
        assert json.loads((await answer(f"{url}/v1/models")).body)["data"][0]["id"] == "tiny"


@pytest.mark.parametrize(
    ("keys", "changed", "message"),
    [
        ("", ("", ""), "the key file is empty: no key would be required"),
        ("key", ("def generation_available", "def is_alive"), "it has no ResponseGenerator.generation_available"),
    ],
)
async def test_nothing_is_served_unguarded(tmp_path, keys, changed, message):
    """With an empty key file or an incompatible mlx_lm, the entry exits with the reason before it listens."""
    (tmp_path / "keys").write_text(keys)
    async with open_entry(tmp_path, "--llmkube-keys", tmp_path / "keys", changed=changed) as (process, _, log):
        assert await process.wait() == 1
        assert message in log.read_text()
        assert "Starting httpd" not in log.read_text()
