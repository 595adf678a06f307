"""Random requests and answers that both dialects can express."""

from hypothesis import strategies as st

WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=12).filter(str.strip)
NAMES = st.from_regex(r"[a-z]{1,8}", fullmatch=True)
INPUTS = st.dictionaries(NAMES, st.none() | st.booleans() | st.integers(-9, 9) | WORDS, max_size=3)
TEXT = st.builds(lambda text: {"type": "text", "text": text}, WORDS)
IMAGE = st.builds(
    lambda kind, data: {"type": "image", "source": {"type": "base64", "media_type": f"image/{kind}", "data": data}},
    st.sampled_from(["png", "jpeg"]),
    st.from_regex(r"[A-Za-z0-9+/]{4,12}", fullmatch=True),
)
DOCUMENT = st.builds(
    lambda title: {
        "type": "document",
        "title": title,
        "source": {"type": "base64", "media_type": "application/pdf", "data": "AAAA"},
    },
    NAMES,
)
CACHED = st.booleans().flatmap(
    lambda is_cached: TEXT.map(lambda one: one | ({"cache_control": {"type": "ephemeral"}} if is_cached else {}))
)
CALL = st.builds(lambda name, given: {"type": "tool_use", "id": "c1", "name": name, "input": given}, NAMES, INPUTS)
RESULT = st.builds(lambda text: {"type": "tool_result", "tool_use_id": "c1", "content": text}, WORDS)
ASKED = st.lists(CACHED | IMAGE | DOCUMENT, min_size=1, max_size=3)
THOUGHTS = st.lists(
    st.builds(lambda text, name: {"type": "thinking", "thinking": text, "signature": name}, st.just("") | WORDS, NAMES)
    | st.builds(lambda name: {"type": "redacted_thinking", "data": name}, NAMES),
    max_size=3,
)
CALLED = st.builds(
    lambda thoughts, texts, calls, results, more: [
        {"role": "assistant", "content": [*thoughts, *texts, *calls]},
        {"role": "user", "content": [*results, *more]},
    ],
    THOUGHTS,
    st.lists(TEXT, max_size=1),
    st.lists(CALL, min_size=1, max_size=2),
    st.lists(RESULT, min_size=1, max_size=2),
    st.lists(TEXT, max_size=2),
)
SAID = st.builds(
    lambda thoughts, text, asked: [
        {"role": "assistant", "content": [*thoughts, text]},
        {"role": "user", "content": asked},
    ],
    THOUGHTS,
    TEXT,
    ASKED,
)
TURNS = st.builds(
    lambda first, more: [{"role": "user", "content": first}, *[turn for pair in more for turn in pair]],
    ASKED,
    st.lists(CALLED | SAID, max_size=3),
)
TOOL = st.builds(
    lambda name, words: {"name": name, "description": words, "input_schema": {"type": "object", "properties": {}}},
    NAMES,
    WORDS,
)
CHOICE = st.sampled_from(
    [
        {"type": "auto"},
        {"type": "any"},
        {"type": "none"},
        {"type": "tool", "name": "f"},
        {"type": "auto", "disable_parallel_tool_use": True},
    ]
)


@st.composite
def messages_requests(draw):
    """Draw a Messages request."""
    body = {"model": draw(NAMES), "max_tokens": draw(st.integers(1, 9999)), "messages": draw(TURNS)}
    optional = {
        "system": WORDS,
        "temperature": st.floats(0, 1),
        "top_p": st.floats(0, 1),
        "top_k": st.integers(1, 99),
        "stop_sequences": st.lists(WORDS, min_size=1, max_size=2),
        "stream": st.booleans(),
        "metadata": st.builds(lambda name: {"user_id": name}, NAMES),
    }
    body |= {name: draw(each) for name, each in optional.items() if draw(st.booleans())}
    if draw(st.booleans()):
        body["tools"] = draw(st.lists(TOOL, min_size=1, max_size=2))
        if draw(st.booleans()):
            body["tool_choice"] = draw(CHOICE)
    return body


@st.composite
def chat_answers(draw):
    """Draw a whole chat completion."""
    calls = [
        {
            "id": f"c{at}",
            "type": "function",
            "function": {"name": draw(NAMES), "arguments": draw(st.sampled_from(["{}", '{"a":1}', '{"b":"x"}']))},
        }
        for at in range(draw(st.integers(0, 2)))
    ]
    text = draw(st.none() | WORDS) if calls else draw(WORDS)
    message = {"role": "assistant", "content": text, "refusal": None}
    if draw(st.booleans()):
        message["reasoning_content"] = draw(WORDS)
    if calls:
        message["tool_calls"] = calls
    reason = "tool_calls" if calls else draw(st.sampled_from(["stop", "length", "content_filter"]))
    prompt, answer = draw(st.integers(0, 99)), draw(st.integers(0, 99))
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
        "prompt_tokens_details": {"cached_tokens": draw(st.integers(0, prompt))},
    }
    return {
        "id": "x",
        "choices": [{"index": 0, "message": message, "finish_reason": reason, "logprobs": None}],
        "usage": usage,
    }


def cut(text, at):
    """Return two pieces of a text."""
    return [piece for piece in (text[: at % (len(text) + 1)], text[at % (len(text) + 1) :]) if piece]


def chunks_of(answer, at):
    """Return the stream events of a whole answer."""
    (choice,) = answer["choices"]
    message = choice["message"]
    deltas = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": piece} for piece in cut(message.get("reasoning_content") or "", at)]
    deltas += [{"content": piece} for piece in cut(message["content"] or "", at)]
    for index, call in enumerate(message.get("tool_calls", [])):
        named = {"name": call["function"]["name"], "arguments": ""}
        deltas.append({"tool_calls": [{"index": index, "id": call["id"], "type": "function", "function": named}]})
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
            for piece in cut(call["function"]["arguments"], at)
        ]
    events = [{"id": "x", "choices": [{"index": 0, "delta": each, "finish_reason": None}]} for each in deltas]
    events.append({"id": "x", "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]})
    return [*events, {"id": "x", "choices": [], "usage": answer["usage"]}]


def joined(chunks):
    """Return the whole answer of a stream."""
    message = {"role": "assistant", "content": None, "refusal": None}
    calls, reason, usage = {}, None, None
    for chunk in chunks:
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            reason = choice["finish_reason"] or reason
            for name in ("content", "reasoning_content"):
                if choice["delta"].get(name):
                    message[name] = (message.get(name) or "") + choice["delta"][name]
            for call in choice["delta"].get("tool_calls", []):
                known = calls.setdefault(call["index"], {"id": call.get("id"), "type": "function", "function": {}})
                function = known["function"]
                for name, piece in call["function"].items():
                    function[name] = function.get(name, "") + piece
    if calls:
        message["tool_calls"] = list(calls.values())
    choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
    return {"id": "x", "choices": [choice], "usage": usage}
