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


def encoded(**said):
    return f"event: {said['type']}\ndata: {json.dumps(said)}\n\n".encode()


async def open_claude(nursery, asked):
    """A provider that answers like Anthropic's, and notes what it is asked."""

    async def answer(exchange):
        body = json.loads(exchange.body)
        asked.append((exchange.head.path, exchange.head.lines, body))
        blocks = [CALL] if body.get("tools") else [{"type": "text", "text": "from claude"}]
        reason = "tool_use" if body.get("tools") else "end_turn"
        said = {"id": "msg_1", "type": "message", "role": "assistant", "model": body["model"], "stop_sequence": None,
                "content": blocks, "stop_reason": reason, "usage": USAGE}  # fmt: skip
        if not body.get("stream"):
            await exchange.respond(Response.json(200, said))
            return
        async with exchange.stream(200, Headers.of({"Content-Type": "text/event-stream"})) as send:
            await send(encoded(type="message_start", message=said | {"content": [], "stop_reason": None}))
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
    """Plain, streaming, tools and their results, errors, lists: each client gets what it knows, whoever answers."""
    asked, asked_of_claude, port = [], [], free_port()
    options = {"keys": {"backends/cloud": "sk-openai", "backends/claude": "sk-ant"}, "services": {"demo": port}}
    async with trio.open_nursery() as nursery:
        cloud, claude = await open_provider(nursery, asked), await open_claude(nursery, asked_of_claude)
        manifest = ROUTER.replace("OPENAI", f'"http://127.0.0.1:{cloud}/v1"')
        manifest = manifest.replace("ANTHROPIC", f'"http://127.0.0.1:{claude}/v1"')
        async with open_router(tmp_path, manifest, **options) as router, open_engine(tmp_path, port):
            words = (Path(__file__).with_name(script), router.url, QUESTION)
            said = await run_clients(tmp_path, client_packages, *words)
        nursery.cancel_scope.cancel()
    if script == "router_responses_clients.py":
        judge_responses(said)
    else:
        judge_anthropic(said["anthropic"])
        judge_openai(said["openai"])
        judge_litellm(said["litellm"])
        judge_ollama(said["ollama"])
    assert not any("a secret" in json.dumps(body) for _, body in asked)
    assert all(lines.get("authorization") == "Bearer sk-openai" for lines, _ in asked)
    for path, lines, _ in asked_of_claude:
        assert path == "/v1/messages"
        assert (lines.get("x-api-key"), lines.get("anthropic-version")) == ("sk-ant", "2023-06-01")
        assert "authorization" not in lines


def judge_anthropic(said):
    assert (said["plain"].strip(), said["streaming"].strip()) == (ANSWER, ANSWER)
    assert said["final"] == ["end_turn", True, True]
    assert said["tokens"] > 0
    for model, words in (("gpt-5", "from the cloud"), ("claude-opus", "from claude")):
        assert said[f"{model} tools"] == ["weather", {"city": "Rome"}] * 2
        assert said[f"{model} answers"] == words
    assert said["too long"][0] == "BadRequestError"
    assert LENGTHS in said["too long"][1]
    assert said["unsupported"][0] == "BadRequestError"
    assert "tools[0].type" in said["unsupported"][1]
    assert said["broken"][0] in {"APIStatusError", "InternalServerError", "APIError"}


def judge_openai(said):
    assert (said["plain"], said["streaming"], said["answers"]) == ("from claude",) * 3
    assert said["usage"] == [3, 5]
    assert said["tools"] == ["tool_calls", "weather", {"city": "Rome"}, {"city": "Rome"}]
    assert said["unsupported"][0] == "BadRequestError"
    assert said["too long"][0] == "BadRequestError"
    assert LENGTHS in said["too long"][1]
    assert said["broken"][0] == "APIError"


def judge_litellm(said):
    from_claude = said.pop("chat")
    assert (from_claude, {text.strip() for text in said.values()}) == ("from claude", {ANSWER})


def judge_responses(said):
    assert (said["plain"].strip(), said["streaming"].strip(), said["numbers"]) == (ANSWER, ANSWER, True)
    assert said["kinds"] == ["response.created", "response.in_progress", "response.completed"]
    assert said["final"] == [said["plain"], "completed", True, True]
    assert said["continued"] == ["incomplete", True, True]
    assert (said["cut"], said["retrieved"]) == ("max_output_tokens", True)
    assert said["items"] == ["user", "assistant", "user"]
    for model, words in (("gpt-5", "from the cloud"), ("claude-opus", "from claude")):
        assert said[f"{model} tools"] == ["weather", {"city": "Rome"}] * 2
        assert said[f"{model} answers"] == said[f"{model} without state"] == words
    assert said["deleted"][0] == said["unknown"][0] == "NotFoundError"
    assert "memory of the router that created them" in said["unknown"][1]
    assert said["unsupported"][0] == said["too long"][0] == "BadRequestError"
    assert "tools[0].type is 'web_search'" in said["unsupported"][1]
    assert LENGTHS in said["too long"][1]
    assert said["broken"][0] == "APIError"
    assert said["pii"] == ["local-mac", "cloud"]  # the same model, with and without such a history


def judge_ollama(said):
    assert {said[each].strip() for each in ("plain", "streaming", "generate")} == {ANSWER}
    assert said["last"] == [True, "stop", True, True]
    assert said["tools"] == ["weather", {"city": "Rome"}]
    assert said["answers"] == "from claude"
    assert said["list"] == ["local-mac", "gpt-5", "claude-opus"]
    assert said["running"] == ["local-mac"]
    assert said["show"] == ["completion"]
    assert said["embed"][0] == said["unknown"][0] == said["too long"][0] == said["broken"][0] == "ResponseError"
    assert LENGTHS in said["too long"][1]
