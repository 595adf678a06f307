"""What providers get of requests that they would refuse, through a router; the rest is named in the audit log."""

import json

import pytest

from router.proxy import router_lab as rl
from router.proxy.test_provider_shapes import block_message, events_of

PIXEL = "data:image/png;base64,iVBORw0KGgo="
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
PICTURE = {"type": "image_url", "image_url": {"url": PIXEL}}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}
CUSTOM = {"type": "custom", "custom": {"name": "c", "format": {"type": "text"}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CLAUDE_ANSWER = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "yes"}], "usage": {}}
HI = {"role": "user", "content": "hi"}
SPLIT = "\ud83d"


async def sent_to(host, body, path=rl.CHAT, answer=rl.ANSWER, **changes):
    """Return what the provider at a host gets of a request, and the names of what was left out."""
    backend = rl.cloud("p", base_url=f"http://{host}/v1", **changes)
    async with rl.open_lab(rl.config_of(backend), {host: rl.Player((rl.answer(body=answer),))}) as lab:
        response = await lab.ask(body, path)
        assert response.status == 200, response.body
        (asked,) = lab.players[host].bodies
        return asked, lab.audit[0].get("droppedFields") or []


async def claude(body, path=rl.CHAT):
    return await sent_to("a", body, path, CLAUDE_ANSWER, provider="anthropic", dialect="anthropic")


async def test_a_long_user_is_left_out():
    """OpenAI takes 64 characters, Anthropic 256."""
    message = rl.MESSAGE | {"metadata": {"user_id": "u" * 121}}
    asked, dropped = await sent_to("p", message, "/v1/messages")
    assert ("user" in asked, dropped) == (False, ["user"])
    asked, dropped = await claude(message, "/v1/messages")
    assert (asked["metadata"], dropped) == ({"user_id": "u" * 121}, [])


async def test_numbers_out_of_range_are_left_out():
    """The provider's default applies."""
    asked, dropped = await claude(rl.ASKED | {"temperature": 1.7, "stop": ["END", " "]})
    assert ("temperature" in asked, asked["stop_sequences"], dropped) == (False, ["END"], ["temperature", "stop[1]"])
    asked, dropped = await sent_to("p", rl.ASKED | {"temperature": 1.7, "stop": list("abcde")})
    assert (asked["temperature"], "stop" in asked, dropped) == (1.7, False, ["stop"])


async def test_cache_marks_go_to_those_who_read_them():
    """OpenAI refuses them."""
    part = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}
    message = rl.MESSAGE | {"messages": [{"role": "user", "content": [part]}]}
    asked, dropped = await sent_to("p", message, "/v1/messages")
    assert asked["messages"][0]["content"] == [{"type": "text", "text": "hi"}]
    assert dropped == ["messages[0].content[0].cache_control"]
    assert (await claude(message, "/v1/messages"))[0]["messages"][0]["content"] == [part]


async def test_anthropic_gets_no_empty_text():
    """A turn without any text is left out."""
    texts = [{"type": "text", "text": text} for text in ("", "hi")]
    turns = [{"role": "system", "content": " "}, {"role": "user", "content": texts}]
    asked, dropped = await claude({"model": "m", "messages": turns})
    assert asked["messages"] == [{"role": "user", "content": [texts[1]]}]
    assert (dropped, "system" in asked) == (["messages[0].content", "messages[1].content[0]"], False)


async def test_a_picture_of_a_result_is_sent_in_the_user_turn_after_it():
    """OpenAI's tool messages are texts."""
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "seen"}, IMAGE]}
    use = {"type": "tool_use", "id": "t1", "name": "f", "input": {}}
    turns = [HI, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    asked, dropped = await sent_to("p", rl.MESSAGE | {"messages": turns}, "/v1/messages")
    tool, user = asked["messages"][2:]
    assert [each["text"] for each in tool["content"]] == ["seen", "[in the next user message]"]
    assert (user, dropped) == ({"role": "user", "content": [PICTURE]}, [])


async def test_a_part_that_a_provider_does_not_take_is_named():
    """In earlier turns a text is sent in its place; a request about it is refused."""
    sound = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    old = {"role": "user", "content": [sound, {"type": "text", "text": "hear"}]}
    asked, dropped = await claude({"model": "m", "messages": [old, {"role": "assistant", "content": "ok"}, HI]})
    assert [each["text"] for each in asked["messages"][0]["content"]] == ["[left out: input_audio]", "hear"]
    assert dropped == ["messages[0].content[0]"]
    backend = rl.cloud("p", base_url="http://a/v1")
    unknown = {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}
    async with rl.open_lab(rl.config_of(backend), a=rl.answer()) as lab:
        response = await lab.ask({"model": "m", "messages": [{"role": "user", "content": [unknown]}]})
        assert (response.status, lab.players["a"].bodies) == (400, [])
    assert b"messages[0].content[0].type is 'video_url'" in response.body


@pytest.mark.parametrize("host", ["p", "api.mistral.ai"])
async def test_custom_tools_are_whole_or_left_out(host):
    """OpenAI has them, Mistral only functions. Without the choice, allowed tools are the only ones."""
    named = {"type": "function", "function": {"name": "f"}}
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}}
    body = rl.ASKED | {"tools": [CUSTOM, FUNCTION], "tool_choice": choice}
    asked, dropped = await sent_to(host, body)
    if host == "p":
        assert (asked["tools"], asked["tool_choice"], dropped) == ([CUSTOM, FUNCTION], choice, [])
    else:
        assert (asked["tools"], asked["tool_choice"], dropped) == ([FUNCTION], "required", ["tools[0]"])


async def test_llama_cpp_is_forced_to_the_named_function():
    """It reads such a choice as `auto`, so it gets this tool only."""
    other = {"type": "function", "function": {"name": "g"}}
    body = rl.ASKED | {"tools": [other, FUNCTION], "tool_choice": {"type": "function", "function": {"name": "f"}}}
    async with rl.open_lab(rl.config_of(rl.local("mac", slots=1)), mac=rl.answer()) as lab:
        assert (await lab.ask(body)).status == 200
        (asked,) = lab.players["mac"].bodies
    assert (asked["tools"], asked["tool_choice"]) == ([FUNCTION], "required")


async def test_names_and_ids_have_the_form_of_each_provider():
    """Mistral refuses unknown fields, and IDs of other lengths; a result keeps the ID of its call."""
    turns = [
        HI,
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "r"},
    ]
    body = {
        "model": "m",
        "messages": turns,
        "seed": 3,
        "max_completion_tokens": 5,
        "logit_bias": {"1": 2},
        "stream": True,
    }
    host = "api.mistral.ai"
    backend = rl.cloud("p", base_url=f"http://{host}/v1")
    stream = rl.stream(rl.piece("a", "stop"), rl.DONE)
    async with rl.open_lab(rl.config_of(backend), {host: rl.Player((stream,))}) as lab:
        assert (await lab.read(body))[0] == 200
        (asked,) = lab.players[host].bodies
    (call,), result = asked["messages"][1]["tool_calls"], asked["messages"][2]
    assert call["id"] == result["tool_call_id"]
    assert len(call["id"]) == 9
    assert (asked["random_seed"], asked["max_tokens"], "stream_options" in asked) == (3, 5, False)
    assert lab.audit[0]["droppedFields"] == ["logit_bias"]


async def test_thoughts_go_back_to_the_provider_that_wrote_them():
    """Gemini's signatures, OpenRouter's details; OpenAI gets neither."""
    google = {"google": {"thought_signature": "sig"}}
    details = [{"type": "reasoning.encrypted", "data": "x", "index": 0}]
    said = {"role": "assistant", "tool_calls": [CALL | {"extra_content": google}], "reasoning_details": details}
    body = {"model": "m", "messages": [HI, said, {"role": "tool", "tool_call_id": "call_1", "content": "r"}]}
    for host, names in {
        "generativelanguage.googleapis.com": ["messages[1].reasoning_details"],
        "openrouter.ai": ["messages[1].tool_calls[0].extra_content"],
        "p": [],
        "api.openai.com": ["messages[1].tool_calls[0].extra_content", "messages[1].reasoning_details"],
    }.items():
        asked, dropped = await sent_to(host, body)
        turn = asked["messages"][1]
        assert dropped == names
        assert turn["tool_calls"][0].get("extra_content") == (
            None if any("extra" in each for each in names) else google
        )
        assert turn.get("reasoning_details") == (None if any("reasoning" in each for each in names) else details)


THOUGHTS = [
    {"type": "thinking", "thinking": "hm, so", "signature": "sig1"},
    {"type": "redacted_thinking", "data": "secret"},
    {"type": "thinking", "thinking": "", "signature": "sig2"},
]
CLAUDE_BLOCKS = [*THOUGHTS, {"type": "text", "text": "yes"}, {"type": "tool_use", "id": "t", "name": "f", "input": {}}]
THINKING = {"thinking": {"type": "enabled", "budget_tokens": 1024}}


def claude_stream():
    """Return the stream of an answer in pieces."""
    events = [{"type": "message_start", "message": CLAUDE_ANSWER | {"id": "x", "model": "c", "content": []}}]
    for at, block in enumerate(CLAUDE_BLOCKS):
        empty = block | {name: "" for name in ("thinking", "signature", "text") if name in block}
        events.append({"type": "content_block_start", "index": at, "content_block": empty})
        for name in ("thinking", "signature", "text"):
            pieces = [each for each in (block.get(name, "")[:3], block.get(name, "")[3:]) if each]
            pieces = ["".join(pieces)] if name == "signature" and pieces else pieces
            events += [
                {"type": "content_block_delta", "index": at, "delta": {"type": f"{name}_delta", name: each}}
                for each in pieces
            ]
        events.append({"type": "content_block_stop", "index": at})
    events += [{"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {}}, {"type": "message_stop"}]
    return b"".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in events)


def chat_turn(chunks):
    """Add up the chunks of an answer, without joining the details of its thoughts."""
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    return {
        "role": "assistant",
        "content": "".join(each.get("content") or "" for each in deltas),
        "tool_calls": [CALL | {"id": "t"}],
        "reasoning_details": [one for each in deltas for one in each.get("reasoning_details", ())],
    }


@pytest.mark.parametrize("path", ["/v1/messages", rl.CHAT])
@pytest.mark.parametrize("streams", [True, False])
async def test_signed_thoughts_of_anthropic_come_back_whole(path, streams):
    """Clients of messages and of chat completions get them with signatures, which Anthropic gets in the next turn."""
    backend = rl.cloud("p", base_url="http://a/v1", provider="anthropic", dialect="anthropic")
    first = rl.stream(claude_stream()) if streams else rl.answer(body=CLAUDE_ANSWER | {"content": CLAUDE_BLOCKS})
    player = rl.Player((first, rl.answer(body=CLAUDE_ANSWER)))
    is_chat, result = path == rl.CHAT, {"type": "tool_result", "tool_use_id": "t", "content": "r"}
    async with rl.open_lab(rl.config_of(backend), {"a": player}) as lab:
        asked = {"model": "m", "max_tokens": 2048, "messages": [HI], "stream": streams} | ({} if is_chat else THINKING)
        answer = await lab.ask(asked, path)
        assert answer.status == 200
        if is_chat:
            found = chat_turn(events_of(answer.body)) if streams else json.loads(answer.body)["choices"][0]["message"]
            turns = [found, {"role": "tool", "tool_call_id": "t", "content": "r"}]
        else:
            found = block_message(events_of(answer.body)) if streams else json.loads(answer.body)
            assert found["content"] == CLAUDE_BLOCKS
            turns = [{"role": "assistant", "content": found["content"]}, {"role": "user", "content": [result]}]
        assert (await lab.ask(asked | {"messages": [HI, *turns], "stream": False}, path)).status == 200
        dropped = lab.audit[1].get("droppedFields") or []
    assert [each.get("thinking") for each in player.bodies] == [None if is_chat else THINKING["thinking"]] * 2
    assert player.bodies[1]["messages"][1]["content"] == CLAUDE_BLOCKS
    assert [each for each in dropped if "refusal" not in each] == []


@pytest.mark.parametrize(
    ("blocks", "names"),
    [
        ([{"type": "thinking", "thinking": "hm", "signature": ""}], ["messages[1].reasoning_content"]),
        (THOUGHTS, []),
    ],
)
async def test_anthropic_gets_no_thought_without_a_signature(blocks, names):
    """It is of an engine or of another provider, and Anthropic refuses it."""
    answer = {"role": "assistant", "content": [*blocks, {"type": "text", "text": "yes"}]}
    asked, dropped = await claude(rl.MESSAGE | {"messages": [HI, answer, HI]}, "/v1/messages")
    assert (asked["messages"][1]["content"], dropped) == ([*([] if names else blocks), answer["content"][-1]], names)


async def test_signed_thoughts_are_translated_for_others_and_the_rest_is_named():
    """Engines get the text; OpenRouter returns details to Anthropic; OpenAI takes neither."""
    body = rl.MESSAGE | THINKING | {"messages": [HI, {"role": "assistant", "content": CLAUDE_BLOCKS[:-1]}, HI]}
    for host, names in {
        "openrouter.ai": ["thinking"],
        "api.openai.com": ["thinking", "messages[1].reasoning_content", "messages[1].reasoning_details"],
    }.items():
        asked, dropped = await sent_to(host, body, "/v1/messages")
        assert (dropped, "thinking" in asked) == (names, False)
        assert ("reasoning_details" in asked["messages"][1]) == (host == "openrouter.ai")
    async with rl.open_lab(rl.config_of(rl.local("e")), {"e": rl.Player((rl.answer(),))}) as lab:
        assert (await lab.ask(body, "/v1/messages")).status == 200
        (asked,) = lab.players["e"].bodies
        assert asked["messages"][1] == {"role": "assistant", "content": "yes", "reasoning_content": "hm, so"}
        assert lab.audit[0]["droppedFields"] == ["thinking", "messages[1].reasoning_details"]


async def test_a_signature_survives_a_client_that_keeps_only_ids():
    """A client of messages returns the ID of a call; Gemini gets the signature from it, others the ID without it."""
    signed = CALL | {"extra_content": {"google": {"thought_signature": "a+/b=="}}}
    choice = {"index": 0, "message": {"role": "assistant", "tool_calls": [signed]}, "finish_reason": "tool_calls"}
    hosts = ("generativelanguage.googleapis.com", "p")
    first, then = rl.ANSWER | {"choices": [choice]}, rl.answer()
    for host in hosts:
        backend = rl.cloud("p", base_url=f"http://{host}/v1")
        async with rl.open_lab(rl.config_of(backend), {host: rl.Player((rl.answer(body=first), then))}) as lab:
            (use,) = json.loads((await lab.ask(rl.MESSAGE, "/v1/messages")).body)["content"]
            result = {"type": "tool_result", "tool_use_id": use["id"], "content": "r"}
            turns = [HI, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
            await lab.ask(rl.MESSAGE | {"messages": turns}, "/v1/messages")
            _, said, tool = lab.players[host].bodies[1]["messages"]
        (call,) = said["tool_calls"]
        assert (call["id"], tool["tool_call_id"]) == ("call_1", "call_1")
        assert call.get("extra_content") == (signed["extra_content"] if host == hosts[0] else None)


async def test_text_parts_of_embeddings_are_sent_as_texts():
    """Nothing else is; a request without its input makes no sense."""
    parts = [{"type": "text", "text": "a"}, "b"]
    asked, _ = await sent_to("p", {"model": "m", "input": parts}, "/v1/embeddings", {"data": []})
    assert asked["input"] == ["a", "b"]
    async with rl.open_lab(rl.config_of(rl.cloud("p")), p=rl.answer()) as lab:
        response = await lab.ask({"model": "m", "input": [PICTURE]}, "/v1/embeddings")
        assert (response.status, lab.players["p"].bodies) == (400, [])
    assert b"input has a part that is more than a text" in response.body


@pytest.mark.parametrize("host", ["p", "a"])
async def test_half_a_character_is_replaced(host):
    """Clients cut texts within a character; no backend reads such JSON."""
    changes = {"provider": "anthropic", "dialect": "anthropic"} if host == "a" else {}
    arguments = json.dumps({"text": f"x{SPLIT}"})
    call = CALL | {"function": {"name": "f", "arguments": arguments}}
    turns = [{"role": "user", "content": f"cut {SPLIT}"}, {"role": "assistant", "tool_calls": [call]}]
    body = {"model": "m", "messages": [*turns, {"role": "tool", "tool_call_id": "call_1", "content": "\U0001f600"}]}
    asked, _ = await sent_to(host, body, answer=CLAUDE_ANSWER if host == "a" else rl.ANSWER, **changes)
    text = json.dumps(asked, ensure_ascii=False)
    assert "cut \ufffd" in text
    assert "\U0001f600" in text
    assert SPLIT not in text
