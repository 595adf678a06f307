"""Requests of clients such as Claude Code and Codex, through a router and the gateway, to engines and to Anthropic."""

import json
from functools import partial

import pytest

from llmkube.base.http.message import Response
from router.proxy import router_lab as rl
from router.proxy.test_default_route import Engine, open_world

CLAUDE = rl.cloud("claude", provider="anthropic", dialect="anthropic")
LLAMA = rl.local("mac", model_digest="sha256:x")
ANSWERED = {"content": [{"type": "text", "text": "yes"}], "stop_reason": "end_turn", "usage": {}}
BILLING = "x-anthropic-billing-header: cc_version=2.1; cch=%s;"
PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}}
CALL = {"type": "tool_use", "id": "c1", "name": "read", "input": {}}
SEEN = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "a.png"}, PNG]}
TURNS = [
    {"role": "user", "content": "one"},
    {"role": "system", "content": "be brief"},
    {"role": "assistant", "content": [CALL]},
    {"role": "system", "content": "two files"},
    {"role": "user", "content": [SEEN | {"content": "x"}, {"type": "text", "text": "two"}]},
]


def claude_code(value, *turns):
    """Return a request as Claude Code writes it."""
    system = [{"type": "text", "text": BILLING % value}, {"type": "text", "text": "you code"}]
    return rl.MESSAGE | {"system": system, "messages": [*turns]}


async def asked_engine(config, path, *bodies):
    """Return what the first backend gets, and the fields that the router left out."""
    script = rl.answer(body=ANSWERED) if config is CLAUDE else rl.answer()
    async with rl.open_lab(rl.config_of(config), **{config.name: script}) as lab:
        for body in bodies:
            answer = await lab.ask(body, path)
            assert answer.status == 200, answer.body
        return lab.players[config.name].bodies, [line.get("droppedFields", []) for line in lab.audit]


async def asked_gateway(path, body, engine=None):
    """Return the answer of the gateway, and what its engine gets."""
    engine = engine or Engine()
    async with open_world(engine) as world:
        return await world.ask(path, body | {"model": "chat"}), [json.loads(each) for _, _, each in engine.asked]


class Refusing(Engine):
    """An engine that refuses requests with a word in them."""

    def __init__(self, word, status, error):
        super().__init__()
        self.word, self.status, self.error = word, status, error

    async def handle(self, exchange):
        if self.word in exchange.body:
            self.asked.append((exchange.request.path, None, exchange.body))
            await exchange.respond(Response.json(self.status, {"error": self.error}))
        else:
            await super().handle(exchange)


MERGED = [
    {"role": "system", "content": [{"type": "text", "text": "you code"}]},
    {"role": "user", "content": "one\n\nbe brief"},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "x"},
    {"role": "user", "content": [{"type": "text", "text": "two files"}, {"type": "text", "text": "two"}]},
]  # fmt: skip


async def test_a_later_system_turn_is_a_part_of_a_user_turn():
    """For engines, whose templates would raise an error; the beginning of the prompt is the same in each request."""
    requests = [claude_code("1", *TURNS[:2]), claude_code("2", *TURNS)]
    (first, second), dropped = await asked_engine(LLAMA, "/v1/messages", *requests)
    assert second["messages"] == MERGED
    assert first["messages"] == MERGED[:2]
    assert dropped == [["messages[0].content (x-anthropic-billing-header)"]] * 2
    _, (sent,) = await asked_gateway("/v1/messages", requests[1])
    assert sent["messages"] == MERGED


async def test_anthropic_gets_system_turns_and_billing_where_they_are():
    """It reads both."""
    (sent,), _ = await asked_engine(CLAUDE, "/v1/messages", claude_code("1", *TURNS))
    assert [turn["role"] for turn in sent["messages"]] == [turn["role"] for turn in TURNS]
    assert sent["messages"][1]["content"] == [{"type": "text", "text": "be brief"}]
    assert sent["system"][0]["text"] == BILLING % "1"


CODEX = [
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "first"},
    {"role": "developer", "content": "plan mode"},
]


@pytest.mark.parametrize("path", [rl.CHAT, "/v1/responses"])
async def test_a_developer_turn_at_the_end_is_a_user_turn(path):
    """The gateway changes it in a chat, too, in which every other byte reaches the engine as it was."""
    body = {"input": CODEX} if path == "/v1/responses" else {"messages": CODEX, "odd": 1}
    (sent,), _ = await asked_engine(LLAMA, path, body | {"model": "m"})
    _, (passed,) = await asked_gateway(path, body)
    for each in (sent, passed):
        assert [turn["role"] for turn in each["messages"]] == ["user", "assistant", "user"]
        assert each["messages"][2]["content"] == "plan mode"
    assert passed.get("odd") == body.get("odd")


HISTORY = [
    {"role": "user", "content": [{"type": "text", "text": "find"}, {"type": "video", "source": {}}]},
    {"role": "assistant", "content": [
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []},
        {"type": "text", "text": "found"}, CALL]},
    {"role": "user", "content": [SEEN | {"content": [{"type": "tool_reference", "tool_name": "read"}]}]},
    {"role": "assistant", "content": [{"type": "server_tool_use", "id": "s2", "name": "web_search", "input": {}}]},
    {"role": "user", "content": "next"},
]  # fmt: skip
SEARCH = {"type": "web_search_20250305", "name": "web_search"}
CUSTOM = {"name": "read", "input_schema": {"type": "object"}, "strict": True, "defer_loading": True}


async def test_what_anthropic_runs_is_left_out_and_named():
    """The other tools, and the rest of the history, reach the engine."""
    body = rl.MESSAGE | {"messages": HISTORY, "tools": [SEARCH, CUSTOM, {"type": "mcp_toolset"}]}
    (sent,), (dropped,) = await asked_engine(LLAMA, "/v1/messages", body)
    assert [each["function"]["name"] for each in sent["tools"]] == ["read"]
    assert sent["tools"][0]["function"]["strict"] is True
    assert [(turn["role"], turn["content"]) for turn in sent["messages"]] == [
        ("user", [{"type": "text", "text": "find"}]), ("assistant", "found"), ("tool", ""), ("assistant", ""),
        ("user", "next"),
    ]  # fmt: skip
    assert dropped == [
        "messages[0].content[1] ('video')", "messages[1].content[0] ('server_tool_use')",
        "messages[1].content[1] ('web_search_tool_result')", "messages[2].content[0].content[0] ('tool_reference')",
        "messages[3].content[0] ('server_tool_use')", "tools[0] ('web_search_20250305')", "tools[1].defer_loading",
        "tools[2] ('mcp_toolset')",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("choice", "tools", "status"),
    [
        ({"type": "tool", "name": "web_search"}, [SEARCH, CUSTOM], 400),
        ({"type": "any"}, [SEARCH], 400),
        ({"type": "any"}, [SEARCH, CUSTOM], 200),
        ({"type": "auto"}, [SEARCH], 200),
        ({"type": "tool", "name": "read"}, [SEARCH, CUSTOM], 200),
    ],
)
async def test_only_a_forced_tool_of_anthropic_s_is_an_error(choice, tools, status):
    """A choice without tools is left out with them."""
    async with rl.open_lab(rl.config_of(LLAMA), mac=rl.answer()) as lab:
        answer = await lab.ask(rl.MESSAGE | {"tools": tools, "tool_choice": choice}, "/v1/messages")
        assert answer.status == status
        assert status == 200 or "tool_choice forces" in json.loads(answer.body)["error"]["message"]
        assert all(("tools" in each) == ("tool_choice" in each) for each in lab.players["mac"].bodies)


@pytest.mark.parametrize(
    ("kind", "member", "choices", "others"),
    [
        ("bash_20250124", "command", None, {"restart"}),
        ("text_editor_20250124", "command", {"view", "create", "str_replace", "insert", "undo_edit"}, {"new_str"}),
        ("text_editor_20250728", "command", {"view", "create", "str_replace", "insert"}, {"insert_text", "view_range"}),
        ("memory_20250818", "command", {"view", "create", "str_replace", "insert", "delete", "rename"}, {"old_path"}),
        ("computer_20251124", "action", None, {"coordinate", "region", "scroll_direction"}),
    ],
)
async def test_tools_that_clients_run_have_their_published_schemas(kind, member, choices, others):
    """Their descriptions have the sizes that the client gives."""
    tool = {"type": kind, "name": "it", "display_width_px": 1024}
    (sent,), (dropped,) = await asked_engine(LLAMA, "/v1/messages", rl.MESSAGE | {"tools": [tool]})
    function = sent["tools"][0]["function"]
    properties = function["parameters"]["properties"]
    assert choices is None or set(properties[member]["enum"]) == choices
    assert {member, *others} <= set(properties)
    assert (function["name"], "display_width_px: 1024" in function["description"], dropped) == ("it", True, [])


BLIND = "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj"


@pytest.mark.parametrize("status", [400, 500])
async def test_an_earlier_picture_is_a_text_for_an_engine_without_vision(status):
    """A picture in the newest turn of the user stays an error."""
    seen = [*TURNS[:1], {"role": "assistant", "content": [CALL]}, {"role": "user", "content": [SEEN]}]
    shown = [{"role": "user", "content": [{"type": "text", "text": "see"}, PNG]}]
    make = partial(Refusing, b"image_url", status, {"message": BLIND, "type": "server_error"})
    answer, (_, again) = await asked_gateway("/v1/messages", rl.MESSAGE | {"messages": seen}, make())
    assert answer.status == 200
    assert [part["type"] for part in again["messages"][2]["content"]] == ["text", "text"]
    later = [*shown, {"role": "assistant", "content": "no"}, {"role": "user", "content": "then read"}]
    assert (await asked_gateway("/v1/messages", rl.MESSAGE | {"messages": later}, make()))[0].status == 200
    answer, sent = await asked_gateway("/v1/messages", rl.MESSAGE | {"messages": shown}, make())
    assert (answer.status, BLIND in answer.body.decode(), len(sent)) == (400, True, 1)


WORDS = {
    "llama.cpp": ({"code": 400, "message": "request (900 tokens) exceeds the available context size (512 tokens), try"
                   " increasing it", "type": "exceed_context_size_error", "n_prompt_tokens": 900, "n_ctx": 512}),
    "vLLM": {"message": "This model's maximum context length is 512 tokens. However, you requested 950 tokens (900 in"
             " the messages, 50 in the completion). Please reduce the length", "type": "BadRequestError", "code": 400},
    "newer vLLM": {"message": "This model's maximum context length is 512 tokens. However, you requested 50 output"
                   " tokens and your prompt contains at least 900 input tokens, for a total of at least 950 tokens."},
    "SGLang": {"message": "The input (900 tokens) is longer than the model's context length (512 tokens)."},
    "SGLang's total": {"message": "Requested token count exceeds the model's maximum context length of 512 tokens. You"
                       " requested a total of 950 tokens: 900 tokens from the input messages and 50 tokens for the"
                       " completion."},
}  # fmt: skip


@pytest.mark.parametrize("error", WORDS.values(), ids=WORDS)
async def test_a_full_context_has_the_words_of_each_dialect(error):
    """Claude Code compacts its conversation then; Codex reads the code from a stream only."""
    async with rl.open_lab(rl.config_of(LLAMA), mac=rl.answer(400, {"error": error})) as lab:
        message = await lab.ask(rl.MESSAGE | {"stream": True}, "/v1/messages")
        chat = await lab.ask()
        response = await lab.ask({"model": "m", "input": "hi"}, "/v1/responses")
        status, events, is_clean = await lab.read({"model": "m", "input": "hi", "stream": True}, "/v1/responses")
    failure = json.loads(message.body)["error"]
    assert (failure["type"], failure["message"]) == (
        "invalid_request_error",
        "prompt is too long: 900 tokens > 512 maximum",
    )
    for each in (chat, response):
        found = json.loads(each.body)["error"]
        assert (each.status, found["code"], found["message"]) == (400, "context_length_exceeded", error["message"])
    failed = next(each for each in rl.events_of(events) if each["type"] == "response.failed")
    assert (status, failed["response"]["error"]["code"], is_clean) == (200, "context_length_exceeded", True)
    passed, _ = await asked_gateway(rl.CHAT, rl.ASKED, Refusing(b"messages", 400, error))
    assert json.loads(passed.body)["error"]["code"] == "context_length_exceeded"


async def test_an_answer_that_does_not_fit_is_not_a_prompt_that_is_too_long():
    """Nor is another error."""
    limit = "This model's maximum context length is 512 tokens"
    words = f"'max_tokens' is too large: 900. {limit} and your request has 10 input tokens"
    for text, code in ((words, "context_length_exceeded"), ("no such grammar", None)):
        async with rl.open_lab(rl.config_of(LLAMA), mac=rl.error(400, text)) as lab:
            error = json.loads((await lab.ask(rl.MESSAGE, "/v1/messages")).body)["error"]
        assert error["message"].startswith(text)
        assert error.get("code") == code


def wanted(pattern, **more):
    schema = {"type": "object", "properties": {"pattern": {"anyOf": [{"type": "string", "pattern": pattern}]}}}
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema | more, "strict": True}}


@pytest.mark.parametrize(
    ("pattern", "is_known"),
    [
        (r"^[a-z0-9_]+$", True), (r"^(?:ab|c)*d{2,3}\.\-$", True), (r"^$", True), (r"^é[^\]]?$", True),
        (r"^\w+$", False), (r"^\d{3}$", False), (r"^[\w-]+$", False), ("abc", False), (r"^(?=a)b$", False),
        (r"^\bfoo$", False), (r"^(?i)a$", False), (r"^a{x}$", False), (r"^a\/b$", False), (r"^a$b$", False),
    ],
)  # fmt: skip
async def test_a_strict_schema_that_llama_cpp_would_not_enforce_is_refused(pattern, is_known):
    """Before it is sent, on every path; data in the schema are not patterns."""
    form = wanted(pattern, default={"pattern": "free"})
    tools = [
        {"type": "function", "function": {"name": "f", "strict": True, "parameters": form["json_schema"]["schema"]}}
    ]
    requests = [
        (rl.CHAT, rl.ASKED | {"response_format": form}),
        (rl.CHAT, rl.ASKED | {"tools": tools}),
        ("/v1/messages", rl.MESSAGE | {"output_config": {"format": form["json_schema"] | {"type": "json_schema"}}}),
        ("/v1/responses", {"input": "hi", "text": {"format": form["json_schema"] | {"type": "json_schema"}}}),
    ]
    for path, body in requests:
        async with rl.open_lab(rl.config_of(LLAMA), mac=rl.answer()) as lab:
            at_router = await lab.ask(body | {"model": "m"}, path)
        at_gateway, sent = await asked_gateway(path, body)
        assert [at_router.status, at_gateway.status, len(sent)] == ([200, 200, 1] if is_known else [400, 400, 0])
        assert is_known or repr(pattern) in json.loads(at_gateway.body)["error"]["message"]


@pytest.mark.parametrize("name", ["default", "enum", "const", "examples", "properties", "items"])
@pytest.mark.parametrize("inside", ["properties", "$defs", "patternProperties"])
async def test_a_pattern_is_found_below_any_name(inside, name):
    """A member of a map of schemas is a schema; data with a pattern are none."""
    one = {"type": "string", "pattern": r"^\w$", "default": {"properties": {"x": {"pattern": "free"}}}}
    for pattern, status in ((r"^\w$", 400), ("^a$", 200)):
        schema = {"type": "object", inside: {name: one | {"pattern": pattern}}}
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
        async with rl.open_lab(rl.config_of(LLAMA), mac=rl.answer()) as lab:
            assert (await lab.ask(rl.ASKED | {"response_format": form})).status == status


async def test_another_engine_gets_the_schema():
    """Only llama.cpp is known to ignore it; without strict, it may."""
    loose = wanted(r"^\w+$")
    loose["json_schema"]["strict"] = False
    for backend, form in ((rl.local("mac"), wanted(r"^\w+$")), (LLAMA, loose)):
        (sent,), _ = await asked_engine(backend, rl.CHAT, rl.ASKED | {"response_format": form})
        assert sent["response_format"] == form


async def test_the_gateway_gives_the_engine_the_schema_of_an_answer():
    """llama.cpp's own paths for messages and responses would ignore it."""
    form = {"type": "json_schema", "schema": {"type": "object"}, "name": "x"}
    for path, body in (
        ("/v1/messages", rl.MESSAGE | {"output_config": {"format": form}}),
        ("/v1/responses", {"input": "hi", "text": {"format": form}}),
        ("/responses", {"input": "hi", "text": {"format": form}}),
    ):
        answer, (sent,) = await asked_gateway(path, body, Engine(messages={"by": "it"}, responses={"by": "it"}))
        assert (answer.status, sent["response_format"]["json_schema"]["schema"]) == (200, {"type": "object"})


async def test_prompts_with_another_billing_line_are_the_same_prompt():
    """The engine has it cached, whatever the line."""
    long = {"role": "user", "content": "word " * 200}
    engines = {name: rl.local(name, model="m", slots=2) for name in ("a", "b")}
    async with rl.open_lab(rl.config_of(*engines.values()), a=rl.answer(), b=rl.answer()) as lab:
        prompts = lab.router.calls.prefixes
        chats = [
            {"model": "m", "messages": [{"role": "system", "content": f"{BILLING % value}\nyou code"}, long]}
            for value in ("1", "2")
        ]
        one, two = (prompts.prompt("t", "/chat/completions", chat, 2000) for chat in chats)
    assert one.marks == two.marks
