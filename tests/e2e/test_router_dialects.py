"""Clients of Anthropic's, OpenAI's and Ollama's APIs, unmodified, at one router: a real llama.cpp and two providers."""

import json
from pathlib import Path

import pytest
import trio

from e2e.router_lab import open_engine, open_provider, open_router, run_clients, serve
from e2e.test_router import QUESTION
from e2e.up_process import ANSWER
from free_ports import free_port
from llmkube.base.http.message import Headers, Response

pytestmark = pytest.mark.e2e

ROUTER = """
apiVersion: inference.llmkube.dev/v1alpha1
kind: ModelRouter
metadata: {name: dialects}
spec:
  backends:
    - name: local-mac
      inferenceServiceRef: {name: demo}
      capabilities: [chat]
    - name: cloud
      external: {provider: openai, model: gpt-5, url: OPENAI, credentialsSecretRef: {name: key}}
      displayName: gpt-5
    - name: claude
      external: {provider: anthropic, model: claude-opus-4, url: ANTHROPIC, credentialsSecretRef: {name: key}}
      displayName: claude-opus
  rules:
    - name: openai
      match: {models: ["gpt*"]}
      route: {backends: [cloud]}
    - name: anthropic
      match: {models: ["claude*"]}
      route: {backends: [claude]}
  defaultRoute: local-mac
"""
CALL = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Rome"}}
LENGTHS = "(100004 tokens) exceeds the available context size (512 tokens)"
USAGE = {"input_tokens": 3, "output_tokens": 5}


def encoded(**event):
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


async def open_claude(nursery, asked):
    """Serve a provider that answers like Anthropic's and records its requests; return its port."""

    async def answer(exchange):
        body = json.loads(exchange.body)
        asked.append((exchange.head.path, exchange.head.lines, body))
        tools = body.get("tools")
        blocks = [CALL | {"name": tools[0]["name"]}] if tools else [{"type": "text", "text": "from claude"}]
        reason = "tool_use" if body.get("tools") else "end_turn"
        reply = {"id": "msg_1", "type": "message", "role": "assistant", "model": body["model"], "stop_sequence": None,
                 "content": blocks, "stop_reason": reason, "usage": USAGE}  # fmt: skip
        if not body.get("stream"):
            await exchange.respond(Response.json(200, reply))
            return
        async with exchange.stream(200, Headers.of({"Content-Type": "text/event-stream"})) as send:
            await send(encoded(type="message_start", message=reply | {"content": [], "stop_reason": None}))
            await send(encoded(type="ping"))
            empty = {"text": ""} if "text" in blocks[0] else {"input": {}}
            await send(encoded(type="content_block_start", index=0, content_block=blocks[0] | empty))
            deltas = [{"type": "text_delta", "text": text} for text in ("from", " claude")]
            if body.get("tools"):
                deltas = [{"type": "input_json_delta", "partial_json": text} for text in ('{"city": ', '"Rome"}')]
            for delta in deltas:
                await send(encoded(type="content_block_delta", index=0, delta=delta))
            if "break" in json.dumps(body["messages"]):
                raise OSError("the provider dies")
            await send(encoded(type="content_block_stop", index=0))
            await send(encoded(type="message_delta", delta={"stop_reason": reason}, usage={"output_tokens": 5}))
            await send(encoded(type="message_stop"))

    return await serve(nursery, answer)


@pytest.mark.ci
@pytest.mark.parametrize("script", ["router_dialect_clients.py", "router_responses_clients.py"])
async def test_clients_of_every_dialect_at_one_router(tmp_path, client_packages, script):
    """Plain, streaming, tools and their results, errors, lists: each client gets its own dialect from any backend."""
    asked, asked_of_claude, port = [], [], free_port()
    options = {"keys": {"backends/cloud": "sk-openai", "backends/claude": "sk-ant"}, "services": {"demo": port}}
    async with trio.open_nursery() as nursery:
        cloud, claude = await open_provider(nursery, asked), await open_claude(nursery, asked_of_claude)
        manifest = ROUTER.replace("OPENAI", f'"http://127.0.0.1:{cloud}/v1"')
        manifest = manifest.replace("ANTHROPIC", f'"http://127.0.0.1:{claude}/v1"')
        async with open_router(tmp_path, manifest, **options) as router, open_engine(tmp_path, port):
            words = (Path(__file__).with_name(script), router.url, QUESTION)
            got = await run_clients(tmp_path, client_packages, *words)
        nursery.cancel_scope.cancel()
    if script == "router_responses_clients.py":
        check_responses(got)
    else:
        check_anthropic(got["anthropic"])
        check_openai(got["openai"])
        check_litellm(got["litellm"])
        check_ollama(got["ollama"])
    assert not any("a secret" in json.dumps(body) for _, body in asked)
    assert all(lines.get("authorization") == "Bearer sk-openai" for lines, _ in asked)
    for path, lines, _ in asked_of_claude:
        assert path == "/v1/messages"
        assert (lines.get("x-api-key"), lines.get("anthropic-version")) == ("sk-ant", "2023-06-01")
        assert "authorization" not in lines


def check_anthropic(got):
    assert (got["plain"].strip(), got["streaming"].strip()) == (ANSWER, ANSWER)
    assert got["final"] == ["end_turn", True, True]
    assert got["tokens"] > 0
    for model, words in (("gpt-5", "from the cloud"), ("claude-opus", "from claude")):
        assert got[f"{model} tools"] == ["weather", {"city": "Rome"}] * 2
        assert got[f"{model} answers"] == words
    assert got["too long"][0] == "BadRequestError"
    assert "prompt is too long: 100004 tokens > 512 maximum" in got["too long"][1]
    assert got["unsupported"][0] == "BadRequestError"
    assert "web_search" in got["unsupported"][1]
    assert got["broken"][0] in {"APIStatusError", "InternalServerError", "APIError"}


def check_openai(got):
    assert (got["plain"], got["streaming"], got["answers"]) == ("from claude",) * 3
    assert got["usage"] == [3, 5]
    assert got["tools"] == ["tool_calls", "weather", {"city": "Rome"}, {"city": "Rome"}]
    assert got["unsupported"][0] == "BadRequestError"
    assert got["too long"][0] == "BadRequestError"
    assert LENGTHS in got["too long"][1]
    assert got["broken"][0] == "APIError"


def check_litellm(got):
    from_claude = got.pop("chat")
    assert (from_claude, {text.strip() for text in got.values()}) == ("from claude", {ANSWER})


def check_responses(got):
    assert (got["plain"].strip(), got["streaming"].strip(), got["numbers"]) == (ANSWER, ANSWER, True)
    assert got["kinds"] == ["response.created", "response.in_progress", "response.completed"]
    assert got["final"] == [got["plain"], "completed", True, True]
    assert got["continued"] == ["incomplete", True, True]
    assert (got["cut"], got["retrieved"]) == ("max_output_tokens", True)
    assert got["items"] == ["user", "assistant", "user"]
    for model, words in (("gpt-5", "from the cloud"), ("claude-opus", "from claude")):
        assert got[f"{model} tools"] == ["weather", {"city": "Rome"}] * 2
        assert got[f"{model} answers"] == got[f"{model} without state"] == words
    assert got["deleted"][0] == got["unknown"][0] == "NotFoundError"
    assert "memory of the router that created them" in got["unknown"][1]
    assert got["unsupported"][0] == got["too long"][0] == "BadRequestError"
    assert "tool_choice is {'type': 'web_search'}" in got["unsupported"][1]
    assert got["together"] == "from the cloud"
    assert got["gpt-5 namespace"] == got["claude-opus namespace"] == ["weather", "mcp", "completed"]
    assert got["custom"] == ['{"city": "Rome"}'] * 2
    assert got["reference"][0] == "NotFoundError"
    assert LENGTHS in got["too long"][1]
    assert got["broken"][0] == "APIError"
    assert got["pii"] == ["local-mac", "cloud"]  # the same model, with and without such a history


def check_ollama(got):
    assert {got[each].strip() for each in ("plain", "streaming", "generate")} == {ANSWER}
    assert got["last"] == [True, "stop", True, True]
    assert got["tools"] == ["weather", {"city": "Rome"}]
    assert got["answers"] == "from claude"
    assert got["list"] == ["local-mac", "gpt-5", "claude-opus"]
    assert got["running"] == ["local-mac"]
    assert got["show"] == ["completion"]
    assert got["embed"][0] == got["unknown"][0] == got["too long"][0] == got["broken"][0] == "ResponseError"
    assert LENGTHS in got["too long"][1]
