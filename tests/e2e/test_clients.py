"""Unmodified third-party clients against `llmkube up`.

No model that comes with LLMKube calls tools, so requests for the model `tools` go to a scripted engine, which answers
like llama.cpp's server, through the gateway's own handler. A real engine answers all other requests.
"""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trio

from e2e.router_lab import run_clients, serve
from e2e.up_process import ANSWER, FREE_PORTS, open_up
from llmkube.base.http.client import open_http_client
from llmkube.base.http.forward import forward
from llmkube.base.http.message import Response
from llmkube.router.backends import Backend
from llmkube.router.front_door import PassThrough, passing_door

pytestmark = pytest.mark.e2e

QUESTION = "What is LLMKube?"
MANIFESTS = """
apiVersion: inference.llmkube.dev/v1alpha1
kind: Model
metadata: {name: demo}
spec: {source: "builtin://demo", hardware: {accelerator: cpu}}
---
apiVersion: inference.llmkube.dev/v1alpha1
kind: InferenceService
metadata: {name: demo}
spec: {modelRef: demo, contextSize: 512}
---
apiVersion: inference.llmkube.dev/v1alpha1
kind: InferenceService
metadata: {name: emb}
spec: {modelRef: demo, mode: embedding}
---
apiVersion: inference.llmkube.dev/v1alpha1
kind: InferenceService
metadata: {name: "off"}
spec: {modelRef: demo, replicas: 0}
"""
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
CALLED = {
    "/v1/chat/completions": {
        "id": "x", "object": "chat.completion", "created": 1, "model": "tools",
        "choices": [{"index": 0, "finish_reason": "tool_calls",
                     "message": {"role": "assistant", "content": None, "tool_calls": [CALL]}}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    },
    "/v1/messages": {
        "id": "x", "type": "message", "role": "assistant", "model": "tools", "stop_reason": "tool_use",
        "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1},
        "content": [{"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Rome"}}],
    },
}  # fmt: skip


class Tools:
    """A directory with one model, whose engine is a script."""

    def __init__(self, port):
        self.found = {"tools": Backend("127.0.0.1", port, "tools", mode="chat")}

    def model_ids(self):
        return list(self.found)

    def aliases(self):
        return ()

    def lookup(self, model_id):
        return self.found.get(model_id)


@pytest.mark.ci
async def test_each_client_gets_answers_streams_tools_and_errors_that_it_understands(tmp_path, client_packages):
    """The packages openai, anthropic, litellm, langchain-openai and ollama need only the address."""
    manifests = tmp_path / "all.yaml"
    manifests.write_text(MANIFESTS)
    asked = []
    async with open_up(tmp_path, *FREE_PORTS, "--ephemeral", "-f", str(manifests)) as up, open_http_client() as http:
        _, gateway, _ = await up.urls()
        for name in ("demo", "emb"):
            await up.wait_for("out", rf"default/{name}: Ready\n")
        await up.wait_for("out", r"default/off: Stopped")
        origin = ("127.0.0.1", int(gateway.rpartition(":")[2]))

        async def scripted(exchange):
            sent = json.loads(exchange.body)
            assert sent["tools"][0]
            await exchange.respond(Response.json(200, CALLED[exchange.head.path]))

        async def front(exchange):
            asked.append((exchange.head.path, b'"off"' in exchange.body))
            if b'"slow"' in exchange.body:
                await trio.sleep_forever()  # until its client has given up
            if b'"tools"' in exchange.body and b"weather" in exchange.body:
                await tools(exchange)
            else:
                await forward(exchange, http, origin, exchange.body)

        async with trio.open_nursery() as nursery:
            engine = await serve(nursery, scripted)
            tools = passing_door(PassThrough(Tools(engine), http), lambda: datetime(2026, 1, 1, tzinfo=UTC))
            address = f"http://127.0.0.1:{await serve(nursery, front)}"
            script = Path(__file__).with_name("sdk_clients.py")
            got = await run_clients(tmp_path, client_packages, script, address, QUESTION)
            nursery.cancel_scope.cancel()
    check_ollama(got.pop("ollama"))
    for name, tried in got.items():
        assert (tried["plain"].strip(), tried["streaming"].strip()) == (ANSWER, ANSWER), name
        assert tried["tools"] == ["weather", {"city": "Rome"}], name
        assert "NotFoundError" in tried["unknown"][0], (name, tried["unknown"])
        assert "no model 'gone'; available: 'demo', 'emb', 'off'" in tried["unknown"][1], name
        assert "is not ready (ScaledToZero)" in tried["stopped"][1], (name, tried["stopped"])
        assert "Timeout" in tried["timeout"][0], (name, tried["timeout"])
    of_openai = got["openai"]
    assert of_openai["models"] == {"demo": "loaded", "emb": "loaded", "off": "unloaded"}
    assert (of_openai["context"], of_openai["embeddings"], of_openai["responses"].strip()) == (512, 2, ANSWER)
    assert of_openai["parts"] > 9
    assert "needs spec.mode: embedding" in of_openai["wrong mode"][1]
    assert "does not support audio" in of_openai["audio"][1]  # the engine's message: the form has reached it
    assert got["anthropic"]["tokens"] is True
    # The model is stopped, so no client retries, though two of them may retry five times.
    assert sum(off for _, off in asked) == 5


def check_ollama(got):
    """Check Ollama's client, whose API is translated; `test_router_dialects` checks its tools."""
    assert {got[each].strip() for each in ("plain", "streaming", "generate")} == {ANSWER}
    assert (got["models"], got["running"]) == (["demo", "emb", "off"], ["demo", "emb"])
    assert (got["embeddings"], got["embedding"], got["show"]) == (2, True, ["embedding"])
    assert (got["context"], got["load"]) == (512, ["load", "load", "success"])
    assert got["unknown"][0] == got["stopped"][0] == "ResponseError"
    assert "no model 'gone'; available: 'demo', 'emb', 'off'" in got["unknown"][1]
    assert "is not ready (ScaledToZero)" in got["stopped"][1]
    assert "Timeout" in got["timeout"][0]
