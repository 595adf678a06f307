"""A ModelRouter behind `llmkube up`: the guide's policy, a real engine, a provider with a canary, real kubectl."""

import json

import pytest
import trio

from e2e.kubectl_tool import Kubectl
from e2e.router_lab import serve
from e2e.up_process import ANSWER, FREE_PORTS, open_up
from llmkube.base.http.client import open_http_client
from llmkube.base.http.message import Headers, Response

pytestmark = [pytest.mark.e2e, pytest.mark.kubectl]

CANARY = "sk-canary-0471"
QUESTION = "What is LLMKube?"
ROUTER = """
apiVersion: v1
kind: Secret
metadata: {name: openai}
stringData: {OPENAI_API_KEY: sk-canary-0471}
---
apiVersion: inference.llmkube.dev/v1alpha1
kind: ModelRouter
metadata: {name: hybrid}
spec:
  backends:
  - {name: local-mac, inferenceServiceRef: {name: demo}}
  - name: cloud
    external:
      provider: openai
      model: gpt-5
      url: "http://127.0.0.1:%(port)d/v1"
      credentialsSecretRef: {name: openai}
    tier: cloud
  rules:
  - name: sensitive
    match: {dataClassification: [pii, phi]}
    route: {backends: [local-mac]}
    failClosed: true
  - name: hard
    match: {taskComplexity: complex}
    route: {backends: [cloud, local-mac]}
  defaultRoute: local-mac
"""


class Provider:
    """A provider that records the keys of its requests."""

    def __init__(self):
        self.keys = []

    async def __call__(self, exchange):
        self.keys.append(exchange.request.headers.get("authorization"))
        message = {"role": "assistant", "content": "from the cloud"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        answer = {"id": "x", "object": "chat.completion", "model": "gpt-5", "choices": [choice]}
        await exchange.respond(Response.json(200, answer))


async def ask(url, **headers):
    body = json.dumps({"model": "any", "temperature": 0, "messages": [{"role": "user", "content": QUESTION}]}).encode()
    async with open_http_client() as client:
        answer = await client.request("POST", f"{url}/v1/chat/completions", headers=Headers.of(headers), body=body)
    data = json.loads(answer.body)
    return answer.status, data["choices"][0]["message"]["content"] if answer.status == 200 else data["error"]["message"]


async def test_the_guides_policy_holds_on_one_machine(tmp_path, kubectl_program):
    """Sensitive requests stay local or get 503 at once, with the reason; a hard one goes to the provider."""
    provider = Provider()
    async with trio.open_nursery() as nursery:
        manifest = tmp_path / "router.yaml"
        manifest.write_text(ROUTER % {"port": await serve(nursery, provider)})
        args = ("--demo", "-f", str(manifest), *FREE_PORTS)
        with trio.fail_after(120):
            async with open_up(tmp_path, *args) as program:
                _, gateway, probes = await program.urls()
                config = (await program.wait_for("err", r"kubeconfig +(\S+)"))[1]
                kubectl = Kubectl(kubectl_program, config, tmp_path)
                await kubectl.run("wait", "mr/hybrid", "--for=jsonpath={.status.phase}=Ready", "--timeout=60s")
                url = (await kubectl.run("get", "mr/hybrid", "-o", "jsonpath={.status.endpoint}")).strip()
                assert url == f"{gateway}/routers/default/hybrid/v1/chat/completions"
                url = url.removesuffix("/v1/chat/completions")
                assert await ask(url) == (200, ANSWER)
                pii = {"X-LLMKube-Classification": "PII, public", "X-LLMKube-Task-Complexity": "complex"}
                assert await ask(url, **pii) == (200, ANSWER)
                assert provider.keys == []
                assert await ask(url, **{"X-LLMKube-Task-Complexity": "complex"}) == (200, "from the cloud")
                assert provider.keys == [f"Bearer {CANARY}"]
                await kubectl.run("scale", "isvc/demo", "--replicas=0")
                with trio.fail_after(30):  # a request waits up to two minutes for an engine that loads
                    while "local-mac: not_ready (ScaledToZero)" not in (await ask(url, **pii))[1]:  # noqa: ASYNC110
                        await trio.sleep(0.2)
                await kubectl.run("wait", "mr/hybrid", "--for=jsonpath={.status.phase}=Degraded", "--timeout=30s")
                await kubectl.run("scale", "isvc/demo", "--replicas=1")
                await kubectl.run("wait", "isvc/demo", "--for=condition=Available", "--timeout=60s")
                assert await ask(url, **pii) == (200, ANSWER)
                await kubectl.run("delete", "isvc/demo")
                with trio.fail_after(60):
                    while (data := await ask(url, **pii))[0] != 503:  # noqa: ASYNC110 (no event to wait for)
                        await trio.sleep(0.2)
                assert "127.0.0.1" not in data[1]
                assert provider.keys == [f"Bearer {CANARY}"]
                async with open_http_client() as client:
                    metrics = (await client.request("GET", f"{probes}/metrics")).body
                assert b"llmkube_router_fail_closed_total{" in metrics
                assert CANARY.encode() not in metrics
                assert CANARY not in program.err + program.out
        nursery.cancel_scope.cancel()
