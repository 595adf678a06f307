"""A draft model with a real `llmkube up` and a real engine: what it drafts is used and counted, or it is refused."""

import json

import pytest

from e2e.one_machine import eventually, open_up_with, served
from e2e.up_process import run_program
from llmkube.base.http.client import open_http_client
from tiny_models import DEMO

LETTER = b"\x01" + bytes(7)
"""A token of one letter has this length before it."""

pytestmark = [pytest.mark.e2e, pytest.mark.ci]


async def test_accepted_drafts_are_counted_and_another_vocabulary_is_refused(tmp_path):
    """`deploy --draft` takes a file or a Model; `status` and the engine's metrics show what was accepted."""
    other = tmp_path / "other.gguf"
    other.write_bytes(DEMO.read_bytes().replace(LETTER + b"Z", LETTER + b"~", 1))
    async with open_up_with(tmp_path, documents=[served("quick")]) as up, open_http_client() as http:

        async def run(*args):
            return await run_program(tmp_path, *args, kubeconfig=up.state / "kubeconfig")

        deploy = ("deploy", "quick", "--model", "quick", "--context-size", "512")
        code, out, err = await run(*deploy, "--draft", "demo")
        assert code == 0, (out, err)
        question = {"model": "quick", "messages": [{"role": "user", "content": "What is LLMKube?"}], "temperature": 0}

        async def ask():
            return await http.request("POST", f"{up.gateway}/v1/chat/completions", body=json.dumps(question).encode())

        await eventually(ask, lambda answer: answer.status == 200)
        metrics = (await http.request("GET", f"{up.gateway}/metrics?model=quick")).body.decode()
        assert "llamacpp:spec_decode_num_accepted_tokens_total" in metrics
        _, out, _ = await run("status", "quick")
        assert "tokens accepted (" in out, out

        await run(*deploy, "--draft", str(other), "--no-wait")
        accepted = await up.wait_service("quick", "Accepted", lambda found: found.status == "False")
        assert "quick-draft cannot draft for this model: its tokens are different" in accepted.message
