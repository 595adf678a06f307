"""The real `mlx_lm.server` as an engine of `llmkube up`, on the processor: a folder of two random layers, made here.

It runs where `LLMKUBE_TEST_MLX_SERVER` names the program, or PATH has one: `pip install mlx-lm 'mlx[cpu]'` on Linux.
"""

import json
import os
import shutil
import signal

import pytest
import trio

from e2e.one_machine import open_up_with
from e2e.separate_programs import chat
from e2e.up_process import command_line, engines_in
from llmkube.base.http.client import open_http_client
from llmkube.base.http.message import Headers
from llmkube.k8s.crd.inferenceservice import InferenceService
from mlx_folder import whole_folder

SERVER = os.environ.get("LLMKUBE_TEST_MLX_SERVER") or shutil.which("mlx_lm.server")

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.ci,
    pytest.mark.skipif(SERVER is None, reason="no mlx_lm.server: pip install mlx-lm 'mlx[cpu]'"),
]


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
    async with open_http_client() as http:
        return [
            (await http.request(method, url + path, headers=headers, body=sent)).status
            for method, path, sent in (
                ("GET", "/v1/models", b""),
                ("GET", "/metrics", b""),
                ("POST", "/v1/chat/completions", body),
            )
        ]


async def test_a_folder_is_served_and_its_port_asks_for_a_key(tmp_path):
    """The gateway answers with the folder's model; a stranger at the engine's port gets 401; nothing stays."""
    whole_folder(tmp_path / "tiny")
    flags = ("--mlx-server", SERVER)
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
        # The process is killed: the agent starts another, and the same model answers.
        engine.send_signal(signal.SIGKILL)
        await up.wait_loaded("tiny", "Restarting", "EngineExited", "Loading")
        await up.wait_loaded("tiny", "Loaded")
        assert await chat(up.gateway, "tiny")


async def test_a_folder_that_cannot_be_loaded_is_told_with_the_servers_words(tmp_path):
    """An architecture that mlx_lm does not know ends the attempt with its own words, and not after a stall."""
    folder = whole_folder(tmp_path / "odd")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "of_tomorrow"}))
    async with open_up_with(tmp_path, "--mlx-server", SERVER, documents=documents("odd", folder)) as up:
        told = await up.wait_condition(InferenceService, "odd", "Loaded", lambda found: "of_tomorrow" in found.message)
        assert "it cannot load or compute the model" in told.message
        assert "check the Model's spec.source" in told.message
