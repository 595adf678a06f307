"""`llmkube router -f` as its users meet it: the guide's manifest, the official client, a real llama.cpp, a provider."""

import contextlib
import json
import re
import sys
from functools import partial
from pathlib import Path

import pytest
import trio

import llmkube
from e2e.client_packages import find_client_packages
from e2e.up_process import ANSWER, environment, open_program
from free_ports import free_port
from llmkube.base.http.client import open_http_client
from llmkube.base.http.message import Headers, Response
from llmkube.base.http.server import run_server

pytestmark = pytest.mark.e2e

DEMO = Path(llmkube.__file__).parent / "weights" / "builtin" / "demo.gguf"
CANARY = "sk-canary-4711"
CLIENT_KEY = "team-canary-0815"
QUESTION = "What is LLMKube?"
ROUTER = """
apiVersion: inference.llmkube.dev/v1alpha1
kind: ModelRouter
metadata: {name: hybrid-router}
spec:
  backends:
    - name: local-mac
      inferenceServiceRef: {name: phi-4-mini}
      capabilities: [chat]
    - name: cloud
      external: {provider: openai, model: gpt-5, url: URL, credentialsSecretRef: {name: key}}
      capabilities: [chat, tools]
  rules:
    - name: sensitive
      match: {dataClassification: [pii, phi]}
      route: {backends: [local-mac]}
      failClosed: true
    - name: hard
      match: {taskComplexity: complex}
      route: {backends: [cloud, local-mac]}
      timeout: 90s
  defaultRoute: local-mac
"""


@contextlib.asynccontextmanager
async def open_engine(folder, port, *, model=DEMO, flags=()):
    """A real llama-server with the demo's model; yields its process."""
    command = [
        f"{sys.prefix}/bin/llmkube-llama-server",
        "--model",
        str(model),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        *flags,
    ]
    with (folder / "engine.log").open("wb") as log:
        async with trio.open_nursery() as nursery:
            process = await nursery.start(partial(trio.run_process, command, stdout=log, stderr=log, check=False))
            async with open_http_client() as http:
                while True:
                    with contextlib.suppress(Exception):
                        if (await http.request("GET", f"http://127.0.0.1:{port}/health")).status == 200:
                            break
                    await trio.sleep(0.1)
            yield process
            nursery.cancel_scope.cancel()


async def open_provider(nursery, asked):
    """A provider that answers like OpenAI's, and notes what it is asked."""

    async def answer(exchange):
        body = json.loads(exchange.body)
        asked.append((exchange.head.lines, body))
        choice = {"index": 0, "message": {"role": "assistant", "content": "from the cloud"}, "finish_reason": "stop"}
        if body.get("tools"):
            call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
            choice = choice | {"message": {"role": "assistant", "content": None, "tool_calls": [call]}}
        said = {"id": "x", "object": "chat.completion", "created": 1, "model": "gpt-5", "choices": [choice],
                "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}}  # fmt: skip
        if "slow" in json.dumps(body["messages"]):
            await trio.sleep_forever()
        if not body.get("stream"):
            await exchange.respond(Response.json(200, said))
            return
        async with exchange.stream(200, Headers.of({"Content-Type": "text/event-stream"})) as send:
            deltas = [{"content": text} for text in ("from", " the", " cloud")]
            if body.get("tools"):
                deltas = [{"tool_calls": [{"index": 0} | call]}]
            for delta in deltas:
                part = {"index": 0, "delta": delta, "finish_reason": None}
                await send(b"data: %b\n\n" % json.dumps(said | {"choices": [part]}).encode())
            if "break" in json.dumps(body["messages"]):
                raise OSError("the provider dies")
            part = {"index": 0, "delta": {}, "finish_reason": "tool_calls" if body.get("tools") else "stop"}
            await send(b"data: %b\n\ndata: [DONE]\n\n" % json.dumps(said | {"choices": [part]}).encode())

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    await nursery.start(run_server, answer, listeners)
    return listeners[0].socket.getsockname()[1]


@pytest.mark.ci
async def test_the_guides_router_with_the_official_client(tmp_path):
    """Plain, streaming, tools, errors and timeouts need nothing but the address; pii stays here or gets 503."""
    packages = await trio.to_thread.run_sync(find_client_packages)
    asked, port = [], free_port()
    keys = tmp_path / "keys"
    (keys / "backends").mkdir(parents=True)
    (keys / "backends" / "cloud").write_text(CANARY)
    audit = tmp_path / "audit.log"
    async with trio.open_nursery() as nursery:
        provider = await open_provider(nursery, asked)
        manifest = tmp_path / "router.yaml"
        policy = f"  policy: {{auditLog: {{sink: file, filePath: {audit}}}}}\n"
        manifest.write_text(ROUTER.replace("URL", f'"http://127.0.0.1:{provider}/v1"') + policy)
        args = ("router", "-f", str(manifest), "--port", "0", "--admin-port", "0", "--keys-dir", str(keys))
        args += ("--service", f"phi-4-mini=http://127.0.0.1:{port}/v1", "--state-dir", str(tmp_path / "state"))
        async with open_program(tmp_path, *args) as router, open_http_client() as http:
            url = (await router.wait_for("err", r"OpenAI-compatible API on (\S+)/v1\n"))[1]
            admin = (await router.wait_for("err", r'"admin":"(\S+?)"'))[1]
            async with open_engine(tmp_path, port):
                script = Path(__file__).with_name("router_clients.py")
                env = environment(tmp_path) | {"PYTHONPATH": str(packages)}
                command = [sys.executable, "-S", str(script), url, QUESTION]
                done = await trio.run_process(command, env=env, capture_stdout=True)
                said = json.loads(done.stdout)
                before = len(asked)
                private = await chat(http, url, "pii")
                assert (private.status, ANSWER in private.body.decode()) == (200, True)
            refused = await chat(http, url, "pii, phi")
            assert (refused.status, json.loads(refused.body)["error"]["code"]) == (503, "fail_closed_runtime")
            assert len(asked) == before  # neither with the engine nor without it
            metrics = (await http.request("GET", f"{admin}/metrics")).body.decode()
            moved = await http.request("GET", f"{admin}/metrics", headers=Headers.of({"Host": "evil.example"}))
            assert moved.status == 403
            argv = Path(f"/proc/{router.process.pid}/cmdline")
            shown = argv.read_bytes().decode() if argv.exists() else ""
            router.process.terminate()
            await router.process.wait()
        nursery.cancel_scope.cancel()
    assert (said["plain"].strip(), said["streaming"].strip()) == (ANSWER, ANSWER)
    assert (said["cloud"], said["cloud streaming"]) == ("from the cloud", "from the cloud")
    assert said["tools"] == ["weather", {"city": "Rome"}]
    assert said["models"] == ["local-mac", "cloud"]
    assert said["broken"][0] == "APIError"
    assert "Timeout" in said["timeout"][0]
    assert said["url"][0] == "BadRequestError"
    assert said["embeddings"][0] in {"InternalServerError", "BadRequestError", "APIStatusError"}
    assert all(lines.get("authorization") == f"Bearer {CANARY}" for lines, _ in asked)
    written = audit.read_text()
    for place, text in {"log": router.err + router.out, "audit": written, "metrics": metrics, "argv": shown}.items():
        assert CANARY not in text, place
        assert CLIENT_KEY not in text, place
    assert re.search(r'router_requests_total\{.*outcome="fail_closed_runtime".*\} 1.0', metrics)
    messages = [json.loads(line)["msg"] for line in written.splitlines()]
    assert (messages[0], messages[-1]) == ("router.start", "router.end")


async def chat(http, url, data_class):
    body = {"model": "any", "messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
    headers = Headers.of({"X-LLMKube-Classification": data_class, "X-LLMKube-Task-Complexity": "complex"})
    return await http.request("POST", f"{url}/v1/chat/completions", headers=headers, body=json.dumps(body).encode())
