"""`llmkube router -f` with the guide's manifest, the official client, a real llama.cpp and a provider."""

import json
import re
from pathlib import Path

import pytest
import trio

from e2e.router_lab import open_engine, open_provider, open_router, run_clients
from e2e.up_process import ANSWER
from free_ports import free_port
from llmkube.base.http.client import open_http_client
from llmkube.base.http.message import Headers

pytestmark = pytest.mark.e2e

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


@pytest.mark.ci
async def test_the_guides_router_with_the_official_client(tmp_path, client_packages):
    """Plain, streaming, tools, errors and timeouts need nothing but the address; pii stays local or gets 503."""
    asked, port = [], free_port()
    audit = tmp_path / "audit.log"
    async with trio.open_nursery() as nursery:
        provider = await open_provider(nursery, asked)
        policy = f"  policy: {{auditLog: {{sink: file, filePath: {audit}}}}}\n"
        manifest = ROUTER.replace("URL", f'"http://127.0.0.1:{provider}/v1"') + policy
        options = {"keys": {"backends/cloud": CANARY}, "services": {"phi-4-mini": port}}
        async with open_router(tmp_path, manifest, **options) as router, open_http_client() as http:
            url, admin, program = router.url, router.admin, router.program
            async with open_engine(tmp_path, port):
                script = Path(__file__).with_name("router_clients.py")
                got = await run_clients(tmp_path, client_packages, script, url, QUESTION)
                before = len(asked)
                private = await chat(http, url, "pii")
                assert (private.status, ANSWER in private.body.decode()) == (200, True)
            refused = await chat(http, url, "pii, phi")
            assert (refused.status, json.loads(refused.body)["error"]["code"]) == (503, "fail_closed_runtime")
            assert len(asked) == before  # neither with the engine nor without it
            metrics = (await http.request("GET", f"{admin}/metrics")).body.decode()
            moved = await http.request("GET", f"{admin}/metrics", headers=Headers.of({"Host": "evil.example"}))
            assert moved.status == 403
            argv = Path(f"/proc/{program.process.pid}/cmdline")
            shown = argv.read_bytes().decode() if argv.exists() else ""
        nursery.cancel_scope.cancel()
    assert (got["plain"].strip(), got["streaming"].strip()) == (ANSWER, ANSWER)
    assert (got["cloud"], got["cloud streaming"]) == ("from the cloud", "from the cloud")
    assert got["tools"] == ["weather", {"city": "Rome"}]
    assert got["models"] == ["local-mac", "cloud"]
    assert got["broken"][0] == "APIError"
    assert "Timeout" in got["timeout"][0]
    assert got["url"][0] == "BadRequestError"
    assert got["embeddings"][0] in {"InternalServerError", "BadRequestError", "APIStatusError"}
    assert all(lines.get("authorization") == f"Bearer {CANARY}" for lines, _ in asked)
    written = audit.read_text()
    for place, text in {"log": program.err + program.out, "audit": written, "metrics": metrics, "argv": shown}.items():
        assert CANARY not in text, place
        assert CLIENT_KEY not in text, place
    assert re.search(r'router_requests_total\{.*outcome="fail_closed_runtime".*\} 1.0', metrics)
    messages = [json.loads(line)["msg"] for line in written.splitlines()]
    assert (messages[0], messages[-1]) == ("router.start", "router.end")


async def chat(http, url, data_class):
    body = {"model": "any", "messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
    headers = Headers.of({"X-LLMKube-Classification": data_class, "X-LLMKube-Task-Complexity": "complex"})
    return await http.request("POST", f"{url}/v1/chat/completions", headers=headers, body=json.dumps(body).encode())
