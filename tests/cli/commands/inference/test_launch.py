"""`llmkube launch` before it starts a client: the choice of a model, and errors with their fixes.

`tests/e2e/test_agents.py` starts the clients.
"""

import json
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from cli.memory_cluster import write_status
from llmkube.cli.commands.inference.clients import CLIENTS, Served

DEMO = {"id": "demo", "capabilities": ["completion"], "meta": {"n_ctx": 512}}
OTHER = {"id": "other", "capabilities": ["completion"]}
EMBEDDING = {"id": "emb", "capabilities": ["embedding"]}


@pytest.fixture
def launch(run):
    """Run the command where the demo's endpoint is at a gateway with these models; None is none of ours."""

    def launch(models, *args):
        class Gateway(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200 if self.path == "/v1/models" else 404)
                self.end_headers()
                self.wfile.write(json.dumps({"data": models}).encode())

            def log_message(self, *_):
                pass

        with HTTPServer(("127.0.0.1", 0), Gateway) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            host = "demo.default.svc" if models is None else "127.0.0.1"
            endpoint = f"http://{host}:{server.server_port}/v1/chat/completions"
            try:
                return run("launch", *args, prepare=partial(write_status, endpoint=endpoint)).output
            finally:
                server.shutdown()

    return launch


def test_settings_of_other_clients_name_address_and_model(launch):
    """A model of another kind, and one that is no service's own name, are not chosen."""
    printed = launch([DEMO, EMBEDDING, OTHER])
    assert "/v1, any key, model demo\n" in printed
    for client in ("VS Code Copilot", "Continue", "Open WebUI", "Cursor"):
        assert f"\n{client}" in printed


@pytest.mark.parametrize(
    ("models", "args", "message"),
    [
        ([DEMO], ("--model", "x"), "model x not found; chat models that run: demo; choose one with --model NAME"),
        ([OTHER], (), "no single model; chat models that run: other; choose one with --model NAME"),
        ([EMBEDDING], (), "no chat model runs; `llmkube list` shows the cause"),
        ([DEMO], ("-n", "away"), "has no InferenceService; start `llmkube up`, then deploy a model"),
        (None, (), "is not the one of a `llmkube up`; start `llmkube up`, then deploy a model"),
    ],
)
def test_without_a_model_the_fix_is_named(launch, models, args, message):
    """The models that run are listed, so that one can be chosen."""
    assert message in launch(models, *args).replace("\n", " ")


def test_a_missing_program_is_named_with_its_installation(run, monkeypatch):
    """It is reported before any request."""
    monkeypatch.setenv("PATH", "/nowhere")
    assert (
        "is not installed: PATH has no such program; run `npm install -g @openai/codex`"
        in run("launch", "codex").output
    )


@pytest.mark.parametrize("name", CLIENTS)
def test_each_client_gets_address_and_model(name):
    """In flags or variables; an unknown context is left out."""
    settings = CLIENTS[name].settings(Served("http://127.0.0.1:8080", "qwen"))
    words = " ".join([*settings.flags, *(each or "" for each in settings.variables.values())])
    assert "http://127.0.0.1:8080" in words
    assert "qwen" in words
    assert "context" not in words.lower()
