"""Each part of a generated request reaches a backend whole or translated, or it is named, by a small model."""

import json
import random
import re

import attrs
import pytest

from lengths import PROVIDER_REQUESTS
from llmkube.router.dialects.dialect import DialectError
from llmkube.router.dialects.inbound import translated_request
from llmkube.router.dispatch.request_body import check_types, rebuild
from router.proxy.router_lab import cloud, local

HOSTS = {
    "openai": "api.openai.com",
    "azure": "us.openai.azure.com",
    "gemini": "generativelanguage.googleapis.com",
    "mistral": "api.mistral.ai",
    "openrouter": "openrouter.ai",
    "compatible": "inference.example",
}
BACKENDS = {
    **{name: cloud("c", base_url=f"https://{host}/v1") for name, host in HOSTS.items()},
    **{name: cloud("c", provider=name) for name in ("litellm", "bedrock", "vertex_ai")},
    "anthropic": cloud("c", provider="anthropic", dialect="anthropic"),
    "engine": local("c"),
    "llama.cpp": local("c", slots=1),
}
ENGINES = ("engine", "llama.cpp")
WITH_FILES = ("openai", "azure", "compatible", "openrouter", "litellm", "bedrock", "anthropic", *ENGINES)
WITH_CUSTOM_TOOLS = ("openai", "azure", "compatible", "openrouter", "litellm")
WITH_PICTURES_IN_RESULTS = ("anthropic", "mistral", *ENGINES)
HOTTEST = {"anthropic": 1, "mistral": 1.5, "litellm": 9, "engine": 9, "llama.cpp": 9}
LONGEST_USER = {"anthropic": 256, "litellm": 999, "engine": 999, "llama.cpp": 999}
LONGEST_NAME = {"anthropic": 128, "litellm": 999, "engine": 999, "llama.cpp": 999}
WITHOUT_STRICT = ("gemini", "vertex_ai", "bedrock")
IDS = {"mistral": r"[A-Za-z0-9]{9}", "anthropic": r"[A-Za-z0-9_-]{1,64}", "openai": r".{1,40}"}
PATHS = {
    "chat": "/v1/chat/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "ollama": "/api/chat",
}
DETAILS = r"messages\[\d+\]\.reasoning_details(\[\d+\])?"
PICTURE, CONTENT = "iVBORw0KGgo", r"(messages|input)\[\d+\](\.(content|output)(\[\d+\])?)?"


@attrs.define
class Drawn:
    """A request before it is written in a dialect; `marks` has the names that cover each mark if it is lost."""

    rng: random.Random
    dialect: str
    marks: dict = attrs.field(factory=dict)
    refusable: set = attrs.field(factory=set)

    def mark(self, *names):
        """Return a text that no other part has."""
        text = f"mark{len(self.marks)}x{self.rng.randrange(10**6)}"
        self.marks[text] = re.compile("|".join(f"(?:{each})(?: \\(.*)?" for each in names), re.DOTALL)
        return text

    def is_drawn(self, share=0.5):
        return self.rng.random() < share


def text_part(drawn, text, kind="input_text"):
    return {"type": kind if drawn.dialect == "responses" else "text", "text": text}


def picture(drawn):
    data = PICTURE + drawn.mark(CONTENT)
    if drawn.dialect == "messages":
        return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    url = f"data:image/png;base64,{data}"
    if drawn.dialect == "responses":
        return {"type": "input_image", "image_url": url}
    detail = {"detail": "low"} if drawn.is_drawn() else {}
    return {"type": "image_url", "image_url": {"url": url} | detail}


def document(drawn):
    data, name = drawn.mark(CONTENT), drawn.mark(CONTENT)
    if drawn.dialect == "messages":
        source = {"type": "base64", "media_type": "application/pdf", "data": data}
        return {"type": "document", "source": source, "title": name}
    file = {"file_data": f"data:application/pdf;base64,{data}", "filename": name}
    return {"type": "input_file"} | file if drawn.dialect == "responses" else {"type": "file", "file": file}


def asked(drawn, is_newest):
    """Return the parts of a user turn."""
    parts = [text_part(drawn, drawn.mark(CONTENT))]
    if drawn.is_drawn(0.3):
        parts.append(text_part(drawn, drawn.rng.choice(["", " "])))
    if drawn.is_drawn(0.4):
        parts.append(picture(drawn))
    if drawn.is_drawn(0.3):
        parts.append(document(drawn))
        drawn.refusable |= {"file"} if is_newest else set()
    if drawn.dialect in ("chat", "messages") and drawn.is_drawn(0.3):
        parts[0]["cache_control"] = {"type": "ephemeral"}
    if drawn.dialect == "chat" and not is_newest and drawn.is_drawn(0.2):
        parts.append({"type": "video_url", "video_url": {"url": "data:" + drawn.mark(CONTENT)}})
    return parts


def turn(drawn, parts):
    if drawn.dialect != "ollama":
        return [{"role": "user", "content": parts}]
    images = [each["image_url"]["url"].partition(",")[2] for each in parts if each["type"] == "image_url"]
    texts = " ".join(each.get("text", each.get("file", {}).get("filename", "")) for each in parts)
    for each in parts:
        if each["type"] == "file":
            del drawn.marks[each["file"]["file_data"].partition(",")[2]]  # Ollama has no files
    return [{"role": "user", "content": texts} | ({"images": images} if images else {})]


def tool_name(drawn, at):
    return f"tool{at}" + "n" * drawn.rng.choice([1, 1, 70, 140])


def called(drawn, at):
    """Return the turns of a tool call and its result."""
    call_id = f"call_{at}" + "y" * drawn.rng.choice([1, 60]) + drawn.rng.choice(["", "|fc.1"])
    name, value = tool_name(drawn, at), drawn.mark(rf"messages\[\d+\]\.tool_calls.*|{CONTENT}")
    said, result = drawn.mark(CONTENT), drawn.mark(CONTENT)
    seen = [text_part(drawn, result)] + ([picture(drawn)] if drawn.dialect != "ollama" and drawn.is_drawn() else [])
    if drawn.dialect == "messages":
        use = {"type": "tool_use", "id": call_id, "name": name, "input": {"a": value}}
        thought, signature = drawn.mark(r"messages\[\d+\]\.reasoning_content"), drawn.mark(DETAILS)
        thoughts = [
            {"type": "thinking", "thinking": thought, "signature": signature if drawn.is_drawn() else ""},
            {"type": "redacted_thinking", "data": drawn.mark(DETAILS)},
        ]
        if not thoughts[0]["signature"]:
            del drawn.marks[signature]
        return [
            {"role": "assistant", "content": [*thoughts, text_part(drawn, said), use]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call_id, "content": seen}]},
        ]
    if drawn.dialect == "responses":
        return [
            {"role": "assistant", "content": [text_part(drawn, said, "output_text")]},
            {"type": "function_call", "call_id": call_id, "name": name, "arguments": json.dumps({"a": value})},
            {"type": "function_call_output", "call_id": call_id, "output": seen},
        ]
    if drawn.dialect == "ollama":
        call = {"function": {"name": name, "arguments": {"a": value}}}
        return [
            {"role": "assistant", "content": said, "tool_calls": [call]},
            {"role": "tool", "tool_name": name, "content": result},
        ]
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps({"a": value})}}
    if drawn.is_drawn(0.3):
        call = {"id": call_id, "type": "custom", "custom": {"name": name, "input": value}}
    message = {"role": "assistant", "content": said, "tool_calls": [call]}
    if drawn.is_drawn(0.3):
        signature = drawn.mark(r"messages\[\d+\]\.tool_calls\[\d+\]\.extra_content")
        call["extra_content"] = {"google": {"thought_signature": signature}}
    if drawn.is_drawn(0.3):
        detail = drawn.mark(DETAILS)
        message["reasoning_details"] = [{"type": "reasoning.encrypted", "data": detail, "index": 0}]
    return [message, {"role": "tool", "tool_call_id": call_id, "content": seen}]


def tool(drawn, at):
    name, words, member = tool_name(drawn, at), drawn.mark(r"tools\[\d+\]"), drawn.mark(r"tools\[\d+\]")
    schema = {"type": "object", "properties": {member: {"type": "string"}}}
    if drawn.dialect == "messages":
        return {"name": name, "description": words, "input_schema": schema}
    function = {"name": name, "description": words, "parameters": schema}
    if drawn.dialect == "responses":
        return {"type": "function"} | function
    if drawn.dialect == "chat" and drawn.is_drawn(0.3):
        grammar = {"type": "grammar", "grammar": {"syntax": "lark", "definition": member}}
        return {"type": "custom", "custom": {"name": name, "description": words, "format": grammar}}
    strict = {"strict": True} if drawn.is_drawn(0.3) else {}
    return {"type": "function", "function": function | strict}


def choice_of(drawn, tools):
    """Return a choice; only chat completions force custom tools and allow a part of the tools."""
    if re.search("n{60}", json.dumps(tools)):
        drawn.refusable.add("long name")
    chosen = drawn.rng.choice(tools)
    if drawn.dialect == "messages":
        return drawn.rng.choice([{"type": "auto"}, {"type": "any"}, {"type": "tool", "name": chosen["name"]}])
    if drawn.dialect == "responses":
        return drawn.rng.choice(["auto", "required", {"type": "function", "name": chosen["name"]}])
    drawn.refusable.add("tool")
    kind = chosen["type"]
    named = {"type": kind, kind: {"name": chosen[kind]["name"]}}
    allowed = {"mode": drawn.rng.choice(["auto", "required"]), "tools": [named]}
    return drawn.rng.choice(["auto", "required", named, {"type": "allowed_tools", "allowed_tools": allowed}])


def drawn_request(dialect, rng):
    """Return a request in a dialect, and what it has."""
    drawn = Drawn(rng, dialect)
    turns = turn(drawn, asked(drawn, is_newest=False))
    for at in range(rng.randrange(3)):
        turns += called(drawn, at)
    turns += [{"role": "assistant", "content": drawn.mark(CONTENT)}, *turn(drawn, asked(drawn, is_newest=True))]
    if dialect == "ollama":
        options = {"temperature": rng.choice([0.2, 1.2, 1.7]), "stop": [drawn.mark("stop.*")]}
        body = {"model": "m", "messages": turns, "options": options}
    else:
        body = {"model": "m", "input" if dialect == "responses" else "messages": turns}
        body["temperature"] = rng.choice([0.2, 1.2, 1.7, 2.5])
        user = drawn.mark("user") + "z" * rng.choice([9, 110, 300])
        body |= {"max_tokens": 9, "metadata": {"user_id": user}} if dialect == "messages" else {"user": user}
        if dialect != "responses":
            stops = [drawn.mark(r"stop(\[\d+\])?") for _ in range(rng.choice([1, 6]))]
            body["stop_sequences" if dialect == "messages" else "stop"] = stops
    tools = [tool(drawn, at) for at in range(rng.randrange(3))]
    if tools:
        body["tools"] = tools
        if dialect != "ollama" and drawn.is_drawn():
            body["tool_choice"] = choice_of(drawn, tools)
    return body, drawn


def parts_of(value):
    """Yield all objects in a value."""
    for each in value.values() if isinstance(value, dict) else value:
        if isinstance(each, dict | list):
            yield from parts_of(each)
    if isinstance(value, dict):
        yield value


def check_taken(sent, name):
    """Check what the receiver would refuse."""
    assert sent.get("temperature", 0) <= HOTTEST.get(name, 2)
    user = sent.get("user") or sent.get("metadata", {}).get("user_id") or ""
    assert len(user) <= LONGEST_USER.get(name, 64)
    blank = [each for each in parts_of(sent) if each.get("type") == "text" and not each.get("text", "x").strip()]
    assert not blank or name != "anthropic"
    has_marks = any("cache_control" in each for each in parts_of(sent))
    assert not has_marks or name in ("anthropic", "litellm", "openrouter", *ENGINES)
    names = [str(each["name"]) for each in parts_of(sent) if "name" in each]
    assert all(len(each) <= LONGEST_NAME.get(name, 64) for each in names)
    assert name not in WITHOUT_STRICT or not any("strict" in each for each in parts_of(sent.get("tools", [])))
    kinds = {each.get("type") for each in sent.get("tools", ())}
    assert "custom" not in kinds or name in WITH_CUSTOM_TOOLS
    if name == "llama.cpp":
        assert isinstance(sent.get("tool_choice", ""), str)
    for message in sent["messages"] if name not in WITH_PICTURES_IN_RESULTS else ():
        has_picture = isinstance(message["content"], list) and any(e["type"] != "text" for e in message["content"])
        assert message["role"] != "tool" or not has_picture
    calls = {
        one["id"] for one in parts_of(sent) if "id" in one and ("function" in one or "custom" in one or "input" in one)
    }
    results = {one.get("tool_call_id") or one.get("tool_use_id") for one in parts_of(sent)} - {None}
    assert results == calls
    assert all(re.fullmatch(IDS.get(name, ".+"), each) for each in calls)


def is_refusable(drawn, body, name):
    """Return whether the request depends on what the receiver does not take."""
    has_custom = any(each.get("type") == "custom" for each in body.get("tools", ()))
    needs_tool = "tool" in drawn.refusable and has_custom and name not in WITH_CUSTOM_TOOLS
    needs_tool = needs_tool or ("long name" in drawn.refusable and LONGEST_NAME.get(name, 64) < 999)
    return needs_tool or ("file" in drawn.refusable and name not in WITH_FILES)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("dialect", PATHS)
def test_a_part_is_whole_or_translated_or_named(dialect, name):
    """A request is refused only for a tool that it forces, or for a part of its newest turn."""
    rng, answered = random.Random(f"{dialect} {name}"), 0
    for _ in range(PROVIDER_REQUESTS):
        body, drawn = drawn_request(dialect, rng)
        try:
            translated = translated_request(PATHS[dialect], json.loads(json.dumps(body)))
            check_types(translated.body)
            built = rebuild(translated.path, translated.body, BACKENDS[name])
        except DialectError as error:
            if not is_refusable(drawn, body, name):
                pytest.fail(f"{error}: {body}")
            continue
        answered += 1
        text, dropped = built.body.decode(), (*translated.dropped, *built.dropped)
        check_taken(json.loads(text), name)
        kind = choice["type"] if isinstance(choice := body.get("tool_choice"), dict) else ""
        is_left_out = name not in WITH_CUSTOM_TOOLS or "long name" in drawn.refusable
        is_allowed = kind == "allowed_tools" and is_left_out
        narrowed = is_allowed or (bool(kind) and name == "llama.cpp")  # other tools may not be called
        lost = [mark for mark in drawn.marks if mark not in text]
        for mark in lost:
            covered = any(drawn.marks[mark].fullmatch(each) for each in dropped)
            is_unusable = narrowed and drawn.marks[mark].fullmatch("tools[0]")
            assert covered or is_unusable, (mark, lost, dropped, body, text)
        if built.dropped == () and name in ENGINES and not narrowed:
            assert not lost
    assert answered
