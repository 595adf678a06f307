"""Padded models on the real engine."""

import sys
from pathlib import Path
from subprocess import DEVNULL

import pytest
import trio

from e2e.many_models import Verdict, ask
from free_ports import free_port
from llmkube.base.http.client import open_http_client
from llmkube.base.http.errors import HttpError
from padded_models import LAYER_BYTES, PaddedModel

pytestmark = pytest.mark.e2e
ENGINE = Path(sys.executable).with_name("llmkube-llama-server")


@pytest.mark.parametrize("layers", [0, 40])
async def test_a_padded_model_answers_by_its_own_text(tmp_path, layers):
    """The engine loads the file, and its answer has the model's name in the place of a letter."""
    model, port = PaddedModel("seven", layers), free_port()
    path, bare = model.write(tmp_path), PaddedModel("bare00", 0).write(tmp_path)
    assert abs(path.stat().st_size - bare.stat().st_size - layers * LAYER_BYTES) < 20_000
    command = [ENGINE, "--model", path, "--port", port, "--alias", "seven", "--ctx-size", 512, "--threads", 1]
    process = await trio.lowlevel.open_process(list(map(str, command)), stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL)
    try:
        async with open_http_client() as http:
            with trio.fail_after(60):
                while True:
                    try:
                        if (await http.request("GET", f"http://127.0.0.1:{port}/health")).status == 200:
                            break
                    except HttpError:
                        pass
                    await trio.sleep(0.05)
            for stream in (False, True):
                answer = await ask(http, f"http://127.0.0.1:{port}", model, stream=stream)
                assert (answer.verdict, answer.text) == (Verdict.RIGHT, "LLMKube tu<seven>ns se")
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
