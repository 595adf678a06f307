"""Requests of each client library to a gateway, as its users write them; run with only the pinned packages.

python -S sdk_clients.py GATEWAY QUESTION: prints one JSON object, by client and by request.
"""

import json
import os

import anthropic
import litellm
import ollama
import openai
from client_questions import ASK, PARAMETERS, QUESTION, TOOL, failure
from client_questions import SERVER as GATEWAY
from langchain_openai import ChatOpenAI

BASE = f"{GATEWAY}/v1"


def of_openai():
    client = openai.OpenAI(base_url=BASE, api_key="none", max_retries=5)
    create = client.chat.completions.create
    plain = create(model="demo", messages=ASK, temperature=0)
    streamed = list(create(model="demo", messages=ASK, temperature=0, stream=True))
    called = create(model="tools", messages=ASK, tools=[TOOL]).choices[0].message.tool_calls[0].function
    listed = client.models.list().data
    return {
        "plain": plain.choices[0].message.content,
        "streaming": "".join(part.choices[0].delta.content or "" for part in streamed if part.choices),
        "parts": len(streamed),
        "tools": [called.name, json.loads(called.arguments)],
        "models": {model.id: model.status["value"] for model in listed},
        "context": next(model.meta["n_ctx"] for model in listed if model.id == "demo"),
        "responses": client.responses.create(model="demo", input=QUESTION, temperature=0).output_text,
        "embeddings": len(client.embeddings.create(model="emb", input=[QUESTION, "x"]).data),
        "unknown": failure(create, model="gone", messages=ASK),
        "stopped": failure(create, model="off", messages=ASK),
        "wrong mode": failure(client.with_options(max_retries=0).embeddings.create, model="demo", input="x"),
        "timeout": failure(client.with_options(timeout=0.2, max_retries=0).chat.completions.create,
                           model="slow", messages=ASK),
        "audio": failure(client.with_options(max_retries=0).audio.transcriptions.create,
                         model="demo", file=("a.wav", b"RIFF")),
    }  # fmt: skip


def of_anthropic():
    client = anthropic.Anthropic(base_url=GATEWAY, api_key="none", max_retries=5)
    asked = {"model": "demo", "max_tokens": 200, "messages": ASK, "extra_body": {"temperature": 0}}
    with client.messages.stream(**asked) as stream:
        streamed = "".join(stream.text_stream)
    tool = {"name": "weather", "description": "Tell it", "input_schema": PARAMETERS}
    called = client.messages.create(**asked | {"model": "tools"}, tools=[tool]).content[0]
    hasty = client.with_options(timeout=0.2, max_retries=0)
    return {
        "plain": client.messages.create(**asked).content[0].text,
        "streaming": streamed,
        "tools": [called.name, called.input],
        "tokens": client.messages.count_tokens(model="demo", messages=ASK).input_tokens > 0,
        "unknown": failure(client.messages.create, **asked | {"model": "gone"}),
        "stopped": failure(client.messages.create, **asked | {"model": "off"}),
        "timeout": failure(hasty.messages.create, **asked | {"model": "slow"}),
    }


def of_litellm():
    litellm.suppress_debug_info = True
    asked = {"model": "openai/demo", "api_base": BASE, "api_key": "none", "messages": ASK, "temperature": 0}
    streamed = litellm.completion(**asked, stream=True)
    called = litellm.completion(**asked | {"model": "openai/tools"}, tools=[TOOL]).choices[0].message.tool_calls[0]
    return {
        "plain": litellm.completion(**asked).choices[0].message.content,
        "streaming": "".join(part.choices[0].delta.content or "" for part in streamed),
        "tools": [called.function.name, json.loads(called.function.arguments)],
        "unknown": failure(litellm.completion, **asked | {"model": "openai/gone"}),
        "stopped": failure(litellm.completion, **asked | {"model": "openai/off"}),
        "timeout": failure(litellm.completion, **asked | {"model": "openai/slow"}, timeout=0.2, num_retries=0),
    }


def of_langchain():
    model = ChatOpenAI(model="demo", base_url=BASE, api_key="none", temperature=0)
    tools = ChatOpenAI(model="tools", base_url=BASE, api_key="none").bind_tools([TOOL])
    slow = ChatOpenAI(model="slow", base_url=BASE, api_key="none", timeout=0.2, max_retries=0)
    (called,) = tools.invoke(QUESTION).tool_calls
    return {
        "plain": model.invoke(QUESTION).content,
        "streaming": "".join(part.content for part in model.stream(QUESTION)),
        "tools": [called["name"], called["args"]],
        "unknown": failure(ChatOpenAI(model="gone", base_url=BASE, api_key="none").invoke, QUESTION),
        "stopped": failure(ChatOpenAI(model="off", base_url=BASE, api_key="none").invoke, QUESTION),
        "timeout": failure(slow.invoke, QUESTION),
    }


def of_ollama():
    client = ollama.Client(host=GATEWAY)
    options = {"temperature": 0}
    streamed = client.chat("demo", ASK, stream=True, options=options)
    return {
        "plain": client.chat("demo", ASK, options=options).message.content,
        "streaming": "".join(part.message.content or "" for part in streamed),
        "generate": client.generate("demo", QUESTION, options=options).response,
        "embeddings": len(client.embed("emb", [QUESTION, "x"]).embeddings),
        "models": [model.model for model in client.list().models],
        "running": [model.model for model in client.ps().models],
        "show": client.show("emb").capabilities,
        "context": client.show("demo:latest").modelinfo["llama.context_length"],
        "embedding": len(client.embeddings("emb", QUESTION).embedding) > 0,
        "load": [client.generate("demo").done_reason, client.chat("demo").done_reason, client.pull("demo").status],
        "unknown": failure(client.chat, "gone", ASK),
        "stopped": failure(client.chat, "off", ASK),
        "timeout": failure(ollama.Client(host=GATEWAY, timeout=0.2).chat, "slow", ASK),
    }


if __name__ == "__main__":
    of = {"openai": of_openai, "anthropic": of_anthropic, "litellm": of_litellm, "langchain": of_langchain}
    of["ollama"] = of_ollama
    os.write(1, json.dumps({name: tried() for name, tried in of.items()}).encode())
