"""Requests of clients of three dialects to a router, as their users write them; run with only the pinned packages.

python -S router_dialect_clients.py ROUTER QUESTION: prints one JSON object, by client and by request.
"""

import json
import os
import sys

import anthropic
import litellm
import ollama
import openai
from client_questions import ASK, PARAMETERS, QUESTION, TOOL, failure
from client_questions import SERVER as ROUTER

LONG = [{"role": "user", "content": "word " * 20_000}]
RESULT = "sunny in Rome"
SEARCH = {"type": "web_search_20250305", "name": "web_search"}
COLD = {"temperature": 0}


def of_anthropic():
    client = anthropic.Anthropic(base_url=ROUTER, api_key="none", max_retries=0)
    tool = {"name": "weather", "description": "Tell it", "input_schema": PARAMETERS}

    def create(model, messages=ASK, **more):
        return client.messages.create(model=model, max_tokens=200, messages=messages, **more)

    with client.messages.stream(model="local-mac", max_tokens=200, messages=ASK, extra_body=COLD) as stream:
        streamed = "".join(stream.text_stream)
        final = stream.get_final_message()
    found = {
        "plain": create("local-mac", extra_body=COLD).content[0].text,
        "streaming": streamed,
        "final": [final.stop_reason, final.usage.input_tokens > 0, final.usage.output_tokens > 0],
        "tokens": client.messages.count_tokens(model="local-mac", messages=ASK).input_tokens,
        "too long": failure(create, "local-mac", LONG),
        "unsupported": failure(create, "local-mac", tools=[SEARCH], tool_choice={"type": "tool", "name": "web_search"}),
        "broken": failure(lambda: list(create("gpt-5", [{"role": "user", "content": "break"}], stream=True))),
    }
    for model in ("gpt-5", "claude-opus"):
        called = next(block for block in create(model, tools=[tool]).content if block.type == "tool_use")
        given = {"type": "tool_result", "tool_use_id": called.id, "content": RESULT}
        use = {"type": "tool_use", "id": called.id, "name": called.name, "input": called.input}
        turns = [*ASK, {"role": "assistant", "content": [use]}, {"role": "user", "content": [given]}]
        with client.messages.stream(model=model, max_tokens=9, messages=turns) as stream:
            found[f"{model} answers"] = "".join(stream.text_stream)
        with client.messages.stream(model=model, max_tokens=9, messages=ASK, tools=[tool]) as stream:
            streamed = next(block for block in stream.get_final_message().content if block.type == "tool_use")
        found[f"{model} tools"] = [called.name, called.input, streamed.name, streamed.input]
    return found


def of_openai():
    client = openai.OpenAI(base_url=f"{ROUTER}/v1", api_key="none", max_retries=0)
    create = client.chat.completions.create
    parts = list(create(model="claude-opus", messages=ASK, stream=True, stream_options={"include_usage": True}))
    called = create(model="claude-opus", messages=ASK, tools=[TOOL]).choices[0]
    call = called.message.tool_calls[0]
    pieces = [part.choices[0].delta for part in create(model="claude-opus", messages=ASK, tools=[TOOL], stream=True)]
    written = "".join(each.function.arguments or "" for delta in pieces for each in delta.tool_calls or ())
    result = {"role": "tool", "tool_call_id": call.id, "content": RESULT}
    turns = [*ASK, called.message.model_dump(exclude_none=True), result]
    return {
        "plain": create(model="claude-opus", messages=ASK).choices[0].message.content,
        "streaming": "".join(part.choices[0].delta.content or "" for part in parts if part.choices),
        "usage": [parts[-1].usage.prompt_tokens, parts[-1].usage.completion_tokens],
        "tools": [called.finish_reason, call.function.name, json.loads(call.function.arguments), json.loads(written)],
        "answers": create(model="claude-opus", messages=turns).choices[0].message.content,
        "unsupported": failure(create, model="claude-opus", messages=ASK, n=2),
        "too long": failure(create, model="local-mac", messages=LONG),
        "broken": failure(lambda: list(create(model="claude-opus", stream=True,
                                              messages=[{"role": "user", "content": "break"}]))),
    }  # fmt: skip


def of_litellm():
    def ask(model, base, **more):
        return litellm.completion(model=model, api_base=base, api_key="none", messages=ASK, temperature=0, **more)

    streamed = ask("anthropic/local-mac", ROUTER, stream=True, max_tokens=200)
    return {
        "messages": ask("anthropic/local-mac", ROUTER, max_tokens=200).choices[0].message.content,
        "messages streaming": "".join(part.choices[0].delta.content or "" for part in streamed),
        "chat": ask("openai/claude-opus", f"{ROUTER}/v1").choices[0].message.content,
        "ollama": ask("ollama_chat/local-mac", ROUTER).choices[0].message.content,
    }


def of_ollama():
    client = ollama.Client(host=ROUTER)
    options = {"temperature": 0}
    parts = list(client.chat("local-mac", ASK, stream=True, options=options))
    called = client.chat("gpt-5", ASK, tools=[TOOL]).message
    answered = [*ASK, called, {"role": "tool", "tool_name": "weather", "content": RESULT}]
    return {
        "plain": client.chat("local-mac", ASK, options=options).message.content,
        "streaming": "".join(part.message.content or "" for part in parts),
        "last": [parts[-1].done, parts[-1].done_reason, parts[-1].eval_count > 0, parts[-1].eval_duration > 0],
        "generate": client.generate("local-mac", QUESTION, options=options).response,
        "tools": [called.tool_calls[0].function.name, dict(called.tool_calls[0].function.arguments)],
        "answers": client.chat("claude-opus", answered).message.content,
        "list": [model.model for model in client.list().models],
        "running": [model.model for model in client.ps().models],
        "show": client.show("local-mac").capabilities,
        "embed": failure(client.embed, "local-mac", "x"),
        "unknown": failure(client.show, "gone"),
        "too long": failure(client.chat, "local-mac", LONG),
        "broken": failure(lambda: list(client.chat("gpt-5", [{"role": "user", "content": "break"}], stream=True))),
    }


results = {"anthropic": of_anthropic(), "openai": of_openai(), "litellm": of_litellm(), "ollama": of_ollama()}
sys.stdout.write(json.dumps(results))
sys.stdout.flush()
os._exit(0)  # litellm's own threads keep running
